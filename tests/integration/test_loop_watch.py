"""A server whose event loop is kept from turning, beyond the silence that counts as death."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from holdfast.persist.options import Machine
from holdfast.persist.service import PersistServer
from holdfast.persist.threads.loop_watch import LoopWatch
from holdfast.protocol import frames
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.limits import SILENCE_SECONDS
from holdfast.protocol.subjects import DEFAULT_PREFIX, Subjects
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from tests.support.cluster import connected_peer, running_processes


def test_a_loop_that_hangs_for_longer_than_a_silence_fences_nobody(tmp_path: Path) -> None:
    with running_processes(tmp_path) as processes:
        url, layout = processes.nats.url, open_layout(processes.data, Disk())
        watch = LoopWatch(
            lambda: connect_nats(url, name="watch"), Subjects(DEFAULT_PREFIX).heartbeat()
        )
        ready = threading.Event()
        loops: list[asyncio.AbstractEventLoop] = []
        servers: list[PersistServer] = []

        async def live() -> None:
            bus = await connect_nats(url, name="s1")
            server = PersistServer(bus, layout, Disk(), "s1", machine=Machine(loop_watch=watch))
            loops.append(asyncio.get_running_loop())
            servers.append(server)
            up = asyncio.Event()
            running = asyncio.create_task(server.run(up))
            await up.wait()
            ready.set()
            try:
                await running
            finally:
                await bus.close()

        async def use(counter: int) -> None:
            async with connected_peer(processes) as peer:
                await peer.write("notes", counter, [frames.APPEND, b"hello"])

        thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
        thread.start()
        assert ready.wait(20)
        asyncio.run(use(1))
        hung = threading.Event()

        def hang() -> None:
            time.sleep(SILENCE_SECONDS + 1.5)
            hung.set()

        loops[0].call_soon_threadsafe(hang)
        assert hung.wait(20)
        asyncio.run(use(2))
        assert processes.incarnations("s1") == [servers[0].incarnation]
        assert "server_dead" not in processes.coordinator.log
        loops[0].call_soon_threadsafe(servers[0].stop)
        thread.join(20)
        assert not thread.is_alive()
