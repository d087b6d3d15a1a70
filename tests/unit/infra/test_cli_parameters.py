"""Parameters from a command line: how they are read, and that each mistake is one line with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftline.cli_parameters import check, merged, read
from driftline.errors import ConfigurationError


def test_values_are_json_or_text_and_later_ones_go_first() -> None:
    given = ["training.steps=40", "training.steps=50", "training.dtype=bfloat16", "engine.cpus=[0, 1]", "seed=7"]
    given += ["environment.id=a/v1 * 3 + b/v1", 'environment={"task_set": "x=y"}', "model.directory=null"]
    assert read(given) == {
        "training": {"steps": 50, "dtype": "bfloat16"},
        "engine": {"cpus": [0, 1]},
        "seed": 7,
        "environment": {"id": "a/v1 * 3 + b/v1", "task_set": "x=y"},
        "model": {"directory": None},
    }


def test_all_of_them_as_prefect_takes_them() -> None:
    assert read(['params={"seed": 1, "training": {"steps": 2}}', "training.ranks=2"]) == {
        "seed": 1,
        "training": {"steps": 2, "ranks": 2},
    }


@pytest.mark.parametrize("given", ["training.steps", "=3", "training.=3", ".steps=3", "params=3", ""])
def test_what_names_nothing(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--param .*as in --param training\.steps=40$"):
        read([given])


def test_what_is_given_goes_over_what_a_deployment_has() -> None:
    base = {"seed": 1, "model": {"source": "smollm2", "rendering": "chat"}}
    given = {"model": {"rendering": "plain"}, "training": {"steps": 2}}
    assert merged(base, given) == {
        "seed": 1,
        "model": {"source": "smollm2", "rendering": "plain"},
        "training": {"steps": 2},
    }
    assert base["model"] == {"source": "smollm2", "rendering": "chat"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("training.stpes=4", "training.stpes: there is no such parameter: did you mean 'training.steps'?"),
        ("trainng.steps=4", "trainng: there is no such parameter: did you mean 'training'?"),
        ("steps=4", "steps: there is no such parameter: did you mean 'training.steps'?"),
        ("engine.steps=4", "engine.steps: there is no such parameter: did you mean 'training.steps'?"),
        ("leaning_rate=1", "leaning_rate: there is no such parameter: did you mean 'training.learning_rate'?"),
        ("lora.xyz=1", "lora.xyz: there is no such parameter: known: lora.rank, lora.alpha, lora.targets"),
        ("training.steps=0", "training.steps: input should be greater than or equal to 1, not 0"),
        ("model.source=hf", "model.source: input should be 'warm_start', 'directory' or 'smollm2', not \"hf\""),
        (
            "overlap.lead_groups=1000",
            "overlap.lead_groups: groups would start further ahead than overlap.max_lag_versions allows: lower it to "
            "128 or raise the limit",
        ),
        (
            "environment.id=pointer_chase/v2",
            "environment.id: no environment 'pointer_chase/v2': did you mean 'pointer_chase/v1'?",
        ),
    ],
)
def test_what_is_wrong_is_one_line(given: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check(read([given]))
    assert str(caught.value) == said


def test_the_sections_where_nothing_is_meant() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^qqq: there is no such parameter: known: seed, model, .*, tracking$"
    ):
        check({"qqq": 1})


def test_each_mistake_has_its_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check(read(["training.steps=0", "seed=-1"]))
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["seed", "training.steps"]


def test_a_model_directory_that_is_none_is_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.directory: .*it has no config\.json"):
        check({"model": {"source": "directory", "directory": str(tmp_path)}})


def test_what_can_be_is_returned() -> None:
    assert check(read(["training.steps=4", "seed=3"])).training.steps == 4
