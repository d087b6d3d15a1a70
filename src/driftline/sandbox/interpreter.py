"""The Python that runs inside, and the supervisor as it is handed to it."""

from __future__ import annotations

import ast
import marshal
import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from driftline.sandbox import inside

PARTS = ("frames", "tree", "watch", "streams", "programs", "supervisor")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python without any environment's packages: that from which this one's was made."""

    prefix: Path
    program: Path

    @property
    def search_path(self) -> str:
        """`PATH` of programs inside."""
        return f"{self.program.parent}:/usr/bin:/bin"

    def open_to_others(self) -> bool:
        """Whether a user who owns nothing reaches it."""
        return all(folder.stat().st_mode & 0o001 for folder in (self.prefix, *self.prefix.parents))


@cache
def interpreter() -> Interpreter:
    """The base of the running interpreter."""
    program = Path(sys._base_executable).resolve()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownArgumentType]
    return Interpreter(Path(os.path.realpath(sys.base_prefix)), program)


def program_variables(search_path: str, scratch: str) -> dict[str, str]:
    """All variables of a program inside, whatever the backend: `PATH`, and a folder for what is temporary."""
    return {
        "PATH": search_path,
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


@cache
def supervisor_source() -> str:
    """The program inside as one text, for another version of Python."""
    return ast.unparse(_joined())


@cache
def supervisor_bytecode() -> bytes:
    """The same as a `.pyc` file of this version: compiling it anew would be a third of the sandbox's start."""
    code = compile(_joined(), "supervisor", "exec", dont_inherit=True)
    return MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _joined() -> ast.Module:
    """The modules inside, one after the other, without the imports among them."""
    future = ast.parse("from __future__ import annotations").body
    joined = ast.Module(future, [])
    for name in PARTS:
        module = ast.parse((Path(inside.__file__).parent / f"{name}.py").read_text())
        joined.body += [
            statement
            for statement in module.body
            if not isinstance(statement, ast.ImportFrom)
            or not (statement.module or "").startswith(("driftline.", "__future__"))
        ]
    return joined
