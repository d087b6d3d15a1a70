"""What bounds a run, and what would change it; and whether it has become slower. Pure: from step records alone.

Every second of a step (`attribution.step_parts`) belongs to one of five; the one with most of them bounds the run:

| bound | parts |
|---|---|
| engine | queue (for a slot), prefill, decode |
| tools | reset, tool, reward |
| stragglers | straggler |
| trainer | train, admission, trainer (commit and checkpoint of the step before) |
| store | claim, publish (of groups), apply and weights (the way of a version into the engines) |

The claims that a cell waited for without an episode in flight are counted by the trainer, and taken off `queue`.
A verdict once made stands until another has `MARGIN` more of the wall clock, so that it does not flap.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from driftline.records import StepRecord
from driftline.tracking import metrics
from driftline.tracking.attribution import TRAIN, WEIGHTS, add_up, step_parts
from driftline.tracking.summary import quantile

Bound = Literal["engine", "tools", "stragglers", "trainer", "store"]
_ORDER: tuple[Bound, ...] = ("engine", "tools", "stragglers", "trainer", "store")
"""As in `causes.BOUNDS`: the code of the metric."""
PARTS: Mapping[Bound, tuple[str, ...]] = {
    "engine": ("queue", "prefill", "decode"),
    "tools": ("reset", "tool", "reward"),
    "stragglers": ("straggler",),
    "trainer": (TRAIN, "admission", "trainer"),
    "store": ("claim", "publish", "apply", WEIGHTS),
}
MARGIN = 0.1
"""Share of the wall clock by which another must lead before it takes the verdict over."""
WORTH_TELLING = 0.05
"""Share of the wall clock from which one of the others is named behind the verdict."""
WINDOW_STEPS = 8
"""Last steps that the verdict of a running run is about."""
FEWEST_STEPS = 3
"""Before so many, there is no verdict: the first steps hold the start of everything."""
RECENT_STEPS = 3
"""Last steps whose median time to a batch is held against the median of those before."""
BASELINE_STEPS = 20
FEWEST_BASELINE_STEPS = 5
SMALLEST_SHARE_OF_STEP = 0.05
"""A wait that grew by less than this share of a step slows nobody."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which of the five bounds some steps, with the figures behind it."""

    bound: Bound
    part: str
    """Its largest part."""
    why: str
    changes: tuple[str, ...]
    """What would change it, each beginning with the parameter to turn."""
    shares: Mapping[Bound, float]
    """Of the wall clock, in [0, 1]; they sum to 1."""
    seconds: Mapping[str, float]
    """Part -> mean seconds a step."""
    steps: int


@dataclass(frozen=True, slots=True)
class News:
    """Something to tell at once. `type` names the event."""

    type: Literal["Bottleneck", "TimeToBatchRegressed"]
    message: str
    figures: Mapping[str, float | str]


def judge(
    records: Sequence[StepRecord], parameters: Mapping[str, Any], *, before: Bound | None = None
) -> Verdict | None:
    """Say what bounds some steps; None where they took no time.

    Args:
        records: The steps.
        parameters: Of the run, as in `RunDescription.parameters`: what is set already is not advised.
        before: The verdict that stands.
    """
    total = add_up(_parts(record) for record in records)
    wall_s = math.fsum(total.values())
    if wall_s <= 0:
        return None
    shares: dict[Bound, float] = {
        bound: math.fsum(total[part] for part in parts) / wall_s for bound, parts in PARTS.items()
    }
    bound = max(_ORDER, key=lambda one: shares[one])
    if before is not None and shares[bound] <= shares[before] + MARGIN:
        bound = before
    part = max(PARTS[bound], key=lambda one: total[one])
    mean = {name: value / len(records) for name, value in total.items()}
    why = (
        f"{bound}: {shares[bound]:.0%} of a step of {wall_s / len(records):.2f} s, most of it {part} "
        f"({mean[part]:.2f} s)"
    )
    others = sorted(((share, one) for one, share in shares.items() if one != bound), reverse=True)
    if told := ", ".join(f"{one} {share:.0%}" for share, one in others if share >= WORTH_TELLING):
        why += f"; then {told}"
    return Verdict(bound, part, why, changes(part, parameters, records[-1].lead_groups), shares, mean, len(records))


