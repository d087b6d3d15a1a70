"""A headless Chromium for the tests of pages: Debian's, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str:
    """Where it is. Without one the test fails."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.fail("no Chromium: apt-get install chromium (`make setup` does, as root)")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    path = program()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield found
        finally:
            found.close()
