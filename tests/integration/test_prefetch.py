"""A reader of a stream that has left the memory of the host, with real processes."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.protocol.limits import KIB, PREFETCHED_STORE_BYTES
from holdfast.protocol.monitoring import metrics
from tests.support.cluster_in_loop import cluster_with_client, store_file
from tests.support.waiting import eventually

_VALUE_BYTES = 32 * KIB
_COUNT = 8 * PREFETCHED_STORE_BYTES // _VALUE_BYTES

#: In a process of its own: to open and close a file drops the locks that a process has on it. A
#: file has left memory once all but a twentieth of it has, and stays away: what the server still
#: reads of a file that it has just opened comes back, and a reader of what is in memory needs
#: nobody to read ahead.
_LET_GO = """
import ctypes, mmap, os, sys, time
descriptor = os.open(sys.argv[1], os.O_RDONLY)
os.fsync(descriptor)
size = os.fstat(descriptor).st_size
view = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
address = ctypes.addressof(ctypes.c_char.from_buffer(view))
held = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()

def has_left():
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), held) != 0:
        os._exit(1)
    return sum(each & 1 for each in held) * 20 <= len(held)

for _ in range(100):
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if has_left():
        time.sleep(0.2)
        if has_left():
            os._exit(0)
    time.sleep(0.1)
os._exit(1)
"""


_READ = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0).execute("SELECT 1 FROM meta")
"""


async def run(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program on a file, in a process of its own."""
    command = [sys.executable, "-c", program, str(path)]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )


def value(seq: int) -> bytes:
    # Not to be compressed.
    return random.Random(seq).randbytes(_VALUE_BYTES)


async def counted(client: Client, name: str) -> float:
    """Return one metric of the only server."""
    [found] = [
        sample.value
        for part in await client.statistics()
        for sample in part.samples
        if sample.name == name
    ]
    assert isinstance(found, int | float)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is in memory")
async def test_a_backfill_of_what_left_memory_is_read_ahead_and_right(tmp_path: Path) -> None:
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        stream = client.stream("a")
        for start in range(1, _COUNT + 1, 16):
            await stream.append_many([value(seq) for seq in range(start, start + 16)])
    path = store_file(tmp_path, "a")
    async with cluster_with_client(tmp_path, servers=1) as (_, client):
        stream = client.stream("a")
        assert (await stream.head()).last_seq == _COUNT
        if (await run(_LET_GO, path)).returncode:
            pytest.skip("this file system keeps files in memory")
        seqs = []
        async for message in stream.get_all():
            assert message.value == value(message.seq)
            seqs.append(message.seq)
        assert seqs == list(range(1, _COUNT + 1))
        size_bytes = path.stat().st_size

        async def is_told() -> bool:
            return await counted(client, metrics.PREFETCHED.name) > size_bytes // 2

        await eventually(is_told, "most of the file was read ahead")
        assert await counted(client, metrics.PREFETCH_MISSES.name) >= 1
        # Its lock is as it was: nobody else may have the file.
        assert "database is locked" in (await run(_READ, path)).stderr
