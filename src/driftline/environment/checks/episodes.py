"""Checks that play episodes: equal arguments give equal episodes, and rewards mean what they say."""

from __future__ import annotations

from driftline.environment.abilities import prescribes, reusable
from driftline.environment.checks.findings import Broken, Case, NotApplicable, ensure, first_difference, short
from driftline.environment.checks.playing import (
    IDLE_ACTIONS,
    MAX_TURNS,
    RAISED,
    Said,
    actions_for,
    begin,
    ended,
    in_a_loop,
    play,
    play_in,
    take,
)
from driftline.environment.contract import Environment, Task

IDLE_TURNS = 6
REPETITIONS = 3
ODD_TEXTS = (
    "", " ", "\n\n", "\x00\x01", "é😀\u202e", "=٤٢", "{}", "[[1, 2", '<tool_call>{"name": 3}</tool_call>',
    "<answer></answer>", "<answer>9**9</answer>", "-" * 100_000,
)  # fmt: skip


def determinism(case: Case) -> None:
    """Equal task, seed and actions give an equal episode, whatever else has been or is being played."""
    in_a_loop(_determinism(case))


async def _determinism(case: Case) -> None:
    for task in case.tasks:
        actions = actions_for(case, task)
        ensure(actions == actions_for(case, task), f"the oracle of task {task.id} changes from call to call")
        first = await play(case, task, actions)
        for _ in range(REPETITIONS):
            difference = first_difference(first, await play(case, task, actions))
            ensure(not difference, f"task {task.id} played twice differs at {difference}")
    await _side_by_side(case)
    await _one_after_the_other(case)


async def _side_by_side(case: Case) -> None:
    """Turn by turn, two environments of different tasks."""
    alone = [await play(case, task, actions_for(case, task)) for task in case.tasks[:2]]
    environments = [case.family.make(max_turns=MAX_TURNS) for _ in case.tasks[:2]]
    try:
        said = [[(await begin(case, one, task))[0]] for one, task in zip(environments, case.tasks, strict=False)]
        scripts = [actions_for(case, task) for task in case.tasks[:2]]
        for turn in range(max(map(len, alone)) - 1):
            for environment, record, wanted, script in zip(environments, said, alone, scripts, strict=True):
                if turn < len(wanted) - 1:
                    action = script[turn] if turn < len(script) else "0"
                    record.append(await take(case, environment, action))
    finally:
        for environment in environments:
            await environment.close()
    for wanted, record in zip(alone, said, strict=True):
        difference = first_difference(wanted, record)
        ensure(not difference, f"beside an episode of another task, it differs at {difference}")


async def _one_after_the_other(case: Case) -> None:
    """Where environments are reused: the second episode is as in a new one."""
    environment = case.family.make(max_turns=MAX_TURNS)
    if not reusable(environment):
        await environment.close()
        return
    try:
        await play_in(case, environment, case.tasks[0], actions_for(case, case.tasks[0]))
        if not await environment.recycle():
            return
        task = case.tasks[-1]
        used = await play_in(case, environment, task, actions_for(case, task))
        difference = first_difference(await play(case, task, actions_for(case, task)), used)
        ensure(not difference, f"after recycle, an episode differs at {difference}")
    finally:
        await environment.close()


def oracle(case: Case) -> None:
    """The oracle's actions succeed."""
    in_a_loop(_oracle(case))


async def _oracle(case: Case) -> None:
    solved = 0
    for task in case.tasks:
        actions = case.family.oracle(task)
        if actions is None:
            continue
        said = await play(case, task, actions)
        last = said[-1]
        ensure(ended(last), f"task {task.id} goes on after all {len(actions)} actions of its oracle")
        ensure(last["success"] is True, f"the oracle of task {task.id} ends with {short(_outcome(last))}")
        ensure(last["reward"] is not None, f"the oracle of task {task.id} succeeds without a reward")
        solved += 1
    if not solved:
        raise NotApplicable("there is no oracle")


def no_op(case: Case) -> None:
    """Who says nothing to the purpose does not succeed, and earns less than the oracle."""
    in_a_loop(_no_op(case))


async def _no_op(case: Case) -> None:
    await _refuse_prescribed(case, "its turns are prescribed: what the policy says is not judged")
    for task in case.tasks:
        best = await _reward_of_a_solution(case, task)
        for text in IDLE_ACTIONS:
            last = (await play(case, task, [text] * IDLE_TURNS, max_turns=IDLE_TURNS))[-1]
            ensure(last["success"] is not True, f"task {task.id}: saying {text!r} succeeds")
            reward = last["reward"]
            enough = best is not None and reward is not None and reward >= best
            ensure(not enough, f"task {task.id}: saying {text!r} earns {reward}, and the oracle {best}")


async def _reward_of_a_solution(case: Case, task: Task) -> float | None:
    """What the oracle earns, if there is one and it succeeds."""
    actions = case.family.oracle(task)
    last = {} if actions is None else (await play(case, task, actions))[-1]
    return last["reward"] if last.get("success") else None


def turn_limit(case: Case) -> None:
    """An episode ends after `max_turns` turns."""
    in_a_loop(_turn_limit(case))


async def _turn_limit(case: Case) -> None:
    await _refuse_prescribed(case, "its turns are prescribed")
    for limit in (1, 3):
        said = await play(case, case.tasks[0], [IDLE_ACTIONS[0]] * limit, max_turns=limit)
        ensure(ended(said[-1]), f"an episode of max_turns={limit} goes on after turn {limit}")


def any_text(case: Case) -> None:
    """Whatever the policy says, the environment answers: an exception would make the episode not count."""
    in_a_loop(_any_text(case))


async def _any_text(case: Case) -> None:
    for text in ODD_TEXTS:
        environment = case.family.make(max_turns=MAX_TURNS)
        try:
            await begin(case, environment, case.tasks[0])
            await take(case, environment, text)
        except Broken:
            raise
        except RAISED as error:
            raise Broken(f"step({short(text, 40)}) raised {type(error).__name__}: {error}") from None
        finally:
            await environment.close()


async def _refuse_prescribed(case: Case, why: str) -> None:
    environment: Environment = case.family.make(max_turns=MAX_TURNS)
    prescribed = prescribes(environment)
    await environment.close()
    if prescribed:
        raise NotApplicable(why)


def _outcome(said: Said) -> Said:
    return {key: said[key] for key in ("reward", "success", "terminated", "truncated")}
