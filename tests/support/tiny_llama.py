"""Small Llamas for tests: saved as model directories, published as versions, and asked for log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from driftline.records import PolicyVersion, Probe, WeightsManifest
from driftline.store.run_store import RunStore
from driftline.weights.publisher import publish_anchor

VOCABULARY = 43
POSITIONS = 512


def tiny_llama(seed: int, *, tied: bool = False, positions: int = POSITIONS, dtype: str = "float32") -> Any:
    """A Llama of 0.65M parameters, whose weights depend on the seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=positions,
        rms_norm_eps=1e-5,
        initializer_range=0.06,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
    torch.random.set_rng_state(state)
    return model


def save(model: Any, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


@torch.no_grad()
def reference_logprobs(model: Any, token_ids: Sequence[int]) -> list[float]:
    """Log-probabilities (nats) of `token_ids[1:]` given their prefixes, by transformers."""
    ids = torch.tensor([list(token_ids)])
    logprobs = torch.log_softmax(model(ids).logits[0].float(), -1)
    return logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()


def probe_of(model: Any) -> Probe:
    ids = torch.randint(3, VOCABULARY, (48,), generator=torch.Generator().manual_seed(7)).tolist()
    return Probe(tuple(ids), tuple(reference_logprobs(model, ids)))


def publish(model: Any, run_store: RunStore, number: int, *, epoch: int = 1, **options: Any) -> WeightsManifest:
    """Publish a model's weights through the real publisher."""
    defaults: dict[str, Any] = {
        "run": run_store.run,
        "version": PolicyVersion(number, epoch),
        "dtype": "float32",
        "probe": probe_of(model),
        "tied_embeddings": model.config.tie_word_embeddings,
    }
    return publish_anchor(run_store, model.state_dict().items(), **{**defaults, **options})
