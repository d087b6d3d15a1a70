"""Takes the requests of its parent: the start of the program inside.

    stdin:   frames of {"op": "run", ...} and a body
    stdout:  frames of {"exit_code": 0, ...} and a body

It is process 1 of its namespace where there is one: then nothing inside can signal it, all orphans become its
children, and one `kill(-1)` ends every other process. It is not dumpable, so that nobody inside reaches its memory or
its pipes through /proc, though they have its user id. Without a namespace it adopts orphans as a sub-reaper, and
finds its descendants by their parents.
"""

from __future__ import annotations

import ctypes
import os
import sys

from driftline.sandbox.inside.frames import prepare, read_frame, write_frame
from driftline.sandbox.inside.programs import PR_SET_DUMPABLE, Programs
from driftline.sandbox.inside.tree import Refused, Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from driftline.sandbox.inside.frames import Answer, Request

PR_SET_CHILD_SUBREAPER = 36
SIGINT = 2


class Supervisor:
    """Answers requests until its standard input ends. The first is `start`."""

    tree: Tree
    programs: Programs

    def __init__(self, libc: ctypes.CDLL, requests: int, out: int) -> None:
        self.libc = libc
        self.requests = requests
        self.out = out

    def serve(self) -> None:
        """Answer until the parent is gone."""
        while (frame := read_frame(self.requests)) is not None:
            request, body = frame
            try:
                answer, content = getattr(self, "do_" + request["op"])(request, body)
            except Refused as refusal:
                answer, content = {"refused": str(refusal)}, b""
            except OSError as error:
                answer, content = {"refused": os.strerror(error.errno or 0)}, b""
            write_frame(self.out, answer, content)
            prepare()

    def do_start(self, request: Request, body: bytes) -> Answer:
        """Take the limits and the first files."""
        os.makedirs(request["environment"]["TMPDIR"], exist_ok=True)
        self.tree = Tree(request["root"])
        self.programs = Programs(self.libc, self.requests, self.tree.root, request["environment"], request["limits"])
        self.do_write(request, body)
        return {"ready": True}, b""

    def do_run(self, request: Request, body: bytes) -> Answer:
        """Run a program."""
        return self.programs.run(request, body)

    def do_write(self, request: Request, body: bytes) -> Answer:
        """Write files, each over what was there."""
        at = 0
        for path, size in request["files"]:
            self.tree.write(path, body[at : at + size])
            at += size
        return {}, b""

    def do_read(self, request: Request, body: bytes) -> Answer:
        """The content of one file."""
        return {}, self.tree.read(request["path"])

    def do_remove(self, request: Request, body: bytes) -> Answer:
        """Remove a file or a link."""
        self.tree.remove(request["path"])
        return {}, b""

    def do_entries(self, request: Request, body: bytes) -> Answer:
        """Every file and link."""
        found = [
            (path, status.st_size, bool(status.st_mode & 0o100), link)
            for path, status, link, _ in self.tree.walk(False)
        ]
        return {"entries": found}, b""

    def do_snapshot(self, request: Request, body: bytes) -> Answer:
        """Every file with its content."""
        files = [(path, content) for path, _, _, content in self.tree.walk(True) if content is not None]
        return {"files": [(path, len(content)) for path, content in files]}, b"".join(one for _, one in files)


def main() -> None:
    """Hide from what runs here, and serve."""
    # The name of the module without its slow half, which makes enumerations.
    import _signal  # pyright: ignore[reportMissingImports]

    _signal.signal(SIGINT, _signal.SIG_DFL)  # pyright: ignore[reportUnknownMemberType]
    libc = ctypes.CDLL(None)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0):
        sys.exit("the supervisor cannot hide from the programs it runs")
    if os.getpid() != 1:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    requests, out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    Supervisor(libc, requests, out).serve()


if __name__ == "__main__":
    main()
