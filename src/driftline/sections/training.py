"""The sections that say which policy is trained, how, and how it travels."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from driftline.sections.section import Section


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
