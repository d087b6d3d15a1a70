"""`verifiers/<task set>/v1`: a task set of verifiers (its v1 interface): a prompt, one turn, and its rewards.

    SUMS = Verifiers("my_sums_v1", config={"split": "train"})

The turn is put into a trace, and the task's own `@reward` functions score it. They run here, in this process, and get
no runtime: what would have to run a program, a container, a tool server, a judge or a simulated user is refused when
the task set is loaded, since leaving out a part of a score would pay for answers that the task set does not.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from random import Random
from typing import Any

from driftline.adapters.foreign import as_json, id_of, name_in, required, versions_of
from driftline.adapters.verifiers_refusals import prompt_of, refusal_of_set, refusal_of_tasks
from driftline.environment import Message, Placement, Snapshot, StepResult, Task
from driftline.errors import ConfigurationError, EnvironmentFailed

ADAPTER = "verifiers"
MODULE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
MOST_TASKS = 100_000
SCORE_DEADLINE_S = 60.0
PLACE = frozenset({"idx"})
"""Of a task's data: where it stands in the task set, which is no part of its state."""
FILES = frozenset({"system_prompt"})
"""Of a task set's configuration: a path of this machine, whose text is in every task's data."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Verifiers:
    """The family of one task set. Whatever of it changes a task or its score makes the next `version`."""

    taskset: str
    """The module of the task set, installed: nothing is fetched from the Environments Hub."""
    config: Mapping[str, Any] = field(default_factory=_nothing, hash=False)
    """Fields of the task set's own configuration; JSON values."""
    solved_at: float = 1.0
    """A reward from which a task counts as solved: 1, as in verifiers' own validation."""
    most_tasks: int = MOST_TASKS
    """So many are loaded of a task set that has more, or no end."""
    score_deadline_s: float = SCORE_DEADLINE_S
    """Seconds for the rewards of one answer, where the task has no limit of its own."""
    version: int = 1
    runs_in: Placement = "thread"
    alphabet: str | None = None
    stop: str = "\n"

    @property
    def id(self) -> str:
        """`verifiers/<task set>/v<version>`."""
        return id_of(ADAPTER, self.taskset, self.version)

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` of the task set's tasks, drawn by `seed`.

        Raises:
            ConfigurationError: It cannot be loaded, needs what there is not here, or has not so many tasks.
        """
        known = list(self.loaded)
        if count > len(known):
            raise ConfigurationError(f"{self.id} has {len(known)} tasks, not {count}: ask for fewer")
        return [self._task(self.loaded[one]) for one in Random(f"{self.id}:{seed}").sample(known, count)]

    def make(self, *, max_turns: int = 1) -> Answering:
        """Make an environment; the one turn there is ends the episode."""
        del max_turns
        return Answering(self)

    def oracle(self, task: Task) -> Sequence[str] | None:
        """Task sets have no answers in a form that their rewards take."""
        return None

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """There is no demonstrator."""
        return None

    @cached_property
    def loaded(self) -> Mapping[str, Any]:
        """The task set's own tasks, by the ids that they have here, in its order.

        Raises:
            ConfigurationError: It cannot be loaded, or needs what there is not here.
        """
        vf = required("verifiers.v1", ADAPTER)
        if MODULE_NAME.fullmatch(self.taskset) is None:
            raise ConfigurationError(
                f"verifiers would fetch {self.taskset!r} from its Hub: install it, and give the name of its module"
            )
        try:
            config = vf.taskset_config_type(self.taskset).model_validate({**self.config, "id": self.taskset})
            taskset = vf.load_taskset(config)
            refusal = refusal_of_set(vf, self.taskset, taskset)
            tasks: list[Any] = [] if refusal else list(islice(taskset, self.most_tasks))
        except Exception as error:
            raise ConfigurationError(
                f"the task set {self.taskset!r} cannot be loaded ({type(error).__name__}: {error}): is it installed, "
                "with what it reads, and are these fields of its configuration?"
            ) from error
        if refusal := refusal or refusal_of_tasks(vf, tasks):
            raise ConfigurationError(f"the task set {self.taskset!r} cannot be played here: {refusal}")
        return {self._task(task).id: task for task in tasks}

    def _task(self, task: Any) -> Task:
        config = {name: value for name, value in self.config.items() if name not in FILES}
        state = {
            "taskset": self.taskset,
            "config": as_json(f"config of {self.taskset}", config),
            "type": type(task).__name__,
            "data": task.data.model_dump(mode="json", exclude_none=True, exclude=PLACE),
            "solved_at": self.solved_at,
            "versions": versions_of("verifiers", type(task).__module__, self.taskset.replace("-", "_")),
        }
        return Task.create(self.id, state)


class Answering:
    """Asks, and has the task score the answer."""

    def __init__(self, family: Verifiers) -> None:
        self._family = family
        self._task: Any = None

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Ask. There is no chance in it, so the seed changes nothing.

        Raises:
            EnvironmentFailed: The task set that is installed here has no such task.
        """
        del seed
        self._task = self._known(task)
        return tuple(Message(role, text) for role, text in prompt_of(self._task.data))

    async def step(self, action: str) -> StepResult:
        """Score the answer.

        Raises:
            EnvironmentFailed: A reward raised, took too long, or was not given.
        """
        if self._task is None:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        task, self._task = self._task, None
        rewards = await self._scored(task, action)
        if not rewards:
            return StepResult(terminated=True)
        total = sum(rewards.values())
        return StepResult(
            reward=total, terminated=True, success=total >= self._family.solved_at, reward_parts=rewards
        )

    async def snapshot(self) -> bool:
        """Whether the question is open."""
        return self._task is not None

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Have it asked, or answered."""
        self._task = self._known(task) if snapshot else None

    async def close(self) -> None:
        """Forget the question."""
        self._task = None

    def _known(self, task: Task) -> Any:
        found = self._family.loaded.get(task.id)
        if found is None:
            raise EnvironmentFailed(
                f"{self._family.id} has no task {task.id} here: it was made by another version or configuration "
                f"({task.payload.get('versions')})"
            )
        return found

    async def _scored(self, task: Any, answer: str) -> dict[str, float]:
        """Name -> weighted reward."""
        trace = _trace(required("verifiers.v1", ADAPTER), task, answer)
        deadline_s = task.data.timeout.scoring or self._family.score_deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                await task.score(trace)
        except TimeoutError:
            raise EnvironmentFailed(
                f"{self._family.id}: the rewards took longer than {deadline_s:g} s: raise score_deadline_s"
            ) from None
        except Exception as error:
            raise EnvironmentFailed(f"{self._family.id}: a reward raised {type(error).__name__}: {error}") from error
        missing = sorted(name for name, reward in trace.rewards.items() if reward is None)
        if missing:
            raise EnvironmentFailed(f"{self._family.id}: there is no reward {', '.join(missing)}")
        return {name: float(reward.value) for name, reward in trace.rewards.items()}


def named(rest: str) -> Verifiers:
    """The family of `verifiers/<rest>`, with the adapter's defaults.

    Raises:
        ConfigurationError: It is no such name.
    """
    return Verifiers(name_in(ADAPTER, rest))


def _trace(vf: Any, task: Any, answer: str) -> Any:
    """A finished conversation: the prompt, and the answer as what the policy sampled."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    messages = [kinds[role](content=text) for role, text in prompt_of(task.data)]
    nodes = [
        vf.MessageNode(message=message, parent=index - 1 if index else None) for index, message in enumerate(messages)
    ]
    reply = vf.MessageNode(
        message=vf.AssistantMessage(content=answer), parent=len(nodes) - 1 if nodes else None, sampled=True
    )
    state = importlib.import_module("verifiers.v1.state").state_cls(type(task))
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[*nodes, reply],
        state=state(),
        is_completed=True,
        ok=True,
        stop_condition="agent_completed",
    )
