"""What the adapter uses of verifiers' v1 interface, without it; the real package is in tests/integration.

A score is computed as there: every reward hook is called with those of `task`, `trace` and `runtime` that it names.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import BaseModel, ConfigDict


@dataclass
class Said:
    content: Any
    role: str = "user"


def message(role: str) -> Callable[..., Said]:
    return lambda content: Said(content, role)


class Data(BaseModel):
    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    prompt: str | None = None
    system_prompt: str | None = None
    answer: str = ""
    idx: int | None = None
    image: str | None = None
    skills: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    limit_s: float | None = None

    @property
    def timeout(self) -> Any:
        return SimpleNamespace(scoring=self.limit_s)


@dataclass
class Trace:
    task: Any
    agent: Any
    nodes: list[Any]
    state: Any
    rewards: dict[str, Any] = field(default_factory=dict)
    is_completed: bool = False
    ok: bool = False
    stop_condition: str | None = None

    @property
    def last_reply(self) -> str:
        return self.nodes[-1].message.content


class Task:
    NEEDS_CONTAINER = False

    def __init__(self, data: Data, judges: tuple[str, ...] = ()) -> None:
        self.data = data
        self.key = self.hash = data.answer
        self.config = SimpleNamespace(judges=judges)

    async def setup(self, trace: Any, runtime: Any) -> None: ...

    async def finalize(self, trace: Any, runtime: Any) -> None: ...

    async def stage_verifier(self, trace: Any, runtime: Any) -> None: ...

    def runtime_env(self) -> dict[str, str]:
        return {}

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return []

    def hooks(self, kind: str) -> list[Callable[..., Any]]:
        return []

    async def score(self, trace: Trace) -> None:
        available = {"task": self.data, "trace": trace}
        for hook in self.hooks("reward"):
            names = inspect.signature(hook).parameters
            found = await hook(**{name: available[name] for name in names if name in available})
            weight = 0.5 if hook.__name__ == "polite" else 1.0
            trace.rewards[hook.__name__] = None if found is None else SimpleNamespace(value=found * weight)


class Sum(Task):
    """Half of a point for a please, and a whole one for the sum."""

    def hooks(self, kind: str) -> list[Callable[..., Any]]:
        return [self.right, self.polite] if kind == "reward" else []

    async def right(self, task: Data, trace: Trace) -> float:
        return float(trace.last_reply.split()[-1:] == [task.answer])

    async def polite(self, trace: Trace, runtime: Any = None) -> float:
        return float("please" in trace.last_reply)


class Unscored(Task):
    """No reward at all."""


class Raising(Sum):
    async def right(self, task: Data, trace: Trace) -> float:
        return float(int(trace.last_reply) == int(task.answer))


class Slow(Sum):
    async def right(self, task: Data, trace: Trace) -> float:
        await asyncio.sleep(3600)
        return 1.0


class Missing(Sum):
    async def right(self, task: Data, trace: Trace) -> Any:
        return None


class Contained(Sum):
    NEEDS_CONTAINER = True


class Prepared(Sum):
    async def setup(self, trace: Any, runtime: Any) -> None: ...


class WithTools(Sum):
    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        return ["search"]


class Running(Sum):
    def hooks(self, kind: str) -> list[Callable[..., Any]]:
        return [self.run] if kind == "reward" else []

    async def run(self, trace: Trace, runtime: Any) -> float:
        return 0.0


class Measuring(Sum):
    """Its reward would read what this metric records."""

    def hooks(self, kind: str) -> list[Callable[..., Any]]:
        return [self.passed] if kind == "metric" else super().hooks(kind)

    async def passed(self, trace: Trace, runtime: Any) -> float:
        return 0.0


KINDS = {
    kind.__name__: kind
    for kind in (Sum, Unscored, Raising, Slow, Missing, Contained, Prepared, WithTools, Running, Measuring)
}


class Config(BaseModel):
    id: str
    kind: str = "Sum"
    last: int = 20
    system_prompt: Path | None = None
    instruction: str | None = None
    prompt: str | None = "What is {} + 1?"
    judges: tuple[str, ...] = ()
    limit_s: float | None = None
    shared_tools: bool = False
    skills: tuple[str, ...] = ()


class Sums:
    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def toolsets(cls, config: Config) -> list[Any]:
        return ["search"] if config.shared_tools else []

    def __iter__(self) -> Iterator[Task]:
        for index, task in enumerate(self.load()):
            override = self.config.system_prompt
            update = {} if override is None else {"system_prompt": override.read_text()}
            task.data = task.data.model_copy(update={"idx": index, **update})
            yield task

    def load(self) -> Iterator[Task]:
        asked = self.config
        for number in range(asked.last):
            prompt = None if asked.prompt is None else asked.prompt.format(number)
            data = Data(
                prompt=prompt,
                system_prompt=asked.instruction,
                answer=str(number + 1),
                limit_s=asked.limit_s,
                skills=asked.skills,
            )
            yield KINDS[asked.kind](data, asked.judges)


def config_type(name: str) -> type[Config]:
    if name != "sums":
        raise ModuleNotFoundError(f"taskset {name!r} not found")
    return Config


def modules() -> dict[str, ModuleType]:
    """For `sys.modules`."""
    v1, state = ModuleType("verifiers.v1"), ModuleType("verifiers.v1.state")
    single: Any = object()
    state.state_cls = lambda kind: SimpleNamespace  # pyright: ignore[reportAttributeAccessIssue]
    vars(v1).update(
        Task=Task, Trace=Trace, TraceTask=SimpleNamespace, AgentInfo=SimpleNamespace, AgentConfig=SimpleNamespace,
        MessageNode=lambda message, parent=None, sampled=False: SimpleNamespace(
            message=message, parent=parent, sampled=sampled
        ),
        SystemMessage=message("system"), UserMessage=message("user"), AssistantMessage=message("assistant"),
        SingleAgentEnv=single, environment_class=lambda name: single,
        taskset_config_type=config_type, load_taskset=Sums,
    )  # fmt: skip
    return {"verifiers": ModuleType("verifiers"), "verifiers.v1": v1, "verifiers.v1.state": state}
