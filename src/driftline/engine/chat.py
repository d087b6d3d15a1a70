"""The chat rendering: a pretrained model's own chat template, through transformers."""

# pyright: basic
from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from driftline.environment import Message
from driftline.errors import ConfigurationError, EnvironmentFailed

_MARK = "\u241fdriftline\u241f"
"""Stands for a sampled turn while the template is rendered around it; no model writes it."""


class ChatRenderer:
    """Renders by the chat template; what lies between two turns is cut out of a rendering around a mark."""

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int] = (), tools: Sequence[Mapping[str, Any]] = ()) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigurationError("the model has no chat template: set model.rendering to plain")
        self._tokenizer, self._eos_ids = tokenizer, eos_ids
        self._tools = [dict(tool) for tool in tools]
        self._turn_end = self._ids(self._after_mark([], generation_prompt=False))[:1]
        own = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        self._stop_ids = tuple(dict.fromkeys([*self._turn_end, *own, *eos_ids]))
        self._turn_end_text = str(tokenizer.decode(list(self._turn_end), skip_special_tokens=False))

    @classmethod
    def open(cls, model_dir: Path, tools: Sequence[Mapping[str, Any]] = ()) -> ChatRenderer:
        """Make the renderer of a model directory; the template shows the tools' schemas to the model."""
        from transformers import AutoTokenizer

        path = model_dir / "generation_config.json"
        eos = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        eos_ids = eos if isinstance(eos, list) else [eos] if isinstance(eos, int) else []
        return cls(AutoTokenizer.from_pretrained(str(model_dir)), eos_ids, tools)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """What ends an assistant turn in the template, and the model's own ends of sequence."""
        return self._stop_ids

    @property
    def vocabulary_size(self) -> int:
        """Of the tokenizer, added tokens included."""
        return len(self._tokenizer)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of the prompt with the header of the assistant's turn."""
        with _understood():
            return self._ids(self._render(_plain(messages), generation_prompt=True))

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> tuple[int, ...]:
        """Ids of what follows a turn: its end if it was cut, the messages, the header of the next turn."""
        with _understood():
            between = self._after_mark(_plain(messages), generation_prompt=True)
            return self._ids(between.removeprefix(self._turn_end_text) if stopped else between)

    def text(self, ids: Sequence[int]) -> str:
        """Text of a turn without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def speaking(self, *, stop: str, tools: Sequence[Mapping[str, Any]] = ()) -> ChatRenderer:
        """For a family with other tools; the template knows how turns end."""
        return ChatRenderer(self._tokenizer, self._eos_ids, tools)

    def _after_mark(self, messages: list[dict[str, str]], *, generation_prompt: bool) -> str:
        dialogue = [{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}, *messages]
        return self._render(dialogue, generation_prompt=generation_prompt).partition(_MARK)[2]

    def _render(self, dialogue: list[dict[str, str]], *, generation_prompt: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                dialogue, tools=self._tools or None, tokenize=False, add_generation_prompt=generation_prompt
            )
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


@contextlib.contextmanager
def _understood() -> Generator[None, None, None]:
    """Messages that cannot be rendered are their environment's failure."""
    try:
        yield
    except Exception as error:  # templates and tokenizers raise what they like
        raise EnvironmentFailed(
            f"the model's chat template does not take these messages ({type(error).__name__}: {error}): give them "
            "roles, an order and texts that it knows"
        ) from error


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]
