"""What users see when servers stop, die or find damaged files: real processes, real signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.client import StoreDamagedError
from tests.support.cluster_in_loop import cluster_with_client, pid_of, store_file
from tests.support.waiting import until


async def test_a_stopped_server_is_taken_over_and_acknowledges_nothing_when_it_wakes(
    tmp_path: Path,
) -> None:
    async with cluster_with_client(tmp_path) as (cluster, client):
        stream = client.stream("notes")
        acked = {}
        for number in range(20):
            ack = await stream.append(b"before %d" % number)
            acked[ack.seq] = b"before %d" % number
        # The file must exist and be locked, so that the next owner meets the lock.
        assert len([message async for message in stream.get_all()]) == 20
        owner = (await stream.head()).server
        stopped = pid_of(cluster, owner)
        os.kill(stopped, signal.SIGSTOP)
        try:
            for number in range(20):
                ack = await stream.append(b"during %d" % number)
                assert ack.seq not in acked, "a seq was given twice"
                acked[ack.seq] = b"during %d" % number
            assert (await stream.head()).server != owner
        finally:
            os.kill(stopped, signal.SIGCONT)
        await until(lambda: not _runs(stopped), "the fenced server has ended")
        ack = await stream.append(b"after")
        acked[ack.seq] = b"after"
        stored = {message.seq: message.value async for message in stream.get_all()}
        assert stored == acked
        assert store_file(tmp_path, "notes").name == "notes.stream.2.db"


DAMAGE: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "foreign": lambda path: _write(path, b"not a database at all, but a text\n" * 400),
    "of-another-store": lambda path: _write(
        path, store_file(path.parents[4], "whole").read_bytes()
    ),
    "bit-flipped": lambda path: _flip_a_bit(path, b"precious 7"),
}


async def test_a_damaged_store_is_refused_and_never_silently_empty(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (_, client):
        for name in (*DAMAGE, "whole"):
            stream = client.stream(name)
            await stream.append_many([b"precious %d" % number for number in range(50)])
    for damage, do in DAMAGE.items():
        do(store_file(tmp_path, damage))
    async with cluster_with_client(tmp_path) as (_, client):
        for damage in DAMAGE:
            stream = client.stream(damage)
            with pytest.raises(StoreDamagedError) as refused:
                async for _ in stream.get_all():
                    pass
            assert f"{damage!r} of tenant 'acme'" in str(refused.value)
            with pytest.raises(StoreDamagedError):
                await stream.append(b"more")
        whole = client.stream("whole")
        assert len([message async for message in whole.get_all()]) == 50
        assert (await whole.append(b"more")).seq == 51
    quarantined = {
        file.name.partition(".")[0]
        for folder in (tmp_path / "data" / "quarantine" / "acme").iterdir()
        for file in folder.iterdir()
        if (folder / "report.json").exists() and file.name.endswith(".stream.1.db")
    }
    assert quarantined == set(DAMAGE) - {"missing"}


async def test_files_that_somebody_left_among_those_of_servers_stop_nothing(tmp_path: Path) -> None:
    """What file managers, editors and NFS leave there: it kept every store from being opened."""

    def litter() -> None:
        for folder in (servers, servers / "s1", data / "stores", data / "stores" / "acme"):
            folder.mkdir(parents=True, exist_ok=True)
            for name in (".DS_Store", "00", "zz"):
                (folder / name).write_bytes(b"junk")

    data = tmp_path / "data"
    servers = data / "servers"
    async with cluster_with_client(tmp_path) as (_, client):
        await client.stream("before").append(b"1")
        litter()
        await client.stream("after").append(b"1")
    (data / "coordinator" / "state.db").unlink()
    async with cluster_with_client(tmp_path) as (_, client):
        for name in ("before", "after"):
            assert (await client.stream(name).append(b"2")).seq == 2


async def test_a_file_that_was_never_durable_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path) as (cluster, client):
        stream = client.stream("young")
        for number in range(30):
            await stream.append(b"value %d" % number)
        assert len([message async for message in stream.get_all()]) == 30
        owner = (await stream.head()).server
        pid = pid_of(cluster, owner)
        os.kill(pid, signal.SIGSTOP)
        # As a power cut would leave it: the log is synced, the file never was.
        path = store_file(tmp_path, "young")
        path.write_bytes(b"")
        wal = path.with_name(path.name + "-wal")
        wal.write_bytes(b"")
        os.kill(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGCONT)
        await until(lambda: not _runs(pid), "the server is gone")
        stored = [message.value async for message in stream.get_all()]
        assert stored == [b"value %d" % number for number in range(30)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _flip_a_bit(path: Path, near: bytes) -> None:
    content = bytearray(path.read_bytes())
    place = content.index(near)
    content[place + 2] ^= 0x10
    path.write_bytes(bytes(content))
