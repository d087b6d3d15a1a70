"""Every setting of a run (`RunParameters`) and of a process's surroundings (`Settings`).

This is the one place of configuration: nothing else reads the process environment. `RunParameters` becomes the
form in the Prefect UI, and its JSON schema is a golden file, so that a new knob is a reviewed act. Values that
contradict one another are refused here, before anything starts, with the field's name and the remedy.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from driftline.divergence_sections import AdmissionParameters as AdmissionParameters
from driftline.divergence_sections import DiagnosisParameters as DiagnosisParameters
from driftline.divergence_sections import OverlapParameters as OverlapParameters
from driftline.divergence_sections import Section
from driftline.measured import FLOOR_K3_NATS
from driftline.settings import RankSettings as RankSettings
from driftline.settings import Settings as Settings
from driftline.settings import adopt_environment as adopt_environment
from driftline.settings import settings as settings


class ModelParameters(Section):
    """Where the base policy comes from."""

    source: Literal["warm_start", "directory", "smollm2"] = Field(
        "warm_start",
        description="`warm_start`: a small character-level Llama, trained on weak demonstrations; `directory`: "
        "a model directory that transformers loads; `smollm2`: SmolLM2-135M-Instruct from its package.",
    )
    directory: str | None = Field(None, description="The model directory, for `source: directory`.")
    rendering: Literal["plain", "chat"] = Field(
        "plain", description="How messages become tokens: contents joined, or the model's chat template."
    )
    hidden_size: int = Field(128, ge=16, description="Width of the warm-started model.")
    layers: int = Field(3, ge=1, description="Layers of the warm-started model.")
    heads: int = Field(4, ge=1, description="Attention heads of the warm-started model.")
    tie_embeddings: bool = Field(False, description="Whether the warm-started model ties its embeddings.")
    warm_start_steps: int = Field(400, ge=0, description="Optimizer steps of the warm start.")
    warm_start_batch: int = Field(64, ge=1, description="Demonstrations in a warm-start step.")
    warm_start_learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate of the warm start.")

    @model_validator(mode="after")
    def _directory_belongs_to_its_source(self) -> Self:
        if (self.source == "directory") != (self.directory is not None):
            raise ValueError("model.directory: set it together with `model.source: directory`, and only then")
        if self.hidden_size % self.heads:
            raise ValueError("model.hidden_size: must be a multiple of model.heads")
        return self


class EnvironmentParameters(Section):
    """What the policy learns to do."""

    id: str = Field("pointer_chase/v1", description="Versioned environment id, or package.module:Class.")
    task_set: str = Field("pointer-chase", description="Name of the task set that the refresh publishes.")
    train_tasks: int = Field(4096, ge=1, description="Training tasks in a task-set version.")
    held_out_tasks: int = Field(256, ge=1, description="Held-out tasks, disjoint from training by content.")
    max_turns: int = Field(20, ge=1, description="Turns after which an episode is truncated.")
    step_deadline_s: float = Field(10.0, gt=0, description="Deadline of one reset or step, in seconds.")
    episode_deadline_s: float = Field(120.0, gt=0, description="Deadline of a whole episode, in seconds.")
    at_deadline: Literal["timeout", "judge"] = Field(
        "timeout",
        description="An episode beyond its deadline: `timeout`: counts for nothing; `judge`: ends as truncated with "
        "the reward that the environment gives it as it stands, if it can.",
    )
    runs_in: Literal["declared", "loop", "thread", "process"] = Field(
        "declared",
        description="Where environments run: `declared` is where the family says, else in threads; `loop` in the "
        "cell's event loop, for those that take microseconds; `process` in one process each.",
    )
    workers: int = Field(4, ge=1, description="Threads that a cell's environments share, or most processes of them.")
    warm: int = Field(32, ge=0, description="Most environments kept for another episode, of those that allow it.")


class RolloutParameters(Section):
    """How trajectories are sampled."""

    group_size: int = Field(8, ge=2, description="Members of a group.")
    groups_per_step: int = Field(16, ge=1, description="Groups in a batch.")
    max_tokens_per_turn: int = Field(8, ge=1, description="Tokens after which a turn is cut.")
    temperature: float = Field(1.0, gt=0, le=2, description="Sampling temperature, applied by the trainer as well.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling; needs training.importance: none.")
    top_k: int = Field(0, ge=0, description="Top-k sampling, 0 is off; needs training.importance: none.")
    cells: int = Field(1, ge=1, description="Rollout cells that share the work.")
    episodes_in_flight: int = Field(256, ge=1, description="Most concurrent episodes of a cell.")
    concurrency: Literal["adaptive", "fixed"] = Field(
        "adaptive",
        description="`adaptive`: as many episodes as the engine bears, found by its preemptions, KV cache and queue, "
        "up to episodes_in_flight; `fixed`: always episodes_in_flight.",
    )
    surplus_members: int = Field(
        0,
        ge=0,
        description="Further members that a group may play, each in place of one whose environment failed or timed "
        "out; a valid member is never replaced.",
    )
    lease_s: float = Field(20.0, gt=1, description="Seconds (of the store's clock) that a claim holds.")


class SchedulingParameters(Section):
    """In which order a cell's episodes start."""

    order: Literal["number", "predicted"] = Field(
        "number",
        description="`number`: by the number of their group; `predicted`: within each batch's groups the longest "
        "first, by what earlier episodes of the task and the environment took, then nearly complete groups.",
    )


