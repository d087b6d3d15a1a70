"""What the service answers, as types. What was not measured is null, never 0.

Keys with a slash are names of `docs/metrics.md`: the same figure has the same name here and in MLflow.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from driftline.measured import Cause, Reason, Verdict
from driftline.records import RunState

By = Literal["lag", "environment", "version"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunItem(_Answer):
    """A run in the list."""

    run: str
    created_unix: float
    state: RunState | Literal["not started", "unreadable"]
    reason: str
    step: int | None
    version: int | None
    lead_groups: int | None


class Runs(_Answer):
    """Runs of the bucket, the newest first."""

    runs: list[RunItem]
    stale: bool = Field(description="Whether the store does not answer now: this is what it said last.")
    age_s: float = Field(description="Seconds since the store was read.")


class DiagnosisAnswer(_Answer):
    """Why engine and trainer disagree."""

    cause: Cause
    why: str
    figures: dict[str, float | None] = Field(description="The figures behind it, by name and unit.")
    engine: str = Field(description="The engine at fault, for a failed weight sync.")


class TokenDivergenceAnswer(_Answer):
    """Divergence of some sampled tokens from the policy that trained on them."""

    tokens: int
    k1_nats: float | None = Field(description="KL(behaviour || current) a token, estimator k1.")
    k3_nats: float | None = Field(description="KL(behaviour || current) a token, estimator k3.")
    ess_fraction: float | None = Field(description="Effective sample size over the number of tokens.")


class Engine(_Answer):
    """What one engine is generating with."""

    engine: str
    incarnation: str
    version: int = Field(description="Policy version that the engine has acknowledged.")
    lag_versions: int | None = Field(description="Versions that it is behind the current policy.")
    lag_seconds: float | None = Field(
        description="Seconds since the first version that it lacks was committed; 0 while it lacks none."
    )
    divergence: TokenDivergenceAnswer | None = Field(
        description="Of its tokens in the last steps; null where no record of them says it."
    )
    floor_k3_nats: float | None = Field(description="Of its tokens of lag 0 in the last steps.")
    probe_difference_nats: float | None = Field(
        description="Largest difference from the probe log-probabilities of its version's manifest."
    )
    refused_version: int | None = Field(
        description="Version whose probe it did not reproduce, for which it ended; the difference is of it then."
    )
    heartbeat_unix: float
    heartbeat_age_s: float
    alive: bool = Field(description="Whether its heartbeat is recent.")
    applied_unix: float
    pause_s: float = Field(description="Seconds that the last update kept it paused.")
    running_episodes: int
    waiting_episodes: int
    generated_tokens: int


class Offset(_Answer):
    """Where a run stands, and how far each engine is behind."""

    run: str
    state: RunState | Literal["not started"]
    reason: str
    observed_unix: float
    age_s: float = Field(description="Seconds since the store was read.")
    stale: bool = Field(description="Whether the store does not answer now: this is what it said last.")
    trouble: str = Field(description="Why it is stale.")
    epoch: int | None
    step: int | None
    steps_planned: int | None
    version: int | None = Field(description="Number of the current policy version.")
    committed_unix: float | None = Field(description="When the last step was committed.")
    lead_groups: int | None = Field(description="Groups that generation may be ahead now.")
    controller: str | None = Field(description="What sets the lead: `fixed` or `divergence`.")
    lead_why: str = Field(description="Why the controller chose it; empty for a fixed lead.")
    budget_k3_nats: float | None = Field(
        description="Most k3 a token that a batch should have; null for a run that was started without one."
    )
    diagnosis: DiagnosisAnswer | None
    metrics: dict[str, float] = Field(description="Of the last step, by the names of MLflow.")
    engines: list[Engine]


class DivergencePart(_Answer):
    """Divergence of the tokens of one lag, environment or generating version."""

    key: str
    tokens: int
    k1_nats: float | None
    k2_nats: float | None
    k3_nats: float | None
    k3_error_nats: float | None = Field(description="Standard error of k3, as if tokens were independent.")
    total_variation: float | None
    chi_square: float | None
    ess_fraction: float | None
    ess_tokens: float | None
    ratio_mean: float | None
    members: int = Field(0, description="Members with such tokens, as far as records say it of single ones.")
    member_k3_nats: dict[str, float] = Field(
        default_factory=dict[str, float],
        description="Quantiles of k3 a token over these members: by `p50`, `p90`, `p99`.",
    )
    or_more: bool = Field(False, description="Whether the lag stands for all larger ones too.")


class Divergence(_Answer):
    """Divergence of the batches of some last steps."""

    run: str
    by: By
    first_step: int | None
    last_step: int | None
    steps: int
    measured: bool = Field(description="Whether the records of these steps say it by `by`.")
    note: str = Field(description="Why not, where they do not.")
    batch: dict[str, float | None] = Field(description="Means over the steps, by the names of MLflow.")
    budget_k3_nats: float | None
    parts: list[DivergencePart]


class Counted(_Answer):
    """Members (or groups) and their sampled tokens, by reason."""

    verdict: Verdict | Literal["given up"]
    reason: str
    members: int
    tokens: int


class Ledger(_Answer):
    """What became of every token sampled so far. `generated` is the sum of `terms`, or `balances` is false."""

    run: str
    step: int | None
    measured: bool
    generated: int | None
    terms: dict[str, int]
    by_reason: dict[str, dict[str, int]] = Field(description="Terms of which more is known: tokens by reason.")
    imbalance: int | None
    balances: bool | None
    unbalanced_steps: list[int] = Field(description="Steps whose ledger does not balance; the last 100 of them.")
    admission: list[Counted] = Field(description="Over the steps that are kept.")
    given_up: list[Counted] = Field(description="Groups (as `members`) given up, over the steps that are kept.")


class SegmentAnswer(_Answer):
    """What one policy version sampled of a trajectory."""

    start: int = Field(description="Index of its first token in the trajectory.")
    version: int
    lag: int | None = Field(description="Versions behind the policy that trained on it.")
    tokens: int
    k1_nats: float | None
    k3_nats: float | None
    ess_fraction: float | None


class TrajectoryAnswer(_Answer):
    """How a member of a group entered a step, or why it did not."""

    run: str
    group: int
    member: int
    step: int
    trained_version: int = Field(description="Version that the step trained from.")
    given_up: str = Field(description="Why its group was given up; empty for one that was trained.")
    task_id: str
    key: str = Field(description="Object that holds its tokens.")
    cell: str
    verdict: Verdict | None
    reason: Reason | None
    weight: float | None
    sampled_tokens: int | None
    masked_tokens: int | None
    seconds: float | None
    measured: bool = Field(description="Whether the record has the divergence of its segments.")
    note: str
    divergence: TokenDivergenceAnswer | None
    segments: list[SegmentAnswer]


class History(_Answer):
    """A run's steps as series of at most `points` values; each stands for the steps from `first` to `last`."""

    run: str
    steps: int
    first: list[int]
    last: list[int]
    committed_unix: list[float]
    values: dict[str, list[float | None]] = Field(
        description="By the names of MLflow: means, and of names that end in `max` the largest."
    )
    k3_peak_nats: list[float | None] = Field(description="Largest k3 of a batch in each bucket.")
    lead_groups: list[float | None]
    cause: list[Cause | None] = Field(description="The worst that was diagnosed in each bucket.")
    budget_k3_nats: float | None
    groups_per_step: int | None


class SpanAnswer(_Answer):
    """A stretch of wall clock."""

    lane: str
    cause: str
    start_unix: float
    end_unix: float
    step: int


class Timeline(_Answer):
    """The last stretches of a run: what worked when."""

    run: str
    start_unix: float | None
    end_unix: float | None
    lanes: list[str]
    spans: list[SpanAnswer]
    commits: list[float] = Field(description="Unix seconds of the commits in this stretch.")


class Health(_Answer):
    """That the service runs."""

    status: Literal["ok"]
