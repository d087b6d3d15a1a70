'''Tools: typed functions that a policy calls, with a schema from signature and docstring.

    class Shelf:
        def __init__(self) -> None:
            self._tools = Toolbox(self.read)

        async def read(self, path: str, first_line: int = 1) -> str:
            """Read a file, from a line on."""

        async def step(self, action: str) -> StepResult:
            return StepResult(await self._tools.answer(action))

`Toolbox.schemas` is what chat templates take for `tools`, with what a docstring says of arguments under `Args:`. A
call is read in the form that most open models write:

    <tool_call>{"name": "read", "arguments": {"path": "a.py"}}</tool_call>

or as that JSON object alone. What is wrong with a call, arguments of a wrong type included, is the observation: the
policy may mend it. So is what a tool says by raising `ToolMisused`; any other exception is a broken environment.
'''

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from driftline.environment.contract import Message
from driftline.errors import ToolMisused

TOOL_ROLE = "tool"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
MOST_CALLS = 16
"""Of one turn."""
TOO_LATE = "error: not carried out: a call before it has ended the episode"
SECTION = re.compile(r"^\s*(Args|Arguments|Returns|Raises|Yields|Example|Examples):\s*$")
ARGUMENT = re.compile(r"^(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")

ToolFunction = Callable[..., Awaitable[Any] | Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the policy asks for; the arguments are not validated yet."""

    name: str
    arguments: Mapping[str, Any]


class Tool:
    """One function. Its parameters are named and typed; pydantic reads the arguments, in its lax mode."""

    def __init__(self, function: ToolFunction) -> None:
        """Take a function, a coroutine function or a bound method.

        Raises:
            TypeError: A parameter has no type, or is not called by name; the function has no docstring.
        """
        self.name = function.__name__
        documented = inspect.getdoc(function)
        if not documented:
            raise TypeError(f"tool {self.name} has no docstring: it is what the policy knows of it")
        self.description, about = _read_docstring(documented)
        self._function = function
        self._arguments = _model(self.name, function, about)

    @property
    def schema(self) -> dict[str, Any]:
        """As in the field's chat APIs: `{"type": "function", "function": {name, description, parameters}}`."""
        parameters = _untitled(self._arguments.model_json_schema())
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Call it; what it returns is text as it is, and anything else as JSON.

        Raises:
            ToolMisused: The arguments do not fit, or the tool refuses them.
        """
        try:
            read = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolMisused(f"{self.name}: {_in_words(error)}") from None
        given = {name: getattr(read, name) for name in type(read).model_fields}
        returned = self._function(**given)
        if inspect.isawaitable(returned):
            returned = await returned
        return returned if isinstance(returned, str) else json.dumps(returned, ensure_ascii=False)


class Toolbox:
    """The tools of one environment."""

    def __init__(self, *functions: ToolFunction) -> None:
        """Take the functions, in the order in which the policy is shown them."""
        tools = [Tool(function) for function in functions]
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) != len(tools):
            raise TypeError("two tools have one name")

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """The schema of each tool."""
        return tuple(tool.schema for tool in self._tools.values())

    async def call(self, call: ToolCall) -> str:
        """Carry out one call.

        Raises:
            ToolMisused: There is no such tool, or its arguments do not fit.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolMisused(f"there is no tool {call.name!r}: there are {', '.join(self._tools)}")
        return await tool.call(call.arguments)

    async def answer(self, text: str, *, ended: Callable[[], bool] = lambda: False) -> tuple[Message, ...]:
        """Carry out the calls of a turn, in order; one message for each, or one that says what cannot be read.

        Empty if the turn calls no tool: what that means is the environment's to say.

        Args:
            text: The turn.
            ended: Whether a call has ended the episode: those after it are not carried out, and are told so.
        """
        try:
            calls = parse(text)
        except ToolMisused as misused:
            return (Message(TOOL_ROLE, f"error: {misused}"),)
        return tuple([Message(TOOL_ROLE, TOO_LATE if ended() else await self._told(call)) for call in calls])

    async def _told(self, call: ToolCall) -> str:
        try:
            return await self.call(call)
        except ToolMisused as misused:
            return f"error: {misused}"


def parse(text: str) -> tuple[ToolCall, ...]:
    """The calls of a turn; empty if there are none.

    Raises:
        ToolMisused: There is a call that cannot be read.
    """
    if OPEN not in text:
        bare = text.strip()
        return (_read_call(bare),) if bare.startswith("{") and '"name"' in bare else ()
    pieces = text.split(OPEN)[1:]
    if len(pieces) > MOST_CALLS:
        raise ToolMisused(f"{len(pieces)} calls in one turn: make at most {MOST_CALLS}")
    if any(CLOSE not in piece for piece in pieces):
        raise ToolMisused(f"a {OPEN} is not closed: write {CLOSE} after it")
    return tuple(_read_call(piece.partition(CLOSE)[0].strip()) for piece in pieces)


def _read_call(body: str) -> ToolCall:
    form = 'write {"name": ..., "arguments": {...}}'
    try:
        read: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ToolMisused(f"a call is no JSON ({error}): {form}") from None
    if not isinstance(read, dict):
        raise ToolMisused(f"a call is no object: {form}")
    call = cast(dict[str, object], read)
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _object(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ToolMisused(f"a call has no name, or arguments that are no object: {form}")
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode()
    except (UnicodeError, RecursionError):  # what a file or a tokenizer would raise at
        raise ToolMisused(f"a call holds half of a character, or more than can be read: {form}") from None
    return ToolCall(name, cast(dict[str, Any], arguments))


def _object(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _model(name: str, function: ToolFunction, about: Mapping[str, str]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {name}: {parameter.name} cannot be given by name")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"tool {name}: {parameter.name} has no type")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (parameter.annotation, Field(default, description=about.get(parameter.name)))
    return create_model(name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What precedes the sections, and what `Args:` says of each argument."""
    head: list[str] = []
    about: dict[str, str] = {}
    section, argument = "", ""
    for line in text.splitlines():
        if found := SECTION.match(line):
            section, argument = found[1], ""
        elif not section:
            head.append(line)
        elif section in ("Args", "Arguments"):
            argument = _take_line(line, argument, about)
    return "\n".join(head).strip(), about


def _take_line(line: str, argument: str, about: dict[str, str]) -> str:
    """Read one line below `Args:`; returns the argument that the next one may go on about."""
    found = ARGUMENT.match(line)
    if found and len(found[1]) <= 4:
        about[found[2]] = found[3].strip()
        return found[2]
    if argument and line.strip():
        about[argument] = f"{about[argument]} {line.strip()}".strip()
    return argument


def _untitled(schema: Any) -> Any:
    """Without the titles that pydantic makes of names: they say nothing, and cost the policy tokens."""
    if isinstance(schema, dict):
        items = cast(dict[str, Any], schema).items()
        return {key: _untitled(value) for key, value in items if not (key == "title" and isinstance(value, str))}
    return [_untitled(one) for one in cast(list[Any], schema)] if isinstance(schema, list) else schema


def _in_words(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors(include_url=False)
    )
