"""The stream library among processes: killed, opened twice, and a folder that a cluster takes over
or has left behind."""

from __future__ import annotations

import contextlib
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import connect
from holdfast.protocol.errors import AlreadyRunningError
from holdfast.stream_library.errors import TakenOverError
from holdfast.stream_library.library import open_library
from tests.support.cluster import running_processes
from tests.support.effort import EFFORT, tries
from tests.support.process import Process
from tests.support.stream_library_process import BATCH, STREAMS, batch

TENANT = "acme"


@contextlib.contextmanager
def appending(folder: Path, *bucket: str) -> Iterator[Process]:
    log = folder.with_name(f"library-{len(list(folder.parent.glob('library-*')))}.log")
    with Process("tests.support.stream_library_process", [str(folder), *bucket], log) as process:
        yield process


def acknowledged(process: Process) -> dict[str, list[tuple[int, int]]]:
    """Return what a process was told: by stream, number and base offset in the order of futures."""
    told = defaultdict(list)
    for line in process.log.splitlines(keepends=True):
        words = line.split()
        if len(words) == 3 and words[0] in STREAMS and line.endswith("\n"):
            told[words[0]].append((int(words[1]), int(words[2])))
    return told


@pytest.mark.parametrize("with_bucket", tries([True], [True], [False, True]))
def test_a_killed_process_leaves_every_acknowledged_batch_in_order(
    tmp_path: Path, with_bucket: bool
) -> None:
    folder = tmp_path / "data"
    bucket = [(tmp_path / "bucket").as_uri()] if with_bucket else []
    offsets = dict.fromkeys(STREAMS, 1)
    for _ in range(tries(1, 1, 4)):
        with appending(folder, *bucket) as process:
            process.wait_for_log("b 40 ")
            process.kill()
        told = acknowledged(process)
        with open_library(folder, bucket=bucket[0] if bucket else None) as library:
            for name in STREAMS:
                # The futures completed in order, and every batch came behind the one before it.
                expected = [(n, offsets[name] + BATCH * n) for n in range(len(told[name]))]
                assert told[name] == expected
                stream = library.stream(name, create=False)
                end = stream.confirm_offset
                fetched = stream.fetch(offsets[name], end, 1 << 30).result()
                found = [record.value for record in fetched.records]
                whole = [value for n in range(len(found) // BATCH) for value in batch(n)]
                # All of it, no batch in part, and beyond what was told only what was under way.
                assert found == whole and len(found) >= BATCH * len(told[name])
                offsets[name] = end


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with appending(folder) as process:
        process.wait_for_log("b 1 ")
        with pytest.raises(AlreadyRunningError) as caught:
            open_library(folder)
        assert "a cluster or a stream library is already running here" in str(caught.value)
        assert str(folder / "coordinator" / "lock") in str(caught.value)
        with appending(folder) as second:
            assert second.wait() == 1
            assert "refused AlreadyRunningError" in second.log
        # The first one does not mind.
        last = acknowledged(process)["b"][-1][0]
        process.wait_for_log(f"b {last + 5} ")
        process.kill()




def stop(*parts: Process) -> None:
    for part in parts:
        part.signal(signal.SIGTERM)
        assert part.wait() == 0


async def test_a_folder_goes_from_a_library_to_a_cluster_and_back(tmp_path: Path) -> None:
    bucket = (tmp_path / "bucket").as_uri()
    with open_library(tmp_path / "data", tenant=TENANT, bucket=bucket) as library:
        events = library.stream("events")
        events.append([b"%d" % n for n in range(1, 101)]).result()
        events.append([(b"101", {"user": "ada"})]).result()
        events.trim(11).result()
        library.stream("gone").append([b"x"]).result()
        library.stream("gone").destroy()
    with running_processes(tmp_path) as processes:
        server = processes.start_persist("s1", "--bucket", bucket)
        async with connect(processes.nats.url, tenant=TENANT) as client:
            stream = client.stream("events")
            found = [message async for message in stream.get_all()]
            assert [message.seq for message in found] == list(range(11, 102))
            assert [message.value for message in found] == [b"%d" % n for n in range(11, 102)]
            assert found[-1].headers == {"user": "ada"}
            assert (await client.stream("gone").head()).last_seq == 0
            assert (await stream.append(b"102")).seq == 102
            # What only clients write, the library reads.
            await stream.append(b"c" * 5000, headers={"is": "compressed"})
            await stream.append(b"large" * 400_000)
            await stream.delete(50)
            await client.kv("settings").set("theme", b"dark")
            # While the cluster runs, the folder is its own.
            with pytest.raises(AlreadyRunningError, match="a cluster or a stream library"):
                open_library(tmp_path / "data", tenant=TENANT)
            stop(processes.coordinator)
            with pytest.raises(AlreadyRunningError, match="server 's1'"):
                open_library(tmp_path / "data", tenant=TENANT)
        server.kill()
        with open_library(tmp_path / "data", tenant=TENANT, bucket=bucket) as library:
            events = library.stream("events", create=False)
            assert (events.start_offset, events.confirm_offset) == (11, 105)
            records = events.fetch(11, 105, 1 << 30).result().records
            assert [record.offset for record in records] == [
                offset for offset in range(11, 105) if offset != 50
            ]
            assert records[-3].value == b"102"
            assert records[-2][1:3] == (b"c" * 5000, {"is": "compressed"})
            assert records[-1].value == b"large" * 400_000
            assert events.append([b"105"]).result().base_offset == 105
        coordinator = processes.start("coordinator", "coordinator")
        server = processes.start_persist("s1", "--bucket", bucket)
        async with connect(processes.nats.url, tenant=TENANT) as client:
            message = await client.stream("events").get(105)
            assert message is not None and message.value == b"105"
            assert (await client.stream("events").append(b"106")).seq == 106
            entry = await client.kv("settings").get("theme")
            assert entry is not None and entry.value == b"dark"
        stop(server, coordinator)


# A standby waits for 12 s. `test_stream_library.py` does what it does then.
@pytest.mark.skipif(EFFORT != "thorough", reason="a standby is patient")
async def test_a_cluster_that_takes_over_fences_the_library_out(tmp_path: Path) -> None:
    library = open_library(tmp_path / "data", tenant=TENANT)
    events = library.stream("events")
    events.append([b"one"]).result()
    with running_processes(tmp_path) as processes:
        # A coordinator that was not told to stand by does not start beside it.
        assert processes.coordinator.wait() == 1
        assert "already running" in processes.coordinator.log
        assert events.append([b"two"]).result().base_offset == 2
        standby = processes.start("coordinator", "coordinator", "--standby")
        server = processes.start_persist("s1")
        standby.wait_for_log("coordinator.started")
        with pytest.raises(TakenOverError, match="fenced"):
            events.append([b"three"]).result()
        library.close()
        async with connect(processes.nats.url, tenant=TENANT) as client:
            found = [message.value async for message in client.stream("events").get_all()]
            assert found[:2] == [b"one", b"two"] and found[2:] in ([], [b"three"])
            await client.stream("events").append(b"next")
        stop(server, standby)
