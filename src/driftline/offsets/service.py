"""What the routes share: the runs that are followed, answers that need the store, and encoded answers."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request, Response
from pydantic import BaseModel

from driftline.errors import DeadlineExceeded, DriftlineError
from driftline.offsets import answers
from driftline.offsets.followed import DEADLINE_S, Followed, Latest, RunHub
from driftline.offsets.models import TrajectoryAnswer
from driftline.offsets.problems import ProblemError
from driftline.offsets.reader import RunEntry, RunReader, RunsReader, RunView
from driftline.store.protocol import ObjectStore

LATEST = "latest"
MOST_LISTED = 200
RUN_PERIOD_S = 1.0
RUNS_PERIOD_S = 3.0
"""Of the list: it changes seldom."""
THREADS = 24
ANSWER_THREADS = 4
MOST_BODIES = 128
"""Encoded answers that are kept."""
MOST_BODY_BYTES = 32 * 2**20
"""All of them together; the one asked for last is kept whatever its size."""
MOST_AT_THE_STORE = 32
"""Requests that may wait for the store at once; more are turned away."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Body:
    """An encoded answer and its entity tag."""

    content: bytes
    etag: str


class Service:
    """The state of the service. Make it, and close it, in the event loop that serves."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.store = store
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(THREADS, "store")
        self._hub = RunHub(
            lambda run: RunReader(store, run, clock=clock),
            self._threads,
            period_s=RUN_PERIOD_S,
            deadline_s=deadline_s,
            monotonic=monotonic,
        )
        self._runs = Followed(
            RunsReader(store, MOST_LISTED).read,
            self._threads,
            "the list of runs",
            period_s=RUNS_PERIOD_S,
            deadline_s=deadline_s,
            monotonic=monotonic,
        )
        self._bodies: OrderedDict[tuple[object, ...], Body] = OrderedDict()
        self._making: dict[tuple[object, ...], asyncio.Future[Body]] = {}
        self._answering = ThreadPoolExecutor(ANSWER_THREADS, "answers")
        self._at_the_store = 0

    async def close(self) -> None:
        """Stop reading."""
        await asyncio.gather(self._hub.close(), self._runs.close())
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._answering.shutdown(wait=False, cancel_futures=True)

    async def runs(self) -> Latest[tuple[RunEntry, ...]]:
        """The newest runs."""
        return await self._runs.latest()

    async def view(self, run: str) -> Latest[RunView]:
        """A run as it was read last."""
        return (await self._find(run))[1]

    async def running(self, most: int) -> tuple[list[Latest[RunView]], int]:
        """The newest running runs, and how many of them could not be read in time."""
        names = [e.run for e in (await self.runs()).value if e.head is not None and e.head.state == "running"][:most]
        found = await asyncio.gather(*(self.view(name) for name in names), return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, DriftlineError):
                raise error
        views = [one for one in found if not isinstance(one, BaseException)]
        return views, len(found) - len(views)

    async def trajectory(self, run: str, group: int, member: int) -> TrajectoryAnswer:
        """A member of a group, from its step record, or from its object where the record does not know of members.

        Raises:
            ProblemError: There is no such group or member.
        """
        reader, found = await self._find(run)
        return await self._at_store(lambda: _trajectory(reader, found.value, group, member))

    async def body(self, key: tuple[object, ...], make: Callable[[], BaseModel]) -> Body:
        """An encoded answer, made anew only where nothing of its key is known.

        It is made in a thread, once however many ask: that of a very long run takes a second.
        """
        body = self._bodies.pop(key, None) or await asyncio.shield(self._made(key, make))
        self._bodies[key] = body
        while len(self._bodies) > 1 and self._too_many_bodies():
            self._bodies.popitem(last=False)
        return body

    def _made(self, key: tuple[object, ...], make: Callable[[], BaseModel]) -> asyncio.Future[Body]:
        making = self._making.get(key)
        if making is None:
            loop = asyncio.get_running_loop()
            making = self._making[key] = loop.run_in_executor(self._answering, lambda: encoded(make()))
            making.add_done_callback(lambda done: self._is_made(key, done))
        return making

    def _is_made(self, key: tuple[object, ...], done: asyncio.Future[Body]) -> None:
        del self._making[key]
        if not done.cancelled():
            done.exception()  # Where everybody has gone, it is nobody's.

    def _too_many_bodies(self) -> bool:
        held = sum(len(body.content) for body in self._bodies.values())
        return len(self._bodies) > MOST_BODIES or held > MOST_BODY_BYTES

    async def _find(self, run: str) -> tuple[RunReader, Latest[RunView]]:
        if run == LATEST:
            entries = (await self.runs()).value
            if not entries:
                raise ProblemError(
                    404,
                    "unknown-run",
                    "the store holds no run yet",
                    "start one: `make demo`, or wait if one is starting",
                )
            run = entries[0].run
        return await self._hub.view(run)

    async def _at_store(self, ask: Callable[[], T]) -> T:
        """Ask the store in a thread, within the deadline; the thread itself ends with the store's patience."""
        if self._at_the_store >= MOST_AT_THE_STORE:
            raise DeadlineExceeded(f"{self._at_the_store} requests wait for the store")
        self._at_the_store += 1
        asked = asyncio.get_running_loop().run_in_executor(self._threads, ask)
        asked.add_done_callback(self._answered)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise DeadlineExceeded(f"the store did not answer within {self._deadline_s:g} s") from None

    def _answered(self, asked: asyncio.Future[T]) -> None:
        self._at_the_store -= 1
        if not asked.cancelled():
            asked.exception()  # One that came too late is nobody's.


