"""A stream in memory and one consumer of it, without an event loop: what the consumer asks for is
answered at once, or when the test says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client.handles.serving_wire import ServedMessage
from holdfast.gateway.jetstream.api.acks import AckKind, AckSubject, ConsumerAck
from holdfast.gateway.jetstream.api.checks.consumer_checks import complete
from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig
from holdfast.gateway.jetstream.api.names import is_subset
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.consumers.backlog import Backlog
from holdfast.gateway.jetstream.consumers.consumer import ApiConsumer, ConsumerSurroundings
from holdfast.gateway.jetstream.consumers.cursor import CursorRecord, decoded, encoded_config
from holdfast.gateway.jetstream.consumers.deliveries import StreamView
from holdfast.gateway.jetstream.consumers.effects import (
    Advise,
    Answer,
    Deliver,
    Done,
    Effect,
    Ended,
    LoadDue,
    LoadPage,
    Recount,
    Status,
)
from holdfast.gateway.jetstream.consumers.ledger import DeliveryLedger
from holdfast.gateway.jetstream.consumers.settings import DeliverySettings
from holdfast.protocol.limits import PAGE_BYTES

MS = 1_000_000
SECOND = 1_000_000_000


def page_of_seqs(
    messages: Mapping[int, ServedMessage], seqs: Sequence[int]
) -> tuple[list[ServedMessage], int]:
    """Return what `StreamAccess.read_seqs` does."""
    found: list[ServedMessage] = []
    size_bytes = 0
    for index, seq in enumerate(seqs):
        message = messages.get(seq)
        if message is None:
            continue
        size_bytes += len(message.value) + len(message.headers)
        if found and size_bytes > PAGE_BYTES:
            return found, index
        found.append(message)
    return found, len(seqs)


class ConsumerWorld:
    """`sent` has what went out: `Deliver`, `Status` and `Answer`."""

    def __init__(self, *, prompt: bool = True, tells_done: bool = False) -> None:
        self.messages: dict[int, ServedMessage] = {}
        self.view = StreamView(1, 0)
        self.now = 1_000_000
        self.prompt = prompt
        self.deaf: set[str] = set()
        self.sent: list[Deliver | Status | Answer] = []
        self.advisories: list[Advise] = []
        self.done: list[int] = []
        self.ended = False
        #: What the consumer asked for and was not answered.
        self.open: list[LoadPage | LoadDue | Recount] = []
        self._ids = itertools.count(1)
        self.around = ConsumerSurroundings(
            "S",
            self.view,
            lambda inbox: inbox not in self.deaf,
            lambda: f"id{next(self._ids):04d}",
        )
        self.view.tells_done = tells_done
        self.consumer: ApiConsumer
        self.config = ApiConsumerConfig()
        self.stored: dict[str, Any] = {"rows": {}}
        self.record: CursorRecord

    # The consumer

    def create(self, *, start_seq: int | None = None, **fields: Any) -> ApiConsumer:
        """Make a consumer. Without `start_seq` it begins at the first message, or where the
        policies `new` and `last_per_subject` do."""
        fields = {"name": "C"} | fields
        config = complete(ApiConsumerConfig.parse(fields), ApiStreamConfig(name="S"))
        self.config = config
        lasts = config.deliver_policy == "last_per_subject"
        if config.deliver_policy == "new":
            start_seq = self.view.last_seq + 1
        start = start_seq if start_seq is not None else self.view.first_seq
        at_tail = start > self.view.last_seq
        up_to = self.view.last_seq if lasts and not at_tail else 0
        backlog = Backlog(start, at_tail=at_tail, lasts_up_to=up_to)
        self._count(backlog)
        self._make(DeliveryLedger(start), backlog)
        self.record = CursorRecord("C", encoded_config(config, 5), set())
        self.run(self.consumer.begin(self.now))
        return self.consumer

    def restart(self, *, listened: bool = True) -> None:
        """Continue from the record, as another gateway does."""
        rows = list(self.stored["rows"].items())
        found = decoded(self.stored["config"], self.stored["state"], rows)
        start = found.ledger.delivered_seq + 1
        backlog = Backlog(start, at_tail=start > self.view.last_seq, lasts_up_to=found.lasts_up_to)
        self.open.clear()
        self.config = found.config
        self._count(backlog)
        self._make(found.ledger, backlog)
        self.consumer.remember(found.delivered_at_ms, found.acked_at_ms)
        self.record = CursorRecord("C", None, set(self.stored["rows"]))
        self.run(self.consumer.begin(self.now))
        if found.config.is_push and listened:
            self.run(self.consumer.listened(True, self.now))

    def save(self) -> None:
        """Record the consumer."""
        write = self.record.take(self.consumer)
        if write.config is not None:
            self.stored["config"] = write.config
        self.stored["state"] = write.state
        self.stored["rows"].update(write.rows)
        for seq in write.removed:
            del self.stored["rows"][seq]

    def _count(self, backlog: Backlog) -> None:
        if not backlog.at_tail:
            start_seq, up_to = backlog.next_seq, backlog.lasts_up_to
            backlog.asked_for_count(self.view.last_seq)
            behind = self.count(up_to + 1) if up_to else 0
            backlog.counted(self.count(start_seq, up_to), self.view.last_seq, behind)

    def _make(self, ledger: DeliveryLedger, backlog: Backlog) -> None:
        settings = DeliverySettings.of(self.config)
        self.consumer = ApiConsumer("C", settings, ledger, backlog, self.around)

    # The stream

    def publish(self, subject: str = "s", value: bytes = b"x", headers: bytes = b"") -> int:
        """Append a message."""
        seq = self.view.last_seq + 1
        message = ServedMessage(seq, subject, self.now, headers, value)
        self.messages[seq] = message
        self.view.last_seq = seq
        if hasattr(self, "consumer") and self.matches(subject):
            self.run(self.consumer.appended(message, self.now))
        return seq

    def remove(self, *seqs: int) -> None:
        """Remove messages."""
        for seq in seqs:
            del self.messages[seq]
        self.view.first_seq = min(self.messages, default=self.view.last_seq + 1)
        if hasattr(self, "consumer"):
            matches_all = not self.config.filters
            told_seq = self.view.last_seq
            effects = self.consumer.removed(
                sorted(seqs), told_seq, self.now, matches_all=matches_all
            )
            self.run(effects)

    def trim(self, first_seq: int) -> None:
        """Remove all below `first_seq`."""
        for seq in [seq for seq in self.messages if seq < first_seq]:
            del self.messages[seq]
        self.view.first_seq = max(self.view.first_seq, first_seq)
        if hasattr(self, "consumer"):
            self.run(self.consumer.trimmed(self.now))

    def matches(self, subject: str) -> bool:
        filters = self.config.filters
        return not filters or any(is_subset(subject, each) for each in filters)

    def matching(self, start_seq: int, lasts_up_to: int = 0) -> list[ServedMessage]:
        """The messages that match, or the lasts as of a seq and what is behind."""
        found = [each for each in self.messages.values() if self.matches(each.subject)]
        if lasts_up_to:
            lasts = {each.subject: each for each in found if each.seq <= lasts_up_to}
            found = sorted(lasts.values())
        return [each for each in found if each.seq >= start_seq]

    def count(self, start_seq: int, lasts_up_to: int = 0) -> int:
        return len(self.matching(start_seq, lasts_up_to))

    # What happens

    def run(self, effects: Sequence[Effect]) -> None:
        """Do what the consumer wants."""
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if isinstance(effect, Deliver | Status | Answer):
                self.sent.append(effect)
            elif isinstance(effect, Advise):
                self.advisories.append(effect)
            elif isinstance(effect, Done):
                self.done += effect.seqs
            elif isinstance(effect, Ended):
                self.ended = True
            elif self.prompt:
                waiting += self._answered(effect)
            else:
                self.open.append(effect)

    def answer(self) -> None:
        """Answer all open questions, and those that follow."""
        while self.open:
            self.run(self._answered(self.open.pop(0)))

    def _answered(self, effect: LoadPage | LoadDue | Recount) -> list[Effect]:
        if isinstance(effect, LoadDue):
            found, count = page_of_seqs(self.messages, effect.seqs)
            return self.consumer.loaded_due(effect, found, count, self.now)
        if isinstance(effect, Recount):
            count = self.count(effect.start_seq)
            return self.consumer.counted(effect, count, self.view.last_seq, self.now)
        found = self.matching(effect.start_seq, effect.lasts_up_to)
        page = found[: effect.limit]
        next_seq = found[effect.limit].seq if len(found) > effect.limit else None
        return self.consumer.loaded(effect, page, next_seq, self.now)

    def pull(self, body: bytes = b"", inbox: str = "in") -> list[Deliver | Status | Answer]:
        """Send a pull request. Return what went out at once."""
        asked = self.consumer.pulled(inbox, body, self.now)
        return self._told([*asked, *self.consumer.serve(self.now)])

    def ack(
        self, seq: int, kind: AckKind = AckKind.ACK, reply: str = "", **fields: Any
    ) -> list[Deliver | Status | Answer]:
        subject = AckSubject("S", "C", 1, seq, 1, 0, 0)
        ack = ConsumerAck(kind, **fields)
        return self._told(self.consumer.acked(subject, ack, reply, self.now))

    def ack_plainly(self, *seqs: int) -> list[Deliver | Status | Answer]:
        """Send acks that want no answer, all in one turn."""
        return self._told(self.consumer.acked_plainly(seqs, self.now))

    def listen(self, active: bool = True) -> list[Deliver | Status | Answer]:
        return self._told(self.consumer.listened(active, self.now))

    def wait(self, ms: int) -> list[Deliver | Status | Answer]:
        """Let time pass."""
        until = self.now + ms
        before = len(self.sent)
        while self.consumer.wake_at <= until:
            self.now = max(self.now, self.consumer.wake_at)
            self.run(self.consumer.tick(self.now))
        self.now = until
        return self.sent[before:]

    def _told(self, effects: list[Effect]) -> list[Deliver | Status | Answer]:
        before = len(self.sent)
        self.run(effects)
        return self.sent[before:]
