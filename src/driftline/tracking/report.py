"""The report of a run, from the store alone: while it runs, and after.

report = build_report(store, "latest")
print(render(report))
Path("report.json").write_text(to_json(report))
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from driftline.errors import ConfigurationError, ObjectMissing
from driftline.params import settings
from driftline.records import EvaluationResult, RunDescription, TokenLedger
from driftline.store import keys
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore, list_runs
from driftline.tracking import attributed, by_environment
from driftline.tracking.attributed import Attributed
from driftline.tracking.bias import Bias, Comparison, find_bias
from driftline.tracking.by_environment import EnvironmentFigures
from driftline.tracking.steered import Steered, steered
from driftline.tracking.steered import rows as steered_rows
from driftline.tracking.steered import to_dict as steered_to_dict
from driftline.tracking.summary import Summary, held_out_success, summarize

LATEST = "latest"
BASE_VERSION = 0
WIDTH = 100
WORDS = "What these words mean (k3, lag, lead, zero variance, probe, ...): docs/metrics.md"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to. `pages` are addresses to show beside it, by name."""

    run: str
    state: str
    reason: str
    created_unix: float
    task_set: str
    held_out_success_base: float | None
    held_out_success_final: float | None
    evaluations: tuple[EvaluationResult, ...]
    summary: Summary
    mlflow_run: str | None
    store: str
    """Where the run's objects lie, as `s3://bucket/runs/<run>/`."""
    model: str | None = None
    """Address of the final policy's model directory; None until it is exported."""
    pages: Mapping[str, str] = field(default_factory=dict[str, str])
    environments: Mapping[str, EnvironmentFigures] = field(default_factory=dict[str, EnvironmentFigures])
    ledger: TokenLedger | None = None
    """Of the last step."""
    imbalances: Mapping[int, int] = field(default_factory=dict[int, int])
    """Step -> tokens that its ledger does not explain, where there are any."""
    steered: Steered = field(default_factory=lambda: steered(()))
    """Leads, and the causes of divergence."""
    attributed: Attributed | None = None
    """Where the time went; None before the first step."""
    bias: Bias | None = None
    """What was trained on against what was generated; None before the first step."""


def build_report(
    store: ObjectStore, run: str, *, bucket: str | None = None, pages: Mapping[str, str] | None = None
) -> Report:
    """Read what the store holds about a run.

    Args:
        store: Where runs are kept.
        run: Its name, or `latest` for the one that was created last.
        bucket: Name of the store's bucket, to say where the objects lie; by default that of the settings.
        pages: Addresses to show beside the figures, such as those of Prefect and MLflow.

    Raises:
        ConfigurationError: There is no such run.
        StoreUnavailable: The store does not answer.
    """
    description = find_run(store, run)
    run_store = RunStore(store, description.run)
    try:
        head, _ = run_store.read_head()
    except ObjectMissing:
        head = None
    evaluations = tuple(run_store.evaluations())
    records, spans = (run_store.steps() if head else []), run_store.spans()
    address, model = f"s3://{bucket or settings().bucket}/", keys.final_model_prefix(description.run)
    final = head.version.number if head and head.version and head.version.number > BASE_VERSION else None
    return Report(
        run=description.run,
        state=head.state if head else "not started",
        reason=head.reason if head else "",
        created_unix=description.created_unix,
        task_set=description.task_set,
        held_out_success_base=held_out_success(evaluations, BASE_VERSION),
        held_out_success_final=held_out_success(evaluations, final),
        environments=by_environment.by_environment(records, evaluations, base=BASE_VERSION, final=final),
        evaluations=evaluations,
        summary=summarize(records, spans, head.given_up if head else ()),
        mlflow_run=description.mlflow_run,
        store=f"{address}{keys.run_prefix(description.run)}",
        model=f"{address}{model}" if next(iter(store.list(model)), None) is not None else None,
        pages=dict(pages or {}),
        ledger=records[-1].ledger if records else None,
        imbalances={r.step: r.ledger.imbalance for r in records if r.ledger is not None and r.ledger.imbalance},
        steered=steered(records),
        attributed=attributed.build(records, spans, description.parameters),
        bias=find_bias(records),
    )


