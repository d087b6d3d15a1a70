from __future__ import annotations

import importlib
import inspect
import random
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from driftline.environment import StepResult, Task, resolve
from driftline.errors import ConfigurationError
from environments.reasoning_gym import GradedQuestions, Questions, library
from environments.reasoning_gym.datasets import (
    APART,
    DEFAULTS,
    HEAVY,
    LEFT_OUT,
    LEVELS,
    REFUSED,
    STEPPED,
    TOO_DEAR,
    UNANSWERED,
    VERSION,
)
from environments.reasoning_gym.expressions import harmless, value_of
from environments.reasoning_gym.scoring import answer_in, is_right


async def reply(task: Task, text: str) -> StepResult:
    environment = resolve(task.environment).make()
    await environment.reset(task, 0)
    try:
        return await environment.step(text)
    finally:
        await environment.close()


def one(dataset: str) -> Task:
    return resolve(f"reasoning_gym/{dataset}/v1").generate(3, 1)[0]


def test_the_table_is_what_the_library_has() -> None:
    library.reasoning_gym()
    factory: Any = importlib.import_module("reasoning_gym.factory")
    assert metadata.version("reasoning-gym") == VERSION
    assert {*LEVELS, *LEFT_OUT} == set(factory.DATASETS)
    assert not set(LEVELS) & set(LEFT_OUT)
    assert {*APART, *HEAVY, *STEPPED, *DEFAULTS, *UNANSWERED, *REFUSED, *TOO_DEAR} <= set(LEVELS)
    for dataset, levels in LEVELS.items():
        attributes = factory.CURRICULA[dataset]().attributes.values() if dataset in factory.CURRICULA else ()
        most = max((len(one.levels) for one in attributes), default=0)
        assert levels == most - len(REFUSED.get(dataset, ())) - len(TOO_DEAR.get(dataset, ())), dataset


def test_the_global_random_state_is_left_alone_whatever_the_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    before = random.getstate()
    first = library.entries("list_functions", level=None, seed=5, count=2)
    assert random.getstate() == before
    assert len({entry["question"] for entry in first}) == 2


def test_levels_that_a_dataset_refuses_are_the_ones_passed_over() -> None:
    library.reasoning_gym()
    factory: Any = importlib.import_module("reasoning_gym.factory")
    for dataset, kind in factory.CURRICULA.items():
        refused: set[int] = set()
        for level in range(max(len(one.levels) for one in kind().attributes.values())):
            curriculum = kind()
            for name, attribute in curriculum.attributes.items():
                curriculum.set_attr_level(name, min(level, len(attribute.levels) - 1))
            try:
                getattr(curriculum.generate_configuration({"seed": 1, "size": 500}), "validate", lambda: None)()
            except AssertionError:
                refused.add(level)
        assert dataset in LEFT_OUT or refused == REFUSED.get(dataset, set()), dataset


def test_a_refused_level_is_passed_over() -> None:
    [second] = library.entries("modulo_grid", level=1, seed=1, count=1)
    [third] = library.entries("modulo_grid", level=2, seed=1, count=1)
    assert second["metadata"]["difficulty"] != third["metadata"]["difficulty"]


def test_no_term_of_a_sequence_grows_beyond_what_the_library_lets_stand() -> None:
    """It squared on, to numbers of more digits than there is memory, before it looked at them."""
    library.reasoning_gym()
    sequences: Any = importlib.import_module("reasoning_gym.cognition.number_sequences")
    rule = sequences.PatternRule([sequences.Operation.SQUARE] * 2, [0, 0])
    with pytest.raises(OverflowError, match="a term of 14 bits"):
        rule.apply([10], 0)
    assert rule.apply([5], 0) == 625
    look = inspect.signature(sequences.PatternGenerator.is_interesting)
    assert look.parameters["max_value"].default == library.LARGEST_TERM
    hardest = library.entries("number_sequence", level=3, seed=1, count=50)
    assert max(abs(term) for entry in hardest for term in entry["metadata"]["sequence"]) <= library.LARGEST_TERM


