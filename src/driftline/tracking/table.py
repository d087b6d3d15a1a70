"""The rows of the table of metric names, and what is done with them. Its contents are `metrics`'s."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from driftline.errors import ConfigurationError

Source = Literal["trainer", "cell", "evaluation", "report"]
"""Who writes it: the trainer after a step, a rollout cell, the evaluation, or the parent flow from the store."""

ENVIRONMENT = "<environment>"
"""At the end of a row's name: there is such a metric for each environment."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    unit: str
    meaning: str
    source: Source


_ROWS: dict[str, Metric] = {}


def row(name: str, unit: str, meaning: str, source: Source = "trainer") -> str:
    """Add a row; returns its name."""
    if name in _ROWS:
        raise AssertionError(f"{name} is in the table twice")
    _ROWS[name] = Metric(name, unit, meaning, source)
    return name


def quantiles(name: str, unit: str, what: str, shares: Iterable[float]) -> Mapping[float, str]:
    """Share of the batch's members -> the metric below which `what` lies for them; each member counts once."""
    at = {share: f"p{100 * share:02.0f}" for share in shares}
    return {share: row(name.format(p), unit, f"Quantile {share:.0%} of {what}.") for share, p in at.items()}


def of_environment(name: str, environment: str) -> str:
    """The metric of one environment, by the name of a row for each; what MLflow does not take in a name is `_`."""
    parts = (re.sub(r"[^\w-]", "_", part) for part in environment.split("/"))
    return name.removesuffix(ENVIRONMENT) + "/".join(part for part in parts if part)


TABLE: Mapping[str, Metric] = _ROWS
"""Name -> row, in the order of the page."""


def check(names: Iterable[str]) -> None:
    """Refuse names that are not in the table.

    Raises:
        ConfigurationError: A name is unknown; the message names the closest one.
    """
    of_each = tuple(name.removesuffix(ENVIRONMENT) for name in TABLE if name.endswith(ENVIRONMENT))
    for name in names:
        if name not in TABLE and not name.startswith(of_each):
            close = difflib.get_close_matches(name, TABLE, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "add it to driftline/tracking/metrics.py"
            raise ConfigurationError(f"no metric is named {name!r}: {hint}")


WORDS: tuple[tuple[str, str], ...] = (
    (
        "group, member",
        "`rollout.group_size` episodes of one task; a batch is `rollout.groups_per_step` groups",
    ),
    (
        "version",
        "of the policy: one set of weights; each optimizer step makes one, and 0 is the base policy",
    ),
    (
        "lag",
        "versions between the policy that sampled a token and the one that was trained on it",
    ),
    (
        "lead",
        "groups that generation may start before training has used those before them (`overlap.lead_groups`); "
        "0 is synchronous",
    ),
    (
        "k3",
        "how far the policy that sampled is from the one being trained: an estimate of KL(behaviour \\|\\| "
        "current) in nats a token; 0 for equal policies ([divergence](divergence.md))",
    ),
    (
        "effective sample size",
        "share of the batch's tokens that its importance weights are worth; 1 for equal policies",
    ),
    (
        "dropped, down-weighted",
        "what admission does with members that have diverged ([divergence](divergence.md))",
    ),
    (
        "zero variance",
        "a group whose members all got the same reward: it keeps its place in the batch with weight 0, for "
        "there is nothing to learn from it",
    ),
    (
        "probe",
        "tokens that were sampled or scored to measure, and never trained on: those that prove that an engine "
        "serves a version, and groups that measure tasks for a refresh",
    ),
    (
        "straggler",
        "a batch waits for its last episodes alone",
    ),
    (
        "time to a trainable batch",
        "from the commit of a step to the moment when the next batch is whole, by cause along its critical "
        "path: the parts add up",
    ),
    (
        "overlap efficiency",
        "the longer of a step's rollout and training, over the step; 1 if the other was hidden wholly",
    ),
    (
        "idle share",
        "of a pool's time in which it neither generated nor trained",
    ),
    (
        "held-out success",
        "share of held-out tasks solved, by sampling; the base policy's, then the final one's",
    ),
)
"""Of the report and of the table, and what they mean."""


def markdown() -> str:
    """The words and the table as the Markdown page `docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated from `driftline.tracking.metrics` by `python -m driftline.tracking.metrics > docs/metrics.md`.",
        "The step axis is the number of the optimizer step; a cell and the evaluation log under the policy version,",
        "which is the number of the step that made it.",
        "",
        "## Words",
        "",
        "| Word | Meaning |",
        "|---|---|",
        *(f"| {word} | {meaning} |" for word, meaning in WORDS),
        "",
        "## Names",
        "",
        "| Name | Unit | Meaning | Written by |",
        "|---|---|---|---|",
    ]
    for one in TABLE.values():
        meaning = one.meaning.replace("|", "\\|")
        lines.append(f"| `{one.name}` | {one.unit} | {meaning} | {one.source} |")
    return "\n".join(lines) + "\n"