def changes(part: str, parameters: Mapping[str, Any], lead_groups: int) -> tuple[str, ...]:
    """What would make a part smaller; what is set already is left out.

    Args:
        part: Of a step.
        parameters: Of the run.
        lead_groups: The lead that the batch was awaited with.
    """
    found: list[str] = []
    if lead_groups == 0:
        found.append("overlap.lead_groups: 0 is synchronous; with a lead, rollout goes on beside everything else")
    for name, text in _CHANGES[part]:
        section, field = name.split(".")
        set_to = parameters.get(section, {}).get(field)
        if set_to is None or set_to != _DONE.get(name, _DONE_IN.get((part, name))):
            found.append(f"{name}: {text}")
    return tuple(found)


class StepWatch:
    """Follows the steps of a run. What it says depends on the records alone: a restarted trainer says the same."""

    def __init__(
        self, records: Sequence[StepRecord], parameters: Mapping[str, Any], *, regression_share: float
    ) -> None:
        """Begin behind committed steps, of which nothing is told again.

        Args:
            records: They, in order.
            parameters: Of the run.
            regression_share: By which share the time to a batch grows before it is said.
        """
        self.verdict: Verdict | None = None
        """Of the last steps."""
        self.slower = False
        """Whether batches take longer than they used to."""
        self._parameters = parameters
        self._regression_share = regression_share
        self._records: deque[StepRecord] = deque(maxlen=max(WINDOW_STEPS, BASELINE_STEPS + RECENT_STEPS))
        for record in records:
            self.see(record)

    def see(self, record: StepRecord) -> list[News]:
        """Take a committed step in; returns what is new with it."""
        self._records.append(record)
        return [*self._new_verdict(), *self._new_regression()]

    @property
    def values(self) -> dict[str, float]:
        """The verdict as metrics, by the names of the table."""
        if self.verdict is None:
            return {}
        shares = {metrics.BOUND_SHARE[bound]: share for bound, share in self.verdict.shares.items()}
        return shares | {metrics.BOUND: float(_ORDER.index(self.verdict.bound))}

    def _new_verdict(self) -> list[News]:
        if len(self._records) < FEWEST_STEPS:
            return []
        before = self.verdict
        self.verdict = judge(
            list(self._records)[-WINDOW_STEPS:], self._parameters, before=before.bound if before else None
        )
        if before is None or self.verdict is None or self.verdict.bound == before.bound:
            return []
        now = self.verdict
        message = f"the run is no longer bound by {before.bound}, but by {now.why}; {'; '.join(now.changes)}"
        figures = {"before": before.bound, "bound": now.bound, "part": now.part, "share": now.shares[now.bound]}
        return [News("Bottleneck", message, figures)]

    def _new_regression(self) -> list[News]:
        waits = [max(0.0, one.times.batch_ready - one.times.previous_commit) for one in self._records]
        recent, baseline = quantile(waits[-RECENT_STEPS:], 0.5), quantile(waits[:-RECENT_STEPS], 0.5)
        if recent is None or baseline is None or len(waits) < RECENT_STEPS + FEWEST_BASELINE_STEPS:
            return []
        if self.slower:
            self.slower = recent > baseline * (1 + self._regression_share / 2)
            return []
        step_s = quantile([one.times.committed - one.times.previous_commit for one in self._records], 0.5) or 0.0
        self.slower = (
            recent > baseline * (1 + self._regression_share) and recent - baseline > SMALLEST_SHARE_OF_STEP * step_s
        )
        if not self.slower:
            return []
        bound = f"; bound by {self.verdict.why}" if self.verdict else ""
        message = (
            f"a batch takes {recent:.2f} s (median of {RECENT_STEPS} steps), against {baseline:.2f} s before{bound}"
        )
        return [News("TimeToBatchRegressed", message, {"recent_s": recent, "baseline_s": baseline})]


