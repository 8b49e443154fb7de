"""Consumers as rows of a stream's file: applied with the changes, and read when it is opened.

There are two tables, created with the first consumer: `consumers`, and `deliveries` with a
row for each message that is delivered and not settled. Changes contain results (which seqs,
which deadline, which count) and not reasons, so a row is written without reading one. Of
many changes in one transaction, only the final state is written: a message that was
delivered and acknowledged meanwhile costs a delete of nothing.
`persist/operations/consuming.py` decides what a consumer may deliver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol import changes, frames
from holdfast.shared_fs.store_file import schema

#: The changes that `ConsumerRows` takes.
CONSUMER_CHANGES: Final = frozenset(
    {
        changes.CHANGE_CONSUMER_CONFIGURE,
        changes.CHANGE_CONSUMER_FETCH,
        changes.CHANGE_CONSUMER_ACK,
        changes.CHANGE_CONSUMER_DELETE,
    }
)


class ConsumerRow(NamedTuple):
    """A consumer as stored in the file. `deliveries` maps seq to `(deadline, delivery_count)`."""

    id: int
    name: str
    config: dict[str, Any]
    next_seq: int
    delivered_count: int
    redelivered_count: int
    acked_count: int
    given_up_count: int
    deliveries: dict[int, tuple[int, int]]


class ConsumerRows:
    """The effect of one transaction's changes on the rows. `flush` writes it."""

    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor
        #: By (consumer, seq): `(consumer, seq, deadline, count)`, or
        #: None once the message is settled.
        self._deliveries: dict[tuple[int, int], tuple[int, int, int, int] | None] = {}
        #: By consumer: next_seq, and what is added to its four counts.
        self._sums: dict[int, list[Any]] = {}

    def apply(self, change: frames.WireChange) -> None:
        """Take a change of a consumer."""
        number, id_ = changes.number_of(change), changes.consumer_id(change)
        if number == changes.CHANGE_CONSUMER_FETCH:
            said = changes.consumer_fetched(change)
            _, next_seq, deadline, first, again, gone, given_up = said
            for seq in first:
                self._deliveries[id_, seq] = (id_, seq, deadline, 1)
            for seq, count in again:
                self._deliveries[id_, seq] = (id_, seq, deadline, count)
            self._drop(id_, gone)
            self._drop(id_, given_up)
            sums = self._add(id_, len(first), len(again), 0, len(given_up))
            sums[0] = next_seq
        elif number == changes.CHANGE_CONSUMER_ACK:
            _, acked, given_up, moved = changes.consumer_acked(change)
            self._drop(id_, acked)
            self._drop(id_, given_up)
            for seq, deadline, count in moved:
                self._deliveries[id_, seq] = (id_, seq, deadline, count)
            self._add(id_, 0, 0, len(acked), len(given_up))
        elif number == changes.CHANGE_CONSUMER_CONFIGURE:
            self.flush()
            for statement in schema.CREATE_CONSUMERS:
                self._cursor.execute(statement)
            _, name, config, next_seq = changes.consumer_configured(change)
            text = json.dumps(config, ensure_ascii=False, sort_keys=True)
            self._cursor.execute(schema.UPSERT_CONSUMER, (id_, name, text, next_seq))
        else:
            self.flush()
            self._cursor.execute(schema.DELETE_DELIVERIES, (id_,))
            self._cursor.execute(schema.DELETE_CONSUMER, (id_,))

    def flush(self) -> None:
        """Write the final state after the changes so far."""
        if self._deliveries:
            done = [key for key, row in self._deliveries.items() if row is None]
            rows = [row for row in self._deliveries.values() if row is not None]
            self._cursor.executemany(schema.DELETE_DELIVERY, done)
            self._cursor.executemany(schema.UPSERT_DELIVERY, rows)
            self._deliveries.clear()
        if self._sums:
            rows_of_sums = [(*sums, id_) for id_, sums in self._sums.items()]
            self._cursor.executemany(schema.ADD_TO_CONSUMER, rows_of_sums)
            self._sums.clear()

    def _drop(self, id_: int, seqs: list[int]) -> None:
        for seq in seqs:
            self._deliveries[id_, seq] = None

    def _add(self, id_: int, *counts: int) -> list[Any]:
        sums = self._sums.setdefault(id_, [None, 0, 0, 0, 0])
        for index, count in enumerate(counts, start=1):
            sums[index] += count
        return sums


def read_consumers(execute: Callable[..., apsw.Cursor]) -> list[ConsumerRow]:
    """Return the consumers of a stream's file, in order of name."""
    if not execute(schema.HAS_CONSUMERS).get:
        return []
    deliveries: dict[int, dict[int, tuple[int, int]]] = {}
    rows: list[Any] = execute(schema.SELECT_DELIVERIES).fetchall()
    for id_, seq, deadline, count in rows:
        deliveries.setdefault(id_, {})[seq] = (deadline, count)
    found: list[Any] = execute(schema.SELECT_CONSUMERS).fetchall()
    return [
        ConsumerRow._make((id_, name, json.loads(config), *counts, deliveries.get(id_, {})))
        for id_, name, config, *counts in found
    ]


def read_consumer_places(execute: Callable[..., apsw.Cursor]) -> Sequence[tuple[int, int]]:
    """Return for each consumer of a stream's file the first seq that was never delivered, and the
    number of its deliveries that are not settled."""
    if not execute(schema.HAS_CONSUMERS).get:
        return ()
    found: list[Any] = execute(schema.SELECT_CONSUMER_PLACES).fetchall()
    return found
