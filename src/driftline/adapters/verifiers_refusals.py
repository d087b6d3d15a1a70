"""Which task sets of verifiers cannot be played here, and why: told when one is loaded, before anything is scored.

Without a runtime, verifiers leaves out what needs one: such a reward is missing from the score, and a reward that
reads what such a metric would have recorded finds nothing. Both would pay for other answers than the task set does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, cast

ROLES = ("system", "user", "assistant")
NEEDS_RUNTIME = ("setup", "finalize", "stage_verifier", "runtime_env")
"""Methods of a task that prepare, read or fill a runtime; a task that has one of its own needs one."""


def refusal_of_set(vf: Any, name: str, taskset: Any) -> str:
    """Why a task set cannot be played; empty if nothing speaks against it."""
    if vf.environment_class(name) is not vf.SingleAgentEnv:
        return "it has an environment of its own, with a control flow of its own"
    return "it has tools" if taskset.toolsets(taskset.config) else ""


def refusal_of_tasks(vf: Any, tasks: Iterable[Any]) -> str:
    """The same for the tasks of it: of the first that cannot."""
    examined: set[tuple[type[Any], int]] = set()
    for task in tasks:
        kind = cast(type[Any], type(task))
        if (kind, id(task.config)) not in examined and (refusal := _refusal_of_kind(vf, kind, task)):
            return refusal
        examined.add((kind, id(task.config)))
        if refusal := _refusal_of_data(kind.__name__, task.data):
            return refusal
    return ""


def prompt_of(data: Any) -> list[tuple[str, str]]:
    """Role and text of each message.

    Raises:
        ValueError: There is no prompt, or one that is not text alone.
    """
    head = [] if data.system_prompt is None else [("system", str(data.system_prompt))]
    if isinstance(data.prompt, str):
        return [*head, ("user", data.prompt)]
    if not data.prompt:
        raise ValueError("it has no prompt: a simulated user opens the conversation")
    return [*head, *((str(message.role), _text(message)) for message in data.prompt)]


def _refusal_of_kind(vf: Any, kind: type[Any], task: Any) -> str:
    if task.NEEDS_CONTAINER:
        return f"{kind.__name__} needs a container"
    if task.toolsets(task.config):
        return f"{kind.__name__} has tools"
    if own := [method for method in NEEDS_RUNTIME if getattr(kind, method) is not getattr(vf.Task, method)]:
        return f"{kind.__name__} prepares or reads a runtime (its {own[0]})"
    if task.config.judges:
        return f"{kind.__name__} has a judge, which is another model"
    for what in ("reward", "metric"):
        if needy := [hook.__name__ for hook in task.hooks(what) if _needs_runtime(hook)]:
            return f"the {what} {needy[0]} of {kind.__name__} runs a program"
    return ""


def _refusal_of_data(kind: str, data: Any) -> str:
    if data.image:
        return f"{kind} needs a container"
    if data.skills or data.artifacts:
        return f"{kind} has skills or artifacts, which are files of a runtime"
    try:
        prompt_of(data)
    except ValueError as error:
        return str(error)
    return ""


def _needs_runtime(hook: Callable[..., Any]) -> bool:
    """As verifiers sees it: what must be given a runtime is left out of a score without one."""
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _text(message: Any) -> str:
    if message.role not in ROLES:
        raise ValueError(f"its prompt has a message of the role {message.role!r}")
    if getattr(message, "tool_calls", None):
        raise ValueError("its prompt has calls of tools")
    if isinstance(message.content, str):
        return message.content
    parts: list[Any] = list(message.content or ())
    if any(getattr(part, "type", None) != "text" for part in parts):
        raise ValueError("its prompt has parts that are not text")
    return "".join(part.text for part in parts)
