"""Laws of the limit of episodes in flight, whatever the engine says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driftline.rollout.concurrency import CUT, GROWTH_FIRST, Bounds, Limit, Pressure, adjusted

COUNTS = st.integers(0, 4096)
PRESSURES = st.builds(
    Pressure,
    in_flight=COUNTS, running=COUNTS, waiting=COUNTS,
    kv_cache_share=st.floats(0.0, 1.0), preempted=st.integers(0, 64),
)  # fmt: skip
BOUNDS = st.tuples(st.integers(1, 512), st.integers(0, 1024)).map(lambda pair: Bounds(pair[0], pair[0] + pair[1]))


@given(BOUNDS, st.lists(PRESSURES, max_size=40), st.data())
def test_it_stays_within_its_bounds_and_never_leaps(
    bounds: Bounds, looks: list[Pressure], data: st.DataObject
) -> None:
    limit = Limit(data.draw(st.integers(bounds.lowest, bounds.highest)))
    for pressure in looks:
        after = adjusted(limit, pressure, bounds)
        assert bounds.lowest <= after.episodes <= bounds.highest
        assert after.episodes <= limit.episodes * (1 + GROWTH_FIRST) + 1
        if after.episodes < limit.episodes:
            assert pressure.preempted
            assert after.rest > 0
        limit = after


@given(BOUNDS, PRESSURES, st.data())
def test_more_pressure_never_gives_more_slots(bounds: Bounds, pressure: Pressure, data: st.DataObject) -> None:
    """Within what is in flight: the limit is cut from what is really there."""
    limit = Limit(data.draw(st.integers(bounds.lowest, bounds.highest)), data.draw(st.booleans()))
    worse = Pressure(
        pressure.in_flight,
        pressure.running,
        pressure.waiting + data.draw(COUNTS),
        min(1.0, pressure.kv_cache_share + data.draw(st.floats(0.0, 1.0))),
        pressure.preempted + data.draw(st.integers(0, 8)),
    )
    assert adjusted(limit, worse, bounds).episodes <= adjusted(limit, pressure, bounds).episodes


@given(BOUNDS, st.integers(1, 4096))
def test_a_cut_is_a_fifth_of_what_is_in_flight(bounds: Bounds, in_flight: int) -> None:
    pressure = Pressure(in_flight, in_flight, 0, 1.0, 1)
    after = adjusted(Limit(bounds.highest), pressure, bounds)
    assert after.episodes == min(max(int(CUT * min(in_flight, bounds.highest)), bounds.lowest), bounds.highest)
