"""The archive, end to end: what left the hot file is read back, in order, once, or its loss is
told."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from holdfast.cli.doctor import checks
from holdfast.cli.doctor.examination import Examination
from holdfast.client import Stream, connect
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.errors import ArchiveMissingError, OperationTimeoutError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.messages import ChangeKind
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.inspection.verification import Verifier
from holdfast.shared_fs.snapshots.existing_bucket import existing_bucket
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.spark.export.export import ExportReport
from holdfast.spark.state import state_sql
from tests.support.archive_world import compacted, exported
from tests.support.cluster import DEADLINE_SECONDS, SUBJECTS, TENANT, Processes, running_processes
from tests.support.process import Process
from tests.support.waiting import until

NOTES = StoreId(TENANT, StoreKind.STREAM, "notes")
Rows = dict[int, tuple[bytes, dict[str, str]]]


class World:
    def __init__(self, processes: Processes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes = processes
        self.url = f"file://{folder / 'bucket'}"
        self.table = default_table(self.url)
        self.manifests = Manifests(open_bucket(self.url))
        self.folder = folder
        self._monkeypatch = monkeypatch

    def start(self, name: str, kill_at: int = 0, *more: str) -> Process:
        self._monkeypatch.setenv("KILL_AT", str(kill_at))
        options = ["--snapshot-seconds", "0.1", "--idle-close-seconds", "3600"]
        return self.processes.start_persist(
            name, "--bucket", self.url, *options, *more, module="tests.support.eager_server"
        )

    def archived_count(self) -> int:
        """Return how many messages the servers say they have moved."""
        logs = "".join(log.read_text() for log in self.folder.glob("s*.log"))
        return sum(map(int, re.findall(r"store.archived .* messages=(\d+)", logs)))

    def hot_seqs(self) -> list[int]:
        """Return which messages have their values in the file of the store, which is closed."""
        folder = self.processes.layout.store(NOTES).parent
        newest = max(folder.glob("*notes*"))
        with sqlite3.connect(f"file:{newest}?immutable=1", uri=True) as connection:
            return [row[0] for row in connection.execute("SELECT seq FROM messages ORDER BY seq")]

    async def snapshotted(self, revision: int) -> None:
        def is_there() -> bool:
            entry = self.manifests.find(NOTES)
            return (
                entry is not None
                and entry.newest is not None
                and (entry.newest.revision >= revision)
            )

        await until(is_there, f"the bucket has revision {revision}")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with running_processes(tmp_path) as processes:
        yield World(processes, tmp_path, monkeypatch)


def run(world: World, body: Callable[[Stream], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_SECONDS * 3),
            connect(world.processes.nats.url, tenant=TENANT) as client,
        ):
            await body(client.stream("notes"))

    try:
        asyncio.run(main())
    except BaseException:
        for log in sorted(world.folder.glob("s*.log")):
            print(log.name, log.read_text()[-3000:])
        raise


def within(rows: Rows, start_seq: int, end_seq: int) -> Rows:
    return {seq: row for seq, row in rows.items() if start_seq <= seq <= end_seq}


async def rows_of(stream: Stream, **options: Any) -> Rows:
    rows: Rows = {}
    async for message in stream.get_all(**options):
        assert message.seq > max(rows, default=0), "in order, once"
        rows[message.seq] = message.value, dict(message.headers)
    return rows


async def export_all(
    world: World, server: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> ExportReport:
    """Have the open stream snapshotted, and export the bucket."""
    bus = await connect_nats(world.processes.nats.url, name="test-operator")
    try:
        command = encode_control(command="snapshot", stores=[list(NOTES)])
        decode_control(await bus.request(SUBJECTS.control(server), command, 5.0))
    finally:
        await bus.close()
    await world.snapshotted((await stream.head()).revision)
    return await asyncio.to_thread(exported, monkeypatch, world.url)


def state_of(world: World) -> Rows:
    """Return what the table says that the stream holds."""
    location = TableLocation(world.table)
    changes = DeltaTable(location.uri).to_pyarrow_dataset()  # noqa: F841 (DuckDB finds it by name)
    found = duckdb.sql(state_sql("changes", columns=("seq", "value", "headers"))).fetchall()
    return {seq: (bytes(value), dict(headers or {})) for seq, value, headers in sorted(found)}


async def fill(stream: Stream, count: int, expected: Rows) -> None:
    # Once the owner is known, long values are compressed.
    last_seq = (await stream.head()).last_seq
    for seq in range(last_seq + 1, last_seq + count + 1):
        headers = {"number": str(seq)} if seq % 3 == 0 else {}
        expected[seq] = b"%d " % seq * (900 if seq % 5 == 0 else seq % 7 + 1), headers
    await stream.append_many(
        [(expected[seq][0], expected[seq][1]) for seq in range(last_seq + 1, max(expected) + 1)]
    )


async def followed(stream: Stream, last_seq: int) -> list[int]:
    """Return the seqs that a subscription from the beginning gives, up to the last one."""
    seqs = []
    async with stream.subscribe(start_seq=1) as changes:
        async for change in changes:
            assert change.kind is ChangeKind.SET
            assert change.message is not None
            seqs.append(change.message.seq)
            if seqs[-1] == last_seq:
                break
    return seqs


def judged(world: World, archive: str, doctor_finds: str = "") -> None:
    """Check what `holdfast verify` and `holdfast doctor` say of the archive."""
    layout = world.processes.layout
    for verifier in (
        Verifier(layout, existing_bucket(world.url)),
        Verifier(None, existing_bucket(world.url)),
    ):
        verdict = verifier.verify(NOTES)
        assert verdict.archive == archive, verdict
        assert verdict.archived > 90
        assert bool(verdict.problems) == (archive == "damaged")
    assert Verifier(layout, None).verify(NOTES).archive == "unchecked"

    without = Examination(layout.root, deep=True)
    without.run()
    assert "--bucket" in without.findings.results[checks.ARCHIVE.code].skipped
    examination = Examination(layout.root, deep=True, bucket=world.url)
    examination.run()
    result = examination.findings.results[checks.ARCHIVE.code]
    assert result.outcome == ("critical" if doctor_finds else "ok")
    assert doctor_finds in " ".join(one.what for one in result.examples)


def flip_a_value(path: Path) -> None:
    """Flip a bit amid the values of a file."""
    metadata = pq.ParquetFile(path).metadata
    [group] = [metadata.row_group(0)]
    [values] = [
        group.column(index)
        for index in range(group.num_columns)
        if group.column(index).path_in_schema == "value"
    ]
    content = bytearray(path.read_bytes())
    content[values.data_page_offset + values.total_compressed_size // 2] ^= 4
    path.write_bytes(content)


def test_what_left_the_hot_file_is_read_back_in_order_once_until_the_table_has_lost_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(stream: Stream) -> None:
        first = world.start("s1")
        expected: Rows = {}
        await fill(stream, 100, expected)
        await stream.set(7, b"set again")
        expected[7] = b"set again", {}
        await stream.configure(archive_after_seconds=0.05)
        assert world.archived_count() == 0
        assert (await export_all(world, "s1", stream, monkeypatch)).archived == 1
        await until(lambda: world.archived_count() == 99, "all but the replaced one are archived")
        before = await stream.head()
        assert (before.count, before.first_seq, before.last_seq) == (100, 1, 100)
        assert before.bytes < 10_000 < sum(len(value) for value, _ in expected.values())
        await fill(stream, 20, expected)
        assert await rows_of(stream) == expected
        assert await rows_of(stream, start_seq=95, end_seq=104) == within(expected, 95, 104)
        assert await rows_of(stream, last=30) == within(expected, 91, 120)
        assert await followed(stream, 120) == list(expected)
        for seq in (1, 7, 100, 101):
            message = await stream.get(seq)
            assert message is not None
            assert (message.value, dict(message.headers)) == expected[seq]

        await stream.delete([10, 50, 110])
        await stream.set(20, b"back in the file")
        await stream.delete_all(end_seq=3)
        expected[20] = b"back in the file", {}
        for seq in (1, 2, 3, 10, 50, 110):
            del expected[seq]
            assert await stream.get(seq) is None
        assert await rows_of(stream) == expected
        head = await stream.head()
        assert (head.count, head.first_seq) == (len(expected), 4)

        await export_all(world, "s1", stream, monkeypatch)
        assert state_of(world) == expected
        await until(lambda: world.archived_count() > 99, "the next ones are archived too")
        # Readers have open what is merged and removed now.
        merged = await asyncio.to_thread(compacted, monkeypatch, world.table)
        assert merged.merged_files > 1
        assert await rows_of(stream) == expected

        first.kill()
        second = world.start("s2")
        assert await rows_of(stream) == expected
        assert await followed(stream, 120) == list(expected)
        await fill(stream, 1, expected)
        second.terminate()
        assert await asyncio.to_thread(second.wait) == 0
        assert world.hot_seqs() == [7, 20, 121]

        judged(world, "sound")
        files = sorted(TableLocation(world.table).folder.rglob("*.parquet"))
        flip_a_value(files[0])
        judged(world, "damaged", doctor_finds="are not in the archive")
        for path in files:
            path.unlink()
        judged(world, "damaged", doctor_finds="is gone")
        world.start("s3")
        for ask in (lambda: stream.get(100), lambda: rows_of(stream)):
            with pytest.raises(ArchiveMissingError) as caught:
                await ask()
            assert caught.value.table == TableLocation(world.table).uri
        assert await rows_of(stream, start_seq=121) == within(expected, 121, 121)

    run(world, body)


def test_a_server_that_is_killed_while_it_archives_has_lost_nothing_and_doubled_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(stream: Stream) -> None:
        first = world.start("s1", kill_at=2)
        expected: Rows = {}
        await fill(stream, 60, expected)
        await export_all(world, "s1", stream, monkeypatch)
        with contextlib.suppress(OperationTimeoutError):
            await stream.configure(archive_after_seconds=0.05)
        assert await asyncio.to_thread(first.wait) == -signal.SIGKILL
        second = world.start("s2")
        assert await rows_of(stream) == expected
        # Sixty messages, the configuration, four blocks: of the log, or of the next owner.
        while (await stream.head()).revision < 65:
            await asyncio.sleep(0.05)
        assert await rows_of(stream) == expected
        second.terminate()
        assert await asyncio.to_thread(second.wait) == 0
        assert world.hot_seqs() == []

    run(world, body)
