"""What a process that hosts vLLM has in its environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from driftline.engine import environment_variables
from driftline.engine.environment_variables import engine_environment
from driftline.params import EngineParameters


@pytest.fixture(params=[True, False], ids=["cpu", "gpu"])
def cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(environment_variables, "is_cpu_build", lambda: request.param)
    return request.param


def params(**values: object) -> EngineParameters:
    return EngineParameters(**values)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_the_cpu_build_gets_what_it_needs_and_gpus_are_left_alone(cpu: bool) -> None:
    found = engine_environment(params(kv_cache_gib=3, cpus=(1, 2)), {})
    only_cpu = {
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "OMP_NUM_THREADS": "2",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    assert {name: found.get(name) for name in only_cpu} == (only_cpu if cpu else dict.fromkeys(only_cpu))
    assert found["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.usefixtures("cpu")
def test_what_tunes_yields_to_the_user_and_the_rest_does_not() -> None:
    base = {"VLLM_LOGGING_LEVEL": "DEBUG", "OMP_NUM_THREADS": "7", "VLLM_NO_USAGE_STATS": "0", "HOME": "/"}
    found = engine_environment(params(), base)
    assert "VLLM_LOGGING_LEVEL" not in found
    assert "OMP_NUM_THREADS" not in found
    assert "HOME" not in found
    assert found["VLLM_NO_USAGE_STATS"] == "1"


def test_one_thread_where_no_processors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_variables, "is_cpu_build", lambda: True)
    assert engine_environment(params(), {})["OMP_NUM_THREADS"] == "1"


def test_the_scripted_engine_needs_nothing() -> None:
    assert engine_environment(params(backend="scripted"), {}) == {}


def test_neither_vllm_nor_torch_is_imported_for_it() -> None:
    code = (
        "import sys, driftline.engine.environment_variables as e; e.is_cpu_build();"
        "sys.exit(bool({'vllm', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
