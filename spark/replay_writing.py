"""The executor's side of an import: writes rows, which come grouped by store, into stores.

A stream is written in the order of its seqs, each write on condition of the last seq, so a repeated
task goes on where the last one has ended. Messages get the times that their rows have, and live as
long as they would have. A gap between seqs is filled with empty messages, which the same batch
removes; a stream that begins later begins with the setting `first_seq` instead. Entries of a kv
come in the order of their times, in which a maximum age removes them.
"""

from __future__ import annotations

import json
import time as clock
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa

from holdfast.client import Client, WrittenEntry, WrittenMessage, connect
from holdfast.client.wire.operations import append_operation, written_fields
from holdfast.protocol.bus.login import NatsLogin
from holdfast.protocol.compression import ENCODING_HEADER, ZSTD
from holdfast.protocol.errors import InvalidArgumentError, RequestError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import KIB, MAX_FRAME_OPERATIONS
from holdfast.protocol.messages import Headers
from holdfast.protocol.names import StoreKind
from holdfast.protocol.store_config import OF_KVS, OF_STREAMS, StoreConfig
from holdfast.protocol.subject_filters import is_literal
from holdfast.protocol.subjects import DEFAULT_PREFIX
from holdfast.shared_fs.archive import table_chain
from holdfast.shared_fs.archive.table_chain import leaf_of_row
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_HEADER
from holdfast.spark.event_loop import EventLoop, running_loop
from holdfast.spark.rows.batches import NEVER_MS

#: The columns of rows. A row with `settings` is the configuration of its store and nothing else; it
#: comes before the others of the store.
ROW_COLUMNS: Final = (
    *("tenant", "kind", "store", "seq", "key", "headers", "value", "subject"),
    *("time", "expires", "settings"),
    *("revision", "large_bytes", "large_sha256"),
    *table_chain.COLUMNS,
)
RESULT: Final = (
    "tenant string, kind string, store string, written bigint, present bigint, bytes bigint,"
    " keeps_chain boolean"
)
_TIMES: Final = frozenset(["time", "expires"])
#: Bytes of the values in one write, which must fit into a frame.
_BATCH_BYTES: Final = 512 * KIB
#: How many messages fill a gap at a time.
_FILL: Final = 1000
#: Of what ends while it is written.
_SHORTEST_TTL_SECONDS: Final = 0.001


class TargetDiffersError(RequestError):
    """A stream that an import writes to has other messages at the same seqs."""

    code = "target_differs"
    template = "stream {store!r} of tenant {tenant!r} holds something else at seq {seq}"


class ChainBrokenError(RequestError):
    """A row of a table is not what it was when its store was exported."""

    code = "chain_broken"
    template = (
        "{place} of {store!r} of tenant {tenant!r} is not what was exported: its columns do not"
        " give its leaf. `holdfast verify --table` tells more"
    )


@dataclass(frozen=True, slots=True)
class Target:
    """Where an import writes. `nats` and `prefix` are those of the cluster. `tenant` replaces the
    tenant of every row, and `store_prefix` is put before every store name. With `renumber`,
    missing seqs are closed up; otherwise messages keep their seqs. `login` is a `NatsLogin` of
    `holdfast.protocol.bus.login`, with files at the same paths on every machine. Without
    `configure`, stores keep the configurations that they have in the cluster.
    """

    #: It may contain a password.
    nats: str = field(repr=False)
    prefix: str = DEFAULT_PREFIX
    tenant: str | None = None
    store_prefix: str = ""
    renumber: bool = False
    login: NatsLogin = field(default_factory=NatsLogin)
    inbox_prefix: str | None = None
    configure: bool = True


