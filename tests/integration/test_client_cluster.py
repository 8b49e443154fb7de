"""The client against a whole cluster: real servers, killed while it works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from holdfast.client import Change, Client, OperationTimeoutError, connect
from tests.support.holdfast_up import RunningUp, running_up
from tests.support.waiting import until


def test_no_acknowledged_write_is_lost_or_doubled_when_servers_are_killed(tmp_path: Path) -> None:
    """Writers go on while each server is killed in turn, and then the coordinator."""

    async def main(up: RunningUp) -> None:
        async with connect(up.nats) as client, connect(up.nats) as watcher:
            names = [f"kill.{i}" for i in range(6)]
            acked: dict[str, list[tuple[int, bytes]]] = {name: [] for name in names}
            stop = asyncio.Event()
            for name in names:
                await client.stream(name).append(b"first")

            async def write(name: str, writer: int) -> None:
                number = 0
                while not stop.is_set():
                    value = b"%d-%d" % (writer, number)
                    number += 1
                    with contextlib.suppress(OperationTimeoutError):
                        ack = await client.stream(name).append(value)
                        assert ack.seq is not None
                        acked[name].append((ack.seq, value))
                    # Always some under way, without taking the machine from those that restart.
                    await asyncio.sleep(0.03)

            writing = [asyncio.create_task(write(n, w)) for n in names for w in range(5)]
            async with watcher.stream(names[0]).subscribe(start_seq=1) as changes:
                seen: list[Change] = []

                async def follow() -> None:
                    async for change in changes:
                        seen.append(change)

                following = asyncio.create_task(follow())
                for part in sorted(up.pids(), key=lambda name: "coordinator" in name):
                    if "nats" in part:
                        continue
                    before = {name: len(acked[name]) for name in names}
                    await until(
                        lambda before=before: all(len(acked[n]) > before[n] + 20 for n in names), 60
                    )
                    pid = up.pids()[part]
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
                before = {name: len(acked[name]) for name in names}
                await until(lambda: all(len(acked[n]) > before[n] + 20 for n in names), seconds=60)
                stop.set()
                await asyncio.gather(*writing)
                await self_consistent(client, acked)
                last = (await client.stream(names[0]).head()).revision
                await until(lambda: bool(seen) and seen[-1].revision == last, seconds=60)
                assert [change.revision for change in seen] == list(range(1, last + 1))
                following.cancel()
                await asyncio.wait([following])

    async def self_consistent(client: Client, acked: dict[str, list[tuple[int, bytes]]]) -> None:
        for name, acks in acked.items():
            stored = {m.seq: m.value async for m in client.stream(name).get_all()}
            assert len(set(stored.values())) == len(stored), "stored twice"
            for seq, value in acks:
                assert stored[seq] == value

    with running_up(tmp_path / "data", "--servers", "2") as up:
        asyncio.run(main(up))
