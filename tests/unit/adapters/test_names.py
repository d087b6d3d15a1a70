"""How an adapter's environment is named, and what is said where its package is missing."""

from __future__ import annotations

import sys

import pytest

from driftline.adapters.foreign import versions_of
from driftline.adapters.gymnasium import Gymnasium
from driftline.adapters.verifiers import Verifiers
from driftline.environment import resolve
from driftline.environment.registry import missing_members
from driftline.errors import ConfigurationError


def test_an_id_makes_the_family_with_the_adapters_defaults() -> None:
    assert resolve("gymnasium/FrozenLake-v1/v1") == Gymnasium("FrozenLake-v1")
    assert resolve("gymnasium/FrozenLake-v1/v1").id == "gymnasium/FrozenLake-v1/v1"
    assert resolve("gymnasium/my_games.text:Maze-v0/v1").id == "gymnasium/Maze-v0/v1"
    assert resolve("verifiers/gsm8k-v1/v1") == Verifiers("gsm8k-v1")
    assert resolve("openenv/https://echo.example/v1").id == "openenv/echo.example/v1"


@pytest.mark.parametrize("name", ["gymnasium/FrozenLake-v1/v1", "verifiers/sums/v1", "openenv/localhost:8000/v1"])
def test_it_has_all_that_a_family_has(name: str) -> None:
    assert missing_members(resolve(name)) == []


@pytest.mark.parametrize("name", ["gymnasium", "gymnasium/FrozenLake", "verifiers/sums/v2", "openenv/localhost:8000"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write .*/<name>/v1, or make it in a module of your own"):
        resolve(name)


@pytest.mark.parametrize("extra", ["gymnasium", "verifiers"])
def test_where_the_extra_is_missing_it_says_how_to_install_it(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'driftline\[{extra}\]'"):
        resolve(f"{extra}/some-v1/v1").generate(0, 1)


def test_versions_are_those_of_the_distributions() -> None:
    assert versions_of("pydantic.main", "not_installed_anywhere") == {"pydantic": sys.modules["pydantic"].VERSION}
