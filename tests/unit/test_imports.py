"""Importing the flows is light, and `prefect.yaml` names what can be imported."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.flows import Flow, load_flow_from_entrypoint

from driftline.params import RunParameters

ROOT = Path(__file__).resolve().parents[2]
POOLS = {"cpu-env", "rollout-gpu", "train-gpu"}
HEAVY = ("torch", "vllm", "deepspeed", "transformers")
MODULES = sorted(path.stem for path in (ROOT / "flows").glob("*.py") if path.stem != "__init__")

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
IDS = [f"{entry['entrypoint'].rpartition('.')[2]}/{entry['name']}" for entry in DEPLOYMENTS]

CHECK = """
import importlib, sys
for module in sys.argv[2:]:
    importlib.import_module(f"flows.{module}")
print(*(name for name in sys.argv[1].split(",") if name in sys.modules))
print("environments reachable:", sys.path.count(sys.path[-1]) > 0 and sys.path[-1])
"""


def test_importing_every_flow_imports_no_engine_and_no_trainer():
    found = subprocess.run(
        [sys.executable, "-c", CHECK, ",".join(HEAVY), *MODULES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    heavy, root = found.stdout.splitlines()
    assert heavy == "", f"importing the flows imports {heavy}"
    assert root == f"environments reachable: {ROOT}"


@pytest.mark.parametrize("entry", DEPLOYMENTS, ids=IDS)
def test_an_entry_point_is_dotted_and_names_an_asynchronous_flow(entry: dict[str, Any]):
    module, _, name = entry["entrypoint"].rpartition(".")
    assert ":" not in entry["entrypoint"]
    found = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
    assert found is getattr(importlib.import_module(module), name), "a second copy of the flow was loaded"
    assert inspect.iscoroutinefunction(found.fn)


@pytest.mark.parametrize("entry", DEPLOYMENTS, ids=IDS)
def test_a_deployment_works_on_one_of_the_pools(entry: dict[str, Any]):
    assert entry["work_pool"]["name"] in POOLS


def test_the_deployments_have_the_names_that_users_and_flows_call():
    flows: dict[str, Flow[..., Any]] = {
        entry["entrypoint"]: load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
        for entry in DEPLOYMENTS
    }
    names = {f"{flows[entry['entrypoint']].name}/{entry['name']}" for entry in DEPLOYMENTS}
    overlap = importlib.import_module("tasks.overlap")
    assert names == {
        "post-training/local",
        "post-training/smollm2",
        "post-training/gpu",
        "environment-refresh/nightly",
        overlap.MEASURING,
        "overlap-benchmark/local",
        *overlap.DEPLOYMENTS,
    }


@pytest.mark.parametrize("entry", DEPLOYMENTS, ids=IDS)
def test_the_parameters_of_a_deployment_are_possible(entry: dict[str, Any]):
    found = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
    given = entry.get("parameters", {})
    assert set(given) <= set(inspect.signature(found.fn).parameters)
    if "params" in given:
        RunParameters.model_validate(given["params"])


def test_the_nightly_refresh_has_its_schedule():
    [nightly] = [entry for entry in DEPLOYMENTS if entry["name"] == "nightly"]
    assert nightly["schedules"] == [{"cron": "0 3 * * *", "timezone": "UTC", "slug": "nightly", "active": True}]


def test_what_was_not_tried_says_so():
    [gpu] = [entry for entry in DEPLOYMENTS if entry["name"] == "gpu"]
    assert "UNTRIED" in gpu["description"]


def test_deployments_name_no_directory_of_a_machine():
    text = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    assert text["pull"] == [
        {"prefect.deployments.steps.set_working_directory": {"directory": "{{ $DRIFTLINE_HOME }}"}}
    ]
