"""Turns as actions, observations as text. The spaces have the attributes of Gymnasium's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from driftline.adapters.spaces import NoAction, how_to_answer, reader_of, shown, without_escapes
from driftline.errors import ConfigurationError
from tests.support.fake_gymnasium import Box, Discrete, Text

MOVES = ("left", "down", "right", "up")


@pytest.mark.parametrize(
    ("turn", "action"),
    [
        ("2", 2),
        (" 0\n", 0),
        ("Right", 2),
        ("I go <answer>up</answer>", 3),
        ("<answer>1</answer><answer>2</answer>", 2),
    ],
)
def test_a_discrete_action_is_a_number_or_its_name(turn: str, action: int) -> None:
    assert reader_of(Discrete(4), MOVES)(turn) == action


@pytest.mark.parametrize("turn", ["", "4", "-1", "left right", "٢", "1.0", "9" * 40, "<answer></answer>"])
def test_anything_else_is_no_action_and_says_which_there_are(turn: str) -> None:
    with pytest.raises(NoAction, match="there are left, down, right, up"):
        reader_of(Discrete(4), MOVES)(turn)


def test_a_discrete_space_may_begin_elsewhere() -> None:
    read = reader_of(Discrete(3, start=-1), ())
    assert [read(turn) for turn in ("-1", "0", "+1")] == [-1, 0, 1]
    with pytest.raises(NoAction, match="there are -1 to 1"):
        read("2")
    assert "a whole number from -1 to 1" in how_to_answer(Discrete(3, start=-1), ())


def test_a_text_is_taken_as_it_is_if_the_space_has_it() -> None:
    read = reader_of(Text(6, charset="abc "), ())
    assert read("ab c") == "ab c"
    assert read("\nabc\n") == "abc"
    assert read("so: <answer>cab</answer>") == "cab"
    with pytest.raises(NoAction, match="write 1 to 6 characters, of ' abc'"):
        read("abd")


def test_other_spaces_need_a_reader_and_names_one_for_each_action() -> None:
    with pytest.raises(ConfigurationError, match="a Box space have no form in text: give `read`"):
        reader_of(Box(), ())
    with pytest.raises(ConfigurationError, match="3 names for 4 actions"):
        reader_of(Discrete(4), MOVES[:3])
    with pytest.raises(ConfigurationError, match="this is Text: leave them out"):
        reader_of(Text(3), MOVES)


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ("a word", "a word"),
        ((14, np.int64(10), 0), "[14, 10, 0]"),
        ({"image": np.zeros((1, 2), np.uint8), "mission": "go"}, '{"image": [[0, 0]], "mission": "go"}'),
        (np.float32(0.5), "0.5"),
    ],
)
def test_an_observation_is_shown_whole(observation: Any, text: str) -> None:
    assert shown(SimpleNamespace(render_mode=None), observation) == text


def test_colours_are_words_since_they_say_where_one_is() -> None:
    assert without_escapes("  (Left)\n\x1b[41mS\x1b[0mFFF\nFHFH\n") == "  (Left)\n<red>S</red>FFF\nFHFH\n"
    assert without_escapes("\x1b[34;1mR\x1b[0m|\x1b[1mG\x1b[0m") == "<blue>R</blue>|G"
