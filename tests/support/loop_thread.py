"""The trainer's loop in a thread of the test's own process, beside the cells."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from driftline.errors import LimitExceeded
from driftline.params import RunParameters
from driftline.store.run_store import RunStore
from driftline.tracking.sink import NullSink, Sink
from driftline.training.loop import TrainingLoop
from driftline.training.protocol import PolicyTrainer


class LoopThread:
    """Takes the run's role of the trainer; `failure` is what ended the loop, None if the run is over."""

    def __init__(
        self,
        run_store: RunStore,
        params: RunParameters,
        group: PolicyTrainer,
        sink: Sink | None = None,
        *,
        emit: Callable[[Mapping[str, Any]], None] = lambda event: None,
    ) -> None:
        self.failure: BaseException | None = None
        self._scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.loop = TrainingLoop(
            run_store,
            run_store.take_epoch(),
            params,
            group,
            sink or NullSink(),
            scratch=Path(self._scratch.name),
            emit=emit,
        )
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    async def end(self, deadline_s: float) -> None:
        """Wait until the loop has ended."""
        await asyncio.to_thread(self._thread.join, deadline_s)
        assert not self._thread.is_alive(), f"the loop has not ended within {deadline_s:g} s"

    def _run(self) -> None:
        with self._scratch:
            try:
                self.loop.run()
            except LimitExceeded as error:
                self.failure = error
                self.loop.fail(str(error))
            except BaseException as error:
                self.failure = error
