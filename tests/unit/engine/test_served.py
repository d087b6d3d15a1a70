"""An engine in a server process: its key, its death, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from driftline.engine import served
from driftline.engine.environment_variables import engine_environment, visible_devices
from driftline.engine.protocol import GenerationRequest
from driftline.engine.served import ServedEngine
from driftline.engine.wire import error_from_wire, error_to_wire
from driftline.errors import (
    ConfigurationError,
    EngineDied,
    EngineError,
    EngineStartFailed,
    ProbeNotReproduced,
    WeightUpdateFailed,
)
from driftline.params import EngineParameters, settings
from tests.contract.test_engine import scripted_manifest, until
from tests.support import scripted_host

pytestmark = pytest.mark.asyncio


def engine(maker: str = scripted_host.SLOW, **options: Any) -> ServedEngine:
    params = EngineParameters(**{"backend": "scripted", "max_model_len": 256, **options})
    return ServedEngine(params, Path(), run="served", settings=settings(), maker=maker)


def request(max_tokens: int = 200, *, name: str = "r", top_k: int = 0) -> GenerationRequest:
    return GenerationRequest(name, (3, 4), max_tokens, (), 1.0, 1, top_k=top_k)


def servers() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [child for child in found if "driftline.engine.server" in child.cmdline()]


@pytest_asyncio.fixture
async def running() -> AsyncIterator[ServedEngine]:
    one = engine()
    await one.start()
    yield one
    await one.close()
    assert servers() == []


async def test_nobody_gets_in_without_the_key_which_is_nowhere_to_be_seen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr(served.secrets, "token_urlsafe", lambda size: "k" * size)
    one = engine()
    await one.start()
    try:
        (server,) = servers()
        assert "kkkk" not in " ".join(server.cmdline())
        assert "kkkk" not in " ".join(server.environ().values())
        (listening,) = [c for c in server.net_connections() if c.status == psutil.CONN_LISTEN]
        assert listening.laddr.ip == "127.0.0.1"
        url = f"http://127.0.0.1:{listening.laddr.port}/engine"
        async with aiohttp.ClientSession() as session:
            for header, status in (("", 401), ("Bearer x", 401), (f"Bearer {'k' * 32}", 409)):
                async with session.get(url, headers={"Authorization": header}) as response:
                    assert response.status == status
        assert len((await one.generate(request(4))).token_ids) == 4
    finally:
        await one.close()
    assert "kkkk" not in caplog.text + "".join(capfd.readouterr())


async def test_a_server_that_is_killed_fails_everything_and_its_tokens_are_discarded(running: ServedEngine) -> None:
    """SkyRL#1691: the engine dies and the run hangs."""
    calls = [asyncio.create_task(running.generate(request())) for _ in range(3)]
    await until(lambda status: status.in_flight_tokens > 30, running)
    (server,) = servers()
    server.kill()
    begun = time.monotonic()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {EngineDied}
    assert time.monotonic() - begun < 5
    with pytest.raises(EngineDied, match="its process ended"):
        await running.score((1, 2))
    status = running.status()
    assert (status.in_flight_tokens, status.running) == (0, 0)
    assert status.generated_tokens == status.discarded_tokens > 30


async def test_a_server_that_says_nothing_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "SILENCE_S", 3.0)
    one = engine()
    await one.start()
    assert len((await one.generate(request(4))).token_ids) == 4
    os.kill(servers()[0].pid, signal.SIGSTOP)
    with pytest.raises(EngineDied, match="said nothing for 3 s"):
        await one.generate(request())
    await one.close()
    assert servers() == []


async def test_a_client_that_is_killed_leaves_no_server() -> None:
    script = (
        "import asyncio, sys\n"
        "from tests.unit.engine.test_served import engine, servers\n"
        "async def main():\n"
        "    one = engine(); await one.start()\n"
        "    print(servers()[0].pid, flush=True); await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert client.stdout is not None
    server = psutil.Process(int(await client.stdout.readline()))
    client.kill()
    await client.wait()
    await asyncio.to_thread(psutil.wait_procs, [server], 20)
    assert not server.is_running()


async def test_what_the_engine_refuses_is_refused_with_the_same_words(running: ServedEngine) -> None:
    with pytest.raises(ConfigurationError, match=r"raise engine\.max_model_len"):
        await running.generate(request(4000))
    with pytest.raises(ConfigurationError, match="top_p or top_k"):
        await running.generate(request(top_k=3))


async def test_an_update_outlives_the_cancellation_of_its_caller(running: ServedEngine) -> None:
    update = asyncio.create_task(running.update(scripted_manifest(3)))
    await asyncio.sleep(0)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    await until(lambda status: status.version == scripted_manifest(3).version, running)


async def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    for maker, words in ((scripted_host.BROKEN, "its GPU is gone"), (f"{__name__}:nothing", "nothing")):
        one = engine(maker)
        with pytest.raises(EngineStartFailed, match=words):
            await one.start()
        assert servers() == []
        with pytest.raises(EngineDied):
            await one.generate(request())
    with pytest.raises(EngineStartFailed, match=r"raise engine\.start_deadline_s"):
        await engine(start_deadline_s=0.01).start()
    assert servers() == []


async def test_errors_keep_their_kind_and_their_figures() -> None:
    error = ProbeNotReproduced("off")
    error.difference_nats = 0.25
    back = error_from_wire(error_to_wire(error))
    assert isinstance(back, ProbeNotReproduced)
    assert (str(back), back.difference_nats) == ("off", 0.25)
    assert type(error_from_wire(error_to_wire(WeightUpdateFailed("no")))) is WeightUpdateFailed
    other = error_from_wire(error_to_wire(KeyError("x")))
    assert (type(other), str(other)) == (EngineError, "KeyError: 'x'")
    assert type(error_from_wire({"error": "math", "message": "?"})) is EngineError


async def test_each_engine_gets_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driftline.engine.environment_variables.is_cpu_build", lambda: False)
    pair = EngineParameters(backend="vllm_server", replicas=2, tensor_parallel_size=2)  # pyright: ignore[reportCallIssue]
    assert visible_devices(pair, 1, {}) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert visible_devices(pair, 1, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}) == {"CUDA_VISIBLE_DEVICES": "6,7"}
    with pytest.raises(ConfigurationError, match=r"engine\.replicas"):
        visible_devices(pair, 1, {"CUDA_VISIBLE_DEVICES": "4,5"})
    alone = pair.model_copy(update={"replicas": 1})
    assert visible_devices(alone, 0, {}) == {}


async def test_only_the_server_needs_vllms_environment() -> None:
    params = EngineParameters(backend="vllm_server")  # pyright: ignore[reportCallIssue]
    assert engine_environment(params, {}) == {}
    assert engine_environment(params, {}, hosting=True)["HF_HUB_OFFLINE"] == "1"
