"""Stands in for a cell or a trainer rank: `python -m tests.support.fake_child --run R [...]` acts a script.

`FAKE_CHILD` names a folder. Each start takes the next line of `script` there (the last one repeats, a rank has its
own `script.<rank>`) and appends its pid to `pids`. A line is JSON: {"error": "EngineDied", "message": "..."},
{"end": "finished", "reason": ""}, {"sleep": seconds}, or {"killed": true}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from driftline import errors
from driftline.process import child_main


def act() -> None:
    folder = Path(os.environ["FAKE_CHILD"])
    rank = os.environ.get("RANK")
    script = folder / ("script" if rank is None else f"script.{rank}")
    lines = script.read_text().splitlines()
    if len(lines) > 1:
        script.write_text("\n".join(lines[1:]) + "\n")
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with (folder / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n{grandchild.pid}\n")
    play(json.loads(lines[0]), sys.argv[sys.argv.index("--run") + 1])


def play(line: dict[str, Any], run: str) -> None:
    if "sleep" in line:
        time.sleep(line["sleep"])
    if line.get("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if "error" in line:
        raise getattr(errors, line["error"])(line.get("message", ""))
    if "end" in line:
        end(run, line["end"], line.get("reason", ""))


def end(run: str, state: Any, reason: str) -> None:
    """Imports the store only here: most scripts do without, and start quickly."""
    from driftline.params import settings
    from driftline.records import Head
    from driftline.store.client import open_store
    from driftline.store.run_store import RunStore

    store = RunStore(open_store(settings()), run)
    with contextlib.suppress(errors.PreconditionFailed):
        store.create_head(Head(1, 0, None, None, 0, (), 0, ((0, "v"),)))
    store.end(state, reason)


if __name__ == "__main__":
    child_main(act)
