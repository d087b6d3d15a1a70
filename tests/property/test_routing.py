"""Properties of routing over several engines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driftline.engine.routing import EngineView, Holders, RoutingBounds, route, stalled_since
from driftline.records import PolicyVersion

VERSIONS = (None, PolicyVersion(1, 1), PolicyVersion(2, 1), PolicyVersion(2, 2))
versions = st.sampled_from(VERSIONS)
bounds = st.builds(RoutingBounds, st.integers(1, 8), st.integers(0, 6))


@st.composite
def engines(draw: st.DrawFn) -> list[EngineView]:
    return [
        EngineView(n, draw(st.booleans()), draw(versions), draw(st.integers(0, 12)), draw(st.integers(0, 5)))
        for n in range(draw(st.integers(0, 5)))
    ]


holders = st.lists(st.integers(0, 6), max_size=3)


@given(engines(), versions, holders, bounds)
def test_it_goes_to_an_engine_that_serves_if_there_is_one(
    found: list[EngineView], newest: PolicyVersion | None, holding: list[int], limits: RoutingBounds
) -> None:
    chosen = route(found, newest, holding, limits)
    assert (chosen is None) == (not any(engine.serving for engine in found))
    assert chosen is None or found[chosen].serving


@given(engines(), versions, holders, bounds)
def test_never_to_another_version_while_one_with_the_newest_has_room(
    found: list[EngineView], newest: PolicyVersion | None, holding: list[int], limits: RoutingBounds
) -> None:
    chosen = route(found, newest, holding, limits)
    free = [e for e in found if e.serving and e.version == newest and e.load < limits.capacity]
    if free:
        assert chosen in {engine.index for engine in free}


@given(engines(), versions, holders, bounds)
def test_a_prefix_never_outweighs_more_than_the_bound(
    found: list[EngineView], newest: PolicyVersion | None, holding: list[int], limits: RoutingBounds
) -> None:
    chosen = route(found, newest, holding, limits)
    if chosen is None:
        return
    equals = [e for e in found if e.serving and e.version == found[chosen].version]
    if all(e.load < limits.capacity for e in equals):
        assert found[chosen].load - min(e.load for e in equals) <= limits.spill_beyond


@given(engines(), versions, holders, bounds)
def test_a_holder_that_is_not_overloaded_keeps_its_prefix(
    found: list[EngineView], newest: PolicyVersion | None, holding: list[int], limits: RoutingBounds
) -> None:
    free = {e.index: e.load for e in found if e.serving and e.version == newest and e.load < limits.capacity}
    fit = [n for n in holding if n in free and free[n] - min(free.values()) <= limits.spill_beyond]
    if fit:
        assert route(found, newest, holding, limits) == fit[0]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2), versions), max_size=60))
def test_what_is_remembered_is_bounded_and_counted(notes: list[tuple[str, int, PolicyVersion | None]]) -> None:
    remembered = Holders(4)
    for name, index, version in notes:
        held = dict.fromkeys(range(3), version)
        remembered.note([name], index, held)
        assert remembered.find([name], held) == [index]
        assert sum(remembered.held(n) for n in range(3)) <= 4
    remembered.forget(1)
    assert remembered.held(1) == 0
    assert all(1 not in remembered.find("abcdef", dict.fromkeys(range(3), version)) for version in VERSIONS)


def test_a_prefix_of_an_older_version_is_nobodys() -> None:
    """prime-rl#1650, lmdeploy#4917: the prefix cache of the old weights reused."""
    one, two = VERSIONS[1:3]
    remembered = Holders()
    remembered.note(["episode", "group"], 0, {0: one, 1: one})
    assert remembered.find(["episode", "group"], {0: one, 1: two}) == [0, 0]
    assert remembered.find(["episode", "group"], {0: two, 1: two}) == []
    remembered.note(["episode", "group"], 1, {0: two, 1: two})
    assert remembered.find(["group"], {0: two, 1: two}) == [1]


def test_a_spilled_episode_moves_and_its_group_stays() -> None:
    remembered, held = Holders(), dict.fromkeys(range(2), None)
    remembered.note(["e1", "g"], 0, held)
    remembered.note(["e2", "g"], 1, held)
    assert remembered.find(["e2", "g"], held) == [1, 0]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_an_engine_stalls_only_with_requests_and_without_tokens(steps: list[tuple[int, int]]) -> None:
    tokens, before = 0, (0, 0.0)
    for now, (made, load) in enumerate(steps, 1):
        tokens += made
        before = stalled_since(tokens, load, float(now), before)
        assert before[0] == tokens
        if made or not load:
            assert before[1] == now