class _Row(NamedTuple):
    tenant: str
    kind: str
    store: str
    seq: int | None
    key: str | None
    headers: dict[str, str] | None
    value: bytes
    subject: str | None
    #: In milliseconds since the epoch.
    time: int | None = None
    expires: int | None = None
    settings: bytes | None = None
    revision: int | None = None
    large_bytes: int | None = None
    large_sha256: str | None = None
    leaf: bytes | None = None
    chain: bytes | None = None
    stored_headers: bytes | None = None
    stored_value: bytes | None = None

    @property
    def is_changed(self) -> bool:
        """Whether it has a leaf, and its columns give another one."""
        is_kv = self.kind == StoreKind.KV.word
        return self.leaf is not None and leaf_of_row(self._asdict(), is_kv=is_kv) != self.leaf

    def append(self, expected_last_seq: int | None, now_ms: int) -> list[Any]:
        """Return it as an append of exactly what was stored."""
        value = self.value
        headers = self._stored_headers() if self.leaf is None else self.headers
        if self.stored_headers is not None:
            headers = HeaderBlock(self.stored_headers)
        elif self.stored_value is not None:
            value, headers = self.stored_value, {**(self.headers or {}), ENCODING_HEADER: ZSTD}
        fields = written_fields(self.written(now_ms), expected_last_seq)
        return append_operation(value, headers, *fields)

    @property
    def size_bytes(self) -> int:
        headers = sum(len(name) + len(text) for name, text in (self.headers or {}).items())
        return len(self.value) + headers + len(self.key or "") + len(self.subject or "") + 32

    def ttl_seconds(self, now_ms: int) -> float | None:
        """Return how long it has still to live; None without a ttl."""
        if self.expires is None or self.expires >= NEVER_MS:
            return None
        return max(_SHORTEST_TTL_SECONDS, (self.expires - now_ms) / 1000)

    def past_time(self, now_ms: int) -> int | None:
        """Return its time. One that is not in the past, by the clock of this machine, becomes that
        of the write."""
        return self.time if self.time is not None and 0 < self.time < now_ms else None

    def entry(self, now_ms: int) -> WrittenEntry[bytes]:
        """Return it as an entry."""
        return WrittenEntry(
            self.key or "",
            self.value,
            self.past_time(now_ms),
            self.headers,
            self.ttl_seconds(now_ms),
        )

    def is_over(self, now_ms: int) -> bool:
        """Return whether its ttl has ended."""
        return self.expires is not None and self.expires <= now_ms

    def written(self, now_ms: int) -> WrittenMessage[bytes]:
        """Return it as a message."""
        return WrittenMessage(
            self.value,
            self.past_time(now_ms),
            self._stored_headers(),
            # The marker of a roll-up has a filter in place of a subject.
            self.subject if self.subject is None or is_literal(self.subject) else None,
            self.ttl_seconds(now_ms),
            self.expires is not None and self.expires >= NEVER_MS,
        )

    def _stored_headers(self) -> Headers | None:
        """Return the headers as they are written. Those of a message with a subject were a header
        block, most likely, and become one again."""
        if self.subject is None or not self.headers:
            return self.headers
        try:
            return HeaderBlock.of(self.headers)
        except InvalidArgumentError:
            return self.headers


class _Written(NamedTuple):
    tenant: str
    kind: str
    store: str
    written: int
    present: int
    bytes: int
    #: Whether it has the chain that the table tells; None if one of them has none.
    keeps_chain: bool | None


