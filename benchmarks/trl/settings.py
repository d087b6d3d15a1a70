# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""What all ways of training `pointer_chase/v1` with TRL have in common."""

from __future__ import annotations

import re

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from benchmarks.trl.measured import Asked

ANSWER = re.compile(r"=\d\d")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %}{{ key }}{{ value }}{% endfor %}{% endfor %}"
    "{% endfor %}"
)
"""Contents joined. Calls are rendered only where TRL looks for what precedes an observation."""


def open_policy(asked: Asked):
    """The policy and its tokenizer; a turn ends with a line."""
    tokenizer = AutoTokenizer.from_pretrained(asked.model_dir, padding_side="left")
    tokenizer.chat_template = CHAT_TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(asked.model_dir, dtype=torch.float32)
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids("\n"), tokenizer.eos_token_id]
    return model, tokenizer


def configuration(asked: Asked, stop_ids: list[int]) -> GRPOConfig:
    """The loss is Driftline's: sequence mean, sample deviation of the group. What only costs is off."""
    transformers_limits = {"max_new_tokens": asked.max_tokens_per_turn, "eos_token_id": stop_ids}
    vllm_limits = {"max_tokens": asked.max_tokens_per_turn, "stop_token_ids": stop_ids}
    return GRPOConfig(
        output_dir=asked.out,
        seed=asked.seed,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=asked.groups * asked.group_size,
        num_generations=asked.group_size,
        max_steps=asked.steps,
        learning_rate=asked.learning_rate,
        lr_scheduler_type="constant",
        loss_type="grpo",
        beta=0.0,
        shuffle_dataset=False,
        max_completion_length=asked.context_tokens - 4,
        max_tool_calling_iterations=asked.max_turns - 1,
        generation_kwargs=vllm_limits if asked.vllm else transformers_limits,
        use_vllm=asked.vllm,
        vllm_mode="colocate",
        vllm_max_model_length=asked.context_tokens,
        vllm_importance_sampling_correction=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
