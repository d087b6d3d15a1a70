"""`driftline trajectories`: what the policy read and wrote, from the store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftline.cli_reach import layout_here, reach_store, run_store_of
from driftline.cli_shared import console, known_errors
from driftline.errors import ConfigurationError

if TYPE_CHECKING:
    from driftline.records import Group
    from driftline.store.run_store import RunStore
    from driftline.tracking.traces import EpisodeTrace, TraceSpan

MARGIN = "    | "

app = typer.Typer(help="What the policy read and wrote.", no_args_is_help=True)


@app.callback()
def trajectories() -> None:
    """What the policy read and wrote."""


@app.command()
@known_errors
def show(
    run: Annotated[str, typer.Option(help="Id of the run, or `latest`.")] = "latest",
    step: Annotated[int | None, typer.Option(help="Episodes that this step trained on.", min=1)] = None,
    group: Annotated[int | None, typer.Option(help="Episodes of this group.", min=0)] = None,
    limit: Annotated[int, typer.Option(help="Most episodes.", min=1)] = 8,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the episodes to this file.")] = None,
) -> None:
    """Print episodes as text: by default those of the groups that were finished last."""
    if step is not None and group is not None:
        raise ConfigurationError("--step and --group: give one of them; a group is trained on in one step at most")
    reach_store(layout_here())
    from driftline.engine.reading import messages_of, tokenizer_of
    from driftline.tracking.traces import episode_trace

    run_store = run_store_of(run)
    tokenizer = tokenizer_of(run_store.store, run_store.describe().model)
    found = [member for one in _groups(run_store, step, group, limit) for member in one.trajectories]
    episodes = [episode_trace(member, messages_of(member, tokenizer)) for member in found[:limit]]
    for episode in episodes:
        console.print("\n".join(_lines(episode)), markup=False)
    console.print(f"run {run_store.run}: {_count(len(episodes), len(found), newest=step is None and group is None)}")
    if json_path is not None:
        json_path.write_text(json.dumps([_as_json(run_store.run, one) for one in episodes], indent=2) + "\n")


def _groups(run_store: RunStore, step: int | None, group: int | None, limit: int) -> Sequence[Group]:
    from driftline.store import episodes

    if group is not None:
        return [episodes.group_numbered(run_store, group)]
    if step is not None:
        return sorted(episodes.groups_of_steps(run_store, step, step), key=lambda one: one.number)
    return episodes.newest_groups(run_store, limit)


def _count(shown: int, found: int, *, newest: bool) -> str:
    """How many episodes were printed, and how to see more."""
    episodes = "1 episode" if shown == 1 else f"{shown} episodes"
    if newest:
        return f"the newest {episodes}; others by --step, --group or --limit"
    return episodes if shown == found else f"{episodes} of {found}; --limit {found} shows all"


def _lines(episode: EpisodeTrace) -> Iterator[str]:
    """An episode for a terminal, an empty line last."""
    facts = episode.attributes
    yield f"group {facts['group']} member {facts['member']} attempt {facts['attempt']}"
    yield f"  task {facts['task']}  of {facts['task_set']}"
    yield f"  environment {facts['environment']}  stratum {facts['stratum'] or '-'}"
    yield (
        f"  policy version {_versions(facts['policy_versions'])}  reward {_number(facts['reward'])}  "
        f"success {_yes_or_no(facts['success'])}  status {facts['status']}"
        + (f" ({printable(facts['reason'])})" if facts["reason"] else "")
    )
    for part in episode.inputs:
        yield "  prompt"
        yield from _indented(part["content"])
    for span in episode.spans:
        yield _heading(span)
        yield from _indented(_text(span))
    yield ""


def _heading(span: TraceSpan) -> str:
    seconds = f"{span.end_unix - span.start_unix:.3g} s"
    if span.kind == "TOOL":
        return f"  tool ({seconds})"
    facts = span.attributes
    return (
        f"  policy (version {_versions(facts['policy_versions'])}, {facts['tokens']} tokens, mean log-probability "
        f"{_number(facts['mean_logprob_nats'])} nats, {seconds})"
    )


def _indented(text: str) -> Iterator[str]:
    for line in text.removesuffix("\n").split("\n"):
        yield MARGIN + printable(line)


def printable(text: str) -> str:
    """Text as a terminal may have it: a policy writes what it likes, and control characters are orders to it."""
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)


def _text(span: TraceSpan) -> str:
    """What was said in a turn or a tool call."""
    return span.outputs if span.kind == "LLM" else "".join(part["content"] for part in span.outputs)


def _as_json(run: str, episode: EpisodeTrace) -> dict[str, Any]:
    turns = [
        {
            "speaker": "policy" if span.kind == "LLM" else "tool",
            "text": _text(span),
            "start_unix": span.start_unix,
            "end_unix": span.end_unix,
            **{name: _finite(value) for name, value in span.attributes.items()},
        }
        for span in episode.spans
    ]
    facts = {name: _finite(value) for name, value in episode.attributes.items()}
    prompt = "".join(part["content"] for part in episode.inputs)
    return {
        "run": run,
        **facts,
        "reward_parts": episode.outputs.get("reward_parts", {}),
        "prompt": prompt,
        "said": turns,
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _versions(versions: Sequence[int]) -> str:
    if not versions:
        return "-"
    low, high = min(versions), max(versions)
    return str(low) if low == high else f"{low} to {high}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _yes_or_no(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"
