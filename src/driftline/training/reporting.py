"""What a step is put on record with: how each group entered it, and its metrics. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from driftline.divergence.age import Age, age
from driftline.divergence.trajectories import spread
from driftline.measured import DivergenceSummary
from driftline.records import GiveUp, Group, GroupUse, MemberUse, StepTimes, TokenLedger, Trajectory
from driftline.tracking import metrics
from driftline.tracking.summary import mean, quantile
from driftline.training.advantages import rewards_differ
from driftline.training.batching import DIVERGED, INVALID, Judged, environment_of
from driftline.training.members import in_batch, member_uses, trained_divergence
from driftline.training.protocol import StepOutcome
from driftline.training.segments import sampled_lags, sampled_segments

SHOWN = (
    metrics.REWARD_MEAN,
    metrics.SUCCESS_MEAN,
    metrics.LOSS,
    metrics.K3,
    metrics.ESS_FRACTION,
    metrics.LAG_STEPS_MEAN,
    metrics.TIME_TO_BATCH,
    metrics.STEP_SECONDS,
)
"""Metrics of a progress event."""


def group_use(judged: Judged) -> GroupUse:
    """How a group enters a step: with weight 1, or 0 if its rewards do not differ; times that of each member."""
    group, version = judged.group, judged.version
    uses = member_uses(group, judged.admission, judged.score, version)
    valid = [member for member, use in zip(group.trajectories, uses, strict=True) if use.counted]
    rewards = rewards_of(valid)
    lags = _lags(valid, version)
    return GroupUse(
        group=group.number,
        key=group.key,
        attempt=max(member.attempt for member in group.trajectories),
        task_id=group.task_id,
        task_set=group.task_set,
        weight=float(rewards_differ(rewards)),
        members=len(group.trajectories),
        valid_members=len(valid),
        reward_mean=mean(rewards) or 0.0,
        reward_std=statistics.stdev(rewards) if len(rewards) > 1 else 0.0,
        success_mean=mean([float(bool(member.success)) for member in valid]) or 0.0,
        lag_mean=_mean_of(lags),
        lag_max=max(lags, default=0),
        sampled_tokens=sum(member.sampled_tokens for member in valid),
        uses=uses,
        environment=environment_of(group),
        stratum=group.trajectories[0].stratum,
    )


def rewards_of(members: Sequence[Trajectory]) -> list[float]:
    """Rewards of valid members."""
    return [member.reward for member in members if member.reward is not None]


def step_metrics(
    outcome: StepOutcome,
    groups: Sequence[Group],
    uses: Sequence[GroupUse],
    *,
    version: int,
    give_ups: int,
    learning_rate: float,
    times: StepTimes,
    time_to_batch_s: Mapping[str, float],
    publish_bytes: int,
) -> dict[str, float]:
    """All metrics of a step that are known before its commit, by the names of the table.

    Args:
        outcome: What the optimizer step did.
        groups: The batch.
        uses: How each group entered the step, in the same order.
        version: Number of the version trained from.
        give_ups: Groups given up since the previous step.
        learning_rate: Of the step.
        times: When its phases began and ended.
        time_to_batch_s: Parts of the critical path, by cause.
        publish_bytes: Size of the published version.
    """
    members = [member for group in groups for member in group.trajectories]
    valid = [member for group in in_batch(uses, groups) for member in group.trajectories]
    return {
        **_episode_metrics(valid, uses),
        **_training_metrics(outcome, times, learning_rate),
        **_divergence_metrics(outcome, trained_divergence(uses, outcome.statistics)),
        **_lag_metrics(valid, version, times.batch_ready),
        **{name: sum(getattr(m.seconds, part) for m in members) for part, name in metrics.EPISODE_SUM.items()},
        **{metrics.TIME_TO_BATCH_BY_CAUSE[cause]: time_to_batch_s[cause] for cause in metrics.CAUSES},
        metrics.TIME_TO_BATCH: max(0.0, times.batch_ready - times.previous_commit),
        metrics.GROUPS_TRAINED: float(sum(use.weight > 0 for use in uses)),
        metrics.GROUPS_ZERO_VARIANCE: float(sum(use.weight == 0 for use in uses)),
        metrics.GROUPS_FAILED: float(give_ups),
        metrics.MEMBERS_INVALID: float(len(members) - len(valid)),
        metrics.STEP_SECONDS: times.committed - times.previous_commit,
        metrics.PUBLISH_SECONDS: times.publish_end - times.train_end,
        metrics.PUBLISH_BYTES: float(publish_bytes),
    }


def ledger_metrics(ledger: TokenLedger) -> dict[str, float]:
    """The token ledger, by the names of the table."""
    terms = {metrics.LEDGER[name]: float(tokens) for name, tokens in ledger.terms.items()}
    generated = {metrics.LEDGER["generated"]: float(ledger.generated)}
    masked = {metrics.LEDGER_MASKED[what]: float(tokens) for what, tokens in ledger.masked_by.items()}
    stale = {metrics.LEDGER_STALE[reason]: float(tokens) for reason, tokens in ledger.stale_by.items()}
    return generated | terms | masked | stale | {metrics.LEDGER_IMBALANCE: float(ledger.imbalance)}


def admission_metrics(
    uses: Sequence[GroupUse], give_ups: Sequence[GiveUp], *, forward_s: float, judging_s: float
) -> dict[str, float]:
    """What admission made of the batch and of the groups given up beside it, by the names of the table.

    Args:
        uses: How each group entered the step.
        give_ups: Groups given up since the previous step.
        forward_s: Seconds of forward passes that scored groups since the previous step.
        judging_s: Seconds of everything else that admission did.
    """
    batch = [member for use in uses for member in use.uses if member.counted]
    left_out = [give_up for give_up in give_ups if not give_up.reason.startswith(INVALID)]
    seen = [*batch, *(member for give_up in left_out for member in give_up.uses if member.counted)]
    gone = [member for member in seen if member.weight == 0.0]
    lowered = [member for member in batch if member.verdict == "down_weight"]
    dropped = Counter(member.reason for member in seen if member.verdict == "drop")
    return {
        metrics.ADMISSION_DROPPED_SHARE: _tokens(gone) / max(1, _tokens(seen)),
        metrics.ADMISSION_DOWN_WEIGHTED_SHARE: _tokens(lowered) / max(1, _tokens(batch)),
        metrics.ADMISSION_WEIGHT_MEAN: mean([member.weight for member in batch]) or 0.0,
        **{name: float(dropped[reason]) for reason, name in metrics.ADMISSION_DROPPED.items()},
        metrics.GROUPS_DIVERGED: float(sum(give_up.reason.startswith(DIVERGED) for give_up in give_ups)),
        metrics.ADMISSION_SCORE_SECONDS: forward_s,
        metrics.ADMISSION_SECONDS: judging_s,
    }


def _tokens(members: Sequence[MemberUse]) -> int:
    return sum(member.sampled_tokens for member in members)


def imbalance(ledger: TokenLedger, step: int) -> str:
    """What is wrong with a ledger that does not balance."""
    return (
        f"the token ledger of step {step} is out of balance by {ledger.imbalance} tokens: "
        f"{ledger.generated} generated, {ledger.terms}"
    )


def _episode_metrics(valid: Sequence[Trajectory], uses: Sequence[GroupUse]) -> dict[str, float]:
    tokens = [float(len(member.token_ids)) for member in valid]
    seconds = [member.finished_unix - member.started_unix for member in valid]
    return {
        metrics.REWARD_MEAN: mean(rewards_of(valid)) or 0.0,
        metrics.REWARD_STD: mean([use.reward_std for use in uses]) or 0.0,
        metrics.SUCCESS_MEAN: mean([float(bool(member.success)) for member in valid]) or 0.0,
        metrics.TURNS_MEAN: mean([float(member.turns) for member in valid]) or 0.0,
        metrics.EPISODE_TOKENS_P50: quantile(tokens, 0.5) or 0.0,
        metrics.EPISODE_TOKENS_P95: quantile(tokens, 0.95) or 0.0,
        metrics.EPISODE_TOKENS_MAX: max(tokens, default=0.0),
        metrics.EPISODE_SECONDS_P50: quantile(seconds, 0.5) or 0.0,
        metrics.EPISODE_SECONDS_P95: quantile(seconds, 0.95) or 0.0,
        metrics.EPISODE_SECONDS_MAX: max(seconds, default=0.0),
        metrics.SAMPLED_TOKENS: float(sum(member.sampled_tokens for member in valid)),
    }


def _training_metrics(outcome: StepOutcome, times: StepTimes, learning_rate: float) -> dict[str, float]:
    train_seconds = times.train_end - times.train_start
    return {
        metrics.LOSS: outcome.statistics.loss,
        metrics.GRADIENT_NORM: outcome.gradient_norm,
        metrics.ENTROPY: outcome.statistics.entropy_nats,
        metrics.CLIP_SHARE: outcome.statistics.clip_share,
        metrics.LEARNING_RATE: learning_rate,
        metrics.ADVANTAGE_ABS_MEAN: outcome.statistics.advantage_abs_mean,
        metrics.TRAIN_SECONDS: train_seconds,
        metrics.TRAIN_TOKENS: float(outcome.tokens),
        metrics.TRAIN_TOKENS_PER_SECOND: outcome.tokens / train_seconds if train_seconds > 0 else 0.0,
        metrics.MICRO_BATCHES: float(outcome.micro_batches),
        metrics.PADDING_SHARE: outcome.padding_share,
    }


def _divergence_metrics(outcome: StepOutcome, trained: DivergenceSummary) -> dict[str, float]:
    """Of the batch; what has no tokens is absent."""
    found = outcome.statistics
    floor = {metrics.FLOOR_DIFFERENCE_MAX: found.floor_difference_max_nats}
    taught = {metrics.TRAINED_K3: trained.k3, metrics.TRAINED_ESS_FRACTION: trained.ess_fraction}
    return {
        **(floor if found.floor.tokens else {}),
        **(taught if trained.tokens else {}),
        **metrics.of_divergence(found.divergence),
        metrics.LOGPROB_DIFFERENCE_MAX: found.difference_max_nats,
        **_spread_metrics(found.by_sequence),
        metrics.IMPORTANCE_RAW_MEAN: found.divergence.ratio_mean,
        metrics.IMPORTANCE_RAW_MAX: found.importance_raw_max,
        metrics.IMPORTANCE_APPLIED_MEAN: found.importance_applied_mean,
        metrics.IMPORTANCE_APPLIED_MAX: found.importance_applied_max,
        metrics.IMPORTANCE_TRUNCATED_SHARE: found.importance_truncated_share,
    }


def _spread_metrics(members: Sequence[DivergenceSummary]) -> dict[str, float]:
    """Quantiles over the members of a batch; nothing where none of them was measured."""
    found = spread(members)
    if found is None:
        return {}
    return {
        **dict(zip(metrics.MEMBER_K3.values(), found.k3_nats, strict=True)),
        **dict(zip(metrics.MEMBER_GEOMETRIC_RATIO.values(), found.geometric_mean_ratio, strict=True)),
        **dict(zip(metrics.MEMBER_SEQUENCE_RATIO.values(), found.sequence_ratio, strict=True)),
    }


def _lag_metrics(valid: Sequence[Trajectory], version: int, batch_ready: float) -> dict[str, float]:
    lags = _lags(valid, version)
    ages = [found for member in valid if (found := _age(member, version)) is not None]
    waits = [max(0.0, batch_ready - member.finished_unix) for member in valid]
    return {
        metrics.LAG_STEPS_MEAN: _mean_of(lags),
        metrics.LAG_STEPS_MAX: float(max(lags, default=0)),
        metrics.LAG_IN_FLIGHT_MEAN: mean([float(found.in_flight) for found in ages]) or 0.0,
        metrics.LAG_IN_QUEUE_MEAN: mean([float(found.in_queue) for found in ages]) or 0.0,
        metrics.LAG_SECONDS_MEAN: mean(waits) or 0.0,
        metrics.LAG_SECONDS_MAX: max(waits, default=0.0),
    }


def _age(member: Trajectory, version: int) -> Age | None:
    segments = sampled_segments(member)
    return age(version, segments[0].version, segments[-1].version) if segments else None


def _lags(members: Sequence[Trajectory], version: int) -> Counter[int]:
    """Lag -> sampled tokens of some members that have it."""
    counts = Counter[int]()
    for member in members:
        counts.update(sampled_lags(member, version))
    return counts


def _mean_of(counts: Counter[int]) -> float:
    """The mean of counted values; 0 of none."""
    return sum(value * count for value, count in counts.items()) / max(1, counts.total())
