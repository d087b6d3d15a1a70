"""Ports: which are free, who holds the others, and what a start chooses."""

# pyright: reportPrivateUsage=false
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftline.errors import StackError
from driftline.params import Settings
from infra import ports, stack
from infra.layout import INTERNAL_PORTS, Ports, StackState
from infra.stack import StartOptions


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def settings(**values: int) -> Settings:
    return Settings(**values)  # pyright: ignore[reportArgumentType]


def free(count: int) -> list[int]:
    return ports.pick_free(count, start=24000)


def test_a_port_that_is_listened_on_is_not_free(taken: int) -> None:
    assert not ports.is_free(taken)


def test_a_port_that_is_listened_on_at_every_address_is_not_free() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not ports.is_free(server.getsockname()[1])


def test_a_taken_port_is_refused_with_its_holder_and_the_flag(taken: int) -> None:
    with pytest.raises(StackError) as caught:
        ports.require_free({"mlflow": taken})
    message = str(caught.value)
    assert f"port {taken}, for mlflow" in message
    assert f"pid {os.getpid()}" in message
    assert "--mlflow-port" in message
    assert "DRIFTLINE_MLFLOW_PORT" in message


def test_two_parts_on_one_port_are_refused() -> None:
    (port,) = free(1)
    with pytest.raises(StackError, match=f"{port} is asked for twice"):
        ports.require_free({"mlflow": port, "s3": port})


def test_picking_passes_over_what_is_taken_or_to_be_avoided() -> None:
    first, second, third = free(3)
    with socket.create_server(("127.0.0.1", first)):
        assert ports.pick_free(1, start=first, avoid={second}) == [third]


def test_picking_ends_with_an_error_when_there_are_too_few() -> None:
    with pytest.raises(StackError, match="fewer than 2 free ports"):
        ports.pick_free(2, start=65535)


def test_a_start_takes_the_ports_asked_for_before_those_of_the_settings() -> None:
    a, b, c, d = free(4)
    chosen = stack._choose_ports(
        None, settings(prefect_port=a, mlflow_port=b, s3_port=c), StartOptions(mlflow_port=d)
    )
    assert chosen.public == {"prefect": a, "mlflow": d, "s3": c}
    assert len({*chosen.internal.values(), *chosen.public.values()}) == len(INTERNAL_PORTS) + 3


def test_automatic_ports_move_to_the_next_free_one(taken: int) -> None:
    a, b = free(2)
    wanted = settings(prefect_port=a, mlflow_port=b, s3_port=taken)
    with pytest.raises(StackError, match="--s3-port"):
        stack._choose_ports(None, wanted, StartOptions())
    chosen = stack._choose_ports(None, wanted, StartOptions(auto_ports=True))
    assert chosen.public == {"prefect": a, "mlflow": b, "s3": chosen.s3}
    assert chosen.s3 > taken


def test_seaweedfs_keeps_its_ports_from_start_to_start_while_they_are_free() -> None:
    a, b, c, *internal = free(3 + len(INTERNAL_PORTS))
    before = Ports(a, b, c, *internal)
    wanted = settings(prefect_port=a, mlflow_port=b, s3_port=c)
    assert stack._choose_ports(before, wanted, StartOptions()) == before
    with socket.create_server(("127.0.0.1", internal[0])):
        moved = stack._choose_ports(before, wanted, StartOptions())
    assert internal[0] not in moved.internal.values()


def test_a_running_stack_does_not_change_its_ports() -> None:
    state = StackState(Ports(4200, 5000, 8333, *range(21800, 21807)), "driftline")
    stack._refuse_changes(state, StartOptions(prefect_port=4200))
    with pytest.raises(StackError, match="prefect on port 4200, not 4300"):
        stack._refuse_changes(state, StartOptions(prefect_port=4300))


def test_only_one_command_works_on_a_stack(tmp_path: Path) -> None:
    layout = stack.Layout.of(Path("stack"), tmp_path)
    layout.create()
    refusal = pytest.raises(StackError, match="another `driftline up` or `down`")
    with stack._exclusive(layout), refusal:
        stack.down(layout)
    assert stack.down(layout) == []
