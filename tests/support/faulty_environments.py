"""One family that keeps the contract (`Counting`), and for each clause of it some that break just that one."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random, SystemRandom
from string import ascii_lowercase, digits
from typing import Any, ClassVar

import numpy as np

from driftline.environment import Message, Snapshot, StepResult, Task
from driftline.environment.checks.surroundings import MARK
from driftline.errors import ConfigurationError


def watched() -> bool:
    """Whether the check that looks for what is left is running, which also clears it away."""
    return MARK in os.environ


class Counter:
    """Count to the target with `up`, then say `done` and a word. Every number comes with one drawn from the seed."""

    def __init__(self, max_turns: int) -> None:
        self.max_turns = max_turns
        self.count = self.target = self.turns_left = 0
        self.rng = Random(0)

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        self.count, self.target, self.turns_left = 0, task.payload["target"], self.max_turns
        self.rng = Random(f"{task.id}:{seed}")
        await asyncio.sleep(0.0005)
        return (Message("user", f"count to {self.target}"),)

    async def step(self, action: str) -> StepResult:
        await asyncio.sleep(0.0005)
        self.turns_left -= 1
        if action.startswith("done"):
            right = self.count == self.target
            return StepResult(
                reward=float(right), terminated=True, success=right, reward_parts={"count": float(right)}
            )
        self.count += action == "up"
        messages = (Message("tool", self.observe()),)
        if self.turns_left == 0:
            return StepResult(messages, reward=0.0, truncated=True, success=False)
        return StepResult(messages)

    def observe(self) -> str:
        return f"{self.count} {self.rng.randrange(1000)}"

    async def snapshot(self) -> Any:
        return {"count": self.count, "turns_left": self.turns_left, "rng": _as_json(self.rng.getstate())}

    async def restore(self, task: Task, snapshot: Any) -> None:
        self.target = task.payload["target"]
        self.count, self.turns_left = snapshot["count"], snapshot["turns_left"]
        version, internal, gauss = snapshot["rng"]
        self.rng.setstate((version, tuple(internal), gauss))

    async def recycle(self) -> bool:
        return True

    async def close(self) -> None: ...


def _as_json(state: Any) -> list[Any]:
    version, internal, gauss = state
    return [version, list(internal), gauss]


class Counting:
    """The family."""

    id = "counting/v1"
    alphabet: str | None = "\n " + ascii_lowercase + digits
    stop = "\n"
    game: type[Counter] = Counter

    def generate(self, seed: int, count: int) -> list[Task]:
        drawn = Random(f"{self.id}:{seed}").sample(range(10_000), count)
        return [Task.create(self.id, {"target": 2 + number % 4, "number": number}) for number in drawn]

    @property
    def levels(self) -> int:
        return 4

    def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
        if not 0 <= level < 4:
            raise ConfigurationError(f"no level {level}")
        drawn = Random(f"{self.id}:{level}:{seed}").sample(range(10_000), count)
        return [Task.create(self.id, {"target": 2 + level, "number": number}) for number in drawn]

    def level_of(self, task: Task) -> int:
        return task.payload["target"] - 2

    def make(self, *, max_turns: int = 20) -> Counter:
        return self.game(max_turns)

    def oracle(self, task: Task) -> Sequence[str] | None:
        return ["up"] * task.payload["target"] + [f"done {task.payload['target']}"]

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        return None


class NoVersion(Counting):
    id = "counting"


class OthersTasks(Counting):
    def generate(self, seed: int, count: int) -> list[Task]:
        return [Task.create("other/v1", task.payload) for task in super().generate(seed, count)]


class NumberedTasks(Counting):
    def generate(self, seed: int, count: int) -> list[Task]:
        return [Task(str(index), self.id, one.payload) for index, one in enumerate(super().generate(seed, count))]


class PayloadOfTuples(Counting):
    def generate(self, seed: int, count: int) -> list[Task]:
        return [Task.create(self.id, {**t.payload, "pair": (1, 2)}) for t in super().generate(seed, count)]


class UnseededTasks(Counting):
    def generate(self, seed: int, count: int) -> list[Task]:
        return super().generate(SystemRandom().randrange(10**9), count)


class TwinTasks(Counting):
    def generate(self, seed: int, count: int) -> list[Task]:
        return [task for task in super().generate(seed, count) for _ in range(2)][:count]


class OtherLevels(Counting):
    def level_of(self, task: Task) -> int:
        return 0


class NoHighestLevel(Counting):
    def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
        return super().generate_level(min(level, 3), seed, count)


class UnseededLevels(Counting):
    def generate_level(self, level: int, seed: int, count: int) -> list[Task]:
        return super().generate_level(level, SystemRandom().randrange(10**9), count)


class Unseeded(Counting):
    class game(Counter):
        def observe(self) -> str:
            return f"{self.count} {SystemRandom().randrange(1000)}"


class SharesState(Counting):
    class game(Counter):
        counts: ClassVar[list[int]] = [0]

        async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
            self.counts[0] = 0
            return await super().reset(task, seed)

        def observe(self) -> str:
            self.counts[0] += 1
            return f"{self.counts[0]}"


class RemembersAfterRecycle(Counting):
    class game(Counter):
        played = 0

        async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
            self.played += 1
            return (*await super().reset(task, seed), Message("user", f"episode {self.played}"))


class ForgetsTurnsLeft(Counting):
    class game(Counter):
        async def restore(self, task: Task, snapshot: Any) -> None:
            await super().restore(task, {**snapshot, "turns_left": self.max_turns})


class ForgetsChance(Counting):
    class game(Counter):
        async def restore(self, task: Task, snapshot: Any) -> None:
            await super().restore(task, {**snapshot, "rng": _as_json(Random(0).getstate())})


class LivingSnapshot(Counting):
    class game(Counter):
        def __init__(self, max_turns: int) -> None:
            super().__init__(max_turns)
            self.log: list[str] = []

        async def step(self, action: str) -> StepResult:
            self.log.append(action)
            return await super().step(action)

        async def snapshot(self) -> Snapshot:
            return {**await super().snapshot(), "log": self.log}


class PickledSnapshot(Counting):
    class game(Counter):
        async def snapshot(self) -> Snapshot:
            return pickle.dumps(await super().snapshot())


class SnapshotOfSets(Counting):
    class game(Counter):
        async def snapshot(self) -> Any:
            return {**await super().snapshot(), "seen": {1, 2}}


class WrongOracle(Counting):
    def oracle(self, task: Task) -> Sequence[str] | None:
        return ["up", "done"]


class EndlessOracle(Counting):
    def oracle(self, task: Task) -> Sequence[str] | None:
        return ["up"]


class AnythingSolves(Counting):
    class game(Counter):
        async def step(self, action: str) -> StepResult:
            result = await super().step(action)
            return StepResult(result.messages, 1.0, True, success=True) if result.truncated else result


class PaysForNothing(Counting):
    class game(Counter):
        async def step(self, action: str) -> StepResult:
            result = await super().step(action)
            return StepResult(result.messages, 1.0, False, True, False) if result.truncated else result


class AnyAnswerSolves(Counting):
    class game(Counter):
        async def step(self, action: str) -> StepResult:
            result = await super().step(action)
            return StepResult(reward=1.0, terminated=True, success=True) if result.terminated else result


class LacksOfItsPrompt(Counting):
    alphabet = "\n " + ascii_lowercase


class LacksOfAnObservation(Counting):
    class game(Counter):
        def observe(self) -> str:
            return f"{super().observe()}!"


class LacksOfADemonstration(Counting):
    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        return ["UP", "done"]


class LacksItsStop(Counting):
    stop = ";"


class LongStop(Counting):
    stop = "\n\n"


class PlainStep(Counting):
    class game(Counter):
        def step(self, action: str) -> Any:
            return StepResult()


class StepsToATuple(Counting):
    class game(Counter):
        async def step(self, action: str) -> Any:
            return ("a", 0.0, False, False, {})


class PromptOfText(Counting):
    class game(Counter):
        async def reset(self, task: Task, seed: int) -> Any:
            return "count"


class PromptOfTexts(Counting):
    class game(Counter):
        async def reset(self, task: Task, seed: int) -> Any:
            return ["count"]


class NoTurnLimit(Counting):
    class game(Counter):
        def __init__(self, max_turns: int) -> None:
            super().__init__(max_turns + 1)


class RaisesAtNonsense(Counting):
    class game(Counter):
        async def step(self, action: str) -> StepResult:
            if "[" in action:
                raise ValueError("what is this?")
            return await super().step(action)


class ExitsAtNonsense(Counting):
    class game(Counter):
        async def step(self, action: str) -> StepResult:
            if "[" in action:
                sys.exit(0)
            return await super().step(action)


class GivesUpAtNonsense(Counting):
    class game(Counter):
        async def step(self, action: str) -> StepResult:
            if "[" in action:
                raise asyncio.CancelledError
            return await super().step(action)


class LeavesTasks(Counting):
    class game(Counter):
        async def step(self, action: str) -> StepResult:
            self.forgotten = asyncio.get_running_loop().create_task(asyncio.sleep(60), name="forgotten")
            return await super().step(action)


class LeavesThreads(Counting):
    class game(Counter):
        async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
            if watched():
                threading.Thread(target=time.sleep, args=(8,), name="left-behind", daemon=True).start()
            return await super().reset(task, seed)


class LeavesProcesses(Counting):
    class game(Counter):
        async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
            if watched():
                code = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
                subprocess.run([sys.executable, "-S", "-c", code], check=True)  # noqa: ASYNC221
            return await super().reset(task, seed)


class LeavesFiles(Counting):
    class game(Counter):
        async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
            if watched():
                self.directory = Path(tempfile.mkdtemp(prefix="left-behind"))
            return await super().reset(task, seed)


class SwallowsCancel(Counting):
    class game(Counter):
        async def step(self, action: str) -> StepResult:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                await asyncio.sleep(30)
            return await super().step(action)


class SeedsTheGlobalState(Counting):
    class game(Counter):
        async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
            random.seed(seed)
            return await super().reset(task, seed)


class DrawsFromNumpy(Counting):
    def generate(self, seed: int, count: int) -> list[Task]:
        np.random.rand()
        return super().generate(seed, count)


class HashesText(Counting):
    class game(Counter):
        def observe(self) -> str:
            return f"{self.count} {hash('text') % 1000}"


class OrderOfASet(Counting):
    def generate(self, seed: int, count: int) -> list[Task]:
        letters = list({f"letter {index}" for index in range(50)})
        return [Task.create(self.id, {**t.payload, "letter": letters[0]}) for t in super().generate(seed, count)]


class CannotGenerate(Counting):
    def generate(self, seed: int, count: int) -> list[Task]:
        raise ZeroDivisionError("no tasks today")
