"""What tests of the rollout share: a policy that solves pointer chase, environments that misbehave, a bench."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from driftline.engine.protocol import GenerationRequest
from driftline.engine.scripted import Script, ScriptedEngine
from driftline.engine.tokens import PlainRenderer, character_tokenizer
from driftline.environment import Message, Placement, StepResult, Task
from driftline.params import RunParameters
from driftline.records import PolicyVersion, Probe, WeightsManifest
from driftline.rollout.episode import EpisodeLimits, EpisodeResources, EpisodeSpec
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from environments import FAMILIES

FAMILY = FAMILIES["pointer_chase/v1"]
assert FAMILY.alphabet is not None
TOKENIZER = character_tokenizer(FAMILY.alphabet)
RENDERER = PlainRenderer(TOKENIZER, stop=FAMILY.stop, eos="<eos>")
STOP = TOKENIZER.token_to_id("\n")


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def decode(ids: Sequence[int]) -> str:
    return TOKENIZER.decode(list(ids), skip_special_tokens=False)


def solve(request: GenerationRequest) -> list[int]:
    """Read where the last line points to; answer when it holds the answer."""
    last = decode(request.prompt_ids).splitlines()[-1]
    return encode(f"={last[1:]}\n" if last[0] == "=" else f">{last[1:]}\n")


def undecided(request: GenerationRequest) -> list[int]:
    """As `solve`, but wrong every third time: rewards differ within a group."""
    return encode(">a\n") if request.seed % 3 == 0 else solve(request)


def manifest(number: int, run: str = "r", epoch: int = 1) -> WeightsManifest:
    return WeightsManifest(
        run, PolicyVersion(number, epoch), "anchor", None, (), {}, "float32", Probe((), ()), created_unix=0.0
    )


def parameters(**sections: dict[str, Any]) -> RunParameters:
    return RunParameters.model_validate({"engine": {"backend": "scripted"}} | sections)


@dataclass
class Behaviour:
    """What a misbehaving environment does; by default it ends with a reward of 1 at the first step."""

    reset: Callable[[], Awaitable[None]] | None = None
    step: Callable[[str], Awaitable[StepResult]] | None = None
    close: Callable[[], Awaitable[None]] | None = None


@dataclass
class OddFamily:
    """A family whose environments behave as told, and which counts those that are open."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    id: str = "odd/v1"
    alphabet: str | None = FAMILY.alphabet
    stop: str = "\n"
    runs_in: Placement = "thread"
    opened: int = 0
    closed: int = 0

    def generate(self, seed: int, count: int) -> list[Task]:
        return [Task.create(self.id, {"seed": seed, "number": number}) for number in range(count)]

    def make(self, *, max_turns: int = 20) -> OddEnvironment:
        self.opened += 1
        return OddEnvironment(self)

    def oracle(self, task: Task) -> Sequence[str] | None:
        return None

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        return None


class OddEnvironment:
    def __init__(self, family: OddFamily) -> None:
        self._family = family
        self._closed = False

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        if self._family.behaviour.reset is not None:
            await self._family.behaviour.reset()
        return (Message("user", "?ab\n"),)

    async def step(self, action: str) -> StepResult:
        if self._family.behaviour.step is not None:
            return await self._family.behaviour.step(action)
        return StepResult(reward=1.0, terminated=True, success=True)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._family.closed += 1
        if self._family.behaviour.close is not None:
            await self._family.behaviour.close()


async def forever(*_: object) -> Any:
    await asyncio.Event().wait()


async def blocks(*_: object) -> Any:
    time.sleep(30)  # noqa: ASYNC251 (what it is for)


async def spins(*_: object) -> Any:
    while True:
        pass


async def deaf(*_: object) -> Any:
    """Waits for ever, whoever cancels it."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


def resources(
    engine: ScriptedEngine, family: Any = FAMILY, *, guard: EnvironmentGuard | None = None, **limits: Any
) -> EpisodeResources:
    """Episode resources over the default parameters, with some limits replaced."""
    from dataclasses import replace

    return EpisodeResources(
        family=family,
        engine=engine,
        renderer=RENDERER,
        limits=replace(EpisodeLimits.of(parameters()), **limits),
        guard=guard or EnvironmentGuard(grace_s=0.05),
        busy=BusyMeter(),
    )


async def started(script: Script | None = solve, **options: Any) -> ScriptedEngine:
    """A scripted engine that holds version 0."""
    engine = ScriptedEngine(script=script, **options)
    await engine.start()
    await engine.update(manifest(0))
    return engine


def spec(task: Task, *, group: int = 0, member: int = 0, attempt: int = 1, priority: int = 0) -> EpisodeSpec:
    return EpisodeSpec("r", "c", group, member, attempt, task, "set-1", priority)
