"""Scores finished groups under the current weights, while they wait to be trained on.

A score is good for one version: after a step, what still waits is scored again. Where no limit of admission reads the
divergence, nothing is scored: no verdict could depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from driftline.params import RunParameters
from driftline.records import Group
from driftline.training.batch import weights_of_valid
from driftline.training.members import GroupScore, group_score
from driftline.training.protocol import PolicyTrainer
from driftline.training.resume import make_batch
from driftline.training.stopwatch import Stopwatch


class GroupScorer:
    """Keeps the scores of the groups that wait."""

    def __init__(
        self,
        trainer: PolicyTrainer,
        params: RunParameters,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        """Begin with none.

        Args:
            trainer: Holds the weights.
            params: The run's parameters.
            monotonic: Seconds.
            stopwatch: Runs while something is done here, except for a forward pass.
        """
        self._trainer = trainer
        self._params = params
        self._monotonic = monotonic
        self._stopwatch = stopwatch or Stopwatch(monotonic)
        self._version = -1
        self._scores: dict[int, GroupScore] = {}
        self._forward_s = 0.0

    def score(self, groups: Sequence[Group], version: int) -> None:
        """Measure groups under the trainer's weights, which are those of `version`. Each has a valid member."""
        begin = self._monotonic()
        weights = {group.number: weights_of_valid(group) for group in groups}
        batch = make_batch(groups, weights, version, self._params)
        found = self._trainer.measure(batch)
        self._forward_s += self._monotonic() - begin
        with self._stopwatch.running():
            self._keep(version)
            places = iter(range(batch.sequences))
            for group in groups:
                sequences = [None if weight is None else next(places) for weight in weights[group.number]]
                self._scores[group.number] = group_score(group, found, sequences)

    def of(self, group: int, version: int) -> GroupScore | None:
        """The score of a group under `version`, None where it has none."""
        return self._scores.get(group) if version == self._version else None

    def forget(self, groups: Iterable[int]) -> None:
        """These groups wait no longer."""
        for group in groups:
            self._scores.pop(group, None)

    def take_forward_s(self) -> float:
        """Seconds of forward passes since the last call, with the making of their batches."""
        taken, self._forward_s = self._forward_s, 0.0
        return taken

    def _keep(self, version: int) -> None:
        if version != self._version:
            self._version = version
            self._scores.clear()
