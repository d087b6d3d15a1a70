from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline.rollout.predictor import COVERED, Limits, Predictor, Quantiles, Work, pinball

WORK = Work("t", "e", 4)


def test_nothing_is_known_at_first() -> None:
    predictor = Predictor()
    assert predictor.predict(WORK) is None
    assert predictor.error() == {"predicted": 0, "unpredicted": 0}
    predictor.observe(WORK, 1.0, 10, None)
    assert predictor.error() == {"predicted": 0, "unpredicted": 1}


def test_each_level_leans_on_the_one_above_by_hand() -> None:
    """2 s in environment e, 8 s elsewhere. Exponents of 2, for the median:

    all: (1 + 3) / 2 = 2; e: (1 + 4 x 2) / 5 = 1.8; its prompt: (1 + 4 x 1.8) / 5 = 1.64; the task: 1.512.
    """
    predictor = Predictor()
    predictor.observe(WORK, 2.0, 2, None)
    predictor.observe(Work("u", "f", 4), 8.0, 8, None)
    cases = [
        (Work("t", "e", 4), 1.512, "task", 1),
        (Work("t", "e", None), (1 + 4 * 1.8) / 5, "task", 1),
        (Work("new", "e", 4), 1.64, "prompt", 1),
        (Work("new", "e", 900), 1.8, "environment", 1),
        (Work("new", "g", 4), 2.0, "global", 2),
    ]
    for work, exponent, basis, episodes in cases:
        found = predictor.predict(work)
        assert found is not None
        assert found.seconds.middle == pytest.approx(2**exponent)
        assert found.sampled_tokens.middle == pytest.approx(2**exponent)
        assert (found.basis, found.episodes) == (basis, episodes)
    everything = predictor.predict(Work("new", "g"))
    assert everything is not None
    assert everything.seconds.low == pytest.approx(2**1.2)
    assert everything.seconds.high == pytest.approx(2**2.8)


def test_much_of_its_own_outweighs_the_rest() -> None:
    predictor = Predictor()
    for _ in range(50):
        predictor.observe(Work("long", "e", 4), 10.0, 100, None)
        predictor.observe(Work("short", "e", 4), 0.1, 5, None)
    long, short = predictor.predict(Work("long", "e", 4)), predictor.predict(Work("short", "e", 4))
    assert long is not None
    assert short is not None
    assert long.seconds.mean > 5 > 1 > short.seconds.mean
    assert long.sampled_tokens.middle > 4 * short.sampled_tokens.middle


def test_prompts_of_about_one_length_are_alike() -> None:
    predictor = Predictor()
    for number in range(40):
        predictor.observe(Work(f"s{number}", "e", 100), 1.0, 10, None)
        predictor.observe(Work(f"l{number}", "e", 1000), 9.0, 90, None)
    near, far = predictor.predict(Work("n", "e", 103)), predictor.predict(Work("n", "e", 1010))
    assert near is not None
    assert far is not None
    assert (near.basis, far.basis) == ("prompt", "prompt")
    assert near.seconds.middle < 2 < 5 < far.seconds.middle


def test_pinball_by_hand() -> None:
    """0.1 x (4 - 1), 0.5 x (4 - 2) and 0.1 x (10 - 4)."""
    assert pinball(Quantiles(1.0, 2.0, 10.0), 4.0) == pytest.approx((0.3 + 1.0 + 0.6) / 3)
    assert pinball(Quantiles(4.0, 4.0, 4.0), 4.0) == 0.0


def test_its_error_by_hand() -> None:
    predictor = Predictor()
    predictor.observe(WORK, 2.0, 2, None)
    predicted = predictor.predict(WORK)
    predictor.observe(WORK, 2.0 * math.e, 2, predicted)
    error = predictor.error()
    assert (error["predicted"], error["unpredicted"]) == (1, 1)
    assert error["seconds_log_error"] == pytest.approx(1.0)
    assert error["seconds_bias"] == pytest.approx(1.0)
    assert error["seconds_coverage"] == 0.0
    assert error["seconds_pinball"] == pytest.approx(2.0 * (math.e - 1.0) * (0.1 + 0.5 + 0.9) / 3)
    assert error["seconds_skill"] == pytest.approx(0.0)
    assert error["sampled_tokens_coverage"] == 1.0
    assert error["sampled_tokens_log_error"] == pytest.approx(0.0, abs=1e-12)