class EngineParameters(Section):
    """The generation engine."""

    backend: Literal["vllm", "vllm_server", "scripted"] = Field(
        "vllm",
        description="`vllm`: in the cell's process, the quickest; `vllm_server`: in a server process of its own, as "
        "several engines need; `scripted` draws tokens from a seeded stand-in, for tests of the machinery.",
    )
    replicas: int = Field(
        1, ge=1, description="Engines of a cell, which share its requests; each has max_num_seqs and its own cache."
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Weights and activations.")
    max_model_len: int = Field(256, ge=16, description="Context length in tokens.")
    max_num_seqs: int = Field(128, ge=1, description="Sequences in one engine step.")
    kv_cache_gib: int = Field(1, ge=1, description="KV cache in whole GiB (CPU engine).")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="Share of GPU memory (GPU engine).")
    block_size: int = Field(32, ge=1, description="Tokens of a KV-cache block.")
    prefix_caching: bool = Field(True, description="Reuse the KV of equal prefixes of the same version.")
    kv_on_update: Literal["keep", "recompute"] = Field(
        "keep", description="What becomes of running requests' KV when the weights change."
    )
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share one engine.")
    speculative_tokens: int = Field(
        0,
        ge=0,
        le=16,
        description="Tokens that an engine guesses a step, by n-grams of the context, and verifies in one; 0 is off, "
        "as it must be on the CPU engine.",
    )
    start_deadline_s: float = Field(600.0, gt=0, description="Deadline of the engine's start, in seconds.")
    request_deadline_s: float = Field(120.0, gt=0, description="Deadline of one request, in seconds.")
    cpus: tuple[int, ...] = Field((), description="Processor ids the cell is pinned to; empty is all.")

    @model_validator(mode="after")
    def _engines_do_not_share_a_process(self) -> Self:
        if self.replicas > 1 and self.backend == "vllm":
            raise ValueError("engine.replicas: one process holds one engine: set engine.backend to vllm_server")
        if self.speculative_tokens and self.backend == "scripted":
            raise ValueError("engine.speculative_tokens: has no effect on the scripted engine: set it to 0")
        return self


