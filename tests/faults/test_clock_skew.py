"""Cells whose machines' clocks are a minute fast and a minute slow: leases go by the store's clock alone."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections import Counter
from pathlib import Path

from driftline.store.client import S3Store
from driftline.store.run_store import RunStore
from tests.support.seaweed import Seaweed
from tests.support.toy_run import ToyTrainer, create_run, toy_parameters, upload_scripted_model

WAIT_S = 120.0
SKEWED_CELL = """
import sys, time
skew, real = float(sys.argv.pop(1)), time.time
time.time = lambda: real() + skew
from driftline.rollout.cell import main
main()
"""


async def test_cells_with_skewed_clocks_take_nothing_from_one_another(
    seaweed: Seaweed, s3_store: S3Store, tmp_path: Path
) -> None:
    params = toy_parameters(environment={"max_turns": 6}, rollout={"lease_s": 4.0, "cells": 2})
    model = upload_scripted_model(s3_store, tmp_path / "made")
    runs = create_run(s3_store, params, run=f"skew-{uuid.uuid4().hex[:8]}", model=model)
    environment = os.environ | dict(seaweed.environment) | {"DRIFTLINE_WORK_DIR": str(tmp_path)}
    trainer = ToyTrainer(runs, params, steps=40, train_s=0.25)
    cells = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", SKEWED_CELL, str(skew), "--run", runs.run, "--cell", cell,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, env=environment,
        )
        for cell, skew in (("c0", 60.0), ("c1", -60.0))
    ]  # fmt: skip
    try:
        async with asyncio.timeout(WAIT_S):
            await trainer.run()
            assert [await cell.wait() for cell in cells] == [0, 0]
    finally:
        for cell in cells:
            if cell.returncode is None:
                cell.kill()
                await cell.wait()
    groups = RunStore(s3_store, runs.run).new_groups()
    members = Counter((t.group, t.member, t.attempt) for group in groups for t in group.trajectories)
    assert set(members.values()) == {1}
    assert {t.attempt for group in groups for t in group.trajectories} == {1}, "nothing was taken over"
    by_cell = Counter(group.trajectories[0].cell for group in groups)
    assert min(by_cell[cell] for cell in ("c0", "c1")) >= 10
    clocks = {t.cell: t.finished_unix for group in groups for t in group.trajectories}
    assert clocks["c0"] - clocks["c1"] > 90.0, "the clocks were skewed indeed"
    reports = {report.cell: report for report in runs.offsets()}
    assert reports["c0"].heartbeat_unix - reports["c1"].heartbeat_unix > 90.0
