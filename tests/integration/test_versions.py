"""The last version of holdfast beside this one: a rolling upgrade under load, and the way back.

Servers, coordinators and clients of both versions run in one cluster, replaced one by one. Nothing
that a client of either version was acknowledged may be lost, doubled or out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pytest

from holdfast.client import connect
from holdfast.coordinator.state import state_format
from holdfast.shared_fs.bucket_log import log_object
from holdfast.shared_fs.disk import layout
from holdfast.shared_fs.snapshots import manifest
from holdfast.shared_fs.store_file import schema
from tests.support.effort import tries
from tests.support.last_version import (
    LastVersion,
    LastVersionProcess,
    ListeningProcess,
    running_last_version,
)
from tests.support.load import Load, running_load
from tests.support.nats_server import running_nats_server
from tests.support.process import Process

#: How many streams each client writes.
STREAMS: Final = tries(8, 8, 24)
#: How often each of them is written between two replacements.
WRITES: Final = tries(2, 2, 5)
#: How often all is replaced, by this version and back.
ROUNDS: Final = tries(1, 1, 2)
#: Where the cluster keeps its data.
DISKS: Final = tries(("shared",), ("shared",), ("shared", "local"))

AnyProcess: TypeAlias = Process | LastVersionProcess


class Step(NamedTuple):
    """The replacement of one part."""

    name: str
    #: Whether it is killed, so that its successors replay its log, or stopped.
    kill: bool = False


#: The servers of both versions meet the coordinators of both. A killed one leaves all stores to the
#: other, of the other version: it opens their files and replays the log.
THERE: Final = (Step("s1"), Step("coordinator"), Step("s2", kill=True))
BACK: Final = tries(THERE[::2], THERE[::2], THERE)


class MixedCluster:
    """One coordinator and the servers s1 and s2, each of either version."""

    def __init__(
        self, directory: Path, disk: str, nats_url: str, last: LastVersion, ending: ExitStack
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._nats_url = nats_url
        self._last = last
        self._ending = ending
        self._started_count = 0
        #: By their names.
        self._running: dict[str, AnyProcess] = {}

    def start_all(self) -> None:
        """Start a cluster of the last version."""
        for name in ("coordinator", "s1", "s2"):
            self._running[name] = self._start(name, last=True)
        for name, process in self._running.items():
            process.wait_for_log(_started(name))

    def replace(self, step: Step, *, last: bool) -> None:
        """Replace a part by one of the last version or of this one: a server by its next life, a
        coordinator by a standby, if both see the lock."""
        name, old = step.name, self._running[step.name]
        new = None
        if name == "coordinator" and self._disk == "shared":
            new = self._start(name, last=last)
            new.wait_for_log("coordinator.standing_by")
        if step.kill:
            old.kill()
        else:
            assert old.stop() == 0, old.log
        self._running[name] = new or self._start(name, last=last)
        self._running[name].wait_for_log(_started(name))

    def stop(self) -> None:
        """Stop all, the coordinator last."""
        for name in reversed(self._running):
            process = self._running[name]
            assert process.stop() == 0, process.log

    def _start(self, name: str, *, last: bool) -> AnyProcess:
        self._started_count += 1
        log = self._directory / f"{name}-{self._started_count}.log"
        part = "coordinator" if name == "coordinator" else "persist"
        folder = "data" if self._disk == "shared" else name
        arguments = ["--data", str(self._directory / folder), "--nats", self._nats_url]
        arguments += ["--standby"] if part == name else ["--name", name]
        if self._disk == "local":
            arguments += ["--disk", "local", "--bucket", f"file://{self._directory}/bucket"]
        if last:
            return self._last.start(part, log, *arguments)
        return self._ending.enter_context(Process(f"holdfast.{part}.__main__", arguments, log))


def _started(name: str) -> str:
    return "coordinator.started" if name == "coordinator" else "server.started"


@pytest.mark.parametrize("disk", DISKS)
async def test_a_rolling_upgrade_loses_nothing_and_the_way_back_neither(
    disk: str, tmp_path: Path
) -> None:
    with (
        running_nats_server(tmp_path) as nats,
        running_last_version(tmp_path) as last,
        ExitStack() as ending,
    ):
        cluster = MixedCluster(tmp_path, disk, nats.url, last, ending)
        arguments = (nats.url, "last", str(STREAMS), str(WRITES))
        other = last.run("tests.support.load_process", tmp_path / "client.log", *arguments)
        await asyncio.to_thread(cluster.start_all)
        async with connect(nats.url, tenant="this") as client:
            async with AsyncExitStack() as followers, running_load(client, STREAMS) as load:
                await followers.enter_async_context(load.followed(load.names[:2]))
                await asyncio.to_thread(other.wait_for_log, "begun")
                for _ in range(ROUNDS):
                    await replace(cluster, THERE, load, other, last=False)
                    if not goes_back(last):
                        break
                    await replace(cluster, BACK, load, other, last=True)
            other.tell("end")
            assert await asyncio.to_thread(other.wait) == 0, other.log
            assert "checked" in other.log
            await load.check()
        await asyncio.to_thread(cluster.stop)


def goes_back(last: LastVersion) -> bool:
    """Tell whether the last version reads what this one writes."""
    formats = (
        ("shared_fs/disk/layout.py", "FORMAT_VERSION", layout.FORMAT_VERSION),
        ("shared_fs/store_file/schema.py", "FORMAT_VERSION", schema.FORMAT_VERSION),
        ("shared_fs/bucket_log/log_object.py", "FORMAT", log_object.FORMAT),
        ("shared_fs/snapshots/manifest.py", "FORMAT_VERSION", manifest.FORMAT_VERSION),
        ("coordinator/state/state_format.py", "FORMAT_VERSION", state_format.FORMAT_VERSION),
    )
    return all(last.constant(module, name) == now for module, name, now in formats)


async def replace(
    cluster: MixedCluster,
    steps: Sequence[Step],
    load: Load,
    other: ListeningProcess,
    *,
    last: bool,
) -> None:
    """Replace parts one by one; after each, clients of both versions write every stream."""
    for step in steps:
        await asyncio.to_thread(cluster.replace, step, last=last)
        written = other.log.count("written\n") + 1
        other.tell("more")
        await load.more(WRITES)
        await asyncio.to_thread(other.wait_for_log, "written\n", written)
