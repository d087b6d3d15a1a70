from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driftline.engine.chat import ChatRenderer
from driftline.engine.tokens import PlainRenderer, character_tokenizer, open_renderer, save_character_tokenizer
from driftline.environment import Message
from driftline.errors import ConfigurationError, EnvironmentFailed

ALPHABET = "\n=?abc"
CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def plain(tmp_path: Path) -> PlainRenderer:
    save_character_tokenizer(ALPHABET, tmp_path, max_length=64)
    renderer = open_renderer(tmp_path, "plain", stop="\n")
    assert isinstance(renderer, PlainRenderer)
    return renderer


def test_the_character_tokenizer_has_one_id_a_character() -> None:
    tokenizer = character_tokenizer(ALPHABET)
    assert tokenizer.get_vocab_size() == 8
    assert [tokenizer.token_to_id(token) for token in ("<pad>", "<eos>", *ALPHABET)] == list(range(8))


def test_plain_rendering_joins_contents(plain: PlainRenderer) -> None:
    assert plain.stop_ids == (2, 1)
    assert plain.start([Message("system", "ab"), Message("user", "?c\n")]) == (5, 6, 4, 7, 2)
    assert plain.extend([Message("tool", "=a\n")], stopped=True) == (3, 5, 2)
    assert plain.extend([Message("tool", "=a\n")], stopped=False) == (2, 3, 5, 2)
    assert plain.extend([], stopped=True) == ()


def test_the_text_of_a_turn_shows_neither_its_end_nor_special_tokens(plain: PlainRenderer) -> None:
    assert plain.text([3, 5, 2]) == "=a"
    assert plain.text([3, 5]) == "=a"
    assert plain.text([3, 0, 5, 1]) == "=a"
    assert plain.text([2, 2]) == "\n"


def test_characters_that_the_model_lacks_are_the_environments_fault(plain: PlainRenderer) -> None:
    with pytest.raises(EnvironmentFailed, match=r"does not know \('xz'\): .* the family's alphabet"):
        plain.start([Message("user", "zax")])


def test_what_is_no_model_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no tokenizer\.json"):
        open_renderer(tmp_path, "plain", stop="\n")
    save_character_tokenizer(ALPHABET, tmp_path, max_length=64)
    with pytest.raises(ConfigurationError, match=r"set model\.rendering to chat"):
        open_renderer(tmp_path, "plain", stop="abc")
    with pytest.raises(ConfigurationError, match=r"set model\.rendering to plain"):
        open_renderer(tmp_path, "chat", stop="\n")


def test_transformers_loads_the_character_tokenizer(tmp_path: Path, plain: PlainRenderer) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(tmp_path))
    assert tuple(tokenizer.encode("?c\n")) == plain.start([Message("user", "?c\n")])
    assert tokenizer.decode([4, 7, 2]) == "?c\n"
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)) == (0, 1, 8)


@pytest.fixture
def chat() -> ChatRenderer:
    from transformers import PreTrainedTokenizerFast

    text = "".join(chr(code) for code in range(32, 127)) + "\n"
    core = character_tokenizer(text)
    core.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    return ChatRenderer(tokenizer, eos_ids=[1])


def shown(chat: ChatRenderer, ids: tuple[int, ...]) -> str:
    return chat._tokenizer.decode(list(ids), skip_special_tokens=False)  # pyright: ignore[reportPrivateUsage]


def test_chat_rendering_is_the_models_template(chat: ChatRenderer) -> None:
    prompt = chat.start([Message("system", "Be brief."), Message("user", "2+2?")])
    assert shown(chat, prompt) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_dialogue_in_pieces_is_the_template_of_the_whole(chat: ChatRenderer) -> None:
    """Prompt, sampled turn and extension, joined, are what the template makes of all messages at once."""
    prompt, reply, observation = Message("user", "hi"), "four", Message("tool", "4")
    end = chat.stop_ids[0]
    sampled = (*chat._ids(reply), end)  # pyright: ignore[reportPrivateUsage]
    pieces = chat.start([prompt]) + sampled + chat.extend([observation], stopped=True)
    assert pieces == chat.start([prompt, Message("assistant", reply), observation])
    cut = chat.start([prompt]) + sampled[:-1] + chat.extend([observation], stopped=False)
    assert cut == pieces
    assert chat.text(sampled) == "four"


def test_messages_that_the_template_does_not_take_are_the_environments_fault(chat: ChatRenderer) -> None:
    refuses = "{% if messages[0].role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}"
    chat._tokenizer.chat_template = refuses + CHATML  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(EnvironmentFailed, match=r"chat template does not take these messages .*no critics"):
        chat.start([Message("critic", "meh")])
    with pytest.raises(EnvironmentFailed, match="does not take these messages"):
        chat.extend([Message("user", "half of a pair: \ud800")], stopped=True)


def test_a_chat_turn_ends_with_the_templates_end_or_any_end_of_sequence(chat: ChatRenderer) -> None:
    assert [shown(chat, (token,)) for token in chat.stop_ids] == ["<|im_end|>", "<eos>"]


def test_the_template_shows_the_tools_of_the_family_in_the_prompt_alone(chat: ChatRenderer) -> None:
    tokenizer: Any = chat._tokenizer  # pyright: ignore[reportPrivateUsage]
    tokenizer.chat_template = "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}" + CHATML
    schema = {"type": "function", "function": {"name": "read", "description": "Read.", "parameters": {}}}
    renderer = ChatRenderer(tokenizer, tools=[schema])
    assert shown(renderer, renderer.start([Message("user", "hi")])).startswith("[read]<|im_start|>system")
    assert shown(renderer, renderer.extend([Message("tool", "4")], stopped=True)) == (
        "\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    )
