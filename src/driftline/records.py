"""The nouns of Driftline: frozen values that travel between processes as JSON or Parquet.

Vocabulary, in the field's words:

- A **task** is one problem of an environment; a **group** is `group_size` independent **members**
  (trajectories) of one task; a **batch** is `groups_per_step` groups, which one optimizer step consumes.
- The **behaviour policy** of a token is the policy version that sampled it; the **current policy** is the one
  being trained. Their difference in versions is the **lag**.
- A **policy version** is one published set of weights. One optimizer step makes one version.

`encode` and `decode` are the one JSON form of every record. A record carries `format`; a reader refuses one
that is newer than itself, with `CorruptObject`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from driftline.accounts import CellAccount as CellAccount
from driftline.accounts import Frontier as Frontier
from driftline.accounts import TokenLedger as TokenLedger
from driftline.codec import FORMAT as FORMAT
from driftline.codec import decode as decode
from driftline.codec import encode as encode
from driftline.measured import Diagnosis as Diagnosis
from driftline.measured import DivergenceSummary as DivergenceSummary
from driftline.measured import MemberUse as MemberUse
from driftline.measured import SegmentUse as SegmentUse
from driftline.outcomes import EpisodeCounts as EpisodeCounts
from driftline.outcomes import EvaluationResult as EvaluationResult
from driftline.outcomes import HeldOutOutcome as HeldOutOutcome
from driftline.published import AdapterLayout as AdapterLayout
from driftline.published import Chain as Chain
from driftline.published import FileEntry as FileEntry
from driftline.published import PolicyVersion as PolicyVersion
from driftline.published import Probe as Probe
from driftline.published import WeightsManifest as WeightsManifest

TrajectoryStatus = Literal["ok", "truncated", "env_error", "timeout", "engine_error", "cancelled"]
"""How an episode ended. Only `ok` and `truncated` may carry a reward."""

RunState = Literal["running", "finished", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Segment:
    """From index `start` of the trajectory's tokens on, sampled tokens came from policy `version`."""

    start: int
    version: int


@dataclass(frozen=True, slots=True)
class EpisodeSeconds:
    """Where one episode's wall clock went, in seconds; the parts do not overlap."""

    queued: float = 0.0
    resetting: float = 0.0
    prefilling: float = 0.0
    decoding: float = 0.0
    in_tools: float = 0.0
    in_reward: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all parts, in seconds."""
        return self.queued + self.resetting + self.prefilling + self.decoding + self.in_tools + self.in_reward


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One member of one group: what was said, by which policy, and what it earned.

    `token_ids`, `loss_mask` and `logprobs` have one entry a token, prompt and observations included;
    `loss_mask` is true where the policy sampled the token, and `logprobs` (nats, at the sampling temperature)
    are 0.0 elsewhere. `reward` is None unless the environment gave one.
    """

    run: str
    group: int
    member: int
    attempt: int
    cell: str
    task_id: str
    task_set: str
    environment: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    segments: tuple[Segment, ...]
    turns: int
    reward: float | None
    success: bool | None
    status: TrajectoryStatus
    reason: str
    seconds: EpisodeSeconds
    started_unix: float
    finished_unix: float
    request_seconds: tuple[tuple[float, float], ...] = ()
    """(start, end) in Unix seconds of each engine request and tool call of the episode, in order."""
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Name -> what it adds to the reward; empty unless the environment takes its reward apart."""
    stratum: str = ""
    """Of the task: which others are expected to be as hard (`driftline.refresh.strata`)."""

    @property
    def ended_by_itself(self) -> bool:
        """Whether the episode came to an end of its own, with a reward."""
        return self.status in ("ok", "truncated") and self.reward is not None

    @property
    def finite(self) -> bool:
        """Whether all log-probabilities are numbers: neither NaN nor infinite."""
        return math.isfinite(sum(self.logprobs))

    @property
    def valid(self) -> bool:
        """Whether it counts in its group's statistics: it ended by itself, and its log-probabilities are numbers."""
        return self.ended_by_itself and self.finite

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens the policy sampled."""
        return sum(self.loss_mask)


@dataclass(frozen=True, slots=True)
class Group:
    """All members of one group, as a cell finished them. `key` is the object it was read from."""

    number: int
    task_id: str
    task_set: str
    trajectories: tuple[Trajectory, ...]
    key: str = ""
    incarnation: str = ""
    """Start of the cell's process that wrote the object; empty where that is not known."""

    @property
    def valid_members(self) -> int:
        """Number of members that count in the group's statistics."""
        return sum(t.valid for t in self.trajectories)


@dataclass(frozen=True, slots=True)
class Claim:
    """A cell's lease on a group. `expires_unix` is on the store's clock."""

    group: int
    cell: str
    attempt: int
    task_id: str
    task_set: str
    expires_unix: float
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class TaskSampling:
    """How often groups play the tasks of each stratum of the task set, from group number `first` on."""

    first: int
    weights: Mapping[str, float]
    """Stratum -> what is learned from it by the token, relative to others; above 0. Its share of the version that the
    run began with comes on top."""
    unseen: float
    """Weight of a stratum that is not named."""


