from __future__ import annotations

import importlib
from random import Random
from typing import Any

import numpy as np
import pytest

from driftline.environment import Task, resolve
from driftline.errors import EnvironmentFailed
from environments.reasoning_gym import library
from environments.reasoning_gym.steps.family import NOT_POSSIBLE, Puzzle
from environments.reasoning_gym.steps.hanoi import Hanoi
from environments.reasoning_gym.steps.maze import Maze
from environments.reasoning_gym.steps.rush_hour import RushHour
from environments.reasoning_gym.steps.sokoban import Sokoban

MAZE = {
    "grid": ["#####", "#s.g#", "#.#.#", "#####"],
    "start": "s", "goal": "g", "wall": "#", "path": ".",
}  # fmt: skip
BLOCKED = "ooooooooooBoAAooBoooooBoooooooxooooo"
SOKOBAN = {"gamestr": "+ + + + + +  \n+ * @ X X +  \n+ - - - - +  \n+ + + + + +  \n\n"}
HANOI = {"num_disks": 2, "num_pegs": 3, "start_peg": 1, "target_peg": 3}


async def test_a_maze_is_walked_square_by_square() -> None:
    task = Task.create("reasoning_gym/maze_steps/v1", {"metadata": MAZE, "answer": "2", "level": None})
    puzzle = Puzzle(Maze(), max_turns=10)
    prompt = (await puzzle.reset(task, 0))[0].content
    assert "#####\n#s.g#\n#.#.#\n#####" in prompt
    assert prompt.endswith("up, down, left or right.")
    wall = await puzzle.step("up")
    assert wall.messages[0].content == f"{NOT_POSSIBLE}\n#####\n#s.g#\n#.#.#\n#####"
    assert (wall.reward, wall.terminated) == (None, False)
    step = await puzzle.step("I go <answer>Right</answer>")
    assert step.messages[0].content == "#####\n#.sg#\n#.#.#\n#####"
    last = await puzzle.step("right")
    assert (last.reward, last.terminated, last.success) == (1.0, True, True)
    with pytest.raises(EnvironmentFailed, match="reset"):
        await puzzle.step("right")


async def test_running_out_of_moves_is_worth_nothing() -> None:
    task = Task.create("reasoning_gym/maze_steps/v1", {"metadata": MAZE, "answer": "2", "level": None})
    puzzle = Puzzle(Maze(), max_turns=2)
    await puzzle.reset(task, 0)
    await puzzle.step("down")
    last = await puzzle.step("what?")
    assert (last.reward, last.terminated, last.truncated, last.success) == (0.0, False, True, False)


async def test_what_is_no_snapshot_is_refused() -> None:
    task = Task.create("reasoning_gym/maze_steps/v1", {"metadata": MAZE, "answer": "2", "level": None})
    for other in (None, b"", {}, {"state": "??", "turns_left": 1}, {"state": [1], "turns_left": 1}):
        with pytest.raises(EnvironmentFailed, match="is no snapshot of reasoning_gym/maze_steps/v1"):
            await Puzzle(Maze(), 5).restore(task, other)


def test_the_shortest_way_through_a_maze() -> None:
    assert Maze().solution({"metadata": MAZE}) == ["right", "right"]


def test_a_box_is_pushed_onto_goals_and_off_again() -> None:
    rules = Sokoban()
    state = rules.start(SOKOBAN)
    assert rules.moved(SOKOBAN, state, "L") is None
    first = rules.moved(SOKOBAN, state, "r")
    assert first is not None
    assert first[1] == "+-*$X+"
    assert rules.solved(SOKOBAN, first)
    second = rules.moved(SOKOBAN, first, "right")
    assert second is not None
    assert second[1] == "+--%$+"
    assert rules.moved(SOKOBAN, second, "R") is None
    assert rules.moved(SOKOBAN, second, "jump") is None
    third = rules.moved(SOKOBAN, second, "D")
    assert third is not None
    assert (third[1], third[2]) == ("+--X$+", "+--*-+")


def test_sokoban_is_the_library_s_own_game() -> None:
    library.reasoning_gym()
    game_module: Any = importlib.import_module("reasoning_gym.games.contrib.sokoban.src.game")
    rules, rng = Sokoban(), Random(5)
    for entry in library.entries("sokoban", level=None, seed=2, count=4):
        state = rules.start(entry["metadata"])
        matrix = np.array([list(line) for line in state])
        game = game_module.Game(height=matrix.shape[0], width=matrix.shape[1])
        game.load_puzzle_matrix(matrix)
        for _ in range(150):
            move = rng.choice("LRUD")
            following = rules.moved(entry["metadata"], state, move)
            assert bool(game.player.update(key=move)) is (following is not None)
            state = state if following is None else following
            assert "".join(state) == game.get_curr_state()


def test_a_vehicle_slides_as_far_as_it_is_free() -> None:
    rules, metadata = RushHour(), {"board_config": BLOCKED}
    state = rules.start(metadata)
    assert rules.board(metadata, state).split("\n")[2] == "AA..B."
    assert rules.moved(metadata, state, "A+3") is None
    assert rules.moved(metadata, state, "A-1") is None
    assert rules.moved(metadata, state, "B+3") is None
    assert rules.moved(metadata, state, "C+1") is None
    assert rules.moved(metadata, state, "A+0") is None
    down = rules.moved(metadata, state, "b+2")
    assert down is not None
    free = rules.moved(metadata, down, "A+4")
    assert free is not None
    assert rules.solved(metadata, free)
    assert rules.solution({"metadata": metadata}) == ["B+2", "A+4"]


def test_rush_hour_solutions_are_the_shortest_and_the_library_takes_them() -> None:
    for entry in library.entries("rush_hour", level=0, seed=4, count=5):
        solution = RushHour().solution(entry)
        assert len(solution) <= entry["metadata"]["min_moves"]
        assert library.scorer("rush_hour").score_answer(" ".join(solution), entry) == 1.0


def test_a_larger_disk_never_goes_onto_a_smaller_one() -> None:
    rules = Hanoi()
    state = rules.start(HANOI)
    assert rules.board(HANOI, state) == "peg 1: 2 1\npeg 2:\npeg 3:"
    moved = rules.moved(HANOI, state, "1 2")
    assert moved is not None
    assert moved == ((2,), (1,), ())
    assert rules.moved(HANOI, moved, "1 2") is None
    assert rules.moved(HANOI, moved, "3 1") is None
    assert rules.moved(HANOI, moved, "1 4") is None
    assert rules.moved(HANOI, moved, "Move disk 1 from Peg 1 to Peg 3") is None
    assert rules.moved(HANOI, moved, "Move disk 2 from Peg 1 to Peg 3") == ((), (1,), (2,))
    assert rules.moved(HANOI, moved, "1 -> 3") == ((), (1,), (2,))


@pytest.mark.parametrize("dataset", ["maze", "rush_hour", "sokoban", "tower_of_hanoi"])
def test_tasks_are_the_dataset_s_entries(dataset: str) -> None:
    question, steps = (resolve(f"reasoning_gym/{name}/v1") for name in (dataset, f"{dataset}_steps"))
    assert [t.payload for t in question.generate(9, 2)] == [t.payload for t in steps.generate(9, 2)]
