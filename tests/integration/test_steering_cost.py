"""What measuring divergence and being steered by it add to a real step of the demonstration's size."""

from __future__ import annotations

import logging
import math
import statistics
from pathlib import Path
from random import Random

import pytest

from driftline.engine.tokens import save_character_tokenizer
from driftline.records import Group
from driftline.store.client import S3Store
from driftline.tracking import metrics
from driftline.training import base_model
from environments import FAMILIES
from tests.integration.test_training_run import Trainer
from tests.support.seaweed import Seaweed
from tests.support.tiny_llama import VOCABULARY, tiny_llama
from tests.support.training import GroupStream, new_run, parameters, trajectory

log = logging.getLogger(__name__)

pytestmark = pytest.mark.timeout(900)
STEPS, GROUPS, MEMBERS = 5, 16, 8
MOST_SHARE = 0.03
LENGTHS = (20, 20, 20, 24, 32, 60, 100, 141)
"""Tokens of the members of a group, as pointer chase has them: median 20 to 30, 95% 141."""


def sampled_group(number: int, run: str, rng: Random) -> Group:
    """Members of a policy that gives each token the same probability, as an untrained model nearly does."""
    made = []
    for member, length in enumerate(LENGTHS):
        mask = [False] * 4 + [rng.random() < 0.5 for _ in range(length - 5)] + [True]
        made.append(
            trajectory(
                number,
                member,
                reward=float(rng.random() < 0.5),
                tokens=[rng.randrange(VOCABULARY) for _ in range(length)],
                mask=mask,
                logprobs=[-math.log(VOCABULARY) if sampled else 0.0 for sampled in mask],
                run=run,
            )
        )
    return Group(number, f"task-{number}", "v1", tuple(made))


def test_steering_adds_less_than_three_hundredths_to_a_step(s3_store: S3Store, seaweed: Seaweed, tmp_path: Path):
    """The trainer never waits here, so that all of it is on the steps' way; a run that waits has less of it there."""
    directory = tmp_path / "model"
    tiny_llama(3).save_pretrained(directory)
    alphabet = FAMILIES["pointer_chase/v1"].alphabet
    assert alphabet is not None
    save_character_tokenizer(alphabet, directory, max_length=512)
    source = base_model.publish(s3_store, "cost0123456789ab" * 2, directory, "the demonstration's Llama")
    params = parameters(
        rollout={"group_size": MEMBERS, "groups_per_step": GROUPS},
        overlap={"controller": "divergence", "lead_groups": GROUPS, "max_lag_versions": 8, "budget_k3_nats": 0.5},
        training={"steps": STEPS, "micro_batch_tokens": 4096, "learning_rate": 1e-5},
        engine={"max_model_len": 512},
    )
    run_store, rng = new_run(s3_store, "steering-cost", params, source), Random(11)
    stream = GroupStream(run_store)
    for number in range(STEPS * GROUPS):
        stream.write(sampled_group(number, "steering-cost", rng))
    trainer = Trainer("steering-cost", seaweed, tmp_path)
    try:
        codes, _ = trainer.end()
    finally:
        trainer.close()
    assert codes == [0], (tmp_path / "steering-cost-0.log").read_text()[-3000:]
    records = run_store.steps()
    assert all(record.metrics[metrics.ADMISSION_SCORE_SECONDS] > 0 for record in records), "groups were scored"
    assert all(sum(use.sampled_tokens for use in record.groups) > 1000 for record in records)
    shares = [
        record.metrics[metrics.STEERING_SECONDS] / record.metrics[metrics.STEP_SECONDS] for record in records[1:]
    ]
    log.info(
        "steering: %s of a step, of %.2f s",
        shares,
        statistics.median(r.metrics[metrics.STEP_SECONDS] for r in records),
    )
    assert 0.0 < statistics.median(shares) < MOST_SHARE, shares
