"""Measures rows into and out of one store file, compared with SQLite's own rate.

Each function does one round in an empty folder, reads back what it wrote, and returns its figures.
Rows are written as a server writes them: in transactions of as many changes as it lets a busy store
gather, without a sync for each, because the log has made them durable before. `durable_per_second`
includes the checkpoint. The comparisons with SQLite have the same page size, checksums and pragmas.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.bench.harness import Figures, timed
from holdfast.bench.load import value_of
from holdfast.bench.read_back import Checker, ReadBackRow
from holdfast.bench.store.engine_files import (
    BATCH_CHANGES,
    TIME_MS,
    batches,
    message_batches,
    new_file,
)
from holdfast.persist.store.store import Store
from holdfast.protocol.changes import CHANGE_SET_ENTRY
from holdfast.protocol.limits import PAGE_ROWS
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.sqlite_connection import checksum_vfs
from holdfast.shared_fs.store_file.store_file import StoreFile

_STREAM: Final = StoreId("bench", StoreKind.STREAM, "engine.stream")
_KV: Final = StoreId("bench", StoreKind.KV, "engine.kv")
#: Far more keys than one batch, so that overwriting one key twice in a transaction saves little.
_KEYS: Final = 16 * BATCH_CHANGES


# Appending


def append_to_file(folder: Path, count: int) -> Figures:
    made = message_batches(count)
    with closing(new_file(folder, _STREAM)) as file:
        began_at = time.perf_counter()
        for batch in made:
            file.apply([batch])
        return _written(file, count, began_at)


def append_to_store(folder: Path, count: int) -> Figures:
    store = Store(_STREAM, 1, None, lambda _: new_file(folder, _STREAM))
    made = message_batches(count)
    began_at = time.perf_counter()
    for tick, batch in enumerate(made, start=1):
        store.begin()
        store.time = TIME_MS
        for change in batch.changes:
            store.set_message(change[1], len(change[2]), change)
        store.finish_tick(tick, 1)
        store.materialise(tick)
    assert store.file is not None
    with closing(store.file) as file:
        return _written(file, count, began_at)


def append_to_sqlite(folder: Path, count: int) -> Figures:
    rows = [(seq, seq, TIME_MS, value_of(seq), None) for seq in range(1, count + 1)]
    return _executemany(folder, schema.CREATE_STREAM, schema.INSERT_MESSAGE, rows)


def _written(file: StoreFile, count: int, began_at: float) -> Figures:
    """Make `count` messages that were written since `began_at` durable, read them back, and return
    the figures."""
    seconds = time.perf_counter() - began_at
    file.checkpoint()
    durable_seconds = time.perf_counter() - began_at
    checker = Checker("store file", "append")
    checker.count("the meta row", count, file.meta.count)
    expected = {seq: value_of(seq) for seq in range(1, count + 1)}
    checker.messages(expected, (ReadBackRow(row[0], row[3]) for row in _pages(file)))
    return {**timed(count, seconds), "durable_per_second": count / durable_seconds}


# Scanning


def scan_file(folder: Path, count: int) -> Figures:
    with closing(new_file(folder, _STREAM)) as file:
        for batch in message_batches(count):
            file.apply([batch])
        file.checkpoint()
        began_at = time.perf_counter()
        found = 0
        while page := list(file.messages(found + 1, None, PAGE_ROWS)):
            found += len(page)
            assert page[-1][0] == found, f"row {found} has seq {page[-1][0]}"
        seconds = time.perf_counter() - began_at
    Checker("store file", "scan").count("the stream", count, found)
    return timed(count, seconds)


def scan_sqlite(folder: Path, count: int) -> Figures:
    rows = ((seq, seq, TIME_MS, value_of(seq), None) for seq in range(1, count + 1))
    with closing(_new_database(folder, schema.CREATE_STREAM)) as connection:
        with connection:
            connection.executemany(schema.INSERT_MESSAGE, rows)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        began_at = time.perf_counter()
        found = sum(1 for _ in connection.execute(schema.SELECT_MESSAGES, (1, 1 << 62, -1)))
        seconds = time.perf_counter() - began_at
    Checker("sqlite", "scan").count("the table", count, found)
    return timed(count, seconds)


# Overwriting keys


def set_in_file(folder: Path, count: int) -> Figures:
    made = _entry_batches(count)
    with closing(new_file(folder, _KV)) as file:
        began_at = time.perf_counter()
        for batch in made:
            file.apply([batch])
        return _overwritten(file, count, began_at)


def set_in_store(folder: Path, count: int) -> Figures:
    store = Store(_KV, 1, None, lambda _: new_file(folder, _KV))
    made = _entry_batches(count)
    began_at = time.perf_counter()
    for tick, batch in enumerate(made, start=1):
        store.begin()
        store.time = TIME_MS
        for change in batch.changes:
            store.set_entry(change[1], len(change[1]) + len(change[2]), change)
        store.finish_tick(tick, 1)
        store.materialise(tick)
    assert store.file is not None
    with closing(store.file) as file:
        return _overwritten(file, count, began_at)


def set_in_sqlite(folder: Path, count: int) -> Figures:
    rows = [
        (number, _key(number), TIME_MS, value_of(number), None) for number in range(1, count + 1)
    ]
    statement = schema.INSERT_ENTRY.replace("INSERT", "INSERT OR REPLACE")
    return _executemany(folder, schema.CREATE_KV, statement, rows)


def _overwritten(file: StoreFile, count: int, began_at: float) -> Figures:
    seconds = time.perf_counter() - began_at
    file.checkpoint()
    durable_seconds = time.perf_counter() - began_at
    last = {_key(number): value_of(number) for number in range(1, count + 1)}
    rows = file.entries("", None, len(last) + 1, with_values=True)
    Checker("store file", "kv_set").entries(last, {row[0]: row[3] for row in rows})
    return {**timed(count, seconds), "durable_per_second": count / durable_seconds}


# Shared parts


def _key(number: int) -> str:
    # Keys that are set one after the other are far apart in the index.
    return f"key-{number * 7919 % _KEYS:06}"


def _entry_batches(count: int) -> list[AppliedBatch]:
    return batches(
        [
            [CHANGE_SET_ENTRY, _key(number), value_of(number)]
            for number in range(1, count + 1)
        ]
    )


def _pages(file: StoreFile) -> Iterator[tuple[Any, ...]]:
    next_seq = 1
    while page := list(file.messages(next_seq, None, PAGE_ROWS)):
        yield from page
        next_seq = page[-1][0] + 1


def _new_database(folder: Path, tables: str) -> apsw.Connection:
    """Return a database with the settings of a store file, made by SQLite alone."""
    connection = apsw.Connection(str(folder / "yardstick.db"), vfs=checksum_vfs())
    connection.pragma("locking_mode", "exclusive")
    connection.pragma("synchronous", "off")
    connection.pragma("page_size", schema.PAGE_BYTES)
    connection.reserve_bytes("main", schema.CHECKSUM_BYTES)
    connection.pragma("journal_mode", "wal")
    connection.pragma("wal_autocheckpoint", 0)
    connection.execute(tables).fetchall()
    return connection


def _executemany(
    folder: Path, tables: str, statement: str, rows: Sequence[tuple[Any, ...]]
) -> Figures:
    with closing(_new_database(folder, tables)) as connection:
        began_at = time.perf_counter()
        for start in range(0, len(rows), BATCH_CHANGES):
            with connection:
                connection.executemany(statement, rows[start : start + BATCH_CHANGES])
        seconds = time.perf_counter() - began_at
        connection.pragma("synchronous", "full")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        durable_seconds = time.perf_counter() - began_at
    return {**timed(len(rows), seconds), "durable_per_second": len(rows) / durable_seconds}
