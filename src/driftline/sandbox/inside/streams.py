"""What a program reads and prints, over pipes that never wait."""

from __future__ import annotations

import os
import select


class Streams:
    """The pipes of one program. What it prints is taken up to a bound."""

    def __init__(self, stdin: bytes, into: int, out: int, err: int, most: int) -> None:
        self.unsent = memoryview(stdin)
        self.into: int | None = into
        self.outs = {out: 0, err: 1}
        self.taken = (bytearray(), bytearray())
        self.left = most
        for descriptor in (into, out, err):
            os.set_blocking(descriptor, False)
        if not stdin:
            self.end_input()

    def end_input(self) -> None:
        """Nothing more to send."""
        if self.into is not None:
            os.close(self.into)
            self.into = None

    def send(self) -> None:
        """Send what the program takes."""
        if self.into is None:
            return
        try:
            self.unsent = self.unsent[os.write(self.into, self.unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self.unsent = self.unsent[:0]
        if not self.unsent:
            self.end_input()

    def take(self, descriptor: int) -> bool | None:
        """Take what has been printed; returns whether that is more than may be, None if there is nothing now."""
        try:
            # One byte beyond the bound tells that there is more.
            content = os.read(descriptor, min(65536, self.left + 1))
        except BlockingIOError:
            return None
        if not content:
            os.close(descriptor)
            del self.outs[descriptor]
            return None
        self.taken[self.outs[descriptor]].extend(content[: self.left])
        over = len(content) > self.left
        self.left -= min(len(content), self.left)
        return over

    def drain(self) -> bool:
        """When all processes are gone: the rest; returns whether that is more than may be."""
        for descriptor in list(self.outs):
            over = False
            while over is False:
                over = self.take(descriptor)
            if over:
                return True
        return False

    def close(self) -> None:
        """Close what is open."""
        self.end_input()
        for descriptor in list(self.outs):
            os.close(descriptor)
            del self.outs[descriptor]


def ready_descriptors(poll: select.poll, leader: int, parent: int, streams: Streams, seconds: float) -> set[int]:
    """Wait until the leader or the parent ends, or a pipe can be served, at most so many seconds."""
    # A pipe whose other end is gone is ready whatever one waits for.
    wanted = {leader: select.POLLIN, parent: 0} | dict.fromkeys(streams.outs, select.POLLIN)
    if streams.into is not None:
        wanted[streams.into] = select.POLLOUT
    for descriptor, events in wanted.items():
        poll.register(descriptor, events)
    ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
    for descriptor in wanted:
        poll.unregister(descriptor)
    return ready
