"""A sandbox by the name of its backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, assert_never

from driftline.sandbox import bubblewrap, container, unconfined
from driftline.sandbox.profile import SandboxProfile
from driftline.sandbox.protocol import Sandbox
from driftline.sandbox.supervised import Launch, SupervisedSandbox
from driftline.settings import settings

BackendName = Literal["bubblewrap", "container", "none"]


async def open_sandbox(
    template: Mapping[str, bytes],
    profile: SandboxProfile,
    *,
    backend: BackendName | None = None,
    readonly: Mapping[str, bytes] | None = None,
) -> Sandbox:
    """Open a sandbox with the template's files in its working folder.

    Must be awaited in a thread that lives as long as the sandbox: bubblewrap ends with the thread that started it.

    Args:
        template: Contents by path, relative to the working folder.
        profile: The limits.
        backend: By default the one of this machine's settings (`DRIFTLINE_SANDBOX`), which is bubblewrap unless told
            otherwise.
        readonly: Files that are mounted read-only, by absolute path, such as hidden tests for their scoring.

    Raises:
        SandboxUnavailable: The backend is not there, or may not do what it must; nothing else is tried instead.
        SandboxRefused: A file of the template cannot be written.
        ConfigurationError: The backend mounts nothing, and `readonly` names files.
    """
    return await SupervisedSandbox.start(_launch(backend, profile, readonly or {}), profile, template)


def default_backend() -> BackendName:
    """The backend of this machine's settings."""
    return settings().sandbox


def _launch(backend: BackendName | None, profile: SandboxProfile, readonly: Mapping[str, bytes]) -> Launch:
    name = backend or default_backend()
    match name:
        case "bubblewrap":
            return bubblewrap.launch(profile, readonly)
        case "container":
            return container.launch(profile, readonly, settings().sandbox_image)
        case "none":
            return unconfined.launch(readonly)
        case _:
            assert_never(name)
