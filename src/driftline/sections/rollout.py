"""The sections that say what is generated and by which engine."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from driftline.sections.section import NAME_PATTERN, Section


class EnvironmentParameters(Section):
    """What the policy learns to do."""

    id: str = Field(
        "pointer_chase/v1",
        description="Versioned environment id, or package.module:Class, or several with their shares: "
        "a/v1 * 3 + b/v1.",
    )
    task_set: str = Field(
        "pointer-chase",
        pattern=NAME_PATTERN,
        description="Name of the task set that the refresh publishes: letters, digits, and ._- after the first.",
    )
    train_tasks: int = Field(4096, ge=1, description="Training tasks in a task-set version.")
    held_out_tasks: int = Field(256, ge=1, description="Held-out tasks, disjoint from training by content.")
    follow_task_set: bool = Field(
        True, description="Take up, between groups, what a refresh makes from the task-set version in use."
    )
    task_sampling: Literal["pools", "learnability"] = Field(
        "pools",
        description="Which tasks groups play: `pools`: by the weights of the version's pools, or all alike; "
        "`learnability`: mostly those of levels (or pools) that the run's last steps solved at times.",
    )
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
    probe_episodes: int = Field(
        16,
        ge=0,
        description="Most concurrent episodes of a cell that measure tasks for a refresh, never trained; 0 is none.",
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
