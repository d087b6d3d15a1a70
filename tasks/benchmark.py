"""The same work synchronous and overlapped: what each took, and what the split of the work allows. Pure, but for I/O.

Rollout and training seconds are measured in the synchronous run, where neither disturbs the other. Perfect overlap
would take the longer of the two, so that against `rollout + training` the wall clock can fall to the **bound**

    bound = max(rollout, training) / (rollout + training)

**Overlap efficiency** is the longer of the two, measured alone, over the overlapped run's step.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from prefect.artifacts import acreate_markdown_artifact

from driftline.errors import ConfigurationError
from driftline.params import OverlapParameters, RunParameters
from driftline.records import Span, StepRecord
from driftline.tracking import metrics
from driftline.tracking.summary import split_steps, summarize

REPEATED = {
    None: "Only one synchronous run: whether they repeat was not seen.",
    True: "All synchronous runs had the same tasks and rewards.",
    False: "**Synchronous runs differ in tasks or rewards although their seed is the same.**",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """One run's steps after the first few; seconds are means over steps."""

    run: str
    lead_groups: int
    steps: int
    episodes: int
    step_s: float
    rollout_s: float
    training_s: float
    idle_share_rollout: float
    idle_share_train: float
    engine_pause_p50_s: float | None
    engine_pause_max_s: float | None
    k3_nats: float | None
    ess_fraction: float | None
    lag_steps_mean: float | None
    reward_first: float | None
    reward_last: float | None
    reward_means: tuple[float, ...]
    """Mean training reward of every step, those that do not count included."""
    tasks: tuple[str, ...]
    """Task of each group that was trained, by group number."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A synchronous run and an overlapped one of the same work."""

    synchronous: Figures
    overlapped: Figures

    @property
    def ratio(self) -> float:
        """Wall clock of an overlapped step over that of a synchronous one."""
        return self.overlapped.step_s / self.synchronous.step_s

    @property
    def bound(self) -> float:
        """The least ratio that the split of rollout and training allows."""
        alone = self.synchronous
        return max(alone.rollout_s, alone.training_s) / (alone.rollout_s + alone.training_s)

    @property
    def overlap_efficiency(self) -> float:
        """The longer of rollout and training, measured alone, over the overlapped step."""
        alone = self.synchronous
        return max(alone.rollout_s, alone.training_s) / self.overlapped.step_s

    @property
    def pipeline_overhead_s(self) -> float:
        """The overlapped step less the longer of rollout and training measured alone; negative where overlap helps.

        It does where a lead keeps more requests in an engine step than one batch's tail does.
        """
        alone = self.synchronous
        return self.overlapped.step_s - max(alone.rollout_s, alone.training_s)


def variants(params: RunParameters, *, steps: int, cpus: tuple[int, int]) -> tuple[RunParameters, RunParameters]:
    """The parameters of the synchronous and of the overlapped run, with engine and trainer on a processor each.

    The lead of the overlapped run is that of `params`, or one batch where that is synchronous.
    """
    engine, trainer = cpus
    common = params.model_copy(
        update={
            "engine": params.engine.model_copy(update={"cpus": (engine,)}),
            "training": params.training.model_copy(update={"cpus": (trainer,), "steps": steps}),
        }
    )
    lead = params.overlap.lead_groups or params.rollout.groups_per_step
    return _with_lead(common, 0), _with_lead(common, lead)


def _with_lead(params: RunParameters, lead_groups: int) -> RunParameters:
    overlap = OverlapParameters.model_validate(
        {
            **params.overlap.model_dump(include={"max_lag_versions", "budget_k3_nats"}),
            "controller": "fixed",
            "lead_groups": lead_groups,
        }
    )
    return RunParameters.model_validate(params.model_copy(update={"overlap": overlap}).model_dump())


def two_processors() -> tuple[int, int]:
    """Two processors of this machine, one for the engine and one for the trainer.

    Raises:
        ConfigurationError: There is only one.
    """
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        raise ConfigurationError("the benchmark pins engine and trainer to a processor each: it needs two")
    return found[0], found[1]


