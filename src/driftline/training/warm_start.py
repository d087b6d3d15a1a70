"""The small base policy: a character-level Llama, taught by weak demonstrations what an episode looks like.

It learns to read and to copy, and it learns the demonstrator's bad habit of guessing early; unlearning that is
what reinforcement learning is for. The same spec gives the same weights on the same number of threads.
"""

# pyright: basic
from __future__ import annotations

import argparse
import json
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from driftline.engine.tokens import EOS_TOKEN, PAD_TOKEN, PlainRenderer, save_character_tokenizer
from driftline.environment import resolve
from driftline.errors import ConfigurationError
from driftline.params import settings
from driftline.process import child_main, emit
from driftline.records import ModelSource, encode
from driftline.store.client import open_store
from driftline.store.protocol import ObjectStore
from driftline.training.base_model import BaseModelSpec, find, publish
from driftline.training.demonstrations import Demonstration, record_demonstrations
from driftline.training.import_model import import_directory, import_smollm2
from driftline.training.packing import cut

log = logging.getLogger(__name__)

INITIALIZER_RANGE = 0.06
"""Transformers' 0.02 does not learn to copy at this size."""

MICRO_BATCH_TOKENS = 4096
MOST_DEMONSTRATIONS = 16384
WARM_UP_SHARE = 0.05
FINAL_RATE_SHARE = 0.1
PROGRESS_STEPS = 25


def make_warm_start(
    spec: BaseModelSpec, directory: Path, on_step: Callable[[int, float], None] | None = None
) -> None:
    """Train the base policy and save it as a model directory that transformers and vLLM load.

    Args:
        spec: What to make; `spec.model.source` is `warm_start`.
        directory: Where to save it.
        on_step: Called with (step, loss in nats a token) after each optimizer step.

    Raises:
        ConfigurationError: The environment has no alphabet or no demonstrations.
    """
    family = resolve(spec.environment)
    if family.alphabet is None:
        raise ConfigurationError(
            f"{family.id} names no alphabet for a warm-started model: set model.source to directory or smollm2"
        )
    tokenizer = save_character_tokenizer(family.alphabet, directory, max_length=spec.max_model_len)
    renderer = PlainRenderer(tokenizer, stop=family.stop, eos=EOS_TOKEN)
    vocabulary = tokenizer.get_vocab()
    pad_id, eos_id = vocabulary[PAD_TOKEN], vocabulary[EOS_TOKEN]
    torch.manual_seed(spec.seed)
    model = LlamaForCausalLM(_configuration(spec, len(vocabulary), pad_id, eos_id))
    demonstrations = record_demonstrations(
        family,
        renderer,
        seed=spec.seed,
        count=max(1, min(MOST_DEMONSTRATIONS, spec.model.warm_start_steps * spec.model.warm_start_batch)),
        max_turns=spec.max_turns,
        max_tokens=spec.max_model_len,
    )
    imitate(model, demonstrations, spec, on_step)
    model.generation_config = GenerationConfig(pad_token_id=pad_id, eos_token_id=eos_id, do_sample=True)
    model.save_pretrained(directory)


def imitate(
    model: LlamaForCausalLM,
    demonstrations: Sequence[Demonstration],
    spec: BaseModelSpec,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Maximise the likelihood of the demonstrators' actions (not of what the environment said)."""
    steps, size = spec.model.warm_start_steps, spec.model.warm_start_batch
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    for step in range(steps):
        batch = [demonstrations[(step * size + i) % len(demonstrations)] for i in range(size)]
        for group in optimizer.param_groups:
            group["lr"] = spec.model.warm_start_learning_rate * rate_share(step, steps)
        actions = sum(sum(episode.action_mask) for episode in batch)
        loss = 0.0
        for plan in cut([len(episode.token_ids) for episode in batch], MICRO_BATCH_TOKENS):
            part = _action_nats(model, [batch[i] for i in plan]) / actions
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if on_step is not None:
            on_step(step + 1, loss)


def rate_share(step: int, steps: int) -> float:
    """Share of the peak learning rate at a step: a linear rise, then a cosine down to `FINAL_RATE_SHARE`."""
    rise = max(1, round(WARM_UP_SHARE * steps))
    if step < rise:
        return (step + 1) / rise
    progress = (step - rise) / max(1, steps - rise)
    return FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))


def _configuration(spec: BaseModelSpec, vocabulary: int, pad_id: int, eos_id: int) -> LlamaConfig:
    hidden = spec.model.hidden_size
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3 // 16 * 16,
        num_hidden_layers=spec.model.layers,
        num_attention_heads=spec.model.heads,
        num_key_value_heads=spec.model.heads,
        max_position_embeddings=spec.max_model_len,
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=spec.model.tie_embeddings,
        pad_token_id=pad_id,
        bos_token_id=eos_id,
        eos_token_id=eos_id,
    )


def _action_nats(model: LlamaForCausalLM, episodes: Sequence[Demonstration]) -> Tensor:
    """Negative log-likelihood in nats, summed over the action tokens of the episodes."""
    longest = max(len(episode.token_ids) for episode in episodes)
    ids_BT = torch.zeros(len(episodes), longest, dtype=torch.long)
    mask_BT = torch.zeros(len(episodes), longest, dtype=torch.bool)
    for row, episode in enumerate(episodes):
        ids_BT[row, : len(episode.token_ids)] = torch.tensor(episode.token_ids)
        mask_BT[row, : len(episode.token_ids)] = torch.tensor(episode.action_mask)
    hidden = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[:, :-1][mask_BT[:, 1:]])
    return nn.functional.cross_entropy(logits, ids_BT[:, 1:][mask_BT[:, 1:]], reduction="sum")


def make(spec: BaseModelSpec, store: ObjectStore) -> ModelSource:
    """The base policy of a spec: from the store, or made now and put there.

    Raises:
        ConfigurationError: It cannot be made from these settings.
    """
    digest = spec.digest()
    found = find(store, digest)
    if found is not None:
        return found
    with tempfile.TemporaryDirectory(prefix="driftline-model-") as folder:
        directory = Path(folder)
        match spec.model.source:
            case "warm_start":
                make_warm_start(spec, directory, _tell_progress(spec.model.warm_start_steps))
            case "directory":
                import_directory(Path(spec.model.directory or ""), directory)
            case "smollm2":
                import_smollm2(directory)
        return publish(store, digest, directory, _describe(spec))


def _describe(spec: BaseModelSpec) -> str:
    match spec.model.source:
        case "warm_start":
            return f"a {spec.model.layers}-layer Llama, warm-started on weak demonstrations of {spec.environment}"
        case "directory":
            return f"the model directory {Path(spec.model.directory or '').name}"
        case "smollm2":
            return "SmolLM2-135M-Instruct (Apache-2.0), from a 4-bit file"


def _tell_progress(steps: int) -> Callable[[int, float], None]:
    def tell(step: int, loss: float) -> None:
        if step % PROGRESS_STEPS == 0 or step == steps:
            log.info("warm start: step %d of %d, %.3f nats a token", step, steps, loss)
            emit({"event": "progress", "step": step, "steps": steps, "loss": loss})

    return tell


def main() -> None:
    """Parse the command line and run as a supervised child."""
    parser = argparse.ArgumentParser(prog="python -m driftline.training.warm_start", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="file with a BaseModelSpec as JSON")
    file: Path = parser.parse_args().spec

    def run() -> None:
        spec = BaseModelSpec.model_validate_json(file.read_text())
        source = make(spec, open_store(settings()))
        emit({"event": "result", "model": json.loads(encode(source))})

    child_main(run)


if __name__ == "__main__":
    main()
