"""Sparse deltas: what is applied is what was published, bit for bit, in the fewest bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from driftline.errors import CorruptObject
from driftline.weights import delta

DTYPES = [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int8]
shapes = st.lists(st.integers(1, 12), min_size=0, max_size=3)


def random_bits(shape: list[int], dtype: torch.dtype, seed: int) -> Tensor:
    """A tensor of arbitrary bits: NaN payloads, infinities, both zeros."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    return torch.from_numpy(rng.integers(0, 256, size, dtype=np.uint8)).view(dtype).reshape(shape)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def with_changes(old: Tensor, indices: list[int]) -> Tensor:
    """A copy in which exactly those elements differ, each in its lowest bit."""
    new = old.clone()
    raw = new.reshape(-1).view(torch.uint8).numpy()
    for index in indices:
        raw[index * old.element_size()] ^= 1
    return new


def data_bytes(entries: delta.Entries) -> int:
    return sum(entry.nbytes for entry in entries.values())


def round_trip(old: Tensor, new: Tensor) -> tuple[Tensor, delta.Entries]:
    entries = delta.encode("w", new, delta.difference(old, new))
    tensors = {"w": old.clone()}
    delta.apply(tensors, entries)
    return tensors["w"], entries


@given(shapes, st.sampled_from(DTYPES), st.integers(0, 2**32), st.integers(0, 2**32))
def test_any_two_tensors_of_a_shape_are_bridged_bit_for_bit(
    shape: list[int], dtype: torch.dtype, seed: int, other: int
) -> None:
    old, new = random_bits(shape, dtype, seed), random_bits(shape, dtype, other)
    found, entries = round_trip(old, new)
    assert bits(found) == bits(new)
    assert found.dtype == dtype
    assert data_bytes(entries) <= new.nbytes


