"""Where a stack's files lie: private, atomic, and readable again whatever state they are in."""

import json
import stat
from pathlib import Path

import pytest

from driftline.errors import StackError
from infra.layout import (
    SOCKET_PATH_LIMIT,
    Layout,
    Ports,
    StackState,
    credentials,
    read_credentials,
    read_state,
    write_private,
    write_state,
)

PORTS = Ports(4200, 5000, 8333, *range(21800, 21807))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout.of(Path("stack"), tmp_path)
    made.create()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_stack_lies_in_the_repository_unless_its_path_is_absolute(tmp_path: Path) -> None:
    assert Layout.of(Path(".driftline"), tmp_path).root == tmp_path / ".driftline"
    assert Layout.of(tmp_path / "elsewhere", Path("/")).root == tmp_path / "elsewhere"


def test_directories_and_private_files_are_for_their_owner_alone(layout: Layout) -> None:
    credentials(layout)
    write_state(layout, StackState(PORTS, "driftline"))
    assert mode(layout.root) == mode(layout.logs) == mode(layout.sockets) == 0o700
    assert mode(layout.identities) == mode(layout.state) == 0o600


def test_a_private_file_is_replaced_whole_and_leaves_no_temporary(layout: Layout) -> None:
    write_private(layout.environment, "first")
    write_private(layout.environment, "second")
    assert layout.environment.read_text() == "second"
    assert not [path for path in layout.root.iterdir() if path.name.startswith(".")]


def test_a_directory_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="DRIFTLINE_WORK_DIR"):
        Layout.of(Path("file") / "stack", tmp_path).create()


def test_credentials_are_made_once_and_kept(layout: Layout) -> None:
    first = credentials(layout)
    assert credentials(layout) == first == read_credentials(layout)
    assert len(first.secret_key) >= 32
    identity = json.loads(layout.identities.read_text())["identities"][0]
    assert identity["credentials"] == [{"accessKey": first.access_key, "secretKey": first.secret_key}]


def test_two_stacks_have_different_credentials(tmp_path: Path) -> None:
    made = [Layout.of(Path(name), tmp_path) for name in ("a", "b")]
    for each in made:
        each.create()
    assert credentials(made[0]) != credentials(made[1])


def test_credentials_do_not_show_themselves(layout: Layout) -> None:
    pair = credentials(layout)
    assert pair.secret_key not in repr(pair)
    assert pair.secret_key not in str(pair)


def test_the_state_comes_back(layout: Layout) -> None:
    state = StackState(PORTS, "bucket")
    write_state(layout, state)
    assert read_state(layout) == state


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ports": {}}', '{"ports": {"prefect": 1}, "bucket": "b"}'])
def test_a_damaged_state_is_no_state(layout: Layout, text: str) -> None:
    layout.state.write_text(text)
    assert read_state(layout) is None


def test_sockets_of_a_deep_checkout_lie_in_the_temporary_directory(tmp_path: Path) -> None:
    deep = Layout.of(tmp_path / ("d" * SOCKET_PATH_LIMIT), tmp_path)
    other = Layout.of(tmp_path / ("e" * SOCKET_PATH_LIMIT), tmp_path)
    assert not deep.supervisor_socket.is_relative_to(deep.root)
    assert len(str(deep.supervisor_socket)) < 107
    assert deep.sockets != other.sockets


def test_ports_for_people_and_for_seaweedfs_are_told_apart() -> None:
    assert PORTS.public == {"prefect": 4200, "mlflow": 5000, "s3": 8333}
    assert sorted(PORTS.internal.values()) == list(range(21800, 21807))
