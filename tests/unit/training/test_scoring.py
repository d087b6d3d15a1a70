"""Scores and verdicts are good for one version: what waits is measured and judged anew after each step."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from driftline.params import AdmissionParameters
from driftline.records import PolicyVersion
from driftline.tracking import metrics
from driftline.training.intake import Intake
from driftline.training.reporting import group_use
from driftline.training.scoring import GroupScorer
from tests.support.trainer_bench import Bench, eager_cell
from tests.support.training import FakeGroup, group, parameters


def test_a_score_is_good_for_one_version():
    scorer = GroupScorer(FakeGroup(), parameters())
    first, second = group(0, [1, 0, 0, 1], version=0), group(1, [1, 0, 0, 1], version=0)
    scorer.score([first, second], 3)
    assert scorer.of(0, 3) is not None
    assert scorer.of(0, 4) is None, "the weights have changed since"
    scorer.score([second], 4)
    assert scorer.of(0, 4) is None
    assert scorer.of(1, 4) is not None
    scorer.forget([1])
    assert scorer.of(1, 4) is None


def test_seconds_are_those_since_they_were_last_asked_for():
    """A step's record has what admission took of that step, not of the run."""
    bench, ticks = Bench(parameters()), count()
    lease = bench.run_store.take_epoch()
    lease.commit(replace(lease.head, version=PolicyVersion(0, 1)))
    scorer = GroupScorer(FakeGroup(), bench.params, monotonic=lambda: float(next(ticks)))
    intake = Intake(bench.run_store, lease, [], bench.params, scorer, monotonic=lambda: float(next(ticks)))
    bench.finish(group(0, [1, 0]), group(1, [1, 0]))
    ready = intake.next_batch()
    uses = [group_use(judged) for judged in ready.judged]
    took = intake.admission(uses)
    assert took[metrics.ADMISSION_SCORE_SECONDS] == 1.0, "one look at the clock before the pass, one after"
    assert took[metrics.ADMISSION_SECONDS] == 4.0, "two groups, judged before and after they were scored"
    again = intake.admission(uses)
    assert (again[metrics.ADMISSION_SCORE_SECONDS], again[metrics.ADMISSION_SECONDS]) == (0.0, 0.0)


def test_groups_that_grow_too_old_while_they_wait_are_given_up():
    def cell(bench: Bench) -> None:
        if not bench.run_store.new_groups():
            bench.finish(*(group(n, [1, 0, 0, 1], version=0) for n in range(8)))
        else:
            eager_cell(bench)

    no_limits = dict.fromkeys(AdmissionParameters.model_fields)
    bench = Bench(parameters(overlap={"lead_groups": 0, "max_lag_versions": 1}, admission=no_limits), cell)
    bench.loop().run()
    records = bench.run_store.steps()
    assert [[use.group for use in record.groups] for record in records[:2]] == [[0, 1], [2, 3]]
    given_up = [give_up for record in records for give_up in record.give_ups]
    assert [give_up.group for give_up in given_up] == [4, 5, 6, 7]
    assert all(give_up.reason.startswith("stale") for give_up in given_up)
    assert records[-1].ledger is not None
    assert records[-1].ledger.stale == sum(give_up.sampled_tokens for give_up in given_up)
