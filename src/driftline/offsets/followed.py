"""Reads runs while somebody asks for them, and answers from memory.

| | consumes | produces | waits for | unblocked by |
|---|---|---|---|---|
| `Followed._follow` | one `read` a period | `value`, `error` | the store, in a thread | its patience; nobody asking |
| `Followed.latest` | `value`, `error` | an answer | the first read since it was asked for again | `DEADLINE_S` |
| `RunHub` | questions about runs | followers, at most `MOST_RUNS` | | the one that was asked least lately goes |

Reads of one source never overlap, so that a store that hangs holds one thread a source and no request for longer
than the deadline. What was read last is the answer until something newer is; how old it is goes with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

from driftline.errors import DeadlineExceeded, DriftlineError, ObjectMissing
from driftline.offsets.reader import RunReader, RunView

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
DEADLINE_S = 3.0
"""Longest that a request waits for what was never read before, or not while nobody asked."""
STALE_S = 5.0
"""From this age on an answer is marked as stale, whatever the reason."""
IDLE_S = 60.0
"""So long after the last question a source is read on."""
MOST_RUNS = 16
MOST_FIRST_READS = 32
"""Runs that are being read for the first time; more are turned away."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Latest(Generic[T]):
    """What was read last, and how old it is."""

    value: T
    age_s: float
    trouble: str = ""
    """Why there is nothing newer; empty while the store answers."""

    @property
    def stale(self) -> bool:
        """Whether newer things may have happened unseen."""
        return bool(self.trouble) or self.age_s > STALE_S


class Followed(Generic[T]):
    """A source that is read once a period, from the first question until nobody has asked for a while."""

    def __init__(
        self,
        read: Callable[[], T],
        threads: Executor,
        what: str,
        *,
        period_s: float = PERIOD_S,
        deadline_s: float = DEADLINE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._threads, self._what = read, threads, what
        self._period_s, self._deadline_s = period_s, deadline_s
        self._monotonic = monotonic
        self._value: T | None = None
        self._error: Exception | None = None
        self._read_at = self._asked_at = monotonic()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """Whether it has been read."""
        return self._value is not None

    @property
    def idle(self) -> bool:
        """Whether it was asked for, and is read no more."""
        return self._task is not None and self._task.done()

    async def latest(self) -> Latest[T]:
        """What was read last.

        Raises:
            ObjectMissing: It is not there (any more).
            DeadlineExceeded: It was never read before, and that takes longer than the deadline.
            Exception: Whatever the first read raised.
        """
        self._asked_at = self._monotonic()
        if self._task is None or self._task.done():
            self._tried.clear()
            self._task = asyncio.create_task(self._follow(), name=f"follow {self._what}")
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._tried.wait()
        except TimeoutError:
            if self._value is None:
                raise DeadlineExceeded(f"{self._what} is still being read") from None
        if isinstance(self._error, ObjectMissing):
            raise self._error
        if self._value is None:
            assert self._error is not None
            raise self._error
        trouble = "" if self._error is None else str(self._error)
        return Latest(self._value, self._monotonic() - self._read_at, trouble)

    async def close(self) -> None:
        """Stop reading. A read under way ends in its thread."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while self._monotonic() <= self._asked_at + IDLE_S:
            try:
                self._value = await loop.run_in_executor(self._threads, self._read)
                self._read_at, self._error = self._monotonic(), None
            except ObjectMissing as error:
                self._value, self._error = None, error
            except DriftlineError as error:
                self._say(error)
                self._error = error
            except Exception as error:  # the policy: a defect in reading one run does not end the others' service
                logger.exception("%s cannot be read", self._what)
                self._error = error
            self._tried.set()
            if self._value is None:
                return
            await asyncio.sleep(self._period_s)

    def _say(self, error: DriftlineError) -> None:
        if str(error) != str(self._error):
            logger.warning("%s cannot be read: %s", self._what, error)


class RunHub:
    """The runs that are followed."""

    def __init__(
        self,
        reader: Callable[[str], RunReader],
        threads: Executor,
        *,
        most_runs: int = MOST_RUNS,
        period_s: float = PERIOD_S,
        deadline_s: float = DEADLINE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader, self._threads = reader, threads
        self._most_runs, self._period_s, self._deadline_s = most_runs, period_s, deadline_s
        self._monotonic = monotonic
        self._followed: OrderedDict[str, tuple[RunReader, Followed[RunView]]] = OrderedDict()
        """By when they were last asked for."""
        self._first: dict[str, tuple[RunReader, Followed[RunView]]] = {}
        """Runs that were not read yet: they displace nothing until they are."""
        self._closing: set[asyncio.Task[None]] = set()

    async def view(self, run: str) -> tuple[RunReader, Latest[RunView]]:
        """A run as it was read last, and its reader.

        Raises:
            ObjectMissing: There is no such run.
            DeadlineExceeded: It is being read for the first time; the message says how far that is.
            CorruptObject: It cannot be read.
            StoreUnavailable: The store does not answer, and never did for this run.
        """
        reader, followed = self._find(run)
        try:
            found = await followed.latest()
        except DeadlineExceeded:
            read, wanted = reader.progress
            raise DeadlineExceeded(f"run {run!r} is being read: {read} of {wanted} step records") from None
        except Exception:
            self._first.pop(run, None)
            self._followed.pop(run, None)
            raise
        self._promote(run, reader, followed)
        return reader, found

    async def close(self) -> None:
        """Stop reading all of them."""
        both = [*self._followed.values(), *self._first.values()]
        await asyncio.gather(*(followed.close() for _, followed in both), *self._closing)

    def _find(self, run: str) -> tuple[RunReader, Followed[RunView]]:
        found = self._followed.get(run) or self._first.get(run)
        if found is None:
            self._first = {name: one for name, one in self._first.items() if not one[1].idle}
            if len(self._first) >= MOST_FIRST_READS:
                raise DeadlineExceeded(f"{len(self._first)} runs are being read for the first time: ask again")
            reader = self._reader(run)
            followed = Followed(
                reader.read,
                self._threads,
                f"run {run!r}",
                period_s=self._period_s,
                deadline_s=self._deadline_s,
                monotonic=self._monotonic,
            )
            found = self._first[run] = (reader, followed)
        return found

    def _promote(self, run: str, reader: RunReader, followed: Followed[RunView]) -> None:
        self._first.pop(run, None)
        self._followed[run] = reader, followed
        self._followed.move_to_end(run)
        while len(self._followed) > self._most_runs:
            _, (_, oldest) = self._followed.popitem(last=False)
            closing = asyncio.create_task(oldest.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
