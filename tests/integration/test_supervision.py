"""Real servers under a supervisor: what they tell it from their start to their end."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cluster import running_processes


async def test_servers_say_that_they_are_alive_ready_and_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        loop = asyncio.get_running_loop()

        async def until(words: bytes) -> set[bytes]:
            """Return what was said before `words`."""
            before = set()
            async with asyncio.timeout(30):
                while (said := await loop.sock_recv(systemd, 4096)) != words:
                    before.add(said)
            return before

        with running_processes(tmp_path) as processes:
            monkeypatch.setenv("NOTIFY_SOCKET", systemd.getsockname())
            monkeypatch.setenv("WATCHDOG_USEC", "100000")
            alive = tmp_path / "alive"
            server = processes.start_persist("s1", "--alive-file", str(alive))
            assert await until(b"READY=1") <= {b"WATCHDOG=1"}
            assert "server.started" in server.log
            assert alive.exists()
            await until(b"WATCHDOG=1")
            assert server.stop() == 0
            await until(b"STOPPING=1")

            standby = processes.start("coordinator", "standby", "--standby")
            standby.wait_for_log("coordinator.standing_by")
            assert await until(b"WATCHDOG=1") == set()
            assert processes.coordinator.stop() == 0
            assert await until(b"READY=1") <= {b"WATCHDOG=1"}
            assert standby.stop() == 0