def find_run(store: ObjectStore, run: str) -> RunDescription:
    """The description of a run by name, or of the one created last for `latest`.

    Raises:
        ConfigurationError: There is none.
    """
    known = list_runs(store) if run == LATEST else []
    if run == LATEST and not known:
        raise ConfigurationError(
            "the store holds no run yet: start one, for example with `make demo`, or wait if one is starting"
        )
    try:
        return RunStore(store, known[-1] if run == LATEST else run).describe()
    except ObjectMissing:
        others = ", ".join(list_runs(store)[-5:]) or "none"
        raise ConfigurationError(f"no run {run!r} in the store: choose one of ({others}) or `latest`") from None


def to_dict(report: Report) -> dict[str, Any]:
    """The report's figures under their public names; what was not measured is None."""
    summary = report.summary
    return {
        "run": report.run,
        "steps": summary.steps,
        "held_out_success_base": report.held_out_success_base,
        "held_out_success_final": report.held_out_success_final,
        "environments": by_environment.to_dict(report.environments),
        "wall_clock_s": summary.wall_clock_s,
        "time_to_trainable_batch_s": {"p50": summary.time_to_batch_p50_s, "p95": summary.time_to_batch_p95_s},
        "overlap_efficiency": summary.overlap_efficiency,
        "idle_share": {"rollout": summary.idle_share_rollout, "train": summary.idle_share_train},
        "k3_nats": summary.k3_nats,
        "ess_fraction": summary.ess_fraction,
        "admission": {"dropped_share": summary.dropped_share, "down_weighted_share": summary.down_weighted_share},
        "lag_steps": {"mean": summary.lag_steps_mean, "max": summary.lag_steps_max},
        "engine_pause_s": {"p50": summary.engine_pause_p50_s, "max": summary.engine_pause_max_s},
        "pipeline_overhead_s": {"p50": summary.pipeline_overhead_p50_s},
        "groups": {
            "trained": summary.groups_trained,
            "zero_variance": summary.groups_zero_variance,
            "failed": summary.groups_failed,
        },
        "mlflow_run": report.mlflow_run,
        "store": report.store,
        "model": report.model,
        "ledger": _ledger(report),
        **steered_to_dict(report.steered),
        "attribution": attributed.to_dict(report.attributed),
        "bias": None if report.bias is None else report.bias.as_dict(),
        "warnings": [*_lesson_warnings(report.summary), *(report.bias.warnings if report.bias else ())],
    }


def _ledger(report: Report) -> dict[str, Any] | None:
    """The token ledger of the last step, and whether that of every step balances."""
    found = report.ledger
    if found is None:
        return None
    return {
        "balances": not report.imbalances,
        "generated": found.generated,
        **found.terms,
        "masked_by": dict(found.masked_by),
        "stale_by": dict(found.stale_by),
        "cancelled_by": dict(found.cancelled_by),
        "unbalanced_steps": {str(step): tokens for step, tokens in report.imbalances.items()},
    }


def to_json(report: Report) -> str:
    """The report as JSON with the keys of `to_dict`."""
    return json.dumps(to_dict(report), indent=2) + "\n"


def told(report: Report) -> Group:
    """The report for a terminal: a table, and around it, never wrapped or cut, what is to be copied from it."""
    made = Table(show_header=False, min_width=60)
    made.add_column("figure", style="bold", no_wrap=True)
    made.add_column("value", overflow="fold")
    for name, value in rows(report):
        made.add_row(name, value)
    found = addresses(report)
    widest = max(len(name) for name, _ in found)
    lines = [f"run {report.run} ({state(report)})", *(f"{name:<{widest}}  {value}" for name, value in found)]
    title, *below = (Text(line, no_wrap=True, overflow="ignore") for line in lines)
    return Group(title, made, *below, Text(WORDS))


def state(report: Report) -> str:
    """How the run stands, in words. The store calls it finished when its last step is committed."""
    if report.state == "finished" and report.model is None:
        return "trained; evaluation and export are still to come"
    return report.state + (f": {report.reason}" if report.reason else "")


def addresses(report: Report) -> list[tuple[str, str]]:
    """Where to look further: name, and an id or an address."""
    return [
        ("task set", report.task_set),
        ("MLflow run", report.mlflow_run or "-"),
        ("objects", report.store),
        *([("trained policy", report.model)] if report.model is not None else []),
        *report.pages.items(),
    ]


