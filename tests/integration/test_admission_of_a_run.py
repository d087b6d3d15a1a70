"""Admission with the real trainer over a real store: planted divergence, what is on record, and the step again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from driftline import cli_runs
from driftline.records import Group
from driftline.store.client import S3Store
from driftline.tracking import metrics
from driftline.training import base_model
from tests.integration.test_training_run import Trainer
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import reference_logprobs
from tests.support.training import VOCABULARY, GroupStream, new_run, parameters, tiny_model, trajectory

pytestmark = pytest.mark.timeout(900)
LIMITS = {"down_weight_k3_nats": 0.3, "drop_k3_nats": 1.0}


def sampled_group(model: Any, number: int, run: str, shifts: Sequence[float], rng: Random) -> Group:
    """Members sampled by the model, whose log-probabilities are told lower by a shift each, in nats."""
    members = []
    for member, shift in enumerate(shifts):
        tokens = [rng.randrange(VOCABULARY) for _ in range(12)]
        mask = [False, *(rng.random() < 0.6 for _ in range(10)), True]
        told = [0.0, *(value - shift for value in reference_logprobs(model, tokens))]
        members.append(
            trajectory(
                number,
                member,
                reward=float(member % 2),
                tokens=tokens,
                mask=mask,
                logprobs=[value if sampled else 0.0 for value, sampled in zip(told, mask, strict=True)],
                run=run,
            )
        )
    return Group(number, f"task-{number}", "v1", tuple(members))


def test_planted_divergence_is_dropped_or_lowered_and_the_step_can_be_run_again(
    s3_store: S3Store, seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from transformers import AutoModelForCausalLM

    directory = tiny_model(tmp_path / "model")
    source = base_model.publish(s3_store, "admit0123456789a" * 2, directory, "a tiny Llama")
    params = parameters(training={"steps": 1, "learning_rate": 1e-4}, admission=LIMITS)
    runs, rng = new_run(s3_store, "admission", params, source), Random(3)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()

    def group(number: int, *shifts: float) -> Group:
        return sampled_group(model, number, "admission", shifts, rng)

    mixed = group(1, 0.0, 4.0, 1.0, 0.0, 0.0, 0.0)
    broken = replace(mixed.trajectories[4], logprobs=(0.0, *[math.nan] * 11))
    mixed = replace(mixed, trajectories=(*mixed.trajectories[:4], broken, mixed.trajectories[5]))
    GroupStream(runs).write(group(0, 4.0, 0.0, 4.0, 4.0), mixed, group(2, 0.0, 0.0, 0.0, 0.0))
    trainer = Trainer("admission", seaweed, tmp_path)
    try:
        codes, events = trainer.end()
    finally:
        trainer.close()
    assert codes == [0], (tmp_path / "admission-0.log").read_text()[-3000:]
    assert events[-1]["event"] == "result"

    (record,) = runs.steps()
    assert [(gone.group, gone.reason.partition(":")[0]) for gone in record.give_ups] == [(0, "divergence")]
    first, second = record.groups
    assert [(use.verdict, use.reason) for use in first.uses] == [
        ("keep", ""),
        ("drop", "k3"),
        ("down_weight", "k3"),
        ("keep", ""),
        ("drop", "not_finite"),
        ("keep", ""),
    ]
    assert first.valid_members == 5
    far, less_far = first.uses[1].segments[0], first.uses[2].segments[0]
    assert far.k3 == pytest.approx(math.exp(4) - 5, rel=1e-3)
    assert less_far.k3 == pytest.approx(math.e - 2, rel=1e-3)
    assert first.uses[2].weight == pytest.approx(0.3 / (math.e - 2), rel=1e-3)
    assert {use.verdict for use in second.uses} == {"keep"}
    assert max(use.segments[0].k3 for use in second.uses) < 1e-6, "identical weights"
    ledger = record.ledger
    assert ledger is not None
    assert ledger.imbalance == 0
    gone = record.give_ups[0].uses
    dropped = [use.sampled_tokens for use in (*gone, *first.uses) if use.reason == "k3" and use.verdict == "drop"]
    assert ledger.stale_by == {"group": gone[1].sampled_tokens, "k3": sum(dropped)}
    assert ledger.failed == first.uses[4].sampled_tokens
    kept = [use for use in (*first.uses, *second.uses) if use.weight > 0]
    assert ledger.trained == sum(use.trained_tokens for use in kept) == sum(use.sampled_tokens for use in kept)
    assert record.metrics[metrics.ADMISSION_SCORE_SECONDS] > 0

    for name, value in {**seaweed.environment, "DRIFTLINE_WORK_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    log: list[str] = []
    result = cli_runs.replay(runs, 1, log.append)
    assert result["agrees"], (result, log)
    for name in (metrics.LOSS, metrics.GRADIENT_NORM, metrics.K3, metrics.ESS_FRACTION):
        assert result["figures"][name]["replay"] == pytest.approx(record.metrics[name], abs=1e-5, rel=1e-5)
    assert abs(record.metrics[metrics.LOSS]) > 1e-3
