"""`openenv/<url>/v1`: an OpenEnv server, over its WebSocket.

    ECHO = OpenEnv("http://localhost:8000", name="echo", action_field="message")

    we send                                             the server answers
    {"type": "reset", "data": {"seed": 7}}              {"type": "observation", "data": {observation, reward, done}}
    {"type": "step", "data": {"message": "..."}}        the same, or {"type": "error", "data": {message, code}}
    {"type": "close"}

A connection is a session with an environment of its own, so an episode has a connection of its own. Plain HTTP serves
what has no session: `/schema`, which field of an action takes the policy's text, and `/metadata`, whose version is
part of every task. An episode's reward is the sum of the rewards that the server gave, and None if it gave none.
"""

from __future__ import annotations

import http.client
import json
import math
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from driftline.adapters.foreign import as_json, id_of, name_in
from driftline.adapters.openenv_session import Refused, Session, told_of
from driftline.environment import Message, Placement, Snapshot, StepResult, Task
from driftline.errors import ConfigurationError, EnvironmentFailed

ADAPTER = "openenv"
CONNECT_DEADLINE_S = 10.0
MESSAGE_DEADLINE_S = 60.0
MOST_SEEDS = 2**31
SCHEMES = ("http", "https")
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Through no proxy, like the sessions."""
OURS = frozenset({"metadata"})
"""Fields of every action and of every observation, which are none of the policy's."""


