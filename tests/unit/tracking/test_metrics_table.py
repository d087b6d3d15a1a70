"""The one table of metric names."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftline.errors import ConfigurationError
from driftline.tracking import metrics

REQUIRED = [
    "rollout/reward_mean",
    "rollout/success_mean",
    "train/loss",
    "train/gradient_norm",
    "train/entropy_nats",
    "divergence/k3_nats",
    "divergence/ess_fraction",
    "lag/steps_mean",
    "lag/steps_max",
    "lag/seconds_mean",
    "lag/seconds_max",
    "time_to_batch/seconds",
    "train/seconds",
    "publish/seconds",
    "apply/seconds",
    "apply/engine_pause_seconds",
    "idle/rollout_share",
    "idle/train_share",
    "engine/tokens_per_second",
    "train/tokens_per_second",
    "rollout/episode_tokens_p50",
    "rollout/episode_tokens_p95",
    "rollout/episode_tokens_max",
    "rollout/episode_seconds_p50",
    "rollout/episode_seconds_p95",
    "rollout/episode_seconds_max",
    "groups/trained",
    "groups/zero_variance",
    "groups/failed",
    "importance/raw_mean",
    "importance/applied_mean",
    "step/pipeline_overhead_seconds",
    "step/overlap_efficiency",
    "evaluation/success",
]


def test_holds_every_promised_metric() -> None:
    assert set(REQUIRED) <= set(metrics.TABLE)


def test_a_row_is_complete_and_its_name_carries_its_unit() -> None:
    for name, row in metrics.TABLE.items():
        assert row.name == name
        assert row.meaning.endswith(".")
        assert ("seconds" in name) == (row.unit == "s"), name
        assert ("nats" in name) == (row.unit == "nats"), name


def test_each_cause_of_the_critical_path_has_a_metric() -> None:
    assert list(metrics.TIME_TO_BATCH_BY_CAUSE) == list(metrics.CAUSES)
    assert metrics.TIME_TO_BATCH_BY_CAUSE["straggler"] == "time_to_batch/straggler_seconds"


def test_an_unknown_name_is_refused_with_the_closest() -> None:
    metrics.check([metrics.LOSS, metrics.K3])
    with pytest.raises(ConfigurationError, match="'train/los': did you mean 'train/loss'"):
        metrics.check([metrics.K3, "train/los"])


def test_a_row_for_each_environment_stands_for_its_names() -> None:
    named = metrics.of_environment(metrics.EVALUATION_SUCCESS_OF, "pointer_chase/v1")
    assert named == "evaluation/success_of/pointer_chase/v1"
    odd = metrics.of_environment(metrics.EVALUATION_SUCCESS_OF, "openenv/http://host:80/../v1")
    assert odd == "evaluation/success_of/openenv/http_/host_80/__/v1", "MLflow takes it"
    metrics.check([named, odd])
    with pytest.raises(ConfigurationError, match="did you mean"):
        metrics.check(["evaluation/seconds_of/pointer_chase/v1"])


def test_a_name_appears_once() -> None:
    with pytest.raises(AssertionError, match="train/loss is in the table twice"):
        metrics._row("train/loss", "1", "Again.")


def test_the_page_is_in_step_with_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text() == metrics.markdown(), "run: python -m driftline.tracking.metrics > docs/metrics.md"