@dataclass(frozen=True, slots=True)
class Head:
    """The one mutable object of a run. Swapping it is the commit."""

    epoch: int
    step: int
    version: PolicyVersion | None
    record: str | None
    spent: int
    given_up: tuple[int, ...]
    """Groups given up since the last committed record, which the next record repeats."""
    lead_groups: int
    task_sets: tuple[tuple[int, str], ...]
    """(first group, task-set version): from that group number on, tasks come from that version."""
    state: RunState = "running"
    reason: str = ""
    set_aside: tuple[str, ...] = ()
    """Objects of finished groups that cannot be read; their groups are to be played again."""
    holder: str = ""
    """Unique to the trainer that took the epoch: two never write the same head, so neither takes it for its own."""
    task_sampling: tuple[TaskSampling, ...] = ()
    """In ascending order; groups before the first one, and all where there is none, go by the pools' weights."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class GroupUse:
    """How one group entered a step."""

    group: int
    key: str
    """Object that holds its trajectories."""
    attempt: int
    task_id: str
    task_set: str
    weight: float
    """0.0 for a group without variance, else 1.0; what admission makes of each member is in `uses`."""
    members: int
    valid_members: int
    reward_mean: float
    reward_std: float
    success_mean: float
    lag_mean: float
    lag_max: int
    """Lag in versions over the sampled tokens, at the step that used them."""
    sampled_tokens: int
    uses: tuple[MemberUse, ...] = ()
    """Of every member, in order; empty in records of before there was admission: then all valid ones weigh 1."""
    environment: str = ""
    stratum: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A group that was left out for good, and why."""

    group: int
    reason: str
    sampled_tokens: int
    key: str = ""
    """Object that holds its trajectories."""
    task_id: str = ""
    uses: tuple[MemberUse, ...] = ()
    """Of every member, as in `GroupUse`; none weighs anything."""
    environment: str = ""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Unix seconds at which a step's phases began and ended."""

    previous_commit: float
    batch_ready: float
    train_start: float
    train_end: float
    publish_end: float
    committed: float


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Everything about one committed optimizer step."""

    run: str
    step: int
    epoch: int
    version_in: PolicyVersion
    version_out: PolicyVersion
    groups: tuple[GroupUse, ...]
    give_ups: tuple[GiveUp, ...]
    metrics: Mapping[str, float]
    """By the names of `driftline.tracking.metrics`."""
    time_to_batch_s: Mapping[str, float]
    """Cause -> seconds of the critical path from the previous commit to the full batch."""
    times: StepTimes
    previous: str | None
    """Key of the previous record, None for the first step."""
    checkpoint: FileEntry | None = None
    """Manifest of the newest checkpoint that was whole when the step was committed."""
    signature: str = ""
    """Of the rest of the record, where the run has a key (`driftline.training.signing`)."""
    frontier: Frontier = field(default_factory=Frontier)
    ledger: TokenLedger | None = None
    lead_groups: int = 0
    """The lead in HEAD while the step's batch was awaited."""
    lead_why: str = ""
    """Why the controller chose the next lead (`divergence.overlap.LeadDecision`); empty for a fixed one."""
    by_lag: Mapping[int, DivergenceSummary] = field(default_factory=dict[int, DivergenceSummary])
    """Of the batch's tokens of each lag, before the step; the largest stands for all beyond it."""
    by_environment: Mapping[str, DivergenceSummary] = field(default_factory=dict[str, DivergenceSummary])
    floor_by_cell: Mapping[str, DivergenceSummary] = field(default_factory=dict[str, DivergenceSummary])
    """Cell -> of the batch's members, all of whose tokens are of lag 0, that its newest incarnation generated."""
    incarnations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Cell -> incarnation that `floor_by_cell` is of."""
    diagnosis: Diagnosis | None = None
    episodes: Mapping[str, EpisodeCounts] = field(default_factory=dict[str, EpisodeCounts])
    """Environment -> episodes of the batch and of what was given up beside it, and the failures among them."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """A trainer state in the store. Written after all of its files."""

    run: str
    step: int
    epoch: int
    ranks: int
    zero_stage: int
    files: tuple[FileEntry, ...]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class OffsetReport:
    """What one engine is generating with, and that it is alive."""

    run: str
    cell: str
    incarnation: str
    """Unique to one start of the cell's process."""
    version: int
    """Policy version that the engine has acknowledged."""
    head_version: int
    applied_unix: float
    heartbeat_unix: float
    running_episodes: int
    waiting_episodes: int
    generated_tokens: int
    pause_s: float
    """Seconds that the last update kept the engine paused."""
    probe_difference_nats: float | None = None
    """Largest difference from the probe log-probabilities of the version's manifest, when it was applied."""
    refused_version: int | None = None
    """Version whose probe the engine did not reproduce, for which it ended; `probe_difference_nats` is of it then."""
    account: CellAccount | None = None
    earlier: tuple[CellAccount, ...] = ()
    """The last known account of each earlier incarnation of the cell."""
    loop_lag_p99_s: float | None = None
    """How late the cell's event loop ran what was due, 99th percentile of the last seconds measured."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model directory in the store, addressed by its content."""

    digest: str
    prefix: str
    files: tuple[FileEntry, ...]
    tied_embeddings: bool
    description: str = ""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class RunDescription:
    """`run.json`: what the run is. Created once; never changes."""

    run: str
    created_unix: float
    parameters: Mapping[str, Any]
    """`RunParameters.model_dump(mode="json")`."""
    code_version: str
    model: ModelSource
    task_set: str
    held_out_task_set: str
    mlflow_run: str | None
    signed: bool = False
    """Whether the run has a key, so that its step records are signed."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of wall clock on one lane of the timeline."""

    lane: str
    """`rollout`, `training`, `publish`, `apply` or `waiting/<pool>`."""
    cause: str
    start_unix: float
    end_unix: float
    step: int
    """Step (trainer) or policy version (cell) it belongs to."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
