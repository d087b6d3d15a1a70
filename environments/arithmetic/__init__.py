"""`arithmetic/v1`: a sum in words, for a pretrained model that follows instructions."""

from environments.arithmetic.family import Arithmetic

__all__ = ["Arithmetic"]
