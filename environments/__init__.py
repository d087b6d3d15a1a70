"""Task families, one folder each, and the registry of their versioned ids."""

from __future__ import annotations

from driftline.environment import TaskFamily
from environments import reasoning_gym
from environments.arithmetic import Arithmetic
from environments.pointer_chase import PointerChase
from environments.repo_repair import RepoRepair
from environments.trace_replay import TraceReplay

FAMILIES: dict[str, TaskFamily] = {
    family.id: family
    for family in (PointerChase(), Arithmetic(), TraceReplay(), RepoRepair(), *reasoning_gym.FAMILIES)
}