class TrainingParameters(Section):
    """The optimizer and the loss."""

    steps: int = Field(30, ge=1, description="Optimizer steps of the run.")
    ranks: int = Field(1, ge=1, description="Processes of the DeepSpeed group.")
    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="DeepSpeed ZeRO stage.")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Weights and activations.")
    learning_rate: float = Field(3e-4, ge=0, description="Constant learning rate of AdamW.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay.")
    max_gradient_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this global norm.")
    micro_batch_tokens: int = Field(2048, ge=64, description="Padded tokens of a micro-batch.")
    advantage: Literal["grpo", "grpo_population", "dr_grpo", "rloo", "maxrl"] = Field(
        "grpo", description="Group baseline."
    )
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = Field(
        "sequence_mean",
        description="How token losses become one loss. With `token_mean` and `constant` long failures outweigh all "
        "else where episodes differ much in length.",
    )
    surrogate: Literal["clipped", "cispo", "gspo", "dppo"] = Field(
        "clipped",
        description="Objective of the ratio current / proximal: PPO's clip, or CISPO, GSPO, DPPO's total-variation "
        "mask, which need `proximal: behaviour`.",
    )
    proximal: Literal["recomputed", "interpolated", "behaviour"] = Field(
        "recomputed",
        description="Policy that the step is limited around: `recomputed` is the one before the step (never "
        "clipped, with one step a batch), `interpolated` the version before it, from behaviour and current policy, "
        "`behaviour` the one that sampled.",
    )
    clip_low: float = Field(0.2, gt=0, le=1, description="Lower clip of the ratio, 1 - clip_low.")
    clip_high: float = Field(0.28, gt=0, description="Upper clip of the ratio, 1 + clip_high.")
    dual_clip: float | None = Field(
        None, gt=1, description="Largest ratio that counts for a negative advantage; None is no limit."
    )
    dppo_threshold: float = Field(
        0.2, gt=0, lt=1, description="`surrogate: dppo`: largest change of a token's probability."
    )
    importance: Literal["token_truncated", "sequence_truncated", "icepop", "geometric_rejection", "none"] = Field(
        "token_truncated", description="Correction from behaviour to proximal policy."
    )
    importance_cap: float = Field(2.0, gt=1, description="Upper limit of an importance weight.")
    importance_low: float = Field(
        0.5, gt=0, lt=1, description="`icepop`, `geometric_rejection`: ratios below are masked."
    )
    importance_high: float = Field(5.0, gt=1, description="`icepop`, `geometric_rejection`: ratios above are masked.")
    negative_sequence_nats: float | None = Field(
        None,
        ge=0,
        description="Sequences with a negative advantage are masked beyond this mean log(behaviour / current) of "
        "their tokens; None masks none.",
    )
    cpus: tuple[int, ...] = Field((), description="Processor ids the trainer is pinned to; empty is all.")

    @model_validator(mode="after")
    def _ratios_are_limited_once(self) -> Self:
        if self.surrogate != "clipped" and self.proximal != "behaviour":
            raise ValueError(f"training.surrogate: {self.surrogate} needs training.proximal: behaviour")
        if self.proximal == "behaviour" and self.importance != "none":
            raise ValueError(
                "training.importance: with training.proximal: behaviour the surrogate holds the whole ratio: set "
                "it to none"
            )
        if self.dual_clip is not None and (self.surrogate != "clipped" or self.proximal == "recomputed"):
            raise ValueError(
                "training.dual_clip: has no effect unless training.surrogate is clipped and training.proximal is "
                "interpolated or behaviour"
            )
        return self


class LoraParameters(Section):
    """Low-rank adapters in place of whole weights: the base stays frozen, and a version holds the adapters alone."""

    rank: int = Field(0, ge=0, description="Rank of the adapters; 0 trains all weights.")
    alpha: float = Field(16.0, gt=0, description="Adapters are scaled by alpha / rank.")
    targets: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="Linear layers that get an adapter, by the last part of their name.",
    )


class PublicationParameters(Section):
    """How a trained policy travels to the engines."""

    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="What weights are published in; the trainer scores with these. `auto`: the coarser of "
        "engine.dtype and training.dtype.",
    )
    chain_factor: float = Field(
        2.0,
        ge=1,
        description="Deltas follow an anchor until a late reader would pay so many times what an anchor costs.",
    )


class CheckpointParameters(Section):
    """What a resumed run starts from."""

    every_steps: int = Field(1, ge=1, description="Optimizer steps between two checkpoints.")


