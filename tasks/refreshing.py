"""A whole refresh in the calling process, without Prefect: for benchmarks, and for tests of the stages together."""

from __future__ import annotations

from driftline.environment import TaskFamily
from driftline.store.protocol import ObjectStore
from tasks import measuring, refresh_version
from tasks import refresh_stages as stages
from tasks.measuring import PlayRequest
from tasks.refresh_plan import RefreshPlan
from tasks.refresh_stages import Published


async def carry_out(store: ObjectStore, family: TaskFamily, plan: RefreshPlan, play: PlayRequest) -> Published:
    """Carry out all stages of a plan, those that are done already by reading what they made."""
    candidates = await stages.candidates_of(store, family, plan)
    measured = await measuring.measure(store, plan, candidates, play)
    windows = await stages.proposed_of(store, family, plan)
    return await refresh_version.publish(store, family, plan, windows, candidates, measured)
