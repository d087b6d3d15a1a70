# pyright: basic
"""One update of vLLM's weights, step by step. Every step has a deadline and races the engine's death."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from driftline.engine.protocol import LoadReport
from driftline.engine.vllm_process import EngineProcess
from driftline.engine.vllm_requests import UNVERSIONED
from driftline.errors import EngineDied, WeightUpdateFailed
from driftline.measured import PROBE_NATS
from driftline.params import Settings
from driftline.records import WeightsManifest, encode

logger = logging.getLogger(__name__)

TRIES = 2
STAGE_DEADLINE_S = 600.0
STAGE_POLL_S = 0.01
STAGE_POLL_MOST_S = 0.1
PROBE_SCALE_NATS = 4.0
"""Log-probabilities beyond this may differ in proportion: arithmetic errs by a share of the logits, and a policy that
training has made sure of itself has log-probabilities of tens of nats."""


def probe_tolerance(engine_dtype: str, probe_dtype: str) -> float:
    """The probe's tolerance in nats: that of the coarser arithmetic, the engine's or the trainer's."""
    return max(PROBE_NATS[engine_dtype], PROBE_NATS[probe_dtype])


def probe_difference(scored: Sequence[float], expected: Sequence[float]) -> float:
    """How far the engine is from the probe, in nats; NaN if any of its log-probabilities is not finite.

    Args:
        scored: The engine's log-probabilities of the probe's tokens but the first.
        expected: The manifest's.

    Returns:
        The largest difference. That of a log-probability beyond `PROBE_SCALE_NATS` counts as so many times less as
        it is beyond.
    """
    if not all(map(math.isfinite, scored)):
        return math.nan
    return max(
        abs(one - other) / max(1.0, abs(other) / PROBE_SCALE_NATS)
        for one, other in zip(scored, expected, strict=True)
    )


class Swap:
    """The conversation with the workers about weights."""

    def __init__(self, process: EngineProcess, *, recompute: bool) -> None:
        self._process = process
        self._recompute = recompute

    async def prepare(self, run: str, settings: Settings) -> None:
        """Once, after the start: have the workers end with this process, and follow a run."""
        await self._worker("driftline_follow_parent")
        await self.follow(run, settings)

    async def follow(self, run: str, settings: Settings) -> None:
        """Tell the workers where weights come from, and label those they have; nothing else is kept of them."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        place = settings.model_dump(mode="json", include={"s3_endpoint", "s3_region", "bucket"})
        await self._call(
            self._llm.init_weight_transfer_engine(
                WeightTransferInitRequest(init_info={"run": run, "settings": place})
            ),
            "init_weight_transfer_engine",
        )
        await self._call(self._llm.update_weight_version(str(UNVERSIONED)), "update_weight_version")

    async def stage(self, manifest: WeightsManifest) -> float:
        """Have the workers fetch and verify a version, twice if need be; returns the seconds it took.

        Raises:
            WeightUpdateFailed: They could not. The version held stays, untouched.
        """
        started = time.monotonic()
        for attempt in range(1, TRIES + 1):
            error = await self._stage_once(manifest)
            if not error:
                return time.monotonic() - started
            logger.warning("staging version %s failed (try %d of %d): %s", manifest.version, attempt, TRIES, error)
        raise WeightUpdateFailed(f"version {manifest.version} was not taken up: {error}")

    async def apply(self, manifest: WeightsManifest) -> tuple[float, float, LoadReport]:
        """Pause, load what is staged, resume; once more from the start if that fails.

        Returns:
            Seconds from the first pause to the resumption, those of the loading that succeeded, and what was loaded.

        Raises:
            WeightUpdateFailed: It failed twice. The engine is paused, with half-applied weights.
        """
        started = time.monotonic()
        try:
            load_s, loaded = await self._apply_once(manifest)
        except EngineDied:
            raise
        except Exception as error:
            logger.warning("applying version %s failed, once more from the start: %s", manifest.version, error)
            load_s, loaded = await self._apply_again(manifest)
        await self._call(self._llm.resume_generation(), "resume_generation")
        return time.monotonic() - started, load_s, loaded

    async def _apply_again(self, manifest: WeightsManifest) -> tuple[float, LoadReport]:
        await self.stage(manifest)
        try:
            return await self._apply_once(manifest)
        except EngineDied:
            raise
        except Exception as error:
            raise WeightUpdateFailed(f"version {manifest.version} could not be loaded: {error}") from error

    async def _apply_once(self, manifest: WeightsManifest) -> tuple[float, LoadReport]:
        llm = self._llm
        # As `pause_generation` does, without the sleep that it adds for the looks of its outputs' order.
        pause = llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=self._recompute)
        await self._call(pause, "pause")
        # Nothing is sampled in between, so the label may be set beside the swap.
        label = llm.update_weight_version(str(manifest.version.number))
        swap = self._worker("driftline_swap", str(manifest.version))
        _, reports = await asyncio.gather(self._call(label, "update_weight_version"), swap)
        seconds = max(report.pop("seconds") for report in reports)
        return seconds, LoadReport(**reports[0])

    async def _stage_once(self, manifest: WeightsManifest) -> str:
        """Nothing, or the reason why a worker could not stage the version."""
        errors = [error for error in await self._worker("driftline_stage", encode(manifest).decode()) if error]
        if errors:
            return errors[0]
        deadline = time.monotonic() + STAGE_DEADLINE_S
        pause = STAGE_POLL_S
        while time.monotonic() < deadline:
            states = await self._worker("driftline_stage_state", str(manifest.version))
            failed = [state["error"] for state in states if state["state"] == "failed"]
            if failed:
                return failed[0]
            if all(state["state"] == "ready" for state in states):
                return ""
            await asyncio.sleep(pause)
            pause = min(2 * pause, STAGE_POLL_MOST_S)
        return f"it was not fetched within {STAGE_DEADLINE_S:.0f} s"

    async def _worker(self, method: str, *arguments: Any) -> list[Any]:
        return await self._call(self._llm.collective_rpc(method, args=arguments), method)

    async def _call(self, answer: Any, what: str) -> Any:
        return await self._process.call(answer, what)

    @property
    def _llm(self) -> Any:
        self._process.check_alive()
        return self._process.llm