def _parts(record: StepRecord) -> dict[str, float]:
    """The parts of a step, with the wait for claims taken off that for a slot."""
    parts = step_parts(record)
    claim = min(parts["queue"], max(0.0, record.metrics.get(metrics.STORE_CLAIM_SECONDS, 0.0)))
    return parts | {"queue": parts["queue"] - claim, "claim": claim}


_MORE_ENGINES = (
    ("rollout.cells", "more cells share the groups, each with engines of its own"),
    ("engine.replicas", "more engines in a cell (vllm_server)"),
)
_MORE_EPISODES = ("rollout.episodes_in_flight", "raise it: others use the engine while one waits")
_SMALLER_VERSIONS = (
    ("publication.dtype", "bfloat16 halves what travels"),
    ("lora.rank", "adapters alone are published where it is above 0"),
)
_FURTHER_AHEAD = (
    "overlap.lead_groups",
    "raise it, as far as the divergence allows: what is ahead is there when it is needed",
)
_CHANGES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "queue": (
        ("rollout.episodes_in_flight", "raise it while engine/preemptions stays flat"),
        ("engine.max_num_seqs", "raise it with it"),
        *_MORE_ENGINES,
    ),
    "prefill": (
        ("engine.prefix_caching", "reuses the turns before and the group's prompt"),
        *_MORE_ENGINES,
    ),
    "decode": (
        *_MORE_ENGINES,
        ("engine.tensor_parallel_size", "more GPUs an engine"),
        ("rollout.max_tokens_per_turn", "lower it, where turns run to it"),
    ),
    "reset": (
        ("environment.workers", "raise it, where episodes wait for a process (environment.runs_in)"),
        _MORE_EPISODES,
        ("environment.step_deadline_s", "lower it, where a few resets take longest"),
    ),
    "tool": (
        _MORE_EPISODES,
        ("environment.step_deadline_s", "lower it, where a few calls take longest"),
        _FURTHER_AHEAD,
    ),
    "reward": (_MORE_EPISODES, ("environment.step_deadline_s", "lower it, where a few rewards take longest")),
    "straggler": (
        ("scheduling.order", "predicted starts the longest first"),
        _FURTHER_AHEAD,
        ("environment.max_turns", "lower it, where the last ones run to it"),
        ("environment.episode_deadline_s", "lower it, where the last ones hang"),
    ),
    TRAIN: (
        ("training.ranks", "more GPUs a step"),
        ("training.dtype", "bfloat16 is faster on GPUs"),
        ("training.micro_batch_tokens", "raise it, as far as memory allows"),
        ("rollout.cells", "fewer suffice, while rollout waits for the trainer"),
    ),
    "admission": (("admission.drop_k3_nats", "without any limit of the section, no group is scored"),),
    "trainer": (("checkpoint.every_steps", "raise it: fewer checkpoints, and more steps again after a crash"),),
    "claim": (("scheduling.order", "predicted claims a whole batch ahead"), _FURTHER_AHEAD),
    "publish": (_FURTHER_AHEAD,),
    "apply": (*_SMALLER_VERSIONS, _FURTHER_AHEAD),
    WEIGHTS: (*_SMALLER_VERSIONS, ("publication.chain_factor", "raise it: more deltas, fewer anchors")),
}
_DONE: Mapping[str, Any] = {
    "engine.prefix_caching": True,
    "publication.dtype": "bfloat16",
    "scheduling.order": "predicted",
    "training.dtype": "bfloat16",
}
"""Values at which a parameter has no more to give."""
_DONE_IN: Mapping[tuple[str, str], Any] = {(TRAIN, "rollout.cells"): 1}
"""The same for a parameter that is turned one way for one part, and the other way for others."""
