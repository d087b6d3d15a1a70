"""What is published from a GPU is, bit for bit, what would be published from the host."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from driftline.weights.tensors import DTYPES, host_tensor, tensor_digest

pytestmark = pytest.mark.gpu

LEAST_MB_PER_S = 100


def weights(shape: tuple[int, ...] = (1000, 257)) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_digests_of_cuda_tensors_are_those_of_the_host(cuda: torch.device, dtype: str) -> None:
    tensor = weights()
    on_host, from_gpu = (host_tensor(t, DTYPES[dtype]) for t in (tensor, tensor.to(cuda)))
    assert from_gpu.device.type == "cpu"
    assert from_gpu.dtype == DTYPES[dtype]
    assert torch.equal(from_gpu, on_host), "rounding is the same on both"
    assert tensor_digest(from_gpu) == tensor_digest(on_host)
    assert tensor_digest(tensor.to(cuda)) == tensor_digest(tensor)


def test_a_strided_cuda_view_is_digested_in_its_own_order(cuda: torch.device) -> None:
    tensor = weights()
    assert tensor_digest(tensor.to(cuda).t()) == tensor_digest(tensor.t().contiguous())
    assert tensor_digest(tensor.to(cuda).t()) != tensor_digest(tensor)


def test_one_changed_bit_changes_the_digest(cuda: torch.device) -> None:
    tensor = weights().to(cuda)
    before = tensor_digest(tensor)
    tensor.view(torch.int32)[500, 100] ^= 1
    assert tensor_digest(tensor) != before


def test_special_values_survive_the_way_to_the_host(cuda: torch.device) -> None:
    tensor = torch.tensor([0.0, -0.0, 1e-40, 65504.0, 3.4e38, 1 + 2**-9])
    for dtype in DTYPES.values():
        assert tensor_digest(host_tensor(tensor.to(cuda), dtype)) == tensor_digest(host_tensor(tensor, dtype))


def test_encoding_keeps_up_with_a_network(cuda: torch.device) -> None:
    """Bringing weights to the host, rounding and digesting them must not be what publishing waits for."""
    layers = [weights((4096, 4096)).to(cuda) for _ in range(8)]
    host_tensor(layers[0], torch.bfloat16)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    hosts = [host_tensor(layer, torch.bfloat16) for layer in layers]
    digests = {tensor_digest(host) for host in hosts}
    seconds = time.perf_counter() - begun
    rate = sum(host.nbytes for host in hosts) / seconds / 1e6
    assert len(digests) == 1
    assert rate > LEAST_MB_PER_S, f"{rate:.0f} MB/s"
