# pyright: basic
"""Sparse deltas: which elements of a tensor changed bit for bit, and to what. Pure; host tensors in and out.

A changed tensor `T` is two entries of a safetensors object, or one:

    T:u8 | T:u16 | T:u32   gaps between the flat indices of the changed elements, in the smallest sufficient width
    T:bits                 one bit an element instead, little end first, where that is smaller (above 1 in 8)
    T:values               the new values of those elements, in order, in the tensor's own dtype
    T                      the whole tensor, where the sparse form is not smaller

A gap counts the unchanged elements skipped. The width's largest value says "skip that many, and no element yet",
so every gap has a form in every width, and the width that gives the fewest bytes is taken. Elements are compared
as integers: NaN payloads and the sign of zero travel as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from driftline.errors import CorruptObject

WIDTHS = {"u8": np.dtype("<u1"), "u16": np.dtype("<u2"), "u32": np.dtype("<u4")}
BITS, VALUES = "bits", "values"
SUFFIXES = (*WIDTHS, BITS, VALUES)
BLOCK_WORDS = 2**18
"""Words of 8 bytes compared at a time: the comparison's result stays in the processor's cache."""
DENSE = 8
"""Where more than one word in so many differs, elements are compared one by one at once."""
HEADER_BYTES = 100
"""What an entry takes in a safetensors header."""

Indices = NDArray[np.int64]
Elements = NDArray[np.unsignedinteger]
Entries = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """How two tensors differ: in `count` elements, at `indices` (flat, ascending).

    `indices` is None where so many differ that the whole tensor is cheaper than any sparse form.
    """

    count: int
    indices: Indices | None


def difference(old: Tensor, new: Tensor) -> Difference:
    """The elements whose bits differ between two contiguous host tensors of one shape and dtype.

    Words of 8 bytes are compared first, and elements only within words that differ.
    """
    before, after = _elements(old), _elements(new)
    per_word = max(1, 8 // before.itemsize)
    shift, last = per_word.bit_length() - 1, per_word - 1
    end = before.size - before.size % per_word
    words_before, words_after = before[:end].view("<u8"), after[:end].view("<u8")
    found: list[Indices] = []
    differs = np.empty(min(BLOCK_WORDS, words_before.size), bool)
    for start in range(0, words_before.size, BLOCK_WORDS):
        left, right = words_before[start : start + BLOCK_WORDS], words_after[start : start + BLOCK_WORDS]
        mask = np.not_equal(left, right, out=differs[: left.size])
        if np.count_nonzero(mask) * DENSE > mask.size:
            return _dense_difference(before, after)
        words = np.flatnonzero(mask)
        inner = np.flatnonzero((left[words] ^ right[words]).view(before.dtype))
        found.append((words[inner >> shift] << shift) + (inner & last) + start * per_word)
    found.append(np.flatnonzero(before[end:] != after[end:]) + end)
    indices = np.concatenate(found)
    return Difference(indices.size, indices)


def _dense_difference(before: Elements, after: Elements) -> Difference:
    """The same, element by element: counted first, as the whole tensor may be cheaper."""
    blocks = [slice(start, start + BLOCK_WORDS) for start in range(0, before.size, BLOCK_WORDS)]
    count = sum(int(np.count_nonzero(before[block] != after[block])) for block in blocks)
    if count * before.itemsize + (before.size + 7) // 8 >= before.nbytes:
        return Difference(count, None)
    found = [np.flatnonzero(before[block] != after[block]) + block.start for block in blocks]
    return Difference(count, np.concatenate(found))


def encode(name: str, new: Tensor, found: Difference) -> Entries:
    """The smallest entries that carry a tensor's changed elements; none where nothing changed.

    Args:
        name: The tensor's name.
        new: Its new value, a contiguous host tensor.
        found: Its `difference` from the old one.
    """
    if found.count == 0:
        return {}
    if found.indices is not None:
        kind, packed = pack_indices(found.indices, new.numel())
        if packed.nbytes + found.count * new.element_size() < new.nbytes:
            values = torch.from_numpy(_elements(new)[found.indices].view(np.uint8)).view(new.dtype)
            return {f"{name}:{kind}": torch.from_numpy(packed), f"{name}:{VALUES}": values}
    return {name: new}


def object_bytes(entries: Mapping[str, Tensor]) -> int:
    """About the size of an object that holds the entries, header included."""
    return sum(tensor.nbytes + HEADER_BYTES for tensor in entries.values())


def pack_indices(indices: Indices, elements: int) -> tuple[str, Elements]:
    """Ascending flat indices in the form of the fewest bytes: its name, and the packed array."""
    gaps = np.diff(indices, prepend=-1) - 1
    sizes: dict[str, int] = {}
    for kind, width in WIDTHS.items():
        top = np.iinfo(width).max
        sizes[kind] = width.itemsize * (gaps.size + int((gaps[gaps >= top] // top).sum()))
        if sizes[kind] == width.itemsize * gaps.size:
            break
    kind = min(sizes, key=lambda kind: sizes[kind])
    if (elements + 7) // 8 < sizes[kind]:
        mask = np.zeros(elements, bool)
        mask[indices] = True
        return BITS, np.packbits(mask, bitorder="little")
    top = np.iinfo(WIDTHS[kind]).max
    wide = np.flatnonzero(gaps >= top)
    skips = gaps[wide] // top
    gaps[wide] -= skips * top
    return kind, np.insert(gaps.astype(WIDTHS[kind]), np.repeat(wide, skips), top)


def unpack_indices(kind: str, packed: Elements, elements: int) -> Indices:
    """The flat indices that `pack_indices` packed, of a tensor of so many elements.

    Raises:
        CorruptObject: They reach beyond it.
    """
    if kind == BITS:
        if packed.size != (elements + 7) // 8:
            raise CorruptObject(f"{packed.size} bytes of bits do not fit {elements} elements")
        return np.flatnonzero(np.unpackbits(packed, bitorder="little")[:elements])
    stops = packed != np.iinfo(packed.dtype).max
    indices = (np.cumsum(packed.astype(np.int64) + stops) - 1)[stops]
    if indices.size and int(indices[-1]) >= elements:
        raise CorruptObject(f"index {int(indices[-1])} of a tensor of {elements} elements")
    return indices


def apply(tensors: dict[str, Tensor], entries: Mapping[str, Tensor]) -> dict[str, Indices | None]:
    """Bring host tensors to the next version, in place; a whole tensor takes the old one's place.

    Args:
        tensors: The base version's tensors, contiguous.
        entries: The delta's entries.

    Returns:
        Which elements of each changed tensor were set; None is all of them.

    Raises:
        CorruptObject: The entries do not fit the base. Tensors before the one named have changed.
    """
    changed: dict[str, Indices | None] = {}
    for name, kind, entry in _grouped(entries):
        base = tensors.get(name)
        if base is None:
            raise CorruptObject(f"the delta changes {name!r}, which its base does not have")
        values = entry if kind is None else entries.get(f"{name}:{VALUES}")
        if values is None or values.dtype != base.dtype:
            raise CorruptObject(f"{name!r} has no values in {base.dtype}, the dtype of the base")
        if kind is None:
            if values.shape != base.shape:
                raise CorruptObject(f"{name!r} has shape {tuple(values.shape)}, in the base {tuple(base.shape)}")
            tensors[name], changed[name] = values, None
            continue
        try:
            indices = unpack_indices(kind, entry.numpy(), base.numel())
        except CorruptObject as error:
            raise CorruptObject(f"{name!r}: {error}") from None
        if indices.size != values.numel():
            raise CorruptObject(f"{name!r} has {values.numel()} values for {indices.size} elements")
        _elements(base)[indices] = _elements(values)
        changed[name] = indices
    return changed


def set_elements(tensor: Tensor, value: Tensor, indices: Indices) -> None:
    """Copy some elements, by flat index, between two contiguous host tensors of one shape and dtype."""
    _elements(tensor)[indices] = _elements(value)[indices]


def _grouped(entries: Mapping[str, Tensor]) -> Iterator[tuple[str, str | None, Tensor]]:
    """(tensor name, kind of its indices, entry); kind None is a whole tensor."""
    for key, entry in entries.items():
        name, mark, kind = key.rpartition(":")
        if not mark or kind not in SUFFIXES:
            yield key, None, entry
        elif kind == VALUES:
            if sum(f"{name}:{other}" in entries for other in (*WIDTHS, BITS)) != 1:
                raise CorruptObject(f"{name!r} has values, but not one set of indices")
        else:
            wanted = WIDTHS.get(kind, np.dtype("u1"))
            if entry.dim() != 1 or entry.numpy().dtype != wanted:
                raise CorruptObject(f"{key!r} holds {entry.dtype}, not {wanted}")
            yield name, kind, entry


def _elements(tensor: Tensor) -> Elements:
    """The elements of a contiguous host tensor as unsigned integers of their width, flat, without a copy."""
    if not tensor.is_contiguous():
        raise ValueError("a tensor that is compared or changed element by element must be contiguous")
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().view(f"<u{tensor.element_size()}")
