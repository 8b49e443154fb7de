"""What an import keeps: times, ttls, subjects, headers, large values, and configurations."""

from __future__ import annotations

import asyncio
import hashlib
import time
import zlib
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.client import LargeValue, Message, StoreConfig, connect
from holdfast.protocol.chain.hashing import ChainLink
from holdfast.protocol.changes import (
    CHANGE_CONFIGURE,
    CHANGE_DELETE_MESSAGES,
    CHANGE_PUT_CHUNK,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    NEVER_EXPIRES,
)
from holdfast.protocol.compression import compressed_always
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.spark.export import export as export_module
from holdfast.spark.export.export import export
from holdfast.spark.replay import Target, import_table
from holdfast.spark.replay_writing import ROW_COLUMNS, ChainBrokenError, write_rows
from tests.support import archive_world
from tests.support.bucket_world import BucketWorld, entry, kv, message, stream
from tests.support.chained_world import BLOCK, CHAIN, LEDGER
from tests.support.holdfast_up import RunningUp

ORDERS, TRIMMED, SETTINGS = stream("orders"), stream("trimmed"), kv("settings")
PLAIN = stream("plain")
HOUR_MS = 3_600_000
NOW_MS = time.time_ns() // 1_000_000
VALUE = bytes(range(256)) * 8000
LARGE = LargeValue(bytes(16), len(VALUE), hashlib.sha256(VALUE).digest(), zlib.crc32(VALUE))
LIMITS = {"max_messages": 7, "max_age_seconds": 86_400.0, "description": "of a shop"}


@pytest.fixture
def world(world: BucketWorld) -> BucketWorld:
    world.time = NOW_MS - 2 * HOUR_MS
    return world


async def held_by(cluster: RunningUp, tenant: str, name: str) -> list[Message]:
    async with connect(cluster.nats, tenant=tenant) as client:
        return [one async for one in client.stream(name).get_all()]


async def config_of(cluster: RunningUp, tenant: str, name: str) -> StoreConfig:
    async with connect(cluster.nats, tenant=tenant) as client:
        return await client.stream(name).config()


def test_an_import_keeps_times_ttls_subjects_large_values_and_configurations(
    spark: SparkSession, world: BucketWorld, cluster: RunningUp
) -> None:
    ends = NOW_MS + HOUR_MS
    world.change(ORDERS, [CHANGE_CONFIGURE, {"max_messages": 3}])
    world.change(ORDERS, message(1, b"one", {"user": "ada"}))
    world.change(ORDERS, [CHANGE_SET_MESSAGE, 2, b"two", None, None, ends, "orders.eu"])
    world.change(
        ORDERS,
        [CHANGE_SET_MESSAGE, 3, b"over", None, None, NOW_MS - 1000],
        [CHANGE_SET_MESSAGE, 4, b"stays", None, None, NEVER_EXPIRES],
        [CHANGE_PUT_CHUNK, LARGE.upload_id, 0, VALUE, LARGE.crc32],
        [CHANGE_SET_MESSAGE, 5, list(LARGE)],
    )
    world.change(ORDERS, message(6, b"gone"), message(7, b"last"))
    world.change(ORDERS, [CHANGE_DELETE_MESSAGES, [6]], [CHANGE_CONFIGURE, LIMITS])
    world.change(TRIMMED, *[message(seq, b"v%d" % seq) for seq in range(1, 4)])
    world.change(TRIMMED, [CHANGE_DELETE_MESSAGES, [1, 2]])
    world.change(SETTINGS, [CHANGE_CONFIGURE, {"history": 5}], entry("theme", b"dark"))
    world.change(SETTINGS, [CHANGE_SET_ENTRY, "over", b"x", None, NOW_MS - 1000])
    world.change(SETTINGS, [CHANGE_SET_ENTRY, "soon", b"y", None, ends])
    world.publish()
    report = export(spark, world.url, large_bytes=len(VALUE))
    table = default_table(world.url)
    # Nothing has changed but a message: the configuration is not exported again.
    world.change(TRIMMED, message(4, b"v4"))
    world.change(ORDERS, message(8, b"newest"))
    world.publish()
    assert export(spark, world.url, large_bytes=len(VALUE)).rows == 2
    # Messages and entries, also those that are over, deletions, and changes of configurations.
    assert report.rows == (6 + 1 + 2) + (3 + 0 + 0) + (3 + 0 + 1)

    target = Target(cluster.nats, tenant="kept")
    done = import_table(spark, table, target)
    assert (done.stores, done.rows) == (3, 6 + 2 + 2)
    found = asyncio.run(held_by(cluster, "kept", ORDERS.name))
    times = {seq: when for seq, when in world_times(world, ORDERS).items() if seq != 3}
    assert [(one.seq, one.time) for one in found] == sorted(times.items())
    assert [(one.subject, dict(one.headers)) for one in found[:2]] == [
        (None, {"user": "ada"}), ("orders.eu", {}),
    ]  # fmt: skip
    assert found[3].large is not None
    config = asyncio.run(config_of(cluster, "kept", ORDERS.name))
    assert config.to_wire() == LIMITS

    async def others() -> tuple[Any, ...]:
        async with connect(cluster.nats, tenant="kept") as client:
            body = await client.stream(ORDERS.name).get(5)
            trimmed = client.stream(TRIMMED.name)
            settings = client.kv(SETTINGS.name)
            keys = {one.key: one.time async for one in settings.get_all()}
            kept = await settings.config()
            head = await trimmed.head()
            assert body is not None
            return body.value, (head.first_seq, head.last_seq), keys, kept.history

    held_times = {row[0]: row[2] for row in entries_of(world, SETTINGS) if row[0] != "over"}
    assert max(held_times.values()) < NOW_MS - HOUR_MS
    assert asyncio.run(others()) == (VALUE, (3, 4), held_times, 5)
    again = import_table(spark, table, target)
    # Entries are set again; they have no place of their own.
    assert (again.rows, again.present) == (2, 8)
    assert asyncio.run(held_by(cluster, "kept", ORDERS.name)) == found

    unlike = Target(cluster.nats, tenant="plain", configure=False)
    import_table(spark, table, unlike, store=ORDERS.name)
    assert asyncio.run(config_of(cluster, "plain", ORDERS.name)).to_wire() == {}


