"""The flows: what is chained, in what order, on which pool.

Deployments name them by dotted path. Prefect puts the working directory on the import path only while it loads a
flow, so it is added here for good, at the end: environments are found by name, or by a user's own dotted path,
while a flow runs. And a flow run goes on when its worker is killed.
"""

import sys
from pathlib import Path

from tasks.logs import outlive_worker

_ROOT = str(Path(__file__).resolve().parent.parent)
if sys.path[-1] != _ROOT:
    sys.path.append(_ROOT)

outlive_worker()
