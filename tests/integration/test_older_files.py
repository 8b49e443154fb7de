"""An older copy of a store file, put in its place while nobody has the store open."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.names import StoreId, StoreKind
from tests.support.cluster import (
    SUBJECTS,
    TENANT,
    Peer,
    Processes,
    connected_peer,
    running_processes,
)
from tests.support.holdfast_up import call_holdfast
from tests.support.waiting import until

DEADLINE_SECONDS = 60.0
#: One is closed because nobody uses it, the other one because its server is stopped.
NAMES = ("idle", "stopped")


def test_an_older_copy_of_a_file_at_rest_is_refused_and_the_doctor_names_it(tmp_path: Path) -> None:
    with running_processes(tmp_path) as processes:
        asyncio.run(asyncio.wait_for(put_older_copies_in_place(processes), DEADLINE_SECONDS))


async def put_older_copies_in_place(processes: Processes) -> None:
    server = processes.start_persist("s1", "--idle-close-seconds", "0.2")
    told: set[str] = set()

    def hear(message: BusMessage) -> None:
        closed = frames.decode_control(message.payload)["stores"]
        told.update(name for _, _, name, _, revision, *_ in closed if revision == 2)

    async with connected_peer(processes) as peer:
        await peer.bus.subscribe(SUBJECTS.cluster("closed"), hear)
        await peer.live()
        for name in NAMES:
            await peer.write(name, 1, [frames.APPEND, b"1"])
        paths = {name: path_of(processes, name) for name in NAMES}
        await until(lambda: all(is_closed(path) for path in paths.values()), "they are closed")
        older = {name: path.read_bytes() for name, path in paths.items()}
        for name in NAMES:
            await peer.write(name, 2, [frames.APPEND, b"2"])
        await until(lambda: told.issuperset(NAMES), "the coordinator is told")

        paths["idle"].write_bytes(older["idle"])
        await refused(
            peer, "idle", "reaches revision 1, and the coordinator knows that it was at 2"
        )
        assert paths["idle"].read_bytes() == older["idle"], "it is left as it is"

        await peer.write("stopped", 3, [frames.APPEND, b"3"])
        assert server.stop() == 0
        newer = paths["stopped"].read_bytes()
        paths["stopped"].write_bytes(older["stopped"])
        server = processes.start_persist("s1")
        await refused(
            peer, "stopped", "reaches revision 1, and the coordinator knows that it was at 3"
        )

        paths["stopped"].write_bytes(newer)
        ((rows, _after),) = await peer.read("stopped", [frames.GET_MESSAGES])
        assert [row[3] for row in rows] == [b"1", b"2", b"3"]
        assert server.stop() == 0
    assert processes.coordinator.stop() == 0
    assert older_files(processes) == [paths["idle"].name]


async def refused(peer: Peer, name: str, reason: str) -> None:
    with pytest.raises(StoreDamagedError, match=reason):
        await peer.read(name, [frames.GET_MESSAGES])
    with pytest.raises(StoreDamagedError, match=reason):
        await peer.write(name, 9, [frames.APPEND, b"9"])


def path_of(processes: Processes, name: str) -> Path:
    return processes.layout.store(StoreId(TENANT, StoreKind.STREAM, name))


def is_closed(path: Path) -> bool:
    return path.exists() and not path.with_name(path.name + "-wal").exists()


def older_files(processes: Processes) -> list[str]:
    """Return the files that the doctor says are older than they were."""
    ended = call_holdfast("--json", "doctor", "--data", str(processes.data))
    (found,) = [one for one in json.loads(ended.stdout)["checks"] if one["code"] == "HF-032"]
    assert ended.returncode == 2
    return [Path(example["where"]).name for example in found["examples"]]