def world_times(world: BucketWorld, store: Any) -> dict[int, int]:
    rows = world.held[store].file.messages(1, None, 1 << 62)
    return {row[0]: row[2] for row in rows}


def entries_of(world: BucketWorld, store: Any) -> list[Any]:
    return list(world.held[store].file.entries("", None, 1 << 62, with_values=True))


def rows_from(*rows: dict[str, Any]) -> pa.RecordBatch:
    plain = {
        "tenant": "acme", "kind": "stream", "store": "s", "seq": None, "key": None,
        "headers": None, "value": None, "subject": None, "time": None, "expires": None,
        "settings": None,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([{**plain, **row} for row in rows])


def test_a_stream_that_begins_at_a_great_seq_takes_no_fillers(cluster: RunningUp) -> None:
    far = 1_000_000_000_000
    rows = [
        {"settings": b'{"chain": true, "sealed": true, "of the future": 1}'},
        {"seq": far, "value": b"first", "time": NOW_MS - 5000},
        {"seq": far + 3, "value": b"second", "time": NOW_MS - 4000},
    ]
    target = Target(cluster.nats, tenant="far")
    for written, present in ((2, 0), (0, 2)):
        [result] = write_rows(target, [rows_from(*rows)])
        [counts] = result.to_pylist()
        assert (counts["written"], counts["present"]) == (written, present)
    found = asyncio.run(held_by(cluster, "far", "s"))
    assert [(one.seq, one.value, one.time) for one in found] == [
        (far, b"first", NOW_MS - 5000), (far + 3, b"second", NOW_MS - 4000),
    ]  # fmt: skip
    config = asyncio.run(config_of(cluster, "far", "s"))
    assert (config.first_seq, config.chain, config.sealed) == (far, True, True)


def test_a_seq_that_is_there_twice_is_refused_unless_seqs_are_new(cluster: RunningUp) -> None:
    rows = [{"seq": seq, "value": value} for seq, value in ((2, b"a"), (2, b"b"), (3, b"c"))]
    with pytest.raises(InvalidArgumentError, match="seq 2 of s is there twice"):
        list(write_rows(Target(cluster.nats, tenant="twice"), [rows_from(*rows)]))
    assert [one.seq for one in asyncio.run(held_by(cluster, "twice", "s"))] in ([], [2])
    target = Target(cluster.nats, tenant="once", renumber=True)
    list(write_rows(target, [rows_from(*rows)]))
    found = asyncio.run(held_by(cluster, "once", "s"))
    assert [(one.seq, one.value) for one in found] == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_the_chain_of_a_kv_covers_what_is_imported(cluster: RunningUp) -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "kv", "settings": b'{"chain": true, "history": 5}'},
        *({"kind": "kv", "key": key, "value": b"v"} for key in ("a", "b")),
    ]
    list(write_rows(Target(cluster.nats, tenant="chained"), [rows_from(*rows)]))

    async def covered() -> tuple[int, StoreConfig]:
        async with connect(cluster.nats, tenant="chained") as client:
            settings = client.kv("s")
            report = await settings.verify_chain([])
            return report.last_seq - report.base_seq, await settings.config()

    count, config = asyncio.run(covered())
    assert (count, config.chain, config.history) == (2, True, 5)