def measure(params: RunParameters, records: Sequence[StepRecord], spans: Sequence[Span], *, skip: int) -> Figures:
    """A run's figures over its steps after the first `skip`, in which engine and trainer warm up.

    Raises:
        ConfigurationError: No step is left, or no cell recorded a timeline.
    """
    counted = records[skip:]
    splits = split_steps(counted, spans)
    rollout = [split.rollout_s for split in splits if split.rollout_s is not None]
    if not counted or len(rollout) < len(counted):
        raise ConfigurationError(f"{len(records)} steps with {len(rollout)} timelines: too few after skipping {skip}")
    whole = summarize(counted, spans)
    return Figures(
        run=counted[0].run,
        lead_groups=params.overlap.lead_groups,
        steps=len(counted),
        episodes=sum(use.members for record in counted for use in record.groups),
        step_s=(counted[-1].times.committed - counted[0].times.previous_commit) / len(counted),
        rollout_s=sum(rollout) / len(counted),
        training_s=sum(split.training_s for split in splits) / len(counted),
        idle_share_rollout=whole.idle_share_rollout or 0.0,
        idle_share_train=whole.idle_share_train or 0.0,
        engine_pause_p50_s=whole.engine_pause_p50_s,
        engine_pause_max_s=whole.engine_pause_max_s,
        k3_nats=whole.k3_nats,
        ess_fraction=whole.ess_fraction,
        lag_steps_mean=whole.lag_steps_mean,
        reward_first=whole.reward_first,
        reward_last=whole.reward_last,
        reward_means=tuple(record.metrics[metrics.REWARD_MEAN] for record in records),
        tasks=tasks_in_order(records),
    )


def tasks_in_order(records: Sequence[StepRecord]) -> tuple[str, ...]:
    """The task of each group that was trained, by group number."""
    uses = sorted((use.group, use.task_id) for record in records for use in record.groups)
    return tuple(task for _, task in uses)


def repeats(pairs: Sequence[Pair]) -> bool | None:
    """Whether all synchronous runs had the same tasks and the same rewards; None of a single one."""
    ran = [(pair.synchronous.tasks, pair.synchronous.reward_means) for pair in pairs]
    return all(run == ran[0] for run in ran[1:]) if len(ran) > 1 else None


def to_dict(pairs: Sequence[Pair]) -> dict[str, Any]:
    """All figures, and the medians over pairs."""
    return {
        "pairs": [
            {
                "synchronous": asdict(pair.synchronous),
                "overlapped": asdict(pair.overlapped),
                "ratio": pair.ratio,
                "bound": pair.bound,
                "overlap_efficiency": pair.overlap_efficiency,
                "pipeline_overhead_s": pair.pipeline_overhead_s,
            }
            for pair in pairs
        ],
        "ratio": median(pair.ratio for pair in pairs),
        "bound": median(pair.bound for pair in pairs),
        "ratio_over_bound": median(pair.ratio / pair.bound for pair in pairs),
        "overlap_efficiency": median(pair.overlap_efficiency for pair in pairs),
        "pipeline_overhead_s": median(pair.pipeline_overhead_s for pair in pairs),
        "synchronous_runs_agree": repeats(pairs),
    }


def to_markdown(pairs: Sequence[Pair]) -> str:
    """The figures as a table: never a time without divergence and reward beside it."""
    lines = [
        "# Synchronous and overlapped",
        "",
        "| | step | rollout | training | idle rollout / train | pause p50 / max | k3 | lag | reward, first -> last |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for number, pair in enumerate(pairs, 1):
        lines += [_row(f"{number} synchronous", pair.synchronous), _row(f"{number} overlapped", pair.overlapped)]
    found = to_dict(pairs)
    lines += [
        "",
        f"Wall clock, overlapped over synchronous: **{found['ratio']:.3f}**; the split of rollout and training "
        f"allows {found['bound']:.3f}. Overlap efficiency: **{found['overlap_efficiency']:.3f}**. "
        f"Medians of {len(pairs)} pairs. {REPEATED[found['synchronous_runs_agree']]}",
    ]
    return "\n".join(lines) + "\n"


async def publish(pairs: Sequence[Pair], path: Path | None) -> dict[str, object]:
    """Show the table on the Prefect page, and write the JSON where it was asked for."""
    found = to_dict(pairs)
    await acreate_markdown_artifact(to_markdown(pairs), key="overlap-benchmark", description="Overlap benchmark")
    if path is not None:
        await asyncio.to_thread(_write, path, json.dumps(found, indent=2) + "\n")
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _row(name: str, found: Figures) -> str:
    cells = [
        f"{found.step_s:.2f} s",
        f"{found.rollout_s:.2f} s",
        f"{found.training_s:.2f} s",
        f"{found.idle_share_rollout:.2f} / {found.idle_share_train:.2f}",
        f"{_number(found.engine_pause_p50_s, '.3f')} / {_number(found.engine_pause_max_s, '.3f')} s",
        f"{_number(found.k3_nats, '.2g')} nats",
        _number(found.lag_steps_mean, ".2f"),
        f"{_number(found.reward_first, '.2f')} -> {_number(found.reward_last, '.2f')}",
    ]
    return "| " + " | ".join([name, *cells]) + " |"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
