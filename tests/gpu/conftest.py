"""These tests need torch, pytest and a CUDA device, and nothing else of the environment.

Run them with `make test-gpu`. Without a device they fail: a check that silently did not run is no check.
"""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.fail("no CUDA device: run `make test-gpu` on a machine with one, with a torch that sees it")
    return torch.device("cuda")