def test_the_sequences_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough to be made without the bound, too."""
    found = library.entries("number_sequence", level=0, seed=1, count=100)
    sequences: Any = importlib.import_module("reasoning_gym.cognition.number_sequences")
    [apply] = [cell.cell_contents for cell in sequences.PatternRule.apply.__closure__]
    monkeypatch.setattr(sequences.PatternRule, "apply", apply)
    assert library.entries("number_sequence", level=0, seed=1, count=100) == found
    assert any(entry["metadata"]["rule"] != "add 2" for entry in found)


def test_levels_that_take_a_dataset_too_long_are_passed_over() -> None:
    jugs = resolve("reasoning_gym/jugs/v1")
    assert isinstance(jugs, GradedQuestions)
    assert {len(jugs.generate_level(1, 1, 1)[0].payload["metadata"]["puzzle"]["jug_capacities"])} == {4}
    with pytest.raises(ConfigurationError, match="jugs has no level 2: 0 to 1"):
        jugs.generate_level(2, 1, 1)


def test_a_question_without_a_worked_answer_is_left_out() -> None:
    """To give the integral back as it stands would be a full score: its derivative is the integrand."""
    found = library.entries("intermediate_integration", level=None, seed=2, count=8)
    assert not any("Integral" in entry["answer"] for entry in found)
    entry = {"answer": "x**2 + C", "metadata": {"variable": "x", "integrand": "2*x"}}
    assert is_right("intermediate_integration", "x**2 + C", entry)
    assert not is_right("intermediate_integration", "Integral(2*x, x)", entry)
    assert library.scorer("intermediate_integration").score_answer("Integral(2*x, x)", entry) == 1.0


async def test_the_whole_answer_is_right_and_what_contains_it_is_not() -> None:
    task = one("caesar_cipher")
    answer = task.payload["answer"]
    assert library.scorer("caesar_cipher").score_answer(f"{answer}, I think", dict(task.payload)) > 0.3
    for text, success in {
        f"Let me see. <answer>{answer}</answer>": True,
        f"<answer>wrong</answer> or <answer>\n{answer}\n</answer>": True,
        f"<answer>{answer}, I think</answer>": False,
        f"<answer>{answer}</answer> or <answer>wrong</answer>": False,
        answer: False,
        "<answer></answer>": False,
    }.items():
        result = await reply(task, text)
        assert (result.reward, result.terminated, result.success) == (float(success), True, success), text


def test_a_dataset_whose_tasks_have_one_answer_in_common_is_left_out() -> None:
    found = library.reasoning_gym().create_dataset("propositional_logic", seed=1, size=40)
    assert sum(found.score_answer("(P ∨ Q)", entry) == 1.0 for entry in found) > 0.7 * 40
    assert "propositional_logic" not in LEVELS
    with pytest.raises(ConfigurationError, match="no environment 'reasoning_gym/propositional_logic/v1'"):
        resolve("reasoning_gym/propositional_logic/v1")


async def test_a_yes_is_not_a_no() -> None:
    """The library takes either, and anything else: `bool("False")` is true."""
    task = one("game_of_life_halting")
    right = task.payload["answer"]
    for text in ("True", "False", "perhaps"):
        assert library.scorer("game_of_life_halting").score_answer(text, dict(task.payload)) == 1.0
        assert (await reply(task, f"<answer>{text}</answer>")).success is (text == right)


async def test_whether_there_was_an_answer_is_told() -> None:
    task = one("gcd")
    assert (await reply(task, "no idea")).info == {"answered": False}
    assert (await reply(task, "<answer>no idea</answer>")).info == {"answered": True}


@pytest.mark.parametrize(
    "dataset",
    [
        "binary_matrix", "spiral_matrix", "string_insertion", "n_queens", "countdown", "puzzle24",
        "polynomial_multiplication", "simple_integration", "intermediate_integration", "number_sorting",
    ],
)  # fmt: skip
async def test_an_answer_is_never_run(dataset: str, tmp_path: Path) -> None:
    """`eval` and sympy's `parse_expr` in the library's scorers would run it."""
    trace = tmp_path / "was-run"
    entry = {"answer": "4", "metadata": {"numbers": [4], "target": 4, "valid_answers": [], "variable": "x"}}
    for program in (
        f"__import__('pathlib').Path({str(trace)!r}).touch()",
        f"[__import__('pathlib').Path({str(trace)!r}).touch()]",
        f"[1 for _ in [open({str(trace)!r}, 'w')]]",
    ):
        assert not is_right(dataset, program, entry)
    assert not trace.exists()


def test_the_24_puzzle_takes_the_numbers_of_the_question_alone() -> None:
    entry = {"answer": "(5 - 1) * (4 + 2)", "metadata": {"numbers": [5, 1, 4, 2]}}
    assert is_right("puzzle24", "(5-1)*(4+2)", entry)
    assert not is_right("puzzle24", "6*4*1*1", entry)
    assert not is_right("puzzle24", "5*4+2+1+1", entry)
    assert library.scorer("puzzle24").score_answer("6*4*1*1", entry) == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("2 * (3 + 4)", (14, [2, 3, 4])), ("-6 / 4 * 2", (-3, [6, 4, 2])), ("7", (7, [7]))],
)
def test_arithmetic_is_evaluated_exactly(text: str, value: tuple[int, list[int]]) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    "text", ["1/0", "2**3", "x", "1.5", "True", "[1]", "f()", "1 if 2 else 3", "(", "9" * 401, "-" * 100 + "1", ""]
)
def test_what_is_no_arithmetic_has_no_value(text: str) -> None:
    assert value_of(text) is None


@pytest.mark.parametrize(
    "text",
    ["6*x**2 - 11*x", "x**2/2 + C", "exp(3*x)/3 + log(x)", "-12*sin(2*x + 5) + C", "x**(3/2)", "2**x", "3.5*X"],
)
def test_symbolic_answers_pass(text: str) -> None:
    assert harmless(text)


@pytest.mark.parametrize(
    "text",
    [
        "x.__class__", "__import__('os')", "open('x')", "eval(x)", "x[0]", "lambda: 1", "S('1')", "9**9**9", "x**999",
        "2**(10*x)", "x; x", "x = 1", "globals()", "xs", "_", "", "x" * 401,
        "Integral(x**2, x)",
    ],
)  # fmt: skip
def test_other_words_and_towers_of_powers_do_not(text: str) -> None:
    assert not harmless(text)


def test_the_last_answer_counts() -> None:
    assert answer_in("<answer> 1 </answer><answer>2</answer>") == "2"
    assert answer_in("<answer>") is None


def test_levels_are_those_of_the_curriculum() -> None:
    maze = resolve("reasoning_gym/maze/v1")
    assert isinstance(maze, GradedQuestions)
    easy = maze.generate_level(0, 1, 5)
    harder = maze.generate_level(1, 1, 5)
    assert all(5 <= task.payload["metadata"]["shortest_path_length"] <= 10 for task in easy)
    assert max(task.payload["metadata"]["grid_size"] for task in harder) > 25
    assert {maze.level_of(task) for task in easy} == {0}
    assert maze.level_of(maze.generate(1, 1)[0]) is None
    with pytest.raises(ConfigurationError, match="maze has no level 4: 0 to 3"):
        maze.generate_level(4, 1, 1)
    assert not hasattr(Questions("acre"), "generate_level")


def test_asking_for_more_tasks_than_there_are_says_how_many() -> None:
    with pytest.raises(ConfigurationError, match=r"coin_flip has about \d+ tasks at level 0, not 100000"):
        library.entries("coin_flip", level=0, seed=1, count=100_000)


def test_without_the_package_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    library.reasoning_gym.cache_clear()
    monkeypatch.setattr(library.metadata, "version", missing)
    with pytest.raises(ConfigurationError, match=r"pip install 'driftline\[reasoning-gym\]'"):
        resolve("reasoning_gym/gcd/v1").make()
    monkeypatch.setattr(library.metadata, "version", lambda name: "0.2.0")
    with pytest.raises(ConfigurationError, match=r"reasoning-gym is 0\.2\.0, and other versions make other tasks"):
        resolve("reasoning_gym/gcd/v1").make()
    library.reasoning_gym.cache_clear()


def test_a_near_miss_of_a_name_is_answered() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'reasoning_gym/sokoban_steps/v1'"):
        resolve("reasoning_gym/sokoban-steps/v1")