@given(st.integers(1, 3000), st.sampled_from(DTYPES), st.data())
@settings(max_examples=150)
def test_exactly_the_changed_elements_are_found_and_set(size: int, dtype: torch.dtype, data: st.DataObject) -> None:
    most = data.draw(st.sampled_from([1, 4, 40, size]))
    chosen = sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=most)))
    old = random_bits([size], dtype, size)
    new = with_changes(old, chosen)
    difference = delta.difference(old, new)
    assert difference.count == len(chosen)
    if difference.indices is not None:
        assert difference.indices.tolist() == chosen
    found, entries = round_trip(old, new)
    assert bits(found) == bits(new)
    assert (entries == {}) == (chosen == [])


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=60, unique=True), st.integers(1, 10**7))
@example([0], 1)
@example([254, 255, 256, 65790, 65791, 65536 * 3], 1)
@example([2**33], 1)
@example([2**32 - 2, 2**33 - 2], 1)
def test_indices_survive_in_the_form_of_the_fewest_bytes(indices: list[int], beyond: int) -> None:
    """One element far away, or gaps that fill a width exactly: the widest value of a width means `go on`."""
    wanted = np.array(sorted(indices), dtype=np.int64)
    elements = int(wanted[-1]) + beyond
    kind, packed = delta.pack_indices(wanted, elements)
    assert delta.unpack_indices(kind, packed, elements).tolist() == wanted.tolist()
    widest = int(max(np.diff(wanted, prepend=-1) - 1))
    plain = [size * len(indices) for size in (1, 2, 4) if widest < 2 ** (8 * size) - 1]
    assert packed.nbytes <= min([*plain, (elements + 7) // 8])


@pytest.mark.parametrize(
    ("indices", "elements", "kind", "size"),
    [
        ([0, 100, 354, 608], 10**6, "u8", 4),
        ([0, 100, 356, 600], 10**6, "u8", 5),  # one gap of 255 costs one more byte
        ([0, 30_000, 60_000], 10**6, "u16", 6),
        ([0, 10**9], 2 * 10**9, "u32", 8),
        ([5 * 10**9], 10**10, "u32", 8),  # beyond 32 bits: one skip
        (list(range(0, 64, 2)), 64, "bits", 8),
        ([7], 8, "u8", 1),
        (list(range(8)), 8, "bits", 1),
    ],
)
def test_the_width_is_the_smallest_sufficient_one(indices: list[int], elements: int, kind: str, size: int) -> None:
    found, packed = delta.pack_indices(np.array(indices, dtype=np.int64), elements)
    assert (found, packed.nbytes) == (kind, size)


def test_the_sign_of_zero_and_the_payload_of_a_nan_are_changes() -> None:
    old = torch.tensor([0.0, float("nan"), 1.0, 2.0] * 8)
    new = old.clone()
    new[0] = -0.0
    new.view(torch.int32)[1] ^= 5
    difference = delta.difference(old, new)
    assert difference.indices is not None
    assert difference.indices.tolist() == [0, 1]
    assert bits(round_trip(old, new)[0]) == bits(new)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_and_the_last_odd_elements_are_compared_too(dtype: torch.dtype) -> None:
    size = delta.BLOCK_WORDS * 8 // torch.empty(0, dtype=dtype).element_size() + 3
    old = random_bits([size], dtype, 1)
    chosen = [0, size - 4, size - 3, size - 1]
    difference = delta.difference(old, with_changes(old, chosen))
    assert difference.indices is not None
    assert difference.indices.tolist() == chosen


def test_one_in_a_hundred_bfloat16_elements_takes_at_most_2_5_percent() -> None:
    old = random_bits([1000, 1000], torch.bfloat16, 3)
    chosen = np.random.default_rng(0).choice(10**6, 10**4, replace=False)
    found, entries = round_trip(old, with_changes(old, chosen.tolist()))
    assert set(entries) == {"w:u8", "w:values"}
    assert data_bytes(entries) <= 0.016 * old.nbytes
    assert bits(found) == bits(with_changes(old, chosen.tolist()))


@pytest.mark.parametrize(("share", "form"), [(0.3, "w:bits"), (0.9, "w:bits"), (0.97, "w"), (1.0, "w")])
def test_where_most_elements_change_a_bit_each_is_smaller_until_the_whole_tensor_is(share: float, form: str) -> None:
    old = random_bits([100, 100], torch.bfloat16, 4)
    _, entries = round_trip(old, with_changes(old, list(range(int(share * 10**4)))))
    assert form in entries
    assert len(entries) == (1 if form == "w" else 2)


def test_a_delta_applied_twice_changes_nothing_more() -> None:
    old = random_bits([50], torch.float32, 5)
    new = with_changes(old, [3, 49])
    entries = delta.encode("w", new, delta.difference(old, new))
    tensors = {"w": old.clone()}
    first = delta.apply(tensors, entries)["w"]
    delta.apply(tensors, entries)
    assert first is not None
    assert first.tolist() == [3, 49]
    assert bits(tensors["w"]) == bits(new)


def entries(**options: Tensor) -> delta.Entries:
    made = {"w:u8": torch.tensor([1], dtype=torch.uint8), "w:values": torch.tensor([1.5])}
    return {name.replace("__", ":"): tensor for name, tensor in {**made, **options}.items()}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"x": torch.ones(2)}, "changes 'x', which its base does not have"),
        ({"w": torch.ones(3)}, r"shape \(3,\), in the base \(4,\)"),
        ({"w": torch.ones(4, dtype=torch.bfloat16)}, "no values in torch.float32"),
        (entries(w__values=torch.ones(1, dtype=torch.bfloat16)), "no values in torch.float32"),
        (entries(w__values=torch.ones(2)), "2 values for 1 elements"),
        (entries(w__u8=torch.tensor([4], dtype=torch.uint8)), "index 4 of a tensor of 4 elements"),
        (entries(w__u8=torch.tensor([4], dtype=torch.int16)), "holds torch.int16, not uint8"),
        (entries(w__bits=torch.ones(1, dtype=torch.uint8)), "not one set of indices"),
        ({"w:values": torch.ones(1)}, "not one set of indices"),
        ({"w:u8": torch.ones(1, dtype=torch.uint8)}, "no values"),
        ({"w:bits": torch.ones(2, dtype=torch.uint8), "w:values": torch.ones(2)}, "bits do not fit 4 elements"),
    ],
)
def test_entries_that_do_not_fit_the_base_are_refused(broken: delta.Entries, said: str) -> None:
    with pytest.raises(CorruptObject, match=said):
        delta.apply({"w": torch.zeros(4)}, broken)


def test_tensors_that_are_not_contiguous_are_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        delta.difference(torch.zeros(2, 3).t(), torch.zeros(3, 2))