def stream(*, spread_of_tasks: float, episodes: int = 3000) -> Predictor:
    """Lognormal seconds of tasks that differ by so much, learnt as they come."""
    rng, predictor = Random(1), Predictor()
    middles = [rng.gauss(0.0, spread_of_tasks) for _ in range(40)]
    for _ in range(episodes):
        task = rng.randrange(len(middles))
        work = Work(str(task), "e", 4)
        seconds = math.exp(rng.gauss(middles[task], 0.5))
        predictor.observe(work, seconds, 1 + int(100 * seconds), predictor.predict(work))
    return predictor


def test_it_is_calibrated_and_knowing_the_task_pays_where_tasks_differ() -> None:
    differ, alike = stream(spread_of_tasks=1.0).error(), stream(spread_of_tasks=0.0).error()
    for error in (differ, alike):
        assert error["seconds_coverage"] == pytest.approx(COVERED, abs=0.08)
        assert error["seconds_bias"] == pytest.approx(0.0, abs=0.05)
    assert differ["seconds_skill"] > 0.25
    assert abs(alike["seconds_skill"]) < 0.1
    # The mean of |z| is 0.80 of the standard deviation.
    assert alike["seconds_log_error"] == pytest.approx(0.5 * math.sqrt(2 / math.pi), rel=0.1)


def test_it_forgets_what_was_long_ago() -> None:
    predictor = Predictor()
    for seconds in [1.0] * 500 + [16.0] * 300:
        predictor.observe(WORK, seconds, 10, None)
    found = predictor.predict(WORK)
    assert found is not None
    assert found.seconds.middle == pytest.approx(16.0)


def test_its_memory_is_bounded() -> None:
    limits = Limits(environments=3, prompts=4, tasks=5, general_window=8, prompt_window=4, task_window=2)
    predictor = Predictor(limits)
    for number in range(300):
        predictor.observe(Work(f"t{number}", f"e{number % 7}", 1 + number), 1.0, 10, None)
    kept = [
        (len(windows._by_key), max(len(window) for window in windows._by_key.values()))
        for windows in (predictor._environments, predictor._prompts, predictor._tasks)
    ]
    assert [count for count, _ in kept] == [3, 4, 5]
    assert all(longest <= most for (_, longest), most in zip(kept, (8, 4, 2), strict=True))
    assert len(predictor._global) == 8
    newest, oldest = predictor.predict(Work("t299", "x")), predictor.predict(Work("t0", "x"))
    assert newest is not None
    assert oldest is not None
    assert (newest.basis, oldest.basis) == ("task", "global")


episodes = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from("ef"), st.none() | st.integers(0, 3000), st.floats(0, 1e5),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=40,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(episodes, st.sampled_from("abz"), st.sampled_from("efz"), st.none() | st.integers(0, 3000))
def test_quantiles_are_in_order_and_within_what_was_seen(
    seen: list[tuple[str, str, int | None, float, int]], task: str, environment: str, prompt: int | None
) -> None:
    predictor = Predictor()
    for one, of, length, seconds, tokens in seen:
        work = Work(one, of, length)
        predictor.observe(work, seconds, tokens, predictor.predict(work))
    found = predictor.predict(Work(task, environment, prompt))
    assert found is not None
    for quantiles, values, least in (
        (found.seconds, [one[3] for one in seen], 1e-4),
        (found.sampled_tokens, [one[4] for one in seen], 1),
    ):
        assert quantiles.low <= quantiles.middle <= quantiles.high
        lowest, highest = max(least, min(values)), max(least, max(values))
        assert lowest * (1 - 1e-9) <= quantiles.low
        assert quantiles.high <= highest * (1 + 1e-9)
        assert quantiles.low * (1 - 1e-9) <= quantiles.mean <= quantiles.high * (1 + 1e-9)
    error = predictor.error()
    assert error["predicted"] + error["unpredicted"] == len(seen)
    assert all(math.isfinite(value) for value in error.values())


def test_what_is_left_of_an_episode() -> None:
    quantiles = Quantiles(1.0, 2.0, 6.0)
    assert quantiles.mean == pytest.approx(2.9)
    assert quantiles.rest(0.0) == pytest.approx(2.9)
    assert quantiles.rest(2.0) == pytest.approx(0.9)
    assert quantiles.rest(4.0) == pytest.approx(2.0)
    assert quantiles.rest(7.0) == 0.0
