"""Where the time of a run went, as the report has it: parts, idle seconds with their cost, and the verdict. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftline.records import Span, StepRecord
from driftline.tracking.attribution import Attribution, attribute_run, prices_of
from driftline.tracking.verdict import WINDOW_STEPS, Verdict, judge

SHOWN_SHARE = 0.01
"""Parts below this share of their sum are not in the table."""


@dataclass(frozen=True, slots=True)
class Attributed:
    """The attribution of a run's steps, what bounds them, and what bounds the last few."""

    found: Attribution
    verdict: Verdict | None
    """Of all steps; None where they took no time."""
    recent: Verdict | None
    """Of the last `WINDOW_STEPS`."""


def build(records: Sequence[StepRecord], spans: Sequence[Span], parameters: Mapping[str, Any]) -> Attributed | None:
    """Attribute the steps of a run; None before the first.

    Args:
        records: The committed steps, in order.
        spans: The timeline.
        parameters: Of the run, as in `RunDescription.parameters`.
    """
    if not records:
        return None
    return Attributed(
        attribute_run(records, spans, prices_of(parameters)),
        judge(records, parameters),
        judge(records[-WINDOW_STEPS:], parameters),
    )


def to_dict(found: Attributed | None) -> dict[str, Any] | None:
    """The figures under their public names; seconds are sums over the steps, but for those of a verdict."""
    if found is None:
        return None
    whole, rollout = found.found, found.found.rollout_idle_s
    return {
        "step_s": dict(whole.step_s),
        "idle_s": {"rollout": None if rollout is None else dict(rollout), "train": dict(whole.train_idle_s)},
        "idle_cost": {"rollout": whole.rollout_idle_cost, "train": whole.train_idle_cost},
        "verdict": _verdict(found.verdict),
        "verdict_last_steps": _verdict(found.recent),
    }


def rows(found: Attributed | None) -> list[tuple[str, str]]:
    """Lines of the report's table."""
    if found is None:
        return []
    whole = found.found
    made = [("where a step's time went (mean)", _parts(whole.step_s, whole.steps))]
    for pool, idle, cost in (
        ("rollout", whole.rollout_idle_s, whole.rollout_idle_cost),
        ("train", whole.train_idle_s, whole.train_idle_cost),
    ):
        if idle is not None:
            price = "" if cost is None else f"; cost {cost:.2f}"
            made.append((f"{pool} pool idle in a step (mean)", f"{_parts(idle, whole.steps)}{price}"))
    if found.verdict is not None:
        last = found.recent
        others = f" (last {last.steps} steps: {last.bound})" if last and last.bound != found.verdict.bound else ""
        made.append(("bound by", found.verdict.why + others))
        made += [("  to change it", change) for change in found.verdict.changes]
    return made


def _verdict(found: Verdict | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "bound": found.bound,
        "part": found.part,
        "why": found.why,
        "changes": list(found.changes),
        "shares": dict(found.shares),
        "seconds_per_step": dict(found.seconds),
        "steps": found.steps,
    }


def _parts(total: Mapping[str, float], steps: int) -> str:
    whole = math.fsum(total.values())
    largest = sorted(total.items(), key=lambda item: -item[1])
    shown = [f"{cause} {value / steps:.2f} s" for cause, value in largest if value > SHOWN_SHARE * whole]
    return ", ".join(shown) or "-"