def test_a_time_of_a_clock_that_is_ahead_becomes_that_of_the_append(cluster: RunningUp) -> None:
    ahead = {"seq": 1, "value": b"ahead", "time": NOW_MS + HOUR_MS}
    list(write_rows(Target(cluster.nats, tenant="ahead"), [rows_from(ahead)]))
    [found] = asyncio.run(held_by(cluster, "ahead", "s"))
    assert NOW_MS <= found.time < NOW_MS + HOUR_MS


def test_entries_keep_their_times_and_those_that_nobody_could_have_had_become_that_of_the_write(
    cluster: RunningUp,
) -> None:
    past = NOW_MS - HOUR_MS
    given = {"a": past, "b": past + 1, "ahead": NOW_MS + HOUR_MS, "zero": 0, "before": -5}
    rows = [
        {"kind": "kv", "key": key, "value": b"v", "time": time_ms, "headers": {"user": "ada"}}
        for key, time_ms in given.items()
    ]
    # Of any size.
    rows.append({"kind": "kv", "key": "large", "value": VALUE, "time": past})
    [result] = write_rows(Target(cluster.nats, tenant="timed"), [rows_from(*rows)])
    assert result.to_pylist()[0]["written"] == len(rows)

    async def held() -> dict[str, tuple[int, bytes, Any]]:
        async with connect(cluster.nats, tenant="timed") as client:
            entries = client.kv("s")
            found = {}
            for key in (*given, "large"):
                entry = await entries.get(key)
                assert entry is not None
                found[key] = (entry.time, entry.value, dict(entry.headers))
            return found

    found = asyncio.run(held())
    assert found["a"] == (past, b"v", {"user": "ada"})
    assert found["b"][0] == past + 1
    assert found["large"] == (past, VALUE, {})
    for key in ("ahead", "zero", "before"):
        assert NOW_MS <= found[key][0] < NOW_MS + HOUR_MS


def test_a_stream_that_lost_nothing_keeps_its_chain_and_a_changed_row_is_refused(
    world: BucketWorld, cluster: RunningUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: Any = None
    monkeypatch.setattr(export_module, "run_job", archive_world.run_here)
    monkeypatch.setattr(export_module, "parallelism", lambda _: 1)
    packed, marked = compressed_always(b"compressed " * 300, {"user": "eve"})
    world.change(LEDGER, CHAIN)
    for form in (
        [b"plain", {"salt": "1"}],
        [b"compressible but stored as it is " * 100],
        [packed, marked],
        [b"block", BLOCK, None, None, "orders.eu"],
        [b"a map beside a subject", {"a": "b"}, None, None, "orders.us"],
    ):
        world.change(LEDGER, [CHANGE_SET_MESSAGE, world.held[LEDGER].revision, *form])
    world.change(PLAIN, CHAIN, *[message(seq, b"v%d" % seq) for seq in range(1, 4)])
    world.change(PLAIN, [CHANGE_DELETE_MESSAGES, [2]])
    world.publish()
    assert export_module.export(nothing, world.url).damaged == []
    table = DeltaTable(TableLocation(default_table(world.url)).uri).to_pyarrow_table()
    rows = [row for row in table.to_pylist() if row["operation"] == "set"]
    rows.sort(key=lambda row: (row["store"], row["seq"]))

    def imported(tenant: str, rows: list[dict[str, Any]]) -> list[bool | None]:
        settings = {"settings": b'{"chain": true}', "kind": "stream", "tenant": "acme"}
        stores = dict.fromkeys(row["store"] for row in rows)
        ordered = [
            row
            for store in stores
            for row in ({**settings, "store": store}, *(r for r in rows if r["store"] == store))
        ]
        known = [name for name in ROW_COLUMNS if name in table.column_names]
        fields = [pa.field("settings", pa.binary()), *map(table.schema.field, known)]
        schema = pa.schema([each.with_nullable(True) for each in fields])
        batch = pa.RecordBatch.from_pylist(ordered, schema)
        results = list(write_rows(Target(cluster.nats, tenant=tenant), [batch]))
        return [each.to_pylist()[0]["keeps_chain"] for each in results]

    present = [row for row in rows if (row["store"], row["seq"]) != (PLAIN.name, 2)]
    assert imported("proved", present) == [True, False]
    # Again: nothing is written twice, and the chain is still the same.
    assert imported("proved", present) == [True, False]

    async def acks_hold() -> bool:
        async with connect(cluster.nats, tenant="proved") as client:
            of_ledger = [row for row in rows if row["store"] == LEDGER.name]
            kept = [ChainLink(row["seq"], row["chain"]) for row in of_ledger]
            return (await client.stream(LEDGER.name).verify_chain(kept)).is_sound

    assert asyncio.run(acks_hold())
    changed = [{**row, "value": b"Plain"} if row["value"] == b"plain" else row for row in present]
    with pytest.raises(ChainBrokenError, match="seq 1 of 'ledger' of tenant 'acme'"):
        imported("broken", changed)
