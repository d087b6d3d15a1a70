"""Start a server of the stack in the place of an earlier one: `python -m infra.launch PART COMMAND...`

A server may consist of several processes (MLflow: its command line, and uvicorn below it). When the first of them is
killed, the others go on, hold the port, and keep every new start from succeeding. So what an earlier start of the
same part has left is ended first; then this process becomes the server.
"""

from __future__ import annotations

import os
import sys

from driftline.params import settings
from infra import processes

PART_VARIABLE = "DRIFTLINE_PART"
TERMINATE_S = 3.0


def main(part: str, command: list[str]) -> None:
    """End what is left of the part, and become it."""
    root = settings().work_dir.resolve()
    left = [process for process in processes.marked(root) if processes.variable(process, PART_VARIABLE) == part]
    processes.end(left, terminate_s=TERMINATE_S)
    os.execve(command[0], command, {**os.environ, PART_VARIABLE: part})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