def _trajectory(reader: RunReader, view: RunView, group: int, member: int) -> TrajectoryAnswer:
    key = reader.key_of(group)
    if key is None:
        raise ProblemError(
            404,
            "unknown-group",
            f"no committed step of run {view.run!r} has used group {group} or given it up{_known_groups(view)}",
            "a group is known once the step that uses it is committed: ask again later, or for another",
        )
    record = reader.record(key)
    entry = answers.find_use(record, group)
    assert entry is not None, "the index is made of records"
    use = answers.find_member(entry, member)
    found = None
    if not entry.uses and entry.key:
        found = reader.member(entry.key, group, member)
    if use is None and found is None and (entry.uses or not _counts(entry, member)):
        raise ProblemError(
            404,
            "unknown-member",
            f"group {group} of run {view.run!r} has no member {member} that is on record",
            "members are numbered from 0",
        )
    return answers.trajectory(record, entry, member, use, found)


def _counts(entry: object, member: int) -> bool:
    """Whether a group of an old record has such a member, for all the record says."""
    return 0 <= member < int(getattr(entry, "members", 0))


def _known_groups(view: RunView) -> str:
    if view.latest is None or not view.latest.groups:
        return ""
    groups = [use.group for use in view.latest.groups]
    return f"; the last step has {min(groups)} to {max(groups)}"


def encoded(answer: BaseModel) -> Body:
    """An answer as it is sent."""
    content = answer.model_dump_json().encode()
    return Body(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def respond(request: Request, body: Body, found: Latest[T] | None = None) -> Response:
    """An answer that a client may keep, and has to ask about: 304 where it has it already."""
    headers = {"ETag": body.etag, "Cache-Control": "private, no-cache", **freshness(found)}
    asked = request.headers.get("if-none-match", "")
    if asked and (asked.strip() == "*" or body.etag in [tag.strip().removeprefix("W/") for tag in asked.split(",")]):
        return Response(status_code=304, headers=headers)
    return Response(body.content, media_type="application/json", headers=headers)


def freshness(found: Latest[T] | None) -> dict[str, str]:
    """Headers that say how old an answer is."""
    if found is None:
        return {}
    return {"Age": str(int(found.age_s)), **({"Driftline-Stale": "true"} if found.stale else {})}
