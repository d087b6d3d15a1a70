"""How a command reaches the checkout it stands in, its local stack, and the store of its runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from driftline.errors import ConfigurationError, StackError
from driftline.params import adopt_environment, settings

if TYPE_CHECKING:
    from driftline.store.run_store import RunStore
    from infra.layout import Layout


def layout_here() -> Layout:
    """The stack of the working directory.

    Raises:
        ConfigurationError: It is not the root of a checkout.
    """
    root = Path.cwd()
    if not (root / "infra" / "stack.py").is_file():
        raise ConfigurationError(f"{root} is not the root of a Driftline checkout: change to it first")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    from infra.layout import Layout

    return Layout.of(settings().work_dir, root)


def reach_store(layout: Layout | None) -> None:
    """Use the local stack (None where there can be none), or the store that the environment names.

    Raises:
        StackError: There is neither.
    """
    if layout is not None:
        adopt(layout)
    from driftline.store.client import has_credentials

    if settings().s3_endpoint is None and not has_credentials():
        raise StackError(
            "no stack has been started here, and no other store is named: run `.venv/bin/driftline up`, or set "
            "DRIFTLINE_S3_ENDPOINT (not for Amazon S3), DRIFTLINE_BUCKET, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )


def adopt(layout: Layout) -> None:
    """Use the local stack, unless the environment names another S3 endpoint."""
    from infra import stack

    values = stack.connection(layout)
    if values is not None and settings().s3_endpoint is None:
        adopt_environment(values)


def run_store_of(run: str) -> RunStore:
    """The objects of a run, by its id or as `latest`.

    Raises:
        ConfigurationError: There is no such run.
    """
    from driftline.store.client import open_store
    from driftline.store.run_store import RunStore
    from driftline.tracking.report import find_run

    store = open_store(settings())
    return RunStore(store, find_run(store, run).run)


def short(path: Path) -> str:
    """A path, relative to the working directory where it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
