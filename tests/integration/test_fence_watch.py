"""A fence ends an idle server at once, with nobody there to tell it."""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol import frames
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import fence
from tests.support.cluster import Processes, connected_peer, running_processes


async def append(processes: Processes, counter: int) -> None:
    async with connected_peer(processes) as peer:
        await peer.write("notes", counter, [frames.APPEND, b"hello"])


async def test_an_idle_server_that_is_fenced_by_hand_ends_with_nats_and_the_coordinator_gone(
    tmp_path: Path,
) -> None:
    with running_processes(tmp_path) as processes:
        server = processes.start_persist("s1")
        await append(processes, 1)
        [incarnation] = processes.incarnations("s1")
        processes.coordinator.kill()
        processes.nats.stop()
        assert server.running
        fence(Disk(), processes.layout.fence("s1", incarnation))
        assert server.wait() == 1
        assert "has been fenced" in server.log


async def test_a_server_that_is_not_fenced_goes_on_with_nats_gone(tmp_path: Path) -> None:
    with running_processes(tmp_path) as processes:
        server = processes.start_persist("s1")
        await append(processes, 1)
        [incarnation] = processes.incarnations("s1")
        processes.nats.restart()
        (processes.layout.incarnation("s1", incarnation) / "request").touch()
        await append(processes, 2)
        assert server.running
        assert processes.incarnations("s1") == [incarnation]
