"""An engine whose host process is killed does not outlive it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from driftline.engine.environment_variables import engine_environment
from tests.support.tiny_llama import save, tiny_llama
from tests.support.vllm import engine_parameters

HOST = """
import asyncio, json, sys
from pathlib import Path
import psutil
from driftline.engine.vllm_engine import VllmEngine
from driftline.params import EngineParameters, Settings

async def main() -> None:
    engine = VllmEngine(EngineParameters(**json.loads(sys.argv[1])), Path(sys.argv[2]), run="r", settings=Settings())
    await engine.start()
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    print("EVENT", json.dumps(children), flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_engine_follows_its_host_into_death(tmp_path: Path) -> None:
    params = engine_parameters()
    script = tmp_path / "host.py"
    script.write_text(HOST)
    model_dir = save(tiny_llama(0), tmp_path / "model")
    argv = [sys.executable, str(script), params.model_dump_json(), str(model_dir)]
    env = {**os.environ, **engine_environment(params, os.environ)}
    host = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, start_new_session=True)
    children: list[int] = []
    try:
        assert host.stdout is not None
        with host.stdout:
            event = next(line for line in host.stdout if line.startswith(b"EVENT"))
        children = json.loads(event.removeprefix(b"EVENT"))
        assert any("EngineCore" in psutil.Process(pid).name() for pid in children)
        os.kill(host.pid, signal.SIGKILL)
        deadline = time.monotonic() + 15
        while any(map(psutil.pid_exists, children)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [pid for pid in children if psutil.pid_exists(pid)] == []
    finally:
        host.kill()
        host.wait()
        for pid in children:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