class EvaluationParameters(Section):
    """How held-out success is measured."""

    episodes_per_task: int = Field(1, ge=1, description="Episodes of each held-out task.")
    temperature: float = Field(1.0, ge=0, le=2, description="Sampling temperature, 0 is greedy.")


class LimitParameters(Section):
    """How much may fail before the run does. All bounded; an exhausted limit ends the run as Failed."""

    failed_groups: int = Field(64, ge=0, description="Groups given up because too few members were valid.")
    damaged_objects: int = Field(8, ge=0, description="Objects of finished groups that cannot be read.")
    cell_restarts: int = Field(3, ge=0, description="Restarts of a rollout cell that died.")
    trainer_restarts: int = Field(3, ge=0, description="Restarts of a trainer that died.")
    flow_run_restarts: int = Field(
        3, ge=0, description="Restarts of a child flow run (trainer, cell, evaluation) whose process was killed."
    )
    resumptions: int = Field(3, ge=0, description="Resumptions of a run whose parent flow run was killed.")
    batch_deadline_s: float = Field(600.0, gt=0, description="Longest wait for a batch, in seconds.")
    watchdog_s: float = Field(
        600.0, gt=0, description="Seconds without any progress after which a cell that has work is ended."
    )
    lost_threads: int = Field(
        8, ge=0, description="Threads of a cell that environments may hold beyond their deadline at one time."
    )


class TrackingParameters(Section):
    """What goes to MLflow, the report, and Prefect's events."""

    experiment: str = Field("driftline", description="MLflow experiment.")
    registered_model: str = Field("driftline-policy", description="MLflow model that the result is registered as.")
    traces_every_steps: int = Field(5, ge=0, description="Steps between two samples of traces; 0 is never.")
    traces_per_sample: int = Field(3, ge=1, description="Episodes in a sample of traces.")
    rollout_gpu_hour_price: float = Field(
        0.0, ge=0, description="Price of a GPU hour of the rollout pool, in any currency; 0 reports no cost."
    )
    train_gpu_hour_price: float = Field(
        0.0, ge=0, description="Price of a GPU hour of the training pool, in any currency; 0 reports no cost."
    )
    batch_regression_share: float = Field(
        0.5, gt=0, description="Growth of the time to a batch over its running median that makes an event."
    )


