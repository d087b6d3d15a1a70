"""The report of a run, from the store alone."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import cast

import pytest
from rich.console import Console

from driftline.errors import ConfigurationError
from driftline.records import (
    Diagnosis,
    EpisodeCounts,
    EvaluationResult,
    Head,
    HeldOutOutcome,
    PolicyVersion,
    TokenLedger,
)
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.model_card import model_card
from driftline.tracking.report import build_report, render, render_html, rows, to_dict, to_json, told
from tests.support.tracking_records import description, span, step_record, use

VERDICT = {
    "bound": "engine",
    "part": "decode",
    "why": "engine: 60% of a step of 10.00 s, most of it decode (6.00 s); then trainer 20%, store 20%",
    "changes": [
        "rollout.cells: more cells share the groups, each with engines of its own",
        "engine.replicas: more engines in a cell (vllm_server)",
        "engine.tensor_parallel_size: more GPUs an engine",
        "rollout.max_tokens_per_turn: lower it, where turns run to it",
    ],
    "shares": {"engine": 0.6, "tools": 0, "stragglers": 0, "trainer": 0.2, "store": 0.2},
    "seconds_per_step": {**dict.fromkeys(metrics.CAUSES, 0), "decode": 6, "train": 2, "weights": 2, "claim": 0},
    "steps": 1,
}
NO_CAUSE = dict.fromkeys(metrics.CAUSES, 0)
ATTRIBUTION = {
    "step_s": {**NO_CAUSE, "decode": 6, "train": 2, "weights": 2},
    "idle_s": {
        "rollout": {"apply": 0, "claim": 0, "trainer": 0, "other": 3},
        "train": {**NO_CAUSE, "decode": 6, "weights": 2},
    },
    "idle_cost": {"rollout": None, "train": None},
    "verdict": VERDICT,
    "verdict_last_steps": VERDICT,
}
NOT_EVALUATED = {"held_out_success_base": None, "held_out_success_final": None}
HEAD = Head(1, 0, PolicyVersion(0, 1), None, 0, (), 16, ((0, "tasks-1"),))


def run_of_one_step(store: MemoryStore, run: str = "r") -> RunStore:
    subject = RunStore(store, run)
    subject.create(description(run))
    etag = subject.create_head(HEAD)
    record = dataclasses.replace(
        step_record(
            1,
            previous_commit=100,
            batch_ready=106,
            train=(106, 108),
            committed=110,
            uses=[use(0, lag_mean=0.25, lag_max=1), use(1, weight=0.0, lag_mean=0.25, lag_max=0)],
            metrics={
                metrics.K3: 0.0125,
                metrics.ESS_FRACTION: 0.5,
                metrics.REWARD_MEAN: 0.75,
                metrics.EFFECTIVE_LEAD_GROUPS: 4.0,
                metrics.BUDGET_SHARE: 1.25,
                metrics.ADMISSION_DROPPED_SHARE: 0.125,
            },
            parts={"decode": 6.0},
            failed=[5],
        ),
        run=run,
        lead_groups=12,
        lead_why="over budget",
        diagnosis=Diagnosis("staleness", "it is stale", {"k3_nats": 0.0125}),
        ledger=TokenLedger(100, 60, 0, 5, 10, 4, 6, 1, 2, 7, 3, 1, {"killed": 10}, ()),
        episodes={"chase/v1": EpisodeCounts(8, 3, 1)},
    )
    key = subject.write_step(record)
    head = dataclasses.replace(HEAD, step=1, version=PolicyVersion(1, 1), record=key, given_up=(6,), state="finished")
    subject.swap_head(head, etag)
    subject.append_spans("cell-0", 0, [span("rollout", 101, 108), span("apply", 100, 100.25, "pause")])
    subject.write_evaluation(EvaluationResult(0, 256, 256, 0.40625, 0.4, 0, 3.0))
    subject.write_evaluation(EvaluationResult(1, 256, 256, 0.90625, 0.9, 0, 3.0))
    return subject


def test_json_has_the_promised_keys_and_values() -> None:
    store = MemoryStore()
    run_of_one_step(store)
    assert json.loads(to_json(build_report(store, "r", bucket="b"))) == {
        "run": "r",
        "steps": 1,
        "held_out_success_base": 0.40625,
        "held_out_success_final": 0.90625,
        "environments": {"chase/v1": {**NOT_EVALUATED, "episodes": 8, "failures": 3, "timeouts": 1}},
        "wall_clock_s": 10,
        "time_to_trainable_batch_s": {"p50": 6, "p95": 6},
        "overlap_efficiency": 0.7,
        "idle_share": {"rollout": pytest.approx(0.3), "train": 0.8},
        "k3_nats": 0.0125,
        "ess_fraction": 0.5,
        "admission": {"dropped_share": 0.125, "down_weighted_share": None},
        "lag_steps": {"mean": 0.25, "max": 1},
        "engine_pause_s": {"p50": 0.25, "max": 0.25},
        "pipeline_overhead_s": {"p50": 3},
        "groups": {"trained": 1, "zero_variance": 1, "failed": 2},
        "mlflow_run": "m1",
        "store": "s3://b/runs/r/",
        "model": None,
        "ledger": {
            "balances": False,
            "generated": 100,
            "trained": 60,
            "masked": 0,
            "stale": 5,
            "cancelled": 10,
            "failed": 4,
            "zero_variance": 6,
            "surplus": 1,
            "probe": 2,
            "ready": 7,
            "in_flight": 3,
            "lost": 1,
            "masked_by": {},
            "stale_by": {},
            "cancelled_by": {"killed": 10},
            "unbalanced_steps": {"1": 1},
        },
        "overlap": {
            "lead_groups": {"first": 12, "last": 12, "mean": 12},
            "effective_lead_groups_mean": 4,
            "budget_share_mean": 1.25,
            "decisions": {"over budget": 1},
        },
        "diagnosis": {
            "cause": "staleness",
            "why": "it is stale",
            "engine": "",
            "figures": {"k3_nats": 0.0125},
            "steps_by_cause": {"staleness": 1},
        },
        "bias": None,
        "warnings": [],
        "attribution": ATTRIBUTION,
    }
    assert "staleness: it is stale (steps: 1 staleness)" in render(build_report(store, "r", bucket="b"))
    assert "OUT OF BALANCE in steps 1" in render(build_report(store, "r", bucket="b"))


def test_a_mixture_has_held_out_success_by_environment() -> None:
    store = MemoryStore()
    subject = run_of_one_step(store)
    for version, chase, dice in ((0, 0.25, None), (1, 0.75, 0.5)):
        found = {"chase/v1": HeldOutOutcome(8, 8, chase, chase, 0), "dice/v1": HeldOutOutcome(4, 4, dice, dice, 4)}
        subject.write_evaluation(EvaluationResult(version, 12, 12, 0.5, 0.5, 0, 3.0, found))
    report, counts = build_report(store, "r", bucket="b"), {"episodes": 8, "failures": 3, "timeouts": 1}
    assert to_dict(report)["environments"] == {
        "chase/v1": NOT_EVALUATED | counts | {"held_out_success_base": 0.25, "held_out_success_final": 0.75},
        "dice/v1": NOT_EVALUATED | dict.fromkeys(counts, 0) | {"held_out_success_final": 0.5},
    }
    shown = dict(rows(report))
    assert (shown["  chase/v1"], shown["  dice/v1"]) == ("0.250 -> 0.750", "- -> 0.500")
    assert shown["episodes failed / of these out of time"] == "chase/v1 3 / 1 of 8"
    card = model_card(report, subject.describe())
    assert "| Held-out success in `dice/v1`, before and after | not measured, 0.500 |\n| Divergence" in card


@pytest.mark.parametrize(("groups", "told"), [(1, "1 group"), (2, "2 groups")])
def test_a_run_without_any_variance_is_told_that_nothing_was_learned(groups: int, told: str) -> None:
    store = MemoryStore()
    subject = RunStore(store, "r")
    subject.create(description())
    etag = subject.create_head(HEAD)
    record = step_record(
        1, previous_commit=100, batch_ready=106, train=(106, 108), committed=110,
        uses=[use(number, weight=0.0) for number in range(groups)],
        metrics={metrics.REWARD_MEAN: 0.0},
    )  # fmt: skip
    subject.swap_head(dataclasses.replace(HEAD, step=1, record=subject.write_step(record)), etag)
    report = build_report(store, "r", bucket="b")
    [warning] = to_dict(report)["warnings"]
    assert warning.startswith(
        f"no group's rewards differed ({told}, training reward 0.000 -> 0.000): nothing was learned"
    )
    assert dict(rows(report))["WARNING: nothing was learned"] == warning


def test_a_run_that_has_just_begun_reports_nulls() -> None:
    store = MemoryStore()
    subject = RunStore(store, "r")
    subject.create(description())
    before_head = build_report(store, "r")
    assert before_head.state == "not started"
    subject.create_head(HEAD)
    subject.write_evaluation(EvaluationResult(0, 256, 256, 0.4, 0.4, 0, 3.0))
    found = to_dict(build_report(store, "r"))
    assert (found["steps"], found["held_out_success_base"], found["held_out_success_final"]) == (0, 0.4, None)
    assert found["wall_clock_s"] is None
    assert found["time_to_trainable_batch_s"] == {"p50": None, "p95": None}
    assert found["idle_share"] == {"rollout": None, "train": None}
    assert found["groups"] == {"trained": 0, "zero_variance": 0, "failed": 0}
    assert "held-out success, base -> final         │ 0.400 -> -" in render(build_report(store, "r"))


def test_idle_seconds_have_a_cost_where_the_run_has_prices() -> None:
    store = MemoryStore()
    subject = RunStore(store, "r")
    about = description()
    subject.create(
        dataclasses.replace(about, parameters={"tracking": {"train_gpu_hour_price": 450.0}, "training": {"ranks": 2}})
    )
    record = step_record(
        1, previous_commit=100, batch_ready=106, train=(106, 108), committed=110, metrics={metrics.K3: 0.1}
    )
    subject.create_head(dataclasses.replace(HEAD, step=1, record=subject.write_step(record)))
    found = build_report(store, "r")
    assert to_dict(found)["attribution"]["idle_cost"] == {"rollout": None, "train": pytest.approx(2.0)}
    assert "; cost 2.00" in render(found)
    assert "rollout pool idle" not in render(found), "no cell has told"


def test_latest_is_the_run_created_last() -> None:
    store = MemoryStore()
    for name, created in (("b", 30.0), ("c", 10.0), ("a", 20.0)):
        RunStore(store, name).create(description(name, created=created))
    assert build_report(store, "latest").run == "b"


def test_a_run_that_does_not_exist_is_refused_with_those_that_do() -> None:
    store = MemoryStore()
    with pytest.raises(ConfigurationError, match="no run yet"):
        build_report(store, "latest")
    RunStore(store, "demo").create(description("demo"))
    with pytest.raises(ConfigurationError, match="no run 'dmo' in the store: choose one of \\(demo\\)"):
        build_report(store, "dmo")


def test_the_table_shows_the_figures_and_the_given_pages_only() -> None:
    store = MemoryStore()
    run_of_one_step(store)
    text = render(build_report(store, "r", bucket="b", pages={"MLflow page": "http://127.0.0.1:5000/#/x"}))
    lines = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in text.splitlines() if "│" in line}
    assert lines["held-out success, base -> final"] == "0.406 -> 0.906"
    assert lines["divergence k3"] == "0.01250 nats"
    assert lines["overlap efficiency, p50"] == "0.700"
    assert lines["idle share, rollout / train pool"] == "0.300 / 0.800"
    assert lines["engine pause, p50 / max"] == "0.250 s / 0.250 s"
    assert lines["where a step's time went (mean)"] == "decode 6.00 s, train 2.00 s, weights 2.00 s"
    assert lines["train pool idle in a step (mean)"] == "decode 6.00 s, weights 2.00 s"
    assert lines["bound by"].startswith("engine: 60% of a step of 10.00 s")
    assert "objects      s3://b/runs/r/\nMLflow page  http://127.0.0.1:5000/#/x\n" in text
    assert text.splitlines()[-1].endswith("docs/metrics.md")
    assert "http" not in render(build_report(store, "r", bucket="b"))
    assert "0.406 -&gt; 0.906" in render_html(build_report(store, "r", bucket="b"))


def test_what_is_to_be_copied_is_never_wrapped_or_cut() -> None:
    store, run, page = MemoryStore(), "20261130-195055-" + "2861f0" * 20, "http://127.0.0.1:5000/#/" + "x" * 120
    run_of_one_step(store, run)
    found = build_report(store, run, bucket="b", pages={"MLflow page": page})
    for text in (render(found), render_html(found)):
        assert all(one in text for one in (f"run {run} (", f"s3://b/runs/{run}/", page))
    narrow = Console(file=io.StringIO(), width=80, soft_wrap=True)
    narrow.print(told(found))
    said = cast(io.StringIO, narrow.file).getvalue()
    assert all(one in said for one in (f"run {run} (", f"s3://b/runs/{run}/\n", page))


def test_a_run_is_finished_when_its_policy_is_exported() -> None:
    store = MemoryStore()
    run_of_one_step(store)
    assert "run r (trained; evaluation and export are still to come)" in render(build_report(store, "r"))
    store.put("runs/r/model/config.json", b"{}")
    found = build_report(store, "r", bucket="b")
    assert "run r (finished)\n" in render(found)
    assert "trained policy  s3://b/runs/r/model/\n" in render(found)
    assert to_dict(found)["model"] == "s3://b/runs/r/model/"


def test_the_model_card_says_what_was_measured_and_what_was_not() -> None:
    store = MemoryStore()
    subject = run_of_one_step(store)
    card = model_card(build_report(store, "r", bucket="b"), subject.describe())
    for line in (
        "| Base model | warm-started Llama (`d1`) |",
        "| Task set | `tasks-1` |",
        "| Optimizer steps | 1 |",
        "| Held-out success before | 0.406 |",
        "| Held-out success after | 0.906 |",
        "| Divergence while training, k3 | 0.0125 nats |",
        "| Lag in policy versions, max | 1 |",
        "| Stored at | s3://b/runs/r/ |",
    ):
        assert line in card.splitlines()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert 'AutoModelForCausalLM.from_pretrained("PATH_OF_THIS_DIRECTORY")' in card
    assert 'LLM("PATH_OF_THIS_DIRECTORY")' in card
    empty = MemoryStore()
    RunStore(empty, "r").create(description())
    bare = model_card(build_report(empty, "r"), description())
    assert "| Held-out success after | not measured |" in bare
    assert "| Divergence while training, k3 | not measured nats |" not in bare
