"""What a server tells its supervisor, heard at a real socket."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.protocol.serving.supervision import Supervision


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The end of NOTIFY_SOCKET that systemd has."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield receiver


async def heard(systemd: socket.socket) -> str:
    async with asyncio.timeout(10):
        return (await asyncio.get_running_loop().sock_recv(systemd, 4096)).decode()


async def test_systemd_hears_that_a_server_is_ready_once_it_is_and_that_it_stops(
    systemd: socket.socket,
) -> None:
    supervision = Supervision(systemd.getsockname(), 0, None)
    ready = asyncio.Event()
    telling = asyncio.create_task(supervision.tell_when(ready))
    await asyncio.sleep(0)
    with pytest.raises(BlockingIOError):
        systemd.recv(4096)
    ready.set()
    assert await heard(systemd) == "READY=1"
    await telling
    supervision.stopping()
    assert await heard(systemd) == "STOPPING=1"


async def test_the_watchdog_and_the_file_hear_from_a_loop_that_turns_again_and_again(
    systemd: socket.socket, tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    supervision = Supervision(systemd.getsockname(), 0.02, alive)
    telling = asyncio.create_task(supervision.keep_telling())
    assert await heard(systemd) == "WATCHDOG=1"
    await asyncio.sleep(0)
    os.utime(alive, (0, 0))
    async with asyncio.timeout(10):
        while not alive.stat().st_mtime:
            assert await heard(systemd) == "WATCHDOG=1"
    telling.cancel()


async def test_without_a_supervisor_nothing_is_said_and_no_task_goes_on() -> None:
    supervision = Supervision.of_this_process(None, {})
    await supervision.keep_telling()
    supervision.stopping()


async def test_only_the_process_that_systemd_watches_answers_its_watchdog(
    systemd: socket.socket,
) -> None:
    environment = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "20000"}
    mine = Supervision.of_this_process(None, environment | {"WATCHDOG_PID": str(os.getpid())})
    telling = asyncio.create_task(mine.keep_telling())
    assert await heard(systemd) == "WATCHDOG=1"
    telling.cancel()
    another = Supervision.of_this_process(None, environment | {"WATCHDOG_PID": "1"})
    await another.keep_telling()


def test_a_name_that_begins_with_an_at_sign_is_in_the_abstract_namespace() -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as receiver:
        receiver.bind(f"\0holdfast-test-{os.getpid()}")
        Supervision(f"@holdfast-test-{os.getpid()}", 0, None).stopping()
        assert receiver.recv(4096) == b"STOPPING=1"


async def test_a_supervisor_that_cannot_be_told_is_logged_and_the_server_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    supervision = Supervision(str(tmp_path / "nobody"), 0.02, tmp_path / "missing" / "alive")
    with caplog.at_level(logging.WARNING):
        telling = asyncio.create_task(supervision.keep_telling())
        await asyncio.sleep(0)
    assert not telling.done()
    telling.cancel()
    assert [record.getMessage().split()[0] for record in caplog.records] == ["server.not_told"] * 2
