from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from driftline.environment import Message, Toolbox, ToolCall
from driftline.environment.tools import MOST_CALLS, TOO_LATE, Tool, parse
from driftline.errors import ToolMisused


class Shelf:
    """Holds two files."""

    def __init__(self) -> None:
        self.files = {"a.txt": "one\ntwo\nthree"}

    async def read(self, path: str, first_line: int = 1) -> str:
        """Read a file.

        From one line on, to the end.

        Args:
            path: Where it is, from the root
                of the shelf.
            first_line: Counted from 1.

        Returns:
            The lines.
        """
        if path not in self.files:
            raise ToolMisused(f"there is no file {path!r}")
        return "\n".join(self.files[path].splitlines()[first_line - 1 :])

    def names(self, order: Literal["up", "down"] = "up") -> list[str]:
        """List the files."""
        return sorted(self.files, reverse=order == "down")


def broken(title: str) -> str:
    """Break."""
    raise ZeroDivisionError(title)


@pytest.fixture
def tools() -> Toolbox:
    shelf = Shelf()
    return Toolbox(shelf.read, shelf.names, broken)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_a_schema_comes_from_signature_and_docstring(tools: Toolbox) -> None:
    read, names, other = tools.schemas
    assert read == {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Read a file.\n\nFrom one line on, to the end.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["path"],
                "properties": {
                    "path": {"type": "string", "description": "Where it is, from the root of the shelf."},
                    "first_line": {"type": "integer", "default": 1, "description": "Counted from 1."},
                },
            },
        },
    }
    assert names["function"]["parameters"]["properties"]["order"]["enum"] == ["up", "down"]
    assert other["function"]["parameters"]["properties"] == {"title": {"type": "string"}}


async def test_an_argument_that_is_no_text_is_told_and_breaks_nothing(tools: Toolbox) -> None:
    """JSON can say half of a surrogate pair, which no file and no tokenizer takes."""
    inside = json.dumps(json.dumps({"title": "\udcff"}))
    for arguments in (r'{"title": "\ud800"}', r'{"title": "a", "\ud800": 1}', r'{"title": ["\uD800"]}', inside):
        (message,) = await tools.answer('{"name": "broken", "arguments": ' + arguments + "}")
        assert message.content.startswith("error: a call holds half of a character")
    (message,) = await tools.answer(r'{"name": "read", "arguments": {"path": "\ud83d\ude00"}}')
    assert message.content == "error: there is no file '😀'", "a whole pair is a character"


async def test_calls_are_answered_in_order(tools: Toolbox) -> None:
    turn = f"First this. {call('read', path='a.txt', first_line='2')} then {call('names')}"
    assert await tools.answer(turn) == (Message("tool", "two\nthree"), Message("tool", '["a.txt"]'))


@pytest.mark.parametrize(
    "turn",
    [
        '{"name": "read", "arguments": {"path": "a.txt", "first_line": 3}}',
        '<tool_call>\n{"name": "read", "parameters": {"path": "a.txt", "first_line": 3}}\n</tool_call>',
        '{"name": "read", "arguments": "{\\"path\\": \\"a.txt\\", \\"first_line\\": 3}"}',
    ],
)
async def test_the_forms_of_a_call(tools: Toolbox, turn: str) -> None:
    assert await tools.answer(turn) == (Message("tool", "three"),)


@pytest.mark.parametrize(
    ("turn", "observed"),
    [
        (call("read"), "error: read: path: Field required"),
        (call("read", path="a.txt", first_line="two"), "error: read: first_line: Input should be a valid integer"),
        (call("read", path="a.txt", lines=2), "error: read: lines: Extra inputs are not permitted"),
        (call("names", order="sideways"), "error: names: order: Input should be 'up' or 'down'"),
        (call("read", path="b.txt"), "error: there is no file 'b.txt'"),
        (call("write"), "error: there is no tool 'write': there are read, names, broken"),
        ("<tool_call>{'name': 'read'}</tool_call>", "error: a call is no JSON"),
        ('<tool_call>{"name": "read"}', "error: a <tool_call> is not closed"),
        ("<tool_call>[1]</tool_call>", "error: a call is no object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "error: a call has no name"),
        ('{"name": "read", "arguments": "{"}', "error: a call has no name, or arguments that are no object"),
        (call("names") * (MOST_CALLS + 1), "error: 17 calls in one turn: make at most 16"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "error: a call is no JSON"),
    ],
)
async def test_what_is_wrong_with_a_call_is_observed(tools: Toolbox, turn: str, observed: str) -> None:
    [message] = await tools.answer(turn)
    assert message.content.startswith(observed)


async def test_so_many_calls_are_carried_out_in_one_turn(tools: Toolbox) -> None:
    assert [told.content for told in await tools.answer(call("names") * MOST_CALLS)] == ['["a.txt"]'] * MOST_CALLS


async def test_no_call_after_the_end_is_carried_out(tools: Toolbox) -> None:
    turn = call("read", path="a.txt", first_line=3) + call("broken", title="x") + call("names")
    ends = iter([False, True, True])
    told = await tools.answer(turn, ended=lambda: next(ends))
    assert told == (Message("tool", "three"), Message("tool", TOO_LATE), Message("tool", TOO_LATE))
    assert TOO_LATE.startswith("error: ")


async def test_a_turn_without_a_call_has_no_answer(tools: Toolbox) -> None:
    assert await tools.answer("I am done.") == ()
    assert parse('{"answer": 3}') == ()


async def test_a_tool_that_is_broken_is_no_observation(tools: Toolbox) -> None:
    with pytest.raises(ZeroDivisionError):
        await tools.answer(call("broken", title="x"))
    with pytest.raises(ToolMisused):
        await tools.call(ToolCall("nothing", {}))


def test_tools_that_cannot_be_described_are_refused() -> None:
    def untyped(path) -> str:  # pyright: ignore[reportMissingParameterType]
        """Read."""
        return path

    def undocumented(path: str) -> str:
        return path

    def variadic(*paths: str) -> str:
        """Read."""
        return paths[0]

    for function, message in ((untyped, "has no type"), (undocumented, "no docstring"), (variadic, "by name")):
        with pytest.raises(TypeError, match=message):
            Tool(function)
    with pytest.raises(TypeError, match="one name"):
        Toolbox(broken, broken)
