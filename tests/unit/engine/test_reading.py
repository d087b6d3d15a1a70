"""Stored tokens as text, through the tokenizer that lies with the base model."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from driftline.engine.reading import messages_of, tokenizer_of
from driftline.engine.tokens import character_tokenizer
from driftline.errors import ConfigurationError, CorruptObject
from driftline.records import FileEntry, ModelSource
from driftline.store.files import entry_of
from driftline.store.memory import MemoryStore
from tests.support.records import trajectory

KEY = "models/d0/tokenizer.json"


def stored(body: bytes) -> tuple[MemoryStore, ModelSource]:
    store = MemoryStore()
    store.put(KEY, body)
    weights = FileEntry("models/d0/model.safetensors", 1, "00")
    return store, ModelSource("d0", "models/d0/", (weights, entry_of(KEY, body)), tied_embeddings=False)


def spoken(tokenizer: Tokenizer, *parts: str) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Ids and mask of parts that others and the policy say in turn."""
    ids = [tokenizer.encode(part, add_special_tokens=False).ids for part in parts]
    mask = [bool(turn % 2) for turn, part in enumerate(ids) for _ in part]
    return tuple(one for part in ids for one in part), tuple(mask)


def test_the_prompt_each_turn_and_each_answer_in_order() -> None:
    tokenizer = character_tokenizer("?>:=abc12\n")
    ids, mask = spoken(tokenizer, "?a\n", ">a\n", ":12\n", "=12\n<eos>")
    store, model = stored(tokenizer.to_str().encode())
    member = trajectory(token_ids=ids, loss_mask=mask, logprobs=(0.0,) * len(ids))
    found = messages_of(member, tokenizer_of(store, model))
    assert [(one.role, one.content) for one in found] == [
        ("user", "?a\n"), ("assistant", ">a\n"), ("tool", ":12\n"), ("assistant", "=12\n<eos>"),
    ]  # fmt: skip


def test_an_episode_that_failed_at_its_reset_says_nothing() -> None:
    nothing = trajectory(token_ids=(), loss_mask=(), logprobs=())
    assert messages_of(nothing, character_tokenizer("a")) == []


def test_a_turn_keeps_the_space_that_a_decoder_drops_at_the_beginning_of_a_text() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁see": 0, "▁the": 1, "▁cat": 2}))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    member = trajectory(token_ids=(0, 1, 2), loss_mask=(False, True, True), logprobs=(0.0,) * 3)
    assert [one.content for one in messages_of(member, tokenizer)] == ["see", " the cat"]


def test_a_character_that_is_cut_between_two_speakers_spoils_no_other() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({one: index for index, one in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ids = tuple(tokenizer.encode("a€b", add_special_tokens=False).ids)
    member = trajectory(token_ids=ids, loss_mask=(False, False, True, True, True), logprobs=(0.0,) * 5)
    before, after = messages_of(member, tokenizer)
    assert before.content == "a\ufffd"
    assert after.content == "\ufffd\ufffdb"


def test_what_the_base_model_does_not_hold_is_said() -> None:
    store, model = stored(b"{}")
    with pytest.raises(ConfigurationError, match="upgrade tokenizers"):
        tokenizer_of(store, model)
    with pytest.raises(ConfigurationError, match=r"at models/d0/ has no tokenizer\.json"):
        tokenizer_of(store, ModelSource("d0", "models/d0/", model.files[:1], tied_embeddings=False))
    store.put(KEY, b"[]")
    with pytest.raises(CorruptObject, match=r"tokenizer\.json"):
        tokenizer_of(store, model)
