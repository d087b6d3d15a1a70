"""The layout of the bucket, in one place. Keys that a reader follows in order are zero-padded.

runs/<run>/run.json                                  RunDescription               created once
runs/<run>/HEAD                                      Head                         compare-and-swap
runs/<run>/policy/<version>-<epoch>/manifest.json    WeightsManifest              after its files
runs/<run>/policy/<version>-<epoch>/*.safetensors
runs/<run>/steps/<step>-<epoch>.json                 StepRecord
runs/<run>/claims/<group>.json                       Claim                        conditional put
runs/<run>/trajectories/<cell>/<seq>.parquet         finished groups
runs/<run>/checkpoints/<step>-<epoch>/...            DeepSpeed state; manifest.json last
runs/<run>/offsets/<cell>.json                       OffsetReport
runs/<run>/timeline/<process>/<seq>.json             list of Span
runs/<run>/evaluation/<version>.json                 EvaluationResult
runs/<run>/resumptions/<n>.json                      claim of the n-th resumption   conditional put
runs/<run>/probes/OPEN                               the probe groups to be played now   put, swapped
runs/<run>/probes/<request>/request.json             ProbeRequest                 created once
runs/<run>/probes/<request>/claims/<n>.json          Claim                        conditional put
runs/<run>/probes/<request>/results/<n>.json         ProbeResult                  created once
runs/<run>/pins/<reader>.json                        Pin                          put, deleted by its reader
runs/<run>/model/...                                 the final policy, a model directory
models/<digest>/...                                  base models, by content; manifest.json (ModelSource) last
tasksets/<name>/<version>/{manifest.json,tasks.parquet}, tasksets/<name>/HEAD
tasksets/<name>/refreshes/<id>.json                  plan of a refresh            created once
cache/<kind>/<digest>.json                           results of cached tasks
probe/<random>                                       written and deleted by the check at start
"""

from __future__ import annotations

import re

from driftline.records import PolicyVersion

RUNS = "runs/"
PROBE = "probe/"


def run_prefix(run: str) -> str:
    """Prefix of everything that belongs to a run."""
    return f"{RUNS}{run}/"


def description(run: str) -> str:
    """Key of `run.json`."""
    return f"{run_prefix(run)}run.json"


def head(run: str) -> str:
    """Key of the run's head."""
    return f"{run_prefix(run)}HEAD"


def policy_prefix(run: str, version: PolicyVersion) -> str:
    """Prefix of one policy version."""
    return f"{run_prefix(run)}policy/{version}/"


def policy_manifest(run: str, version: PolicyVersion) -> str:
    """Key of a policy version's manifest."""
    return f"{policy_prefix(run, version)}manifest.json"


def steps_prefix(run: str) -> str:
    """Prefix of the step records."""
    return f"{run_prefix(run)}steps/"


def step(run: str, number: int, epoch: int) -> str:
    """Key of a step record."""
    return f"{steps_prefix(run)}{number:06d}-{epoch:04d}.json"


def claim(run: str, group: int) -> str:
    """Key of the claim of a group."""
    return f"{run_prefix(run)}claims/{group:08d}.json"


def trajectories_prefix(run: str) -> str:
    """Prefix of all trajectories of a run."""
    return f"{run_prefix(run)}trajectories/"


def trajectories(run: str, cell: str, sequence: int) -> str:
    """Key of a cell's n-th object of finished groups."""
    return f"{trajectories_prefix(run)}{cell}/{sequence:08d}.parquet"


def sequence(trajectories_key: str) -> int:
    """The number of an object of finished groups, by its key."""
    return int(trajectories_key.rpartition("/")[2].partition(".")[0])


def is_trajectories(key: str) -> bool:
    """Whether a key is that of an object of finished groups, and not of what somebody else has put beside them."""
    return re.fullmatch(r"\d{8,}\.parquet", key.rpartition("/")[2]) is not None


def checkpoint_prefix(run: str, number: int, epoch: int) -> str:
    """Prefix of a checkpoint."""
    return f"{run_prefix(run)}checkpoints/{number:06d}-{epoch:04d}/"


def offsets_prefix(run: str) -> str:
    """Prefix of the offset reports."""
    return f"{run_prefix(run)}offsets/"


def offset(run: str, cell: str) -> str:
    """Key of a cell's offset report."""
    return f"{offsets_prefix(run)}{cell}.json"


def timeline_prefix(run: str) -> str:
    """Prefix of the timeline spans."""
    return f"{run_prefix(run)}timeline/"


def timeline(run: str, process: str, sequence: int) -> str:
    """Key of a process's n-th object of spans."""
    return f"{timeline_prefix(run)}{process}/{sequence:06d}.json"


def evaluations_prefix(run: str) -> str:
    """Prefix of the evaluations."""
    return f"{run_prefix(run)}evaluation/"


def evaluation(run: str, version: int) -> str:
    """Key of the evaluation of a policy version."""
    return f"{evaluations_prefix(run)}{version:06d}.json"


def resumptions_prefix(run: str) -> str:
    """Prefix of the claims of a run's resumptions."""
    return f"{run_prefix(run)}resumptions/"


def resumption(run: str, number: int) -> str:
    """Key of the claim of a run's n-th resumption, counted from 1."""
    return f"{resumptions_prefix(run)}{number:04d}.json"


def pins_prefix(run: str) -> str:
    """Prefix of the readers' pins."""
    return f"{run_prefix(run)}pins/"


def pin(run: str, reader: str) -> str:
    """Key of a reader's pin."""
    return f"{pins_prefix(run)}{reader}.json"


def probes_open(run: str) -> str:
    """Key of what says which probe groups are to be played now."""
    return f"{run_prefix(run)}probes/OPEN"


def probe_request(run: str, request: str) -> str:
    """Key of a request for probe groups."""
    return f"{run_prefix(run)}probes/{request}/request.json"


def probe_claim(run: str, request: str, number: int) -> str:
    """Key of the claim of a probe group."""
    return f"{run_prefix(run)}probes/{request}/claims/{number:06d}.json"


def probe_results_prefix(run: str, request: str) -> str:
    """Prefix of the results of a request."""
    return f"{run_prefix(run)}probes/{request}/results/"


def probe_result(run: str, request: str, number: int) -> str:
    """Key of the result of a probe group."""
    return f"{probe_results_prefix(run, request)}{number:06d}.json"


def probe_number(result_key: str) -> int:
    """The number of a probe group, by the key of its result."""
    return int(result_key.rpartition("/")[2].partition(".")[0])


def final_model_prefix(run: str) -> str:
    """Prefix of the final policy's model directory."""
    return f"{run_prefix(run)}model/"


def model_prefix(digest: str) -> str:
    """Prefix of a base model directory."""
    return f"models/{digest}/"


def task_set_prefix(name: str, version: str) -> str:
    """Prefix of a task-set version."""
    return f"tasksets/{name}/{version}/"


def task_set_head(name: str) -> str:
    """Key of the head of a task set."""
    return f"tasksets/{name}/HEAD"


def refresh_plan(name: str, refresh: str) -> str:
    """Key of the plan of a refresh."""
    return f"tasksets/{name}/refreshes/{refresh}.json"


def cached(kind: str, digest: str) -> str:
    """Key of a cached result."""
    return f"cache/{kind}/{digest}.json"
