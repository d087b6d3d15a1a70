"""`pointer_chase/v1`: read files until one holds the answer, then answer."""

from environments.pointer_chase.family import PointerChase

__all__ = ["PointerChase"]
