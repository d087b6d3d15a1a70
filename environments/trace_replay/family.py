"""The tasks of `trace_replay/v1`: each is one group of a trace, with the shape of all of its members.

As an environment id `trace_replay/v1` draws new groups in the manner of `published_tail` for every seed. A run that
replays one trace names it by a dotted path: `environments.trace_replay:PUBLISHED_TAIL`, or an own module with

    FAMILY = TraceReplay(Path("my-trace.jsonl"))

Texts are digits, which character-level models know, and of which tokenizers that split digits make a token each. So
the plain rendering has exactly as many tokens as the trace says; a chat template adds its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from string import digits

from driftline.environment import Placement, Task
from driftline.errors import ConfigurationError
from driftline.traces import EpisodeShape, groups_of, load
from environments.trace_replay import published_tail
from environments.trace_replay.replay import Replay

TRACES = Path(__file__).parent / "traces"


@dataclass(frozen=True)
class TraceReplay:
    """The family, over a trace file or, with None, over groups drawn as in `published_tail`."""

    trace: Path | None = None
    id: str = "trace_replay/v1"
    alphabet: str | None = "\n" + digits
    stop: str = "\n"
    runs_in: Placement = "loop"

    def generate(self, seed: int, count: int) -> list[Task]:
        """The first `count` groups of the trace, whatever the seed; without a trace, those drawn with the seed."""
        if self.trace is None:
            return tasks_of(published_tail.generate(seed=seed, groups=count))
        tasks = tasks_of(load(self.trace))
        if count > len(tasks):
            raise ConfigurationError(
                f"{self.trace.name} has {len(tasks)} groups, not {count}: lower environment.train_tasks and "
                f"environment.held_out_tasks to {len(tasks)} together"
            )
        return tasks[:count]

    def make(self, *, max_turns: int = 20) -> Replay:
        """Make an environment, which refuses episodes of more than `max_turns` turns: it would not replay them."""
        return Replay(max_turns)

    def oracle(self, task: Task) -> Sequence[str] | None:
        """Nothing is to be solved."""
        return None

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str]:
        """Digits; with what ends a turn, as many tokens as the first member's turns have."""
        lengths: list[int] = task.payload["members"][0]["sampled_tokens"]
        return ["".join(rng.choice(digits) for _ in range(length - 1)) for length in lengths]


PUBLISHED_TAIL = TraceReplay(TRACES / "published_tail.jsonl")
POINTER_CHASE = TraceReplay(TRACES / "pointer_chase.jsonl")


def tasks_of(trace: Sequence[EpisodeShape]) -> list[Task]:
    """A task for each group of a trace, in order. Its id is the hash of the group's number and shape."""
    return [
        Task.create(TraceReplay.id, {"group": members[0].group, "members": [_payload(shape) for shape in members]})
        for members in groups_of(trace)
    ]


def _payload(shape: EpisodeShape) -> dict[str, object]:
    return {
        "prompt_tokens": shape.prompt_tokens,
        "sampled_tokens": list(shape.sampled_tokens),
        "observation_tokens": list(shape.observation_tokens),
        "tool_seconds": list(shape.tool_seconds),
        "reset_seconds": shape.reset_seconds,
        "reward_seconds": shape.reward_seconds,
        "reward": shape.reward,
    }
