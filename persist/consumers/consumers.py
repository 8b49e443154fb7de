"""The consumers of one open stream, in memory.

Pure. Only `apply` changes them, with the same changes that go to the log and the file, so any owner
that replays those changes has the same consumers. `consuming.py` decides what to deliver.

Invariant: at most `max_ack_pending` deliveries are pending (more only just after it was lowered),
and every seq below `next_seq` that is not pending is finished. So a consumer takes bounded memory,
whatever the stream holds.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.protocol import changes, frames
from holdfast.protocol.consumers import ConsumerConfig, ConsumerInfo
from holdfast.protocol.limits import MAX_INTEGER
from holdfast.shared_fs.store_file.consumers.consumer_rows import ConsumerRow


@dataclass(slots=True)
class ConsumerState:
    """One consumer. `pending` maps `seq` to `(deadline, delivery_count)`; times are
    int milliseconds."""

    id: int
    name: str
    config: ConsumerConfig
    next_seq: int
    delivered_count: int = 0
    redelivered_count: int = 0
    acked_count: int = 0
    given_up_count: int = 0
    pending: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: A lower bound of all deadlines except those of `overdue`. `overdue` has the seqs that were
    #: due at `looked_at`, in order. Some of them were settled or delivered since, and all those
    #: before `overdue_from` were.
    due_at: int = 0
    looked_at: int = -1
    overdue: list[int] = field(default_factory=list)
    overdue_from: int = 0

    def due(self, now: int) -> Iterator[int]:
        """Yield the seqs whose deadline has passed, lowest first.

        It scans all of `pending` only when another deadline has passed since the last scan. So many
        fetches that take a few messages each cost no more than what they take.
        """
        if self.due_at <= now:
            self.looked_at = now
            self.due_at = min(
                [deadline for deadline, _ in self.pending.values() if deadline > now],
                default=MAX_INTEGER,
            )
            self.overdue = sorted(
                seq for seq, (deadline, _) in self.pending.items() if deadline <= now
            )
            self.overdue_from = 0
        while self.overdue_from < len(self.overdue) and not self._is_due(
            self.overdue[self.overdue_from], now
        ):
            self.overdue_from += 1
        last = 0
        for index in range(self.overdue_from, len(self.overdue)):
            seq = self.overdue[index]
            if seq != last and self._is_due(seq, now):
                last = seq
                yield seq

    def retry_after_ms(self, now: int) -> int | None:
        """Return in how many ms a delivery is due again; None if only an event can make one due."""
        if next(self.due(now), None) is not None:
            return 1
        return None if self.due_at == MAX_INTEGER else max(1, self.due_at - now)

    def set_deadline(self, seq: int, deadline: int, delivery_count: int) -> None:
        """Set the deadline after which a delivery is due again."""
        self.pending[seq] = (deadline, delivery_count)
        if deadline <= self.looked_at:
            insort(self.overdue, seq, lo=self.overdue_from)
        else:
            self.due_at = min(self.due_at, deadline)

    def _is_due(self, seq: int, now: int) -> bool:
        found = self.pending.get(seq)
        return found is not None and found[0] <= now

    def info(self, last_seq: int) -> ConsumerInfo:
        """Return the consumer's position in a stream whose last seq is `last_seq`."""
        return ConsumerInfo(
            self.name,
            self.id,
            self.config,
            self.next_seq,
            min(self.pending, default=self.next_seq) - 1,
            len(self.pending),
            max(0, last_seq + 1 - self.next_seq),
            self.delivered_count,
            self.redelivered_count,
            self.acked_count,
            self.given_up_count,
        )


def consumer_of_row(row: ConsumerRow) -> ConsumerState:
    """Return the consumer that a row of the file describes."""
    return ConsumerState(
        row.id,
        row.name,
        ConsumerConfig.from_wire(row.config),
        row.next_seq,
        row.delivered_count,
        row.redelivered_count,
        row.acked_count,
        row.given_up_count,
        dict(row.deliveries),
    )


class Consumers:
    """All consumers of one stream, by id and by name."""

    def __init__(self, rows: Iterable[ConsumerRow] = ()) -> None:
        self.by_id = {row.id: consumer_of_row(row) for row in rows}
        self.by_name = {consumer.name: consumer for consumer in self.by_id.values()}

    def apply(self, change: frames.WireChange) -> None:
        """Apply one change of the stream. Changes that concern no consumer do nothing."""
        number = changes.number_of(change)
        if number == changes.CHANGE_CONSUMER_FETCH:
            self._fetched(self.by_id[changes.consumer_id(change)], change)
        elif number == changes.CHANGE_CONSUMER_ACK:
            self._acked(self.by_id[changes.consumer_id(change)], change)
        elif number == changes.CHANGE_CONSUMER_CONFIGURE:
            id_, name, config, next_seq = changes.consumer_configured(change)
            known = self.by_id.get(id_)
            if known is not None:
                known.config = ConsumerConfig.from_wire(config)
            else:
                known = ConsumerState(id_, name, ConsumerConfig.from_wire(config), next_seq)
                self.by_id[id_] = self.by_name[name] = known
        elif number == changes.CHANGE_CONSUMER_DELETE:
            gone = self.by_id.pop(changes.consumer_id(change))
            del self.by_name[gone.name]

    def _fetched(self, consumer: ConsumerState, change: frames.WireChange) -> None:
        said = changes.consumer_fetched(change)
        _, consumer.next_seq, deadline, first, again, gone, given_up = said
        pending = consumer.pending
        for seq in first:
            pending[seq] = (deadline, 1)
        for seq, count in again:
            pending[seq] = (deadline, count)
        for seqs in (gone, given_up):
            for seq in seqs:
                del pending[seq]
        if first or again:
            consumer.due_at = min(consumer.due_at, deadline)
        consumer.delivered_count += len(first)
        consumer.redelivered_count += len(again)
        consumer.given_up_count += len(given_up)

    def _acked(self, consumer: ConsumerState, change: frames.WireChange) -> None:
        _, acked, given_up, moved = changes.consumer_acked(change)
        pending = consumer.pending
        for seqs in (acked, given_up):
            for seq in seqs:
                del pending[seq]
        for seq, deadline, count in moved:
            consumer.set_deadline(seq, deadline, count)
        consumer.acked_count += len(acked)
        consumer.given_up_count += len(given_up)
