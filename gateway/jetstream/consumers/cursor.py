"""A consumer as a cursor of the stream's store, so that another gateway can continue it.

A cursor has the configuration (JSON), the state (numbers, packed) and a row for each message that
is pending or was given up. What is recorded at once changes together: a `CursorRecord` collects
what changed since the last time, and rows that came and went in between are never written.

Formats are versioned by their first element: a gateway reads those of older versions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgpack

from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.consumers.consumer import ApiConsumer
from holdfast.gateway.jetstream.consumers.ledger import DeliveryLedger, PendingDelivery
from holdfast.gateway.jetstream.consumers.stream_access import CursorWrite
from holdfast.protocol.errors import MalformedFrameError

_VERSION: Final = 1
_STATE_ELEMENTS: Final = 8
#: Consumer seq, due time in ms, deliveries.
_ROW: Final = struct.Struct(">QQI")


class Recorded(NamedTuple):
    """What a cursor says of a consumer. `lasts_up_to` is that of its backlog."""

    config: ApiConsumerConfig
    created_ns: int
    ledger: DeliveryLedger
    lasts_up_to: int
    delivered_at_ms: int
    acked_at_ms: int


def decoded(config: bytes, state: bytes, rows: list[tuple[int, bytes]]) -> Recorded:
    """Return what a cursor says. Raises MalformedFrameError."""
    try:
        known = json.loads(config)
        numbers = msgpack.unpackb(state)
        version, count, seq, floor_count, floor_seq, lasts_up_to, delivered_at, acked_at = numbers[
            :_STATE_ELEMENTS
        ]
        ledger = DeliveryLedger(seq + 1)
        ledger.delivered_count = count
        # A change with many rows is recorded in parts, the state last.
        found = [(seq, PendingDelivery(*_ROW.unpack(data))) for seq, data in rows]
        found = [each for each in found if each[0] <= seq or not each[1].consumer_seq]
        ledger.floor_count, ledger.floor_seq = min(
            [(floor_count, floor_seq), *_floors_below(found)]
        )
        ledger.restore(found)
        ledger.changed = False
        parsed = ApiConsumerConfig.from_json(known["config"])
        created_ns = int(known["created_ns"])
    except Exception as error:
        raise MalformedFrameError(reason=f"a cursor that is none: {error!r:.200}") from error
    if version > _VERSION:
        raise MalformedFrameError(reason=f"a cursor of the later version {version}")
    return Recorded(parsed, created_ns, ledger, lasts_up_to, delivered_at, acked_at)


def _floors_below(rows: Sequence[tuple[int, PendingDelivery]]) -> Iterator[tuple[int, int]]:
    """Yield a floor below each message that is pending. One is only lower than that of the state if
    an owner lost an ack that was not synced, and later changes were recorded: the message is
    delivered again."""
    for seq, found in rows:
        if found.consumer_seq:
            yield found.consumer_seq - 1, seq - 1


def encoded_config(config: ApiConsumerConfig, created_ns: int) -> bytes:
    """Return what a cursor keeps as its configuration."""
    known = {"version": _VERSION, "created_ns": created_ns, "config": config.to_json()}
    return json.dumps(known, separators=(",", ":")).encode()


def encoded_position(delivered_count: int, delivered_seq: int) -> bytes:
    """Return what a cursor keeps as the state of a consumer that has delivered everything up to a
    seq, with so many deliveries, and is done with all of it."""
    floor = delivered = (delivered_count, delivered_seq)
    state: bytes = msgpack.packb((_VERSION, *delivered, *floor, 0, 0, 0))
    return state


class CursorRecord:
    """What is recorded of one consumer, and what is not yet."""

    def __init__(self, name: str, config: bytes | None, rows: set[int]) -> None:
        """`config` is recorded with the first change; `rows` are the seqs that have one."""
        self._name = name
        self._config = config
        self._rows = rows

    def reconfigured(self, config: bytes) -> None:
        """Record another configuration with the next change."""
        self._config = config

    def is_due(self, consumer: ApiConsumer) -> bool:
        """Return whether something changed since the last `take`."""
        return self._config is not None or consumer.ledger.changed

    def take(self, consumer: ApiConsumer) -> CursorWrite:
        """Return what changed since the last time."""
        ledger, numbers = consumer.ledger, consumer.numbers()
        rows, removed = [], []
        for seq, found in ledger.rows(ledger.changed_seqs):
            if found is not None:
                rows.append((seq, _ROW.pack(*found)))
            elif seq in self._rows:
                removed.append(seq)
        self._rows.update(seq for seq, _ in rows)
        self._rows.difference_update(removed)
        ledger.changed = False
        ledger.changed_seqs = set()
        state = msgpack.packb(
            (
                _VERSION,
                *(ledger.delivered_count, ledger.delivered_seq),
                *(ledger.floor_count, ledger.floor_seq),
                consumer.backlog.lasts_after(ledger.delivered_seq),
                *(numbers.delivered_at_ms, numbers.acked_at_ms),
            )
        )
        config, self._config = self._config, None
        return CursorWrite(self._name, config, state, rows, removed)

    def failed(self, write: CursorWrite, consumer: ApiConsumer) -> None:
        """Note that it is not known whether a change was recorded: it is recorded again."""
        ledger = consumer.ledger
        ledger.changed = True
        for seq in (*(seq for seq, _ in write.rows), *write.removed):
            ledger.changed_seqs.add(seq)
            self._rows.add(seq)
        if self._config is None:
            self._config = write.config
