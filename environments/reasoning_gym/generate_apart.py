"""What generates in a process of its own: `python -m environments.reasoning_gym.generate_apart < request.json`."""

from __future__ import annotations

import json
import sys

from driftline.environment.apart import answer
from driftline.errors import ConfigurationError
from environments.reasoning_gym.library import generate


def main() -> None:
    """Generate what standard input asks for: entries, or why there are none."""
    request = json.loads(sys.stdin.read())
    dataset = request.pop("dataset")
    try:
        answer({"entries": generate(dataset, **request)})
    except ConfigurationError as error:
        answer({"error": str(error)})


if __name__ == "__main__":
    main()
