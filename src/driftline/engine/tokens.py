r"""Messages to token ids and back, for the two renderings; and the tokenizer of a character-level model.

What the policy sampled is never tokenised again: a context is `start(messages)`, then sampled ids and
`extend(messages)` in turn. The text of a turn (`text`) is for the environment only.

    renderer = open_renderer(model_dir, "plain", stop="\n")
    context = renderer.start(prompt)
    context += sampled_ids + renderer.extend(observation, stopped=sampled_ids[-1] in renderer.stop_ids)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from driftline.environment import Message
from driftline.errors import ConfigurationError, EnvironmentFailed

PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"


class Renderer(Protocol):
    """Turns the messages of an environment into token ids, and the policy's ids into text."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn of the policy; the one sampled is part of the turn."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below it."""
        ...

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of the prompt, up to where the policy's first turn begins."""
        ...

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> tuple[int, ...]:
        """Ids between a sampled turn and the next one.

        Args:
            messages: What the environment answered.
            stopped: Whether the sampled turn ended with a stop id; if it was cut, the ids begin with one.
        """
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Text of a sampled turn, without what ended it."""
        ...

    def speaking(self, *, stop: str, tools: Sequence[Mapping[str, Any]] = ()) -> Renderer:
        """The renderer of the same model for another family; the arguments are those of `open_renderer`."""
        ...


def open_renderer(
    model_dir: Path, rendering: Literal["plain", "chat"], *, stop: str, tools: Sequence[Mapping[str, Any]] = ()
) -> Renderer:
    """Make the renderer of a model directory.

    Args:
        model_dir: A model directory with its tokenizer.
        rendering: `plain` joins contents; `chat` uses the model's chat template.
        stop: The family's text that ends a turn; used by `plain` alone.
        tools: Schemas of the family's tools, for the chat template; with `plain` the prompt must say what there is.

    Raises:
        ConfigurationError: The directory holds no usable tokenizer, or no chat template.
    """
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigurationError(f"{model_dir} is no model directory: it has no tokenizer.json")
    if rendering == "plain":
        return PlainRenderer(Tokenizer.from_file(str(path)), stop=stop, eos=_eos_token(model_dir))
    from driftline.engine.chat import ChatRenderer

    return ChatRenderer.open(model_dir, tools)


class PlainRenderer:
    """Contents joined, nothing between them."""

    def __init__(self, tokenizer: Tokenizer, *, stop: str, eos: str | None) -> None:
        self._tokenizer = tokenizer
        stop_ids = self._encode(stop)
        if len(stop_ids) != 1:
            raise ConfigurationError(
                f"the stop text {stop!r} is {len(stop_ids)} tokens of this model and must be one: "
                "set model.rendering to chat"
            )
        eos_id = tokenizer.token_to_id(eos) if eos else None
        self._turn_end = stop_ids[0]
        self._stop, self._eos = stop, eos
        self._stop_ids = stop_ids if eos_id is None else (*stop_ids, eos_id)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The stop text's id, and the end of sequence if the model has one."""
        return self._stop_ids

    @property
    def vocabulary_size(self) -> int:
        """Of the tokenizer."""
        return self._tokenizer.get_vocab_size()

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids of the joined contents."""
        return self._encode("".join(message.content for message in messages))

    def extend(self, messages: Sequence[Message], *, stopped: bool) -> tuple[int, ...]:
        """Ids of the joined contents, after the stop text if the turn was cut before it."""
        ids = self.start(messages)
        return ids if stopped else (self._turn_end, *ids)

    def text(self, ids: Sequence[int]) -> str:
        """Text of a turn, without its stop text and without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True).removesuffix(self._stop)

    def speaking(self, *, stop: str, tools: Sequence[Mapping[str, Any]] = ()) -> PlainRenderer:
        """For a family with another stop text; it has to tell of its tools itself."""
        return PlainRenderer(self._tokenizer, stop=stop, eos=self._eos)

    def _encode(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except Exception as error:  # the tokenizers library raises bare Exception
            lacking = "".join(sorted({one for one in text if self._tokenizer.token_to_id(one) is None}))
            raise EnvironmentFailed(
                f"the text {text!r} has characters the model does not know ({lacking or error!r}): where the base "
                "policy is warm-started, add them to the family's alphabet"
            ) from None


def character_tokenizer(alphabet: str) -> Tokenizer:
    """Make a tokenizer with one token a character; `<pad>` is 0, `<eos>` is 1, then the alphabet in order."""
    characters = list(dict.fromkeys(alphabet))
    vocabulary = {token: index for index, token in enumerate([PAD_TOKEN, EOS_TOKEN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.add_special_tokens([PAD_TOKEN, EOS_TOKEN])  # pyright: ignore[reportUnknownMemberType]
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def save_character_tokenizer(alphabet: str, model_dir: Path, *, max_length: int) -> Tokenizer:
    """Write the tokenizer of `alphabet` into a model directory, in the form transformers and vLLM load."""
    tokenizer = character_tokenizer(alphabet)
    model_dir.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(model_dir / "tokenizer.json"))
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD_TOKEN,
        "eos_token": EOS_TOKEN,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (model_dir / "tokenizer_config.json").write_text(json.dumps(configuration, indent=2, sort_keys=True) + "\n")
    return tokenizer


def _eos_token(model_dir: Path) -> str | None:
    path = model_dir / "tokenizer_config.json"
    value: Any = json.loads(path.read_text()).get("eos_token") if path.is_file() else None
    return value if value is None or isinstance(value, str) else str(value["content"])
