"""Models whose weights change as a step changes them, for the benchmark of weight synchronisation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3
CLIP = 1.0


class Trained:
    """A model that takes AdamW steps on random tokens."""

    def __init__(self, model: Any, rate: float, tokens: tuple[int, int]) -> None:
        self.model = model
        self._tokens = tokens
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        self._seed = 0
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> None:
        """Take one optimizer step."""
        self._seed += 1
        generator = torch.Generator().manual_seed(self._seed)
        ids = torch.randint(self.model.config.vocab_size, self._tokens, generator=generator)
        self.model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by name."""
        yield from self.model.named_parameters()


class Drawn:
    """About 1B parameters in the shapes of a Llama, drawn anew at every pass, so that float32 never is in memory."""

    def __init__(self, layers: int = 18, width: int = 2048, inner: int = 5632, vocabulary: int = 32000) -> None:
        self.rates: list[float] = []
        square, wide = (width, width), (inner, width)
        blocks = {"q": square, "k": square, "v": square, "o": square, "gate": wide, "up": wide, "down": wide}
        self.shapes = {"embed": (vocabulary, width)}
        self.shapes |= {f"layers.{n}.{name}": shape for n in range(layers) for name, shape in blocks.items()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by name."""
        for index, (name, shape) in enumerate(self.shapes.items()):
            weight = torch.randn(shape, generator=torch.Generator().manual_seed(index)) * 0.02
            for number, rate in enumerate(self.rates, start=1):
                generator = torch.Generator().manual_seed(10_000 * number + index)
                weight += torch.randn(shape, generator=generator) * rate
            yield name, weight


class Noised:
    """A Llama of about 1B parameters, whose steps are noise of the learning rate's size; it can be run."""

    def __init__(self, rate: float, layers: int = 18) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.initialization import no_init_weights

        configuration = LlamaConfig(
            hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers, num_attention_heads=32,
            num_key_value_heads=32, vocab_size=32000, max_position_embeddings=512, tie_word_embeddings=True,
        )  # fmt: skip
        with no_init_weights():
            self.model = LlamaForCausalLM(configuration)
        self._generator = torch.Generator().manual_seed(0)
        self._rate = rate
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02, generator=self._generator)
            else:
                torch.nn.init.ones_(parameter)

    @torch.no_grad()
    def step(self) -> None:
        """Move every weight."""
        for parameter in self.model.parameters():
            parameter += torch.randn(parameter.shape, generator=self._generator) * self._rate

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by name."""
        yield from self.model.named_parameters()

    def save(self, directory: Path) -> None:
        """Save it in bfloat16, as an engine starts from it."""
        state = {name: parameter.detach().bfloat16() for name, parameter in self.model.named_parameters()}
        self.model.config.dtype = torch.bfloat16
        self.model.save_pretrained(directory, state_dict=state)