def write_rows(target: Target, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows, which come grouped by store. Yield the result of each store."""
    rows = (_checked(_Row(*row)) for batch in batches for row in zip(*_lists(batch), strict=True))
    with running_loop() as loop:
        for tenant, of_tenant in groupby(rows, key=lambda row: row.tenant):
            connecting = connect(
                target.nats,
                tenant=target.tenant or tenant,
                prefix=target.prefix,
                name="holdfast-import",
                inbox_prefix=target.inbox_prefix,
                **target.login.connect_arguments(),
            )
            with loop.entered(connecting) as client:
                for (kind, name), found in groupby(of_tenant, key=lambda row: row[1:3]):
                    writer = _Writer(loop, client, target.store_prefix + name, target)
                    writer.write(kind, found)
                    counts = (writer.written, writer.present, writer.size_bytes)
                    result = _Written(tenant, kind, name, *counts, writer.keeps_chain)
                    yield pa.RecordBatch.from_pylist([result._asdict()])


def _checked(row: _Row) -> _Row:
    reason = None
    place = f"seq {row.seq}" if row.key is None else f"key {row.key!r}"
    if row.headers and BOX_HEADER in row.headers:
        reason = "{at} is encrypted: decrypt the rows of the table first"
    elif row.value is None and row.settings is None:
        reason = (
            "no value at {at}: the table has no bytes of large values; export them with "
            "--large-values"
        )
    if reason is not None:
        at = f"{place} of {row.store}"
        raise InvalidArgumentError(argument="source", reason=reason.format(at=at))
    if row.is_changed:
        raise ChainBrokenError(place=place, store=row.store, tenant=row.tenant)
    return row


def _lists(batch: pa.RecordBatch) -> list[list[Any]]:
    lists = []
    for name in ROW_COLUMNS:
        if name not in batch.schema.names:
            lists.append([None] * batch.num_rows)
            continue
        column = batch.column(name)
        if name in _TIMES and pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        values = column.to_pylist()
        if name == "headers":
            values = [None if value is None else dict(value) for value in values]
        lists.append(values)
    return lists


class _Writer:
    """Writes one store."""

    def __init__(self, loop: EventLoop, client: Client, name: str, target: Target) -> None:
        self._loop = loop
        self._client = client
        self._name = name
        self._target = target
        self._last_seq = 0
        self.written = 0
        self.present = 0
        self.size_bytes = 0
        #: The revision of the last change, and the chain after it, as the table tells it.
        self._revision = 0
        self._chain: bytes | None = None
        self.keeps_chain: bool | None = None

    def write(self, kind: str, rows: Iterator[_Row]) -> None:
        settings: dict[str, Any] = {}
        first = next(rows, None)
        if first is not None and first.settings is not None:
            if self._target.configure:
                settings = StoreConfig.from_wire(json.loads(first.settings)).to_wire()
            first = next(rows, None)
        others = _chained(first, rows)
        if kind == StoreKind.STREAM.word:
            self._write_stream(others, settings)
        else:
            if settings.get("chain"):
                # It covers what is set from then on.
                self._configure(kind, {"chain": True})
            self._write_kv(others)
        self._compare_chain(kind)
        self._configure(kind, settings)

    def _compare_chain(self, kind: str) -> None:
        """Note whether the store has the chain of the table, if both have one."""
        is_stream = kind == StoreKind.STREAM.word
        stream, kv = self._client.stream(self._name), self._client.kv(self._name)
        if self._chain is not None:
            head = self._loop.run(stream.head() if is_stream else kv.head())
            if head.chain is not None:
                self.keeps_chain = head.chain == self._chain

    def _write_stream(self, rows: Iterator[_Row], settings: dict[str, Any]) -> None:
        stream = self._client.stream(self._name)
        head = self._loop.run(stream.head())
        self._last_seq = head.last_seq
        batch: list[_Row] = []
        batch_bytes = 0
        next_seq = 1
        begins = self._last_seq == 0
        for row in self._living(rows):
            seq = self._seq_of(row, next_seq)
            next_seq = seq + 1
            if begins:
                self._begin(seq, settings)
                begins = False
            if seq <= self._last_seq:
                self.present += 1
                if seq == self._last_seq:
                    self._compare(seq, row)
                continue
            gap = seq > self._last_seq + len(batch) + 1
            full = batch_bytes + row.size_bytes > _BATCH_BYTES or len(batch) == MAX_FRAME_OPERATIONS
            if batch and (gap or full):
                self._append(batch)
                batch, batch_bytes = [], 0
            if gap:
                self._leave_out(seq, row.time)
            batch.append(row)
            batch_bytes += row.size_bytes
        if batch:
            self._append(batch)

    def _seq_of(self, row: _Row, next_seq: int) -> int:
        if self._target.renumber or row.seq is None:
            return next_seq
        if row.seq < next_seq:
            reason = (
                f"seq {row.seq} of {row.store} is there twice, or is not above 0; --renumber gives "
                "new seqs"
            )
            raise InvalidArgumentError(argument="source", reason=reason)
        return row.seq

    def _living(self, rows: Iterator[_Row]) -> Iterator[_Row]:
        """Return the rows whose ttl has not ended."""
        for row in rows:
            if row.revision is not None and row.revision > self._revision:
                self._revision, self._chain = row.revision, row.chain
            if not row.is_over(_now_ms()):
                yield row

    def _begin(self, seq: int, settings: dict[str, Any]) -> None:
        """Give a stream that never had a message what must be set before the first one."""
        wanted: dict[str, Any] = {"chain": True} if settings.get("chain") else {}
        if seq > 1:
            wanted["first_seq"] = seq
        serving = self._client.serving_stream(self._name)
        config = self._loop.run(serving.config())
        changed = {name: value for name, value in wanted.items() if getattr(config, name) != value}
        if changed:
            self._loop.run(serving.configure(**changed))
            self._last_seq = self._loop.run(serving.head()).last_seq

    def _append(self, batch: Sequence[_Row]) -> None:
        now_ms = _now_ms()
        is_small = sum(row.size_bytes for row in batch) <= _BATCH_BYTES
        if is_small and any(row.leaf is not None for row in batch):
            # Of a chain: as they were stored, not as this client would store them.
            serving = self._client.serving_stream(self._name)
            expected = [self._last_seq, *[None] * (len(batch) - 1)]
            appends = [
                row.append(last_seq, now_ms) for row, last_seq in zip(batch, expected, strict=True)
            ]
            self._loop.run(serving.batch(appends))
        else:
            stream = self._client.stream(self._name)
            messages = [row.written(now_ms) for row in batch]
            self._loop.run(stream.append_written(messages, expected_last_seq=self._last_seq))
        self._last_seq += len(batch)
        self._count(batch)

    def _leave_out(self, until_seq: int, time_ms: int | None) -> None:
        """Let the next message be `until_seq`: fill the gap, and remove what fills it."""
        serving = self._client.serving_stream(self._name)
        options = {"time_ms": time_ms} if time_ms is not None and 0 < time_ms < _now_ms() else None
        while self._last_seq + 1 < until_seq:
            seqs = range(self._last_seq + 1, min(until_seq, self._last_seq + 1 + _FILL))
            expected = [self._last_seq, *[None] * (len(seqs) - 1)]
            filling = [append_operation(b"", None, None, one, options=options) for one in expected]
            self._loop.run(serving.batch([*filling, serving.packer.delete_operation(seqs)]))
            self._last_seq = seqs[-1]

    def _compare(self, seq: int, row: _Row) -> None:
        stream = self._client.stream(self._name)
        found = self._loop.run(stream.get(seq))
        if found is None or found.value != row.value:
            raise TargetDiffersError(store=self._name, tenant=row.tenant, seq=seq)

    def _write_kv(self, rows: Iterator[_Row]) -> None:
        batch: list[_Row] = []
        batch_bytes = 0
        for row in self._living(rows):
            full = batch_bytes + row.size_bytes > _BATCH_BYTES or len(batch) == MAX_FRAME_OPERATIONS
            if batch and full:
                self._set(batch)
                batch, batch_bytes = [], 0
            batch.append(row)
            batch_bytes += row.size_bytes
        if batch:
            self._set(batch)

    def _set(self, batch: Sequence[_Row]) -> None:
        entries = self._client.kv(self._name)
        now_ms = _now_ms()
        self._loop.run(entries.set_written([row.entry(now_ms) for row in batch]))
        self._count(batch)

    def _count(self, batch: Sequence[_Row]) -> None:
        self.written += len(batch)
        self.size_bytes += sum(len(row.value) for row in batch)

    def _configure(self, kind: str, settings: dict[str, Any]) -> None:
        """Give the store the settings that it does not have already."""
        foreign = OF_KVS if kind == StoreKind.STREAM.word else OF_STREAMS
        # The first seq is that of the first message; it cannot be set any more.
        unset = foreign | {"first_seq"}
        wanted = {name: value for name, value in settings.items() if name not in unset}
        if not wanted:
            return
        is_stream = kind == StoreKind.STREAM.word
        stream, kv = self._client.serving_stream(self._name), self._client.kv(self._name)
        handle: Any = stream if is_stream else kv
        found = self._loop.run(handle.config())
        held = found.to_wire()
        wanted = {name: value for name, value in wanted.items() if held.get(name) != value}
        if wanted.get("serving_epoch", 0) <= (found.serving_epoch or 0):
            # It only grows.
            wanted.pop("serving_epoch", None)
        if wanted:
            self._loop.run(handle.configure(**wanted))


def _chained(first: _Row | None, rows: Iterator[_Row]) -> Iterator[_Row]:
    if first is not None:
        yield first
        yield from rows


def _now_ms() -> int:
    return clock.time_ns() // 1_000_000
