"""The sections that say how much divergence a run bears."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from driftline.sections.section import Section


class OverlapParameters(Section):
    """How far generation may run ahead of training."""

    controller: Literal["fixed", "divergence"] = Field(
        "fixed",
        description="`fixed`: lead_groups stays as given; `divergence`: the run begins with it, and each step sets "
        "it anew so that k3 stays within the budget.",
    )
    lead_groups: int = Field(16, ge=0, description="Groups that may start ahead; 0 is exactly synchronous.")
    max_lag_versions: int = Field(8, ge=0, description="Hard limit of a group's oldest token, in versions.")
    budget_k3_nats: float = Field(
        0.01,
        gt=0,
        description="Most k3 a token that a batch should have: what the controller spends on overlap, and beyond "
        "which a run is said to be stale.",
    )
    lowest_groups: int = Field(0, ge=0, description="`controller: divergence`: least lead.")
    highest_groups: int | None = Field(
        None, ge=0, description="`controller: divergence`: most lead; None is max_lag_versions * groups_per_step."
    )
    step_groups: int | None = Field(
        None, ge=1, description="`controller: divergence`: most groups added at once; None is groups_per_step."
    )

    @model_validator(mode="after")
    def _limits_need_the_controller(self) -> Self:
        set_in_vain = [
            name
            for name, vain in (
                ("lowest_groups", self.lowest_groups > 0),
                ("highest_groups", self.highest_groups is not None),
                ("step_groups", self.step_groups is not None),
            )
            if vain and self.controller == "fixed"
        ]
        if set_in_vain:
            raise ValueError(f"overlap.{set_in_vain[0]}: has no effect unless overlap.controller is divergence")
        return self


class DiagnosisParameters(Section):
    """What the causes of divergence are told apart by."""

    window_steps: int = Field(4, ge=1, description="Last steps that are looked at.")
    floor_k3_nats: float | None = Field(
        None,
        gt=0,
        description="Most k3 a token that engine and trainer may differ by with the same weights; None is what was "
        "measured for the coarser of engine.dtype and training.dtype, with room.",
    )


class AdmissionParameters(Section):
    """Which trajectories are trained on, and with what weight, by their measured divergence; null does not limit."""

    down_weight_k3_nats: float | None = Field(
        1.0, gt=0, description="From this k3 a token on, a trajectory weighs the limit over its k3."
    )
    drop_k3_nats: float | None = Field(3.0, gt=0, description="Beyond this k3 a token a trajectory is dropped.")
    down_weight_ess_fraction: float | None = Field(
        0.1,
        gt=0,
        le=1,
        description="Below this effective sample size, as a fraction of its tokens, a trajectory weighs the fraction "
        "over the limit.",
    )
    drop_ess_fraction: float | None = Field(
        0.02, gt=0, le=1, description="Below this effective sample size, as a fraction, a trajectory is dropped."
    )

    @property
    def limits(self) -> tuple[float | None, ...]:
        """All of them."""
        return (self.down_weight_k3_nats, self.drop_k3_nats, self.down_weight_ess_fraction, self.drop_ess_fraction)

    @model_validator(mode="after")
    def _weights_fall_before_they_end(self) -> Self:
        lower, drop, lower_ess, drop_ess = self.limits
        if lower is not None and drop is not None and drop < lower:
            raise ValueError("admission.drop_k3_nats: must be at least admission.down_weight_k3_nats")
        if lower_ess is not None and drop_ess is not None and drop_ess > lower_ess:
            raise ValueError("admission.drop_ess_fraction: must be at most admission.down_weight_ess_fraction")
        return self
