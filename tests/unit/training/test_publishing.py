"""What the trainer publishes, and why it refuses to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from driftline.errors import PublishRefused
from driftline.params import RunParameters
from driftline.records import PolicyVersion, WeightsManifest
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.training.publishing import PolicyPublisher
from tests.support.training import FakeGroup, new_run, parameters

BF16 = {"publication": {"dtype": "bfloat16", "chain_factor": 20.0}}


class WideGroup(FakeGroup):
    """A group with weights enough that a delta pays."""

    def __init__(self) -> None:
        super().__init__()
        self.weight: Tensor = torch.full((4000,), 0.02)


class Publishing:
    def __init__(self, params: RunParameters) -> None:
        self.params = params
        self.group = WideGroup()
        self.run_store: RunStore = new_run(MemoryStore(), "r", params)
        self.publisher = self.new_publisher()
        self.manifests: list[WeightsManifest] = []

    def new_publisher(self) -> PolicyPublisher:
        group: Any = self.group
        return PolicyPublisher(group, self.run_store, self.params)

    def publish(self) -> WeightsManifest:
        previous = self.manifests[-1] if self.manifests else None
        version = PolicyVersion(len(self.manifests), 1)
        self.manifests.append(self.publisher.publish(version, previous=previous, expect_change=previous is not None))
        return self.manifests[-1]


def test_a_step_of_a_few_elements_travels_as_a_delta_with_the_trainers_own_probe() -> None:
    case = Publishing(parameters(**BF16))
    assert case.publish().kind == "anchor"
    case.group.weight[7] = 0.03
    manifest = case.publish()
    assert (manifest.kind, manifest.changed_elements, manifest.dtype) == ("delta", 1, "bfloat16")
    assert manifest.probe.dtype == "float32", "the arithmetic that scored it"
    assert manifest.adapter is None


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        (True, r"rounding to bfloat16 swallowed every update .* training\.learning_rate \(0\.01\) is too small"),
        (False, "the optimizer changed no weight in the step to version 000001-0001"),
        (None, "bit-identical to those of 000000-0001"),
    ],
)
def test_a_changed_step_whose_published_bytes_did_not_change_names_the_cause(moved: bool | None, said: str) -> None:
    """verl#7495: frozen weights sent again and again."""
    case = Publishing(parameters(**BF16))
    case.publish()
    case.group.moved = moved
    with pytest.raises(PublishRefused, match=said):
        case.publish()


def test_another_trainer_goes_on_with_a_delta_only_from_the_very_same_weights() -> None:
    case = Publishing(parameters(**BF16))
    case.publish()
    case.publisher = case.new_publisher()
    assert case.publisher.adopt(case.manifests[-1])
    case.group.weight[7] = 0.03
    assert case.publish().kind == "delta"
    case.publisher = case.new_publisher()
    case.group.weight[8] = 0.03
    assert not case.publisher.adopt(case.manifests[-1])
    assert case.publish().kind == "anchor"


@pytest.mark.parametrize(
    ("engine", "training", "published"),
    [("float32", "float32", "float32"), ("bfloat16", "float32", "bfloat16"), ("float32", "bfloat16", "bfloat16")],
)
def test_by_itself_publication_takes_the_coarser_dtype(engine: str, training: str, published: str) -> None:
    params = parameters(engine={"dtype": engine}, training={"dtype": training})
    assert params.published_dtype == published
    if published == "bfloat16":
        with pytest.raises(ValueError, match="float32 needs float32 in engine"):
            parameters(engine={"dtype": engine}, training={"dtype": training}, publication={"dtype": "float32"})
