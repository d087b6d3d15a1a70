"""Scores and verdicts are good for one version: what waits is measured and judged anew after each step."""

from __future__ import annotations

from driftline.params import AdmissionParameters
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
