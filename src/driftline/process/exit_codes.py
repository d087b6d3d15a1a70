"""Exit codes of a supervised child."""

from __future__ import annotations

CONFIGURATION = 2
"""A setting is impossible: a restart would end the same way."""
TRANSIENT = 75
"""The engine, the store or a deadline failed: a restart may mend it."""
STOPPED = 128
"""Plus the number of the signal that asked it to stop."""
