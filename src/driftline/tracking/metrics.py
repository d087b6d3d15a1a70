"""The one table of metric names, with unit, meaning and source.

Every metric that Driftline logs, writes into a step record or reports is named here, by a constant; a name that
is not in the table is refused (`check`). `python -m driftline.tracking.metrics` prints the table as the page
`docs/metrics.md`.

The step axis of every metric is the number of the optimizer step: the trainer logs a step's metrics under its
number, a cell logs under the policy version that its engine has acknowledged, which is the number of the step that
made it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from driftline.measured import K3_SHARES, RATIO_SHARES, DivergenceSummary
from driftline.tracking import causes, pools
from driftline.tracking.causes import CAUSES as CAUSES
from driftline.tracking.causes import Cause as Cause
from driftline.tracking.table import TABLE as TABLE
from driftline.tracking.table import Metric as Metric
from driftline.tracking.table import check as check
from driftline.tracking.table import markdown as markdown
from driftline.tracking.table import of_environment as of_environment
from driftline.tracking.table import quantiles as _quantiles
from driftline.tracking.table import row as _row

# What the episodes of the batch earned, and how long they were.
REWARD_MEAN = _row("rollout/reward_mean", "reward", "Mean reward of the batch's valid members.")
REWARD_STD = _row("rollout/reward_std", "reward", "Mean over groups of the rewards' standard deviation.")
SUCCESS_MEAN = _row("rollout/success_mean", "share", "Share of the batch's valid members that succeeded.")
TURNS_MEAN = _row("rollout/turns_mean", "turns", "Mean number of turns of the batch's valid members.")
EPISODE_TOKENS_P50 = _row("rollout/episode_tokens_p50", "tokens", "Median episode length, observations included.")
EPISODE_TOKENS_P95 = _row("rollout/episode_tokens_p95", "tokens", "95th percentile of the episode length.")
EPISODE_TOKENS_MAX = _row("rollout/episode_tokens_max", "tokens", "Longest episode of the batch.")
EPISODE_SECONDS_P50 = _row("rollout/episode_seconds_p50", "s", "Median duration of the batch's episodes.")
EPISODE_SECONDS_P95 = _row("rollout/episode_seconds_p95", "s", "95th percentile of the episodes' duration.")
EPISODE_SECONDS_MAX = _row("rollout/episode_seconds_max", "s", "Longest duration of an episode in the batch.")
SAMPLED_TOKENS = _row("rollout/sampled_tokens", "tokens", "Tokens of the batch that the policy sampled.")
ROLLOUT_SECONDS = _row(
    "rollout/seconds", "s", "Wall seconds between two commits in which a request executed or a tool ran.", "report"
)

# What a cell's engine is doing.
TOKENS_PER_SECOND = _row("engine/tokens_per_second", "tokens/s", "Sampled tokens a second of wall clock.", "cell")
GENERATED_TOKENS = _row("engine/generated_tokens", "tokens", "Tokens sampled since the engine's start.", "cell")
ENGINE_RUNNING = _row("engine/running_requests", "requests", "Requests that the engine is executing.", "cell")
ENGINE_WAITING = _row("engine/waiting_requests", "requests", "Requests that wait inside the engine.", "cell")
ENGINES_SERVING = _row("engine/engines_serving", "engines", "Engines of the cell that serve.", "cell")
EPISODES_RUNNING = _row("engine/running_episodes", "episodes", "Episodes in flight.", "cell")
EPISODES_LIMIT = _row(
    "engine/episodes_limit", "episodes", "Episodes that may be in flight, by the engine's pressure.", "cell"
)
KV_CACHE_SHARE = _row("engine/kv_cache_share", "share", "Share of the KV cache in use.", "cell")
PREEMPTIONS = _row("engine/preemptions", "requests", "Requests preempted since the engine's start.", "cell")
PREFIX_HIT_SHARE = _row("engine/prefix_hit_share", "share", "Share of prompt tokens found in the cache.", "cell")
GROUPS_FINISHED = _row("engine/groups_finished", "groups", "Groups that the cell has written.", "cell")
EPISODES_FAILED = _row(
    "engine/failed_episodes", "episodes", "Episodes ended by an infrastructure failure, since the start.", "cell"
)
EPISODES_CANCELLED = _row("engine/cancelled_episodes", "episodes", "Episodes cancelled, since the start.", "cell")
PREDICTION_ERROR = _row(
    "engine/prediction_error_nats", "nats", "Mean of |log(seconds / predicted median)| of ended episodes.", "cell"
)
PREDICTION_COVERAGE = _row(
    "engine/prediction_coverage", "share", "Ended episodes between their predicted 10% and 90%; 0.8 is right.", "cell"
)
PREDICTION_SKILL = _row(
    "engine/prediction_skill", "share", "Pinball loss saved by knowing task, prompt and environment.", "cell"
)
TOKEN_PREDICTION_ERROR = _row(
    "engine/token_prediction_error_nats", "nats", "The same error, of the tokens that an episode samples.", "cell"
)
TOKEN_PREDICTION_COVERAGE = _row("engine/token_prediction_coverage", "share", "The same coverage of them.", "cell")
TOKEN_PREDICTION_SKILL = _row("engine/token_prediction_skill", "share", "The same skill of them.", "cell")

# How a cell itself is.
LOOP_LAG_P50 = _row("cell/loop_lag_p50_seconds", "s", "How late the event loop runs what is due, median.", "cell")
LOOP_LAG_P99 = _row("cell/loop_lag_p99_seconds", "s", "How late it runs what is due, 99th percentile.", "cell")
THREADS_LOST = _row(
    "cell/threads_lost", "threads", "Threads that environments block beyond their deadlines at this moment.", "cell"
)
ENVIRONMENTS_MADE = _row("cell/environments_made", "environments", "Environments made since the start.", "cell")
ENVIRONMENTS_REUSED = _row("cell/environments_reused", "episodes", "Episodes played in a warm environment.", "cell")

# What became of the groups.
GROUPS_TRAINED = _row("groups/trained", "groups", "Groups of the batch with a weight above 0.")
GROUPS_ZERO_VARIANCE = _row("groups/zero_variance", "groups", "Groups of the batch whose rewards were all equal.")
GROUPS_FAILED = _row("groups/failed", "groups", "Groups given up since the previous step, all reasons.")
GROUPS_DIVERGED = _row(
    "groups/diverged", "groups", "Groups given up since the previous step because of their divergence."
)
MEMBERS_INVALID = _row("groups/invalid_members", "episodes", "Members of the batch left out of the statistics.")

# Where the batch's tasks come from, and how their environments fare.
TASK_SET_NUMBER = _row("tasks/version_number", "1", "How many versions of the task set the run has taken up.")
TASK_SET_SHARE = _row(
    "tasks/newest_version_share", "share", "Share of the batch's groups that play its newest version."
)
TASK_SET_SUCCESS = _row("tasks/success_newest_version", "share", "Success on those groups.")
TASK_SET_SUCCESS_OLDER = _row("tasks/success_older_versions", "share", "Success on the others.")
EFFECTIVE_STRATA = _row(
    "tasks/effective_strata", "1", "Levels or pools that the batch's groups play, as exp of their entropy."
)
POOL_SUCCESS = {pool: _row(f"tasks/success_{pool}", "share", text) for pool, text in pools.SUCCESS.items()}
POOL_SHARE = {pool: _row(f"tasks/groups_{pool}", "share", text) for pool, text in pools.SHARE.items()}
ENVIRONMENT_FAILURE_SHARE = _row("environments/failure_share", "share", "Last episodes failed, of the worst one.")
ENVIRONMENT_TIMEOUT_SHARE = _row("environments/timeout_share", "share", "Last episodes timed out, of the worst one.")
ENVIRONMENT_FAILURE_SHARE_OF = _row(
    "environments/failure_share_of/<environment>", "share", "Last episodes failed, of one environment of a mixture."
)
ENVIRONMENT_TIMEOUT_SHARE_OF = _row(
    "environments/timeout_share_of/<environment>", "share", "Last episodes timed out, of one environment."
)
ENVIRONMENTS_QUARANTINED = _row("environments/quarantined", "environments", "Environments that are played no more.")

# What admission made of the batch, and of the groups given up since the previous step.
ADMISSION_DROPPED_SHARE = _row(
    "admission/dropped_share", "share", "Share of their sampled tokens that were not trained on for admission's sake."
)
ADMISSION_DROPPED: Mapping[str, str] = {
    reason: _row(f"admission/dropped_{reason}", "episodes", f"Members dropped because {meaning}.")
    for reason, meaning in {
        "age": "they were too old",
        "k3": "their k3 was beyond its limit",
        "ess": "their effective sample size was below its limit",
    }.items()
}
ADMISSION_DOWN_WEIGHTED_SHARE = _row(
    "admission/down_weighted_share", "share", "Share of the batch's sampled tokens whose member weighed less than 1."
)
ADMISSION_WEIGHT_MEAN = _row("admission/weight_mean", "1", "Mean weight of the batch's valid members.")
ADMISSION_SCORE_SECONDS = _row(
    "admission/score_seconds", "s", "Forward passes that scored waiting groups since the previous step."
)
ADMISSION_SECONDS = _row(
    "admission/seconds", "s", "Everything else that admission did since the previous step, on the step's way."
)

# The optimizer step.
LOSS = _row("train/loss", "1", "Loss, in the chosen aggregation.")
GRADIENT_NORM = _row("train/gradient_norm", "1", "Global norm of the gradient before clipping.")
ENTROPY = _row("train/entropy_nats", "nats", "Mean entropy of the current policy on sampled tokens.")
CLIP_SHARE = _row("train/clip_share", "share", "Share of sampled tokens whose ratio was clipped in the loss.")
LEARNING_RATE = _row("train/learning_rate", "1", "Learning rate of the step.")
ADVANTAGE_ABS_MEAN = _row("train/advantage_abs_mean", "1", "Mean absolute advantage over sampled tokens.")
TRAIN_SECONDS = _row("train/seconds", "s", "From batch taken to optimizer done.")
TRAIN_TOKENS = _row("train/tokens", "tokens", "Tokens that the step computed, observations included.")
TRAIN_TOKENS_PER_SECOND = _row("train/tokens_per_second", "tokens/s", "Those tokens over the training seconds.")
MICRO_BATCHES = _row("train/micro_batches", "batches", "Micro-batches of the step, on one rank.")
PADDING_SHARE = _row("train/padding_share", "share", "Share of the computed positions that held padding.")
CHECKPOINT_SECONDS = _row("train/checkpoint_seconds", "s", "Seconds in which the step waited for its checkpoint.")
REPLAYED_STEPS = _row(
    "train/replayed_steps", "steps", "Committed steps that a restarted trainer ran again before this step."
)
RESUME_MISMATCH = _row(
    "train/resume_mismatch",
    "0 or 1",
    "A restarted trainer did not reproduce the published weights, and took those up instead.",
)

# Behaviour policy against current policy, before the step, on raw weights: over all members of the batch, those that
# admission drops and those of groups without variance included, unless the name says otherwise.
K1 = _row("divergence/k1_nats", "nats", "KL(behaviour || current), estimator k1: mean of -log ratio.")
K2 = _row("divergence/k2_nats", "nats", "KL(behaviour || current), estimator k2: mean of half the squared log ratio.")
K3 = _row("divergence/k3_nats", "nats", "KL(behaviour || current), estimator k3: mean of ratio - 1 - log ratio.")
TOTAL_VARIATION = _row("divergence/total_variation", "share", "Half the mean of |ratio - 1|.")
CHI_SQUARE = _row("divergence/chi_square", "1", "Mean of the squared ratio, minus 1.")
ESS_FRACTION = _row("divergence/ess_fraction", "share", "Effective sample size over the number of sampled tokens.")
TRAINED_K3 = _row(
    "divergence/trained_k3_nats",
    "nats",
    "k3 over what the step was trained on: members that admission kept or down-weighted, of groups with a variance.",
)
TRAINED_ESS_FRACTION = _row(
    "divergence/trained_ess_fraction", "share", "Effective sample size over the same, of raw weights."
)
LOGPROB_DIFFERENCE_MAX = _row(
    "divergence/logprob_difference_max_nats", "nats", "Largest |behaviour - current| log-probability."
)
FLOOR_K3 = _row(
    "divergence/floor_k3_nats", "nats", "k3 over the members whose tokens are all of lag 0: engine against trainer."
)
FLOOR_DIFFERENCE_MAX = _row(
    "divergence/floor_difference_max_nats", "nats", "Largest |behaviour - current| over the tokens of lag 0."
)
MEMBER_K3 = _quantiles("divergence/member_k3_{}_nats", "nats", "k3 a token of a member", K3_SHARES)
MEMBER_GEOMETRIC_RATIO = _quantiles(
    "importance/member_geometric_ratio_{}", "1", "geometric mean of a member's ratios", RATIO_SHARES
)
MEMBER_SEQUENCE_RATIO = _quantiles(
    "importance/member_sequence_ratio_{}", "1", "product of a member's ratios", RATIO_SHARES
)
IMPORTANCE_RAW_MEAN = _row("importance/raw_mean", "1", "Mean importance weight before truncation.")
IMPORTANCE_RAW_MAX = _row("importance/raw_max", "1", "Largest importance weight before truncation.")
IMPORTANCE_APPLIED_MEAN = _row("importance/applied_mean", "1", "Mean importance weight that the loss used.")
IMPORTANCE_APPLIED_MAX = _row("importance/applied_max", "1", "Largest importance weight that the loss used.")
IMPORTANCE_TRUNCATED_SHARE = _row("importance/truncated_share", "share", "Share of sampled tokens truncated.")

# What the divergence is steered by, and why it is what it is.
LEAD_GROUPS = _row("overlap/lead_groups", "groups", "The lead in HEAD while the step's batch was awaited.")
EFFECTIVE_LEAD_GROUPS = _row(
    "overlap/effective_lead_groups", "groups", "Mean lag of the batch's sampled tokens, times the groups of a batch."
)
BUDGET_SHARE = _row("overlap/budget_share", "share", "k3 of the batch over overlap.budget_k3_nats.")
CAUSE = _row(
    "divergence/cause",
    "code",
    "What the last steps are diagnosed as: 0 healthy, 1 engine mismatch, 2 staleness, 3 failed weight sync.",
)

# How old the batch was.
LAG_STEPS_MEAN = _row("lag/steps_mean", "versions", "Mean lag of the batch's sampled tokens.")
LAG_STEPS_MAX = _row("lag/steps_max", "versions", "Largest lag of a sampled token in the batch.")
LAG_IN_FLIGHT_MEAN = _row(
    "lag/in_flight_mean", "versions", "Mean number of versions that came out while an episode was generated."
)
LAG_IN_QUEUE_MEAN = _row(
    "lag/in_queue_mean", "versions", "Mean number of versions that came out while a finished episode waited."
)
LAG_SECONDS_MEAN = _row("lag/seconds_mean", "s", "Mean time from an episode's end to the batch that used it.")
LAG_SECONDS_MAX = _row("lag/seconds_max", "s", "Longest time from an episode's end to the batch that used it.")

# Where a step's wall clock went.
TIME_TO_BATCH = _row(
    "time_to_batch/seconds", "s", "From the previous commit to a full batch; the parts add up to it."
)
TIME_TO_BATCH_BY_CAUSE: Mapping[Cause, str] = {
    cause: _row(f"time_to_batch/{cause}_seconds", "s", f"Part of the critical path spent {meaning}.")
    for cause, meaning in causes.MEANING.items()
}
EPISODE_SUM: Mapping[str, str] = {
    part: _row(f"episode_sum/{part}_seconds", "s", f"Sum over the batch's (concurrent) episodes of seconds {part}.")
    for part in ("queued", "resetting", "prefilling", "decoding", "in_tools", "in_reward")
}
STEERING_SECONDS = _row(
    "step/steering_seconds",
    "s",
    "Admission, divided figures, controller, diagnosis and ledger since the previous step, forward passes aside.",
)
STEP_SECONDS = _row("step/seconds", "s", "From the previous commit to this one.")
PUBLISH_SECONDS = _row("publish/seconds", "s", "From optimizer done until the weights and their manifest are stored.")
PUBLISH_BYTES = _row("publish/bytes", "bytes", "Size of the published version.")
COMMIT_SECONDS = _row("publish/commit_seconds", "s", "From weights stored to HEAD swapped.")
APPLY_SECONDS = _row(
    "apply/seconds", "s", "From seeing a new HEAD until the engine acknowledged its weights.", "cell"
)
APPLY_FETCH_SECONDS = _row("apply/fetch_seconds", "s", "Fetching the weights, beside generation.", "cell")
APPLY_LOAD_SECONDS = _row("apply/load_seconds", "s", "Loading the weights into the engine.", "cell")
ENGINE_PAUSE_SECONDS = _row("apply/engine_pause_seconds", "s", "The engine stood still for the swap.", "cell")
PROBE_ERROR = _row(
    "apply/probe_error_nats", "nats", "Largest difference from the manifest's probe log-probabilities.", "cell"
)
STORE_READ_SECONDS = _row(
    "store/read_seconds", "s", "Listing and reading finished groups, by the look that completed the batch."
)
STORE_PUBLISH_SECONDS = _row("store/publish_seconds", "s", "Store calls under way while the weights were published.")
STORE_COMMIT_SECONDS = _row(
    "store/commit_seconds", "s", "Writing the previous step's record and swapping HEAD; 0 in a trainer's first step."
)
STORE_SECONDS = _row(
    "store/seconds", "s", "Store time on the critical path of a step: `read`, `publish`, `commit` and `claim`."
)
STORE_REQUESTS = _row(
    "store/requests", "requests", "S3 requests that the trainer has sent since the previous step's record."
)
STORE_CELL_REQUESTS = _row(
    "store/cell_requests",
    "requests",
    "S3 requests that cells have sent since the previous step's record, by their own accounts.",
)
STORE_CLAIM_SECONDS = _row(
    "store/claim_seconds",
    "s",
    "Since the previous step's record: how long a cell had no episode in flight because of claims; the longest.",
)
DAMAGED_OBJECTS = _row(
    "store/damaged_objects", "objects", "Objects of finished groups that could not be read, in the run so far."
)

# What became of every sampled token, since the start of the run.
_TERM_MEANING = {
    "generated": "sampled, by the engines' own counters",
    "trained": "of groups that a step was trained on",
    "masked": "of such groups, but left out of the loss",
    "stale": "of members that admission dropped, and of groups given up for their sake",
    "cancelled": "thrown away: cancelled episodes, lost claims, killed cells",
    "failed": "of episodes that failed for reasons of infrastructure, or of groups with too few others",
    "zero_variance": "of groups whose rewards were all equal",
    "surplus": "of second attempts at a group",
    "probe": "of scores, and of probe groups that measure tasks",
    "ready": "delivered, and not used yet",
    "in_flight": "of episodes and groups that are not delivered yet",
    "lost": "known to have been sampled, after a killed engine's last heartbeat or in an object that cannot be read",
}
LEDGER: Mapping[str, str] = {
    term: _row(f"ledger/{term}_tokens", "tokens", f"Tokens {meaning}, in the run so far.")
    for term, meaning in _TERM_MEANING.items()
}
LEDGER_MASKED: Mapping[str, str] = {
    what: _row(f"ledger/masked_{what.replace(' ', '_')}_tokens", "tokens", f"Masked tokens: {meaning}.")
    for what, meaning in {
        "correction": "by the correction from behaviour to proximal policy",
        "negative sequence": "of far-off sequences with a negative advantage",
        "no context": "sampled first tokens, which nothing precedes",
    }.items()
}
LEDGER_STALE: Mapping[str, str] = {
    reason: _row(f"ledger/stale_{reason}_tokens", "tokens", f"Stale tokens: {meaning}.")
    for reason, meaning in {
        "age": "of members that were too old",
        "k3": "of members whose k3 was beyond its limit",
        "ess": "of members whose effective sample size was below its limit",
        "group": "of admitted members of groups that were given up",
    }.items()
}
LEDGER_IMBALANCE = _row(
    "ledger/imbalance_tokens", "tokens", "Tokens generated that no term of the ledger explains: 0, or a defect."
)
OVERLAP_EFFICIENCY = _row(
    "step/overlap_efficiency", "share", "The longer of rollout and training, over the step; at most 1.", "report"
)
PIPELINE_OVERHEAD = _row(
    "step/pipeline_overhead_seconds", "s", "The step minus the longer of rollout and training.", "report"
)
IDLE_SHARE_ROLLOUT = _row(
    "idle/rollout_share", "share", "Share of the wall clock the rollout pool was idle.", "report"
)
IDLE_SHARE_TRAIN = _row("idle/train_share", "share", "Share of the wall clock the training pool was idle.", "report")
IDLE_SECONDS_ROLLOUT = _row("idle/rollout_seconds", "s", "Idle seconds of the rollout pool.", "report")
IDLE_SECONDS_TRAIN = _row("idle/train_seconds", "s", "Idle seconds of the training pool.", "report")
IDLE_ROLLOUT: Mapping[str, str] = {
    cause: _row(
        f"idle/rollout_{cause}_seconds", "s", f"Idle seconds of the rollout pool, mean of cells: {meaning}.", "report"
    )
    for cause, meaning in causes.ROLLOUT_IDLE.items()
}
IDLE_TRAIN: Mapping[str, str] = {
    cause: _row(f"idle/train_{cause}_seconds", "s", f"Idle seconds of the training pool: {meaning}.", "report")
    for cause, meaning in causes.TRAIN_IDLE.items()
}
IDLE_COST_ROLLOUT = _row(
    "idle/rollout_cost", "currency", "Idle seconds of the rollout pool times its GPUs and their price.", "report"
)
IDLE_COST_TRAIN = _row(
    "idle/train_cost", "currency", "Idle seconds of the training pool times its GPUs and their price.", "report"
)

# What bounds the run (docs/rollout.md).
BOUND = _row(
    "bound/verdict", "code", "What bounds the last steps: 0 engine, 1 tools, 2 stragglers, 3 trainer, 4 store."
)
BOUND_SHARE: Mapping[str, str] = {
    bound: _row(f"bound/{bound}_share", "share", f"Share of the last steps' wall clock that belongs to {bound}.")
    for bound in causes.BOUNDS
}

# Held-out tasks. The step is the policy version.
EVALUATION_SUCCESS = _row(
    "evaluation/success", "share", "Share of valid held-out episodes that succeeded.", "evaluation"
)
EVALUATION_REWARD = _row("evaluation/reward_mean", "reward", "Mean reward of valid held-out episodes.", "evaluation")
EVALUATION_INVALID = _row(
    "evaluation/invalid_episodes", "episodes", "Held-out episodes without reward.", "evaluation"
)
EVALUATION_SECONDS = _row("evaluation/seconds", "s", "Duration of the evaluation.", "evaluation")
EVALUATION_SUCCESS_OF = _row(
    "evaluation/success_of/<environment>", "share", "The same share of one environment of a mixture.", "evaluation"
)
EVALUATION_REWARD_OF = _row(
    "evaluation/reward_mean_of/<environment>", "reward", "The same reward of one environment.", "evaluation"
)
EVALUATION_INVALID_OF = _row(
    "evaluation/invalid_episodes_of/<environment>", "episodes", "Those of one environment.", "evaluation"
)


def of_divergence(found: DivergenceSummary) -> Mapping[str, float]:
    """The figures of a batch's divergence, by name."""
    return {
        K1: found.k1,
        K2: found.k2,
        K3: found.k3,
        TOTAL_VARIATION: found.total_variation,
        CHI_SQUARE: found.chi_square,
        ESS_FRACTION: found.ess_fraction,
    }


if __name__ == "__main__":
    sys.stdout.write(markdown())