def rows(report: Report) -> list[tuple[str, str]]:
    """The table's rows: name and value. Speed stands beside divergence and reward."""
    found = report.summary
    parts = sorted(found.time_to_batch_by_cause_s.items(), key=lambda item: -item[1])
    return [
        ("optimizer steps", str(found.steps)),
        (
            "held-out success, base -> final",
            f"{_number(report.held_out_success_base)} -> {_number(report.held_out_success_final)}",
        ),
        *_held_out_rows(report),
        ("training reward, first -> last step", f"{_number(found.reward_first)} -> {_number(found.reward_last)}"),
        ("wall clock of the steps", _number(found.wall_clock_s, " s")),
        (
            "time to a trainable batch, p50 / p95",
            f"{_number(found.time_to_batch_p50_s, ' s')} / {_number(found.time_to_batch_p95_s, ' s')}",
        ),
        ("  of which (mean)", ", ".join(f"{cause} {value:.2f} s" for cause, value in parts if value >= 0.005) or "-"),
        (
            "rollout / training in a step, p50",
            f"{_number(found.rollout_p50_s, ' s')} / {_number(found.training_p50_s, ' s')}",
        ),
        ("overlap efficiency, p50", _number(found.overlap_efficiency)),
        ("pipeline overhead of a step, p50", _number(found.pipeline_overhead_p50_s, " s")),
        (
            "idle share, rollout / train pool",
            f"{_number(found.idle_share_rollout)} / {_number(found.idle_share_train)}",
        ),
        *attributed.rows(report.attributed),
        ("divergence k3", _number(found.k3_nats, " nats", digits=5)),
        ("effective sample size", _number(found.ess_fraction)),
        (
            "tokens dropped / down-weighted",
            f"{_number(found.dropped_share)} / {_number(found.down_weighted_share)} of those sampled",
        ),
        (
            "lag in versions, mean / max",
            f"{_number(found.lag_steps_mean)} / {_number(found.lag_steps_max, digits=0)}",
        ),
        *steered_rows(report.steered),
        (
            "engine pause, p50 / max",
            f"{_number(found.engine_pause_p50_s, ' s')} / {_number(found.engine_pause_max_s, ' s')}",
        ),
        (
            "groups trained / zero variance / failed",
            f"{found.groups_trained} / {found.groups_zero_variance} / {found.groups_failed}",
        ),
        *by_environment.failure_rows(report.environments),
        ("tokens sampled, and what became of them", _tokens(report)),
        *(("WARNING: nothing was learned", warning) for warning in _lesson_warnings(found)),
        *_bias_rows(report.bias),
    ]


def render(report: Report) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH)
    console.print(told(report), crop=False)
    return console.export_text()


def render_html(report: Report) -> str:
    """The report as an HTML page."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH)
    console.print(told(report), crop=False)
    return console.export_html(inline_styles=True)


def _held_out_rows(report: Report) -> list[tuple[str, str]]:
    """Of a mixture, held-out success in each environment."""
    return [
        (f"  {name}", f"{_number(one.held_out_base)} -> {_number(one.held_out_final)}")
        for name, one in report.environments.items()
        if len(report.environments) > 1
    ]


def _tokens(report: Report) -> str:
    if report.ledger is None:
        return "-"
    terms = ", ".join(f"{tokens} {name.replace('_', ' ')}" for name, tokens in report.ledger.terms.items() if tokens)
    steps = ", ".join(map(str, report.imbalances))
    balance = f"; OUT OF BALANCE in steps {steps}" if steps else ""
    return f"{report.ledger.generated}: {terms}{balance}"


def _lesson_warnings(found: Summary) -> list[str]:
    """That there was nothing to learn from, where no group had a variance."""
    if found.groups_trained or not found.groups_zero_variance:
        return []
    groups = "1 group" if found.groups_zero_variance == 1 else f"{found.groups_zero_variance} groups"
    return [
        f"no group's rewards differed ({groups}, training reward {_number(found.reward_first)} -> "
        f"{_number(found.reward_last)}): nothing was learned. Play tasks that the policy solves at times (a refresh "
        "measures which: environment-refresh/nightly), raise rollout.group_size, or begin with another policy"
    ]


def _bias_rows(bias: Bias | None) -> list[tuple[str, str]]:
    """Lengths and durations of what was trained on beside those of what was generated, and warnings."""
    if bias is None:
        return []
    rows = [
        (f"trained / generated, {name}", "; ".join(f"{what} {_pair(one)}" for what, one in comparisons.items()))
        for name, comparisons in bias.by_environment.items()
    ]
    return rows + [("WARNING: trained on is not what was generated", warning) for warning in bias.warnings]


def _pair(one: Comparison) -> str:
    return f"{one.trained_mean:.3g} / {one.generated_mean:.3g}"


def _number(value: float | None, unit: str = "", *, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}{unit}"
