"""Both sides of a supervised child process: the parent's `supervise`, the child's `child_main` and `emit`.

    parent (a flow)                              child (`python -m driftline...`, leader of its own session)
    supervise(argv) ── stdin: the lifeline ────▶ EOF: the parent is gone; end the group, then itself
         on_event  ◀── stdout: events, JSON ──── emit({"event": "progress", ...})
         on_log    ◀── stderr: log lines ─────── logging, stray prints, output of grandchildren

What ends what: a child that ends takes its whole group with it; a cancelled or failing `supervise` ends the
group (SIGTERM, then SIGKILL after a deadline); a parent that is killed closes the lifeline. A descendant that
has left the group is found by a token in its process environment (Linux).

Exit codes of a child: 0 done, 2 `ConfigurationError`, 75 what a restart may mend, 130 and 143 stopped by a
signal, 1 anything else.
"""

from __future__ import annotations

from driftline.process.child import child_main, emit
from driftline.process.supervisor import ProcessOutcome, supervise

__all__ = ["ProcessOutcome", "child_main", "emit", "supervise"]
