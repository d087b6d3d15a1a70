"""Families of adapters, as a module of a user's own names them; the stand-in is there in child processes as well."""

from __future__ import annotations

import sys

from driftline.adapters.gymnasium import Gymnasium
from tests.support import fake_gymnasium

sys.modules.setdefault("gymnasium", fake_gymnasium)

CORRIDOR = Gymnasium("Corridor-v0", actions=("back", "on"))
