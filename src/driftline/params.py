"""Every setting of a run (`RunParameters`) and of a process's surroundings (`Settings`).

This is the one place of configuration: nothing else reads the process environment. `RunParameters` becomes the
form in the Prefect UI, and its JSON schema is a golden file, so that a new knob is a reviewed act. Values that
contradict one another are refused here, before anything starts, with the field's name and the remedy.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from driftline.measured import FLOOR_K3_NATS
from driftline.sections.conduct import EvaluationParameters as EvaluationParameters
from driftline.sections.conduct import LimitParameters as LimitParameters
from driftline.sections.conduct import TrackingParameters as TrackingParameters
from driftline.sections.divergence import AdmissionParameters as AdmissionParameters
from driftline.sections.divergence import DiagnosisParameters as DiagnosisParameters
from driftline.sections.divergence import OverlapParameters as OverlapParameters
from driftline.sections.rollout import EngineParameters as EngineParameters
from driftline.sections.rollout import EnvironmentParameters as EnvironmentParameters
from driftline.sections.rollout import RolloutParameters as RolloutParameters
from driftline.sections.rollout import SchedulingParameters as SchedulingParameters
from driftline.sections.section import Section
from driftline.sections.training import CheckpointParameters as CheckpointParameters
from driftline.sections.training import LoraParameters as LoraParameters
from driftline.sections.training import ModelParameters as ModelParameters
from driftline.sections.training import PublicationParameters as PublicationParameters
from driftline.sections.training import TrainingParameters as TrainingParameters
from driftline.settings import RankSettings as RankSettings
from driftline.settings import Settings as Settings
from driftline.settings import adopt_environment as adopt_environment
from driftline.settings import settings as settings


class RunParameters(Section):
    """All parameters of a post-training run."""

    seed: int = Field(0, ge=0, le=2**53 - 1, description="Seed of task order, sampling and initialisation.")
    model: ModelParameters = ModelParameters()  # pyright: ignore[reportCallIssue]
    environment: EnvironmentParameters = EnvironmentParameters()  # pyright: ignore[reportCallIssue]
    rollout: RolloutParameters = RolloutParameters()  # pyright: ignore[reportCallIssue]
    scheduling: SchedulingParameters = SchedulingParameters()  # pyright: ignore[reportCallIssue]
    overlap: OverlapParameters = OverlapParameters()  # pyright: ignore[reportCallIssue]
    diagnosis: DiagnosisParameters = DiagnosisParameters()  # pyright: ignore[reportCallIssue]
    admission: AdmissionParameters = AdmissionParameters()  # pyright: ignore[reportCallIssue]
    engine: EngineParameters = EngineParameters()  # pyright: ignore[reportCallIssue]
    training: TrainingParameters = TrainingParameters()  # pyright: ignore[reportCallIssue]
    lora: LoraParameters = LoraParameters()  # pyright: ignore[reportCallIssue]
    publication: PublicationParameters = PublicationParameters()  # pyright: ignore[reportCallIssue]
    checkpoint: CheckpointParameters = CheckpointParameters()  # pyright: ignore[reportCallIssue]
    evaluation: EvaluationParameters = EvaluationParameters()  # pyright: ignore[reportCallIssue]
    limits: LimitParameters = LimitParameters()  # pyright: ignore[reportCallIssue]
    tracking: TrackingParameters = TrackingParameters()  # pyright: ignore[reportCallIssue]

    @property
    def published_dtype(self) -> Literal["float32", "bfloat16"]:
        """What weights are published in."""
        if self.publication.dtype != "auto":
            return self.publication.dtype
        return self.coarser_dtype

    @property
    def coarser_dtype(self) -> Literal["float32", "bfloat16"]:
        """The coarser arithmetic of engine and trainer."""
        return "bfloat16" if "bfloat16" in (self.engine.dtype, self.training.dtype) else "float32"

    @property
    def floor_k3_nats(self) -> float:
        """Most k3 a token that engine and trainer may differ by with the same weights."""
        return self.diagnosis.floor_k3_nats or FLOOR_K3_NATS[self.coarser_dtype]

    @property
    def highest_lead_groups(self) -> int:
        """Most groups that may start ahead under any setting of the controller."""
        hard = self.overlap.max_lag_versions * self.rollout.groups_per_step
        return hard if self.overlap.highest_groups is None else self.overlap.highest_groups

    @model_validator(mode="after")
    def _dtypes_agree(self) -> Self:
        if self.publication.dtype == "float32" and "bfloat16" in (self.engine.dtype, self.training.dtype):
            raise ValueError(
                "publication.dtype: float32 needs float32 in engine.dtype and training.dtype: an engine in bfloat16 "
                "would round the weights that the trainer scores with, and a trainer in bfloat16 has no more to give"
            )
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        truncated = self.rollout.top_p < 1 or self.rollout.top_k > 0
        training = self.training
        if truncated and (
            training.importance != "none"
            or training.proximal != "recomputed"
            or training.negative_sequence_nats is not None
            or any(limit is not None for limit in self.admission.limits)
        ):
            raise ValueError(
                "rollout.top_p / rollout.top_k: log-probabilities of a truncated distribution make importance "
                "weights differ from 1 even for identical policies: set top_p to 1 and top_k to 0, or "
                "training.importance to none, training.proximal to recomputed, and to null "
                "training.negative_sequence_nats and all limits of the section admission"
            )
        if self.overlap.lead_groups > self.overlap.max_lag_versions * self.rollout.groups_per_step:
            raise ValueError(
                "overlap.lead_groups: groups would start further ahead than overlap.max_lag_versions allows: "
                f"lower it to {self.overlap.max_lag_versions * self.rollout.groups_per_step} or raise the limit"
            )
        if self.overlap.budget_k3_nats <= self.floor_k3_nats:
            raise ValueError(
                f"overlap.budget_k3_nats: no lead could keep it: {self.floor_k3_nats:g} nats "
                "(diagnosis.floor_k3_nats) are allowed to engine and trainer already: raise it"
            )
        if self.rollout.max_tokens_per_turn >= self.engine.max_model_len:
            raise ValueError("rollout.max_tokens_per_turn: must be below engine.max_model_len")
        if self.training.ranks == 1 and self.training.zero_stage > 0:
            raise ValueError("training.zero_stage: has no effect on one rank: raise training.ranks or set it to 0")
        return self

    @model_validator(mode="after")
    def _controller_has_room(self) -> Self:
        overlap, hard = self.overlap, self.overlap.max_lag_versions * self.rollout.groups_per_step
        if overlap.controller == "fixed":
            return self
        if self.highest_lead_groups > hard:
            raise ValueError(
                "overlap.highest_groups: groups would start further ahead than overlap.max_lag_versions allows: "
                f"lower it to {hard} or raise the limit"
            )
        if overlap.lowest_groups >= self.highest_lead_groups:
            raise ValueError(
                f"overlap.controller: has no effect between leads of {overlap.lowest_groups} (overlap.lowest_groups) "
                f"and {self.highest_lead_groups} groups (overlap.highest_groups, overlap.max_lag_versions): make "
                "room, or set it to fixed"
            )
        if not overlap.lowest_groups <= overlap.lead_groups <= self.highest_lead_groups:
            raise ValueError(
                f"overlap.lead_groups: the run begins with it: between {overlap.lowest_groups} and "
                f"{self.highest_lead_groups} (overlap.lowest_groups, overlap.highest_groups)"
            )
        return self