class RunParameters(Section):
    """All parameters of a post-training run."""

    seed: int = Field(0, ge=0, description="Seed of task order, sampling and initialisation.")
    model: ModelParameters = ModelParameters()  # pyright: ignore[reportCallIssue]
    environment: EnvironmentParameters = EnvironmentParameters()  # pyright: ignore[reportCallIssue]
    rollout: RolloutParameters = RolloutParameters()  # pyright: ignore[reportCallIssue]
    scheduling: SchedulingParameters = SchedulingParameters()  # pyright: ignore[reportCallIssue]
    overlap: OverlapParameters = OverlapParameters()  # pyright: ignore[reportCallIssue]
    diagnosis: DiagnosisParameters = DiagnosisParameters()  # pyright: ignore[reportCallIssue]
    admission: AdmissionParameters = AdmissionParameters()  # pyright: ignore[reportCallIssue]
    engine: EngineParameters = EngineParameters()  # pyright: ignore[reportCallIssue]
    training: TrainingParameters = TrainingParameters()  # pyright: ignore[reportCallIssue]
    lora: LoraParameters = LoraParameters()  # pyright: ignore[reportCallIssue]
    publication: PublicationParameters = PublicationParameters()  # pyright: ignore[reportCallIssue]
    checkpoint: CheckpointParameters = CheckpointParameters()  # pyright: ignore[reportCallIssue]
    evaluation: EvaluationParameters = EvaluationParameters()  # pyright: ignore[reportCallIssue]
    limits: LimitParameters = LimitParameters()  # pyright: ignore[reportCallIssue]
    tracking: TrackingParameters = TrackingParameters()  # pyright: ignore[reportCallIssue]

    @property
    def published_dtype(self) -> Literal["float32", "bfloat16"]:
        """What weights are published in."""
        if self.publication.dtype != "auto":
            return self.publication.dtype
        return self.coarser_dtype

    @property
    def coarser_dtype(self) -> Literal["float32", "bfloat16"]:
        """The coarser arithmetic of engine and trainer."""
        return "bfloat16" if "bfloat16" in (self.engine.dtype, self.training.dtype) else "float32"

    @property
    def floor_k3_nats(self) -> float:
        """Most k3 a token that engine and trainer may differ by with the same weights."""
        return self.diagnosis.floor_k3_nats or FLOOR_K3_NATS[self.coarser_dtype]

    @property
    def highest_lead_groups(self) -> int:
        """Most groups that may start ahead under any setting of the controller."""
        hard = self.overlap.max_lag_versions * self.rollout.groups_per_step
        return hard if self.overlap.highest_groups is None else self.overlap.highest_groups

    @model_validator(mode="after")
    def _dtypes_agree(self) -> Self:
        if self.publication.dtype == "float32" and "bfloat16" in (self.engine.dtype, self.training.dtype):
            raise ValueError(
                "publication.dtype: float32 needs float32 in engine.dtype and training.dtype: an engine in bfloat16 "
                "would round the weights that the trainer scores with, and a trainer in bfloat16 has no more to give"
            )
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        truncated = self.rollout.top_p < 1 or self.rollout.top_k > 0
        training = self.training
        if truncated and (
            training.importance != "none"
            or training.proximal != "recomputed"
            or training.negative_sequence_nats is not None
            or any(limit is not None for limit in self.admission.limits)
        ):
            raise ValueError(
                "rollout.top_p / rollout.top_k: log-probabilities of a truncated distribution make importance "
                "weights differ from 1 even for identical policies: set top_p to 1 and top_k to 0, or "
                "training.importance to none, training.proximal to recomputed, and to null "
                "training.negative_sequence_nats and all limits of the section admission"
            )
        if self.overlap.lead_groups > self.overlap.max_lag_versions * self.rollout.groups_per_step:
            raise ValueError(
                "overlap.lead_groups: groups would start further ahead than overlap.max_lag_versions allows: "
                f"lower it to {self.overlap.max_lag_versions * self.rollout.groups_per_step} or raise the limit"
            )
        if self.overlap.budget_k3_nats <= self.floor_k3_nats:
            raise ValueError(
                f"overlap.budget_k3_nats: no lead could keep it: {self.floor_k3_nats:g} nats "
                "(diagnosis.floor_k3_nats) are allowed to engine and trainer already: raise it"
            )
        if self.rollout.max_tokens_per_turn >= self.engine.max_model_len:
            raise ValueError("rollout.max_tokens_per_turn: must be below engine.max_model_len")
        if self.training.ranks == 1 and self.training.zero_stage > 0:
            raise ValueError("training.zero_stage: has no effect on one rank: raise training.ranks or set it to 0")
        return self

    @model_validator(mode="after")
    def _controller_has_room(self) -> Self:
        overlap, hard = self.overlap, self.overlap.max_lag_versions * self.rollout.groups_per_step
        if overlap.controller == "fixed":
            return self
        if self.highest_lead_groups > hard:
            raise ValueError(
                "overlap.highest_groups: groups would start further ahead than overlap.max_lag_versions allows: "
                f"lower it to {hard} or raise the limit"
            )
        if overlap.lowest_groups >= self.highest_lead_groups:
            raise ValueError(
                f"overlap.controller: has no effect between leads of {overlap.lowest_groups} (overlap.lowest_groups) "
                f"and {self.highest_lead_groups} groups (overlap.highest_groups, overlap.max_lag_versions): make "
                "room, or set it to fixed"
            )
        if not overlap.lowest_groups <= overlap.lead_groups <= self.highest_lead_groups:
            raise ValueError(
                f"overlap.lead_groups: the run begins with it: between {overlap.lowest_groups} and "
                f"{self.highest_lead_groups} (overlap.lowest_groups, overlap.highest_groups)"
            )
        return self