def _nothing() -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class OpenEnv:
    """The family of one server. Whatever of it changes a task or its score makes the next `version`."""

    url: str
    """`http://host:port` or `https://...`, to which `/ws` is added."""
    action_field: str = ""
    """The field of an action that takes the policy's text; empty: the one that is text, by the server's schema."""
    act: Callable[[str], Mapping[str, Any]] | None = None
    """An action of the policy's text, in place of `action_field`; ValueError: there is none in it."""
    show: Callable[[Mapping[str, Any]], str] | None = None
    """An observation in words. Without it: its text, if it is nothing else, or JSON; both without its `metadata`."""
    reset_options: Mapping[str, Any] = field(default_factory=_nothing, hash=False)
    """Sent with every `reset`, beside the seed; JSON values."""
    prompt: str = ""
    """Precedes the first observation."""
    solved_at: float | None = None
    """A return from which an episode is a success, where the observation does not say so (`success`)."""
    name: str = ""
    """In the id, in place of the URL: ids that do not change with the machine."""
    version: int = 1
    message_deadline_s: float = MESSAGE_DEADLINE_S
    runs_in: Placement = "loop"
    alphabet: str | None = None
    stop: str = "\n"

    def __post_init__(self) -> None:
        scheme, separator, host = self.url.partition("://")
        if scheme not in SCHEMES or not separator or not host.strip("/"):
            raise ConfigurationError(f"{self.url!r} is no OpenEnv server: give http://host:port or https://host")
        as_json(f"reset_options of {self.url}", self.reset_options)

    @property
    def id(self) -> str:
        """`openenv/<name>/v<version>`."""
        return id_of(ADAPTER, self.name or self.url.partition("://")[2], self.version)

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` tasks: seeds of the server's `reset`, drawn from `seed`. Asks the server for its version.

        Raises:
            ConfigurationError: It does not answer, or is no OpenEnv server.
        """
        state = self.state()
        seeds = Random(f"{self.id}:{seed}").sample(range(MOST_SEEDS), count)
        return [Task.create(self.id, {**state, "seed": one}) for one in seeds]

    def make(self, *, max_turns: int = 100) -> Served:
        """Make an environment that truncates after `max_turns` turns, with the return until then."""
        return Served(self, max_turns)

    def oracle(self, task: Task) -> Sequence[str] | None:
        """Servers have no oracle."""
        return None

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """There is no demonstrator."""
        return None

    def state(self) -> Mapping[str, Any]:
        """What all its tasks are made of. Asks the server for its name and version, and for its schema if need be.

        Raises:
            ConfigurationError: It does not answer, or is no OpenEnv server.
        """
        told = self._get("/metadata")
        return {
            "server": told_of(told),
            "field": "" if self.act is not None else self._field_of_text(),
            "reset_options": as_json("reset_options", self.reset_options),
            "prompt": self.prompt,
            "solved_at": self.solved_at,
        }

    def _field_of_text(self) -> str:
        if self.action_field:
            return self.action_field
        schema: Mapping[str, Any] = self._get("/schema").get("action", {})
        properties: Mapping[str, Any] = schema.get("properties", {})
        texts = [name for name, about in properties.items() if name not in OURS and _is_text(about, schema)]
        if len(texts) != 1:
            raise ConfigurationError(
                f"{self.url}: an action has {', '.join(sorted(set(properties) - OURS)) or 'no fields'}, and not one "
                "text alone: give `action_field`, or `act`, a function from a turn to an action"
            )
        return texts[0]

    def _get(self, path: str) -> dict[str, Any]:
        url = f"{self.url.rstrip('/')}{path}"
        try:
            with DIRECT.open(url, timeout=CONNECT_DEADLINE_S) as answer:
                found: object = json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ConfigurationError(
                f"no OpenEnv server answers at {url} ({error}): start it, or correct the URL"
            ) from None
        if not isinstance(found, dict):
            raise ConfigurationError(f"{url} answers {type(found).__name__} and no object: it is no OpenEnv server")
        return cast(dict[str, Any], found)


class Served:
    """Plays one episode a connection."""

    def __init__(self, family: OpenEnv, max_turns: int) -> None:
        self._family = family
        self._max_turns = max_turns
        self._session: Session | None = None
        self._state: Mapping[str, Any] = {}
        self._turns_left = 0
        self._rewards: list[float] = []
        self._said: list[str] = []

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Open a session at the task's seed; `seed` changes nothing. What else a task holds is taken from it.

        Raises:
            EnvironmentFailed: The server does not answer, refuses, or is of another version than the task.
        """
        del seed
        await self.close()
        url, state = self._family.url, task.payload
        self._session = Session(url, connect_s=CONNECT_DEADLINE_S, message_s=self._family.message_deadline_s)
        await self._session.open()
        server = told_of(await self._session.metadata())
        if server != state["server"]:
            raise EnvironmentFailed(
                f"task {task.id} is of {state['server']}, and {url} is {server}: "
                "generate it again, or start that server"
            )
        options = {**state["reset_options"], "seed": state["seed"]}
        try:
            answer = await self._session.ask("reset", options)
        except Refused as error:
            raise EnvironmentFailed(f"{url}: reset was refused: {error}") from None
        if answer.get("done"):
            raise EnvironmentFailed(f"{url}: the episode of seed {state['seed']} begins at its end")
        self._state, self._turns_left, self._rewards, self._said = state, self._max_turns, [], []
        parts = (str(state["prompt"]), self._shown(answer))
        return (Message("user", "\n\n".join(part for part in parts if part)),)

    async def step(self, action: str) -> StepResult:
        """Send the policy's text as an action; one that the server's schema refuses costs the turn.

        Raises:
            EnvironmentFailed: The server raised, does not answer, or gave a reward that is no number.
        """
        if self._turns_left == 0 or self._session is None:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        self._turns_left -= 1
        self._said.append(action)
        try:
            answer = await self._session.ask("step", self._action(action))
        except (Refused, _NoAction) as error:
            return self._result(f"That is no action: {error}", {})
        if answer.get("reward") is not None:
            self._rewards.append(_number(answer["reward"]))
        return self._result(self._shown(answer), answer)

    async def snapshot(self) -> list[str]:
        """The turns until now: on a server that follows the seed they lead to the same state again."""
        return list(self._said)

    async def restore(self, task: Task, snapshot: Snapshot) -> None:
        """Take the same turns again, in a session of its own. It takes as long as they did.

        Raises:
            EnvironmentFailed: As `reset` and `step` raise it, or it is no snapshot of this family's.
        """
        if not isinstance(snapshot, list) or not all(isinstance(said, str) for said in snapshot):
            raise EnvironmentFailed(f"it is no snapshot of {task.environment}")
        await self.reset(task, 0)
        for said in snapshot:
            await self.step(said)

    async def close(self) -> None:
        """Close the session."""
        session, self._session, self._turns_left = self._session, None, 0
        if session is not None:
            await session.close()

    def _action(self, text: str) -> Mapping[str, Any]:
        if self._family.act is None:
            return {self._state["field"]: text}
        try:
            return self._family.act(text)
        except ValueError as error:
            raise _NoAction(str(error)) from None

    def _shown(self, answer: Mapping[str, Any]) -> str:
        observation: Mapping[str, Any] = answer["observation"]
        if self._family.show is not None:
            return self._family.show(observation)
        shown = {name: value for name, value in observation.items() if name not in OURS}
        texts = [value for value in shown.values() if isinstance(value, str)]
        return texts[0] if len(shown) == 1 and texts else json.dumps(shown, ensure_ascii=False)

    def _result(self, text: str, answer: Mapping[str, Any]) -> StepResult:
        done = bool(answer.get("done"))
        messages = (Message("user", text),)
        if not done and self._turns_left > 0:
            return StepResult(messages)
        self._turns_left = 0
        reward = math.fsum(self._rewards) if self._rewards else None
        return StepResult(
            messages, reward=reward, terminated=done, truncated=not done, success=self._success(answer, reward)
        )

    def _success(self, answer: Mapping[str, Any], reward: float | None) -> bool | None:
        for said in (answer.get("observation"), answer.get("metadata")):
            success = cast(dict[str, Any], said).get("success") if isinstance(said, dict) else None
            if isinstance(success, bool):
                return success
        threshold = self._state["solved_at"]
        return None if threshold is None or reward is None else reward >= threshold


class _NoAction(ValueError):
    """The policy's text has no action in it."""


def named(rest: str) -> OpenEnv:
    """The family of `openenv/<rest>`, with the adapter's defaults: `openenv/http://localhost:8000/v1`.

    Raises:
        ConfigurationError: It is no such name.
    """
    url = name_in(ADAPTER, rest)
    return OpenEnv(url if "://" in url else f"http://{url}")


def _is_text(about: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether a field takes text: any, or that of an enumeration, which pydantic keeps apart."""
    name = str(about.get("$ref", "")).removeprefix("#/$defs/")
    return schema.get("$defs", {}).get(name, about).get("type") == "string"


def _number(reward: Any) -> float:
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        raise EnvironmentFailed(f"the server gave the reward {reward!r}: it must be a finite number")
    return float(reward)
