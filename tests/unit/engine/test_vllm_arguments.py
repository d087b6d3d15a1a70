"""How the engine's parameters become vLLM's."""

from __future__ import annotations

import pytest

from driftline.engine import vllm_arguments
from driftline.engine.vllm_arguments import batched_tokens, speculation
from driftline.errors import ConfigurationError
from driftline.params import EngineParameters


def test_speculation_is_off_unless_asked_for_and_refused_where_it_gives_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = EngineParameters(speculative_tokens=3)  # pyright: ignore[reportCallIssue]
    monkeypatch.setattr(vllm_arguments, "is_cpu_build", lambda: True)
    assert speculation(EngineParameters()) is None  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigurationError, match=r"engine\.speculative_tokens.*set it to 0"):
        speculation(asked)
    monkeypatch.setattr(vllm_arguments, "is_cpu_build", lambda: False)
    assert speculation(asked) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }


def test_a_step_has_room_for_the_guesses_of_every_sequence() -> None:
    params = EngineParameters(max_num_seqs=8000, speculative_tokens=3)  # pyright: ignore[reportCallIssue]
    assert batched_tokens(params) == 32000


def test_the_scripted_engine_has_nothing_to_guess_with() -> None:
    with pytest.raises(ValueError, match=r"engine\.speculative_tokens"):
        EngineParameters(backend="scripted", speculative_tokens=3)  # pyright: ignore[reportCallIssue]
