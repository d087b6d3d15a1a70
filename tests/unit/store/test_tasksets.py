"""Task sets: what a version is, what publishing refuses, and that crashes and repetitions do no harm."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest

from driftline.environment import Task
from driftline.errors import ConfigurationError, CorruptObject, ObjectMissing, PreconditionFailed
from driftline.store import keys, tasksets
from driftline.store.memory import MemoryStore
from driftline.store.tasksets import TaskNote

NAME = "pointer-chase"
HELD_OUT = "pointer-chase-held-out"


def tasks(*numbers: int, environment: str = "pointer_chase/v1") -> list[Task]:
    return [Task.create(environment, {"n": n, "nested": {"text": "é\n", "list": [1, None, 2.5]}}) for n in numbers]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_what_is_published_is_loaded_in_the_order_of_ids(store: MemoryStore) -> None:
    train, held_out = tasks(1, 2, 3), tasks(8, 9)
    version = tasksets.publish(store, NAME, train, held_out=held_out, lineage={"seed": "7"}, statistics={"p50": 4.0})
    assert tasksets.load(store, NAME, version) == sorted(train, key=lambda t: t.id)
    head = tasksets.head(store, NAME)
    assert (head.version, head.previous) == (version, None)
    held_out_version = tasksets.head(store, HELD_OUT).version
    assert tasksets.load(store, HELD_OUT, held_out_version) == sorted(held_out, key=lambda t: t.id)
    manifest = tasksets.manifest(store, NAME, version)
    assert (manifest.split, manifest.tasks, manifest.environments) == ("train", 3, {"pointer_chase/v1": 3})
    assert (manifest.lineage, manifest.statistics) == ({"seed": "7"}, {"p50": 4.0})
    assert tasksets.manifest(store, HELD_OUT, held_out_version).split == "held-out"


def test_the_version_is_of_the_contents_alone(store: MemoryStore) -> None:
    one, two = tasks(1, 2)
    assert tasksets.content_version([one, two]) == tasksets.content_version([two, one])
    different = [
        [one],
        [one, replace(two, payload={"n": 3})],
        [one, replace(two, environment="other/v1")],
        [one, replace(two, id="x")],
    ]
    versions = {tasksets.content_version(t) for t in [[one, two], *different]}
    assert len(versions) == 5


def test_publishing_again_changes_nothing(store: MemoryStore) -> None:
    first = tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(9), lineage={"by": "first"})
    before = {info.key: store.get(info.key).body for info in store.list("")}
    again = tasksets.publish(store, NAME, tasks(2, 1), held_out=tasks(9), lineage={"by": "second"})
    assert again == first
    assert {info.key: store.get(info.key).body for info in store.list("")} == before


def test_a_new_version_keeps_the_old_one_and_the_held_out_tasks(store: MemoryStore) -> None:
    first = tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(9))
    second = tasksets.publish(store, NAME, tasks(2, 3))
    head = tasksets.head(store, NAME)
    assert (head.version, head.previous) == (second, first)
    assert len(tasksets.load(store, NAME, first)) == 2
    assert tasksets.load(store, HELD_OUT, tasksets.head(store, HELD_OUT).version) == tasks(9)
    assert tasksets.publish(store, NAME, tasks(1, 2)) == first
    assert tasksets.head(store, NAME).version == first


def test_a_task_in_both_sets_is_refused(store: MemoryStore) -> None:
    with pytest.raises(ConfigurationError, match="1 tasks of 'pointer-chase' are also held out"):
        tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(2, 3))
    disguised = [replace(tasks(2)[0], id="another-id")]
    with pytest.raises(ConfigurationError, match="also held out"):
        tasksets.publish(store, NAME, tasks(1, 2), held_out=disguised)
    assert list(store.list("")) == []


def test_a_task_that_was_held_out_before_is_refused(store: MemoryStore) -> None:
    version = tasksets.publish(store, NAME, tasks(1), held_out=tasks(9))
    with pytest.raises(ConfigurationError, match="also held out"):
        tasksets.publish(store, NAME, tasks(2, 9))
    assert tasksets.head(store, NAME).version == version


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": []}, "'pointer-chase' would be empty"),
        ({"held_out": []}, "'pointer-chase-held-out' would be empty"),
        ({"tasks": [*tasks(1), *tasks(1)]}, "has the id .* twice"),
        ({"tasks": [*tasks(1), replace(tasks(1)[0], id="x")]}, "has the content .* twice"),
        ({"held_out": [*tasks(9), *tasks(9)]}, "has the id .* twice"),
    ],
)
def test_impossible_sets_are_refused(store: MemoryStore, changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"tasks": tasks(1), "held_out": tasks(9)} | changes
    with pytest.raises(ConfigurationError, match=message):
        tasksets.publish(store, NAME, arguments["tasks"], held_out=arguments["held_out"])
    assert list(store.list("")) == []


def test_what_was_never_published_is_missing(store: MemoryStore) -> None:
    with pytest.raises(ObjectMissing, match="run the environment refresh first"):
        tasksets.head(store, NAME)
    with pytest.raises(ObjectMissing):
        tasksets.load(store, NAME, "0" * 16)


def test_a_publication_that_was_cut_short_is_completed(store: MemoryStore) -> None:
    version = tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(9))
    prefix = keys.task_set_prefix(NAME, version)
    store.delete([f"{prefix}manifest.json", keys.task_set_head(NAME)])
    store.put(f"{prefix}tasks.parquet", b"half")
    assert tasksets.publish(store, NAME, tasks(1, 2)) == version
    assert tasksets.head(store, NAME).version == version
    assert len(tasksets.load(store, NAME, version)) == 2


def test_racing_publishers_leave_a_whole_version(store: MemoryStore) -> None:
    with ThreadPoolExecutor(4) as pool:
        versions = list(pool.map(lambda n: tasksets.publish(store, NAME, tasks(n % 2)), range(8)))
    assert set(versions) == {tasksets.content_version(tasks(0)), tasksets.content_version(tasks(1))}
    assert tasksets.load(store, NAME, tasksets.head(store, NAME).version) in (tasks(0), tasks(1))


def test_damage_is_found(store: MemoryStore) -> None:
    version = tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(9))
    key = f"{keys.task_set_prefix(NAME, version)}tasks.parquet"
    body = store.get(key).body
    store.put(key, body[:-9])
    with pytest.raises(CorruptObject, match="its manifest says"):
        tasksets.load(store, NAME, version)
    other = tasksets.publish(store, NAME, tasks(3, 4))
    manifest_key = f"{keys.task_set_prefix(NAME, version)}manifest.json"
    store.put(manifest_key, store.get(f"{keys.task_set_prefix(NAME, other)}manifest.json").body)
    with pytest.raises(CorruptObject, match="describes pointer-chase"):
        tasksets.load(store, NAME, version)


def test_the_file_opens_as_plain_parquet(store: MemoryStore) -> None:
    version = tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(9))
    body = store.get(f"{keys.task_set_prefix(NAME, version)}tasks.parquet").body
    rows = pq.read_table(io.BytesIO(body)).to_pylist()
    assert sorted(rows[0]) == ["environment", "id", "payload", "split"]
    assert {row["split"] for row in rows} == {"train"}
    assert [row["id"] for row in rows] == sorted(t.id for t in tasks(1, 2))


NOTES = {t.id: TaskNote("useful" if n else "too_hard", n, 8, 4 * n) for n, t in enumerate(tasks(1, 2))}
WEIGHTS = {"useful": 0.8, "too_hard": 0.2}


def test_pools_levels_and_solve_rates_are_part_of_a_version(store: MemoryStore) -> None:
    plain = tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(9))
    version = tasksets.publish(store, NAME, tasks(1, 2), notes=NOTES, weights=WEIGHTS, parent=plain)
    found, manifest = tasksets.load_set(store, NAME, version), tasksets.manifest(store, NAME, version)
    assert (found.notes, found.weights) == (NOTES, WEIGHTS)
    assert {pool: [found.tasks[i].id for i in members] for pool, members in found.members.items()} == {
        "too_hard": [tasks(1)[0].id],
        "useful": [tasks(2)[0].id],
    }
    assert (manifest.parent, manifest.pools, manifest.weights) == (plain, {"too_hard": 1, "useful": 1}, WEIGHTS)
    assert tasksets.load(store, NAME, version) == tasksets.load(store, NAME, plain)
    other = {"useful": 0.7, "too_hard": 0.3}
    versions = {
        plain,
        version,
        tasksets.publish(store, NAME, tasks(1, 2), notes=NOTES, weights=other),
        tasksets.publish(
            store, NAME, tasks(1, 2), notes=dict.fromkeys(NOTES, TaskNote("useful")), weights={"useful": 1.0}
        ),
    }
    assert len(versions) == 4


def test_a_version_of_before_there_were_pools_is_read(store: MemoryStore) -> None:
    version = tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(9))
    key = f"{keys.task_set_prefix(NAME, version)}manifest.json"
    old = json.loads(store.get(key).body)
    for name in ("parent", "pools", "weights"):
        del old[name]
    store.put(key, json.dumps(old).encode())
    assert tasksets.load_set(store, NAME, version).members == {}
    assert tasksets.manifest(store, NAME, version).parent is None


def test_ancestors_are_followed_back(store: MemoryStore) -> None:
    first = tasksets.publish(store, NAME, tasks(1), held_out=tasks(9))
    second = tasksets.publish(store, NAME, tasks(1, 2), parent=first)
    third = tasksets.publish(store, NAME, tasks(1, 2, 3), parent=second)
    assert [*tasksets.ancestors(store, NAME, third)] == [second, first]
    assert [*tasksets.ancestors(store, NAME, first)] == []
    store.delete([f"{keys.task_set_prefix(NAME, second)}manifest.json"])
    assert [*tasksets.ancestors(store, NAME, third)] == [second]


def test_a_version_that_others_were_made_from_does_not_become_the_newest_again(store: MemoryStore) -> None:
    first = tasksets.publish(store, NAME, tasks(1), held_out=tasks(9))
    second = tasksets.publish(store, NAME, tasks(1, 2), parent=first)
    third = tasksets.publish(store, NAME, tasks(1, 2, 3), parent=second)
    for again in (tasks(1), tasks(1, 2)):
        tasksets.publish(store, NAME, again)
        assert tasksets.head(store, NAME).version == third


def test_of_two_versions_made_from_one_the_first_stays_the_newest(store: MemoryStore) -> None:
    first = tasksets.publish(store, NAME, tasks(1), held_out=tasks(9))
    second = tasksets.publish(store, NAME, tasks(1, 2), parent=first)
    with pytest.raises(PreconditionFailed, match=r"was published meanwhile.*another seed"):
        tasksets.publish(store, NAME, tasks(1, 3), parent=first)
    third = tasksets.publish(store, NAME, tasks(1, 2, 3), parent=second)
    with pytest.raises(PreconditionFailed, match=f"{third} was published meanwhile"):
        tasksets.publish(store, NAME, tasks(1, 4), parent=first)
    assert tasksets.head(store, NAME).version == third
    other_line = tasksets.publish(store, NAME, tasks(5))
    assert tasksets.head(store, NAME).version == other_line


@pytest.mark.parametrize(
    "about",
    [
        {"notes": {tasks(1)[0].id: TaskNote("useful")}, "weights": {"useful": 1.0}},
        {"notes": NOTES, "weights": {}},
        {"notes": NOTES, "weights": {"useful": 1.0, "other": 1.0}},
        {"notes": NOTES, "weights": {"useful": 0.0}},
        {"weights": {"useful": 1.0}},
    ],
)
def test_half_noted_sets_are_refused(store: MemoryStore, about: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"note the pool|weights"):
        tasksets.publish(store, NAME, tasks(1, 2), held_out=tasks(9), **about)
