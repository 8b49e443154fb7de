"""The state of a live stream: the owner's order, and each local message stored and shown once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.live import live_messages
from holdfast.client.live.live_messages import Draft, LiveMessages, MessageChange, MessageChangeKind
from holdfast.client.live.live_notices import Origin, Rejection
from holdfast.protocol.errors import BusyError, LimitExceededError
from holdfast.protocol.messages import Ack, Change, ChangeKind, Durability, Message
from holdfast.protocol.own_headers import LIVE_HEADER
from tests.support.effort import examples


class Owner:
    """The stream as its owner has it, with every change that it ever made."""

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}
        self.last_seq = 0
        self.log: list[Change] = []
        #: The header of each message that was ever appended.
        self.appended: list[str] = []

    @property
    def revision(self) -> int:
        return len(self.log)

    def append(self, value: bytes, headers: dict[str, str]) -> Ack:
        self.last_seq += 1
        self.appended.append(headers.get(LIVE_HEADER, ""))
        self.set(self.last_seq, value, headers)
        return Ack(self.last_seq, self.revision, 0, Durability.SYNCED)

    def set(self, seq: int, value: bytes, headers: dict[str, str] | None = None) -> None:
        message = Message(seq, value, headers or {}, 0, self.revision + 1)
        self.messages[seq] = message
        self.log.append(Change(ChangeKind.SET, message.revision, 0, message=message))

    def delete(self, seq: int) -> None:
        if self.messages.pop(seq, None):
            self.log.append(Change(ChangeKind.DELETE, self.revision + 1, 0, seqs=(seq,)))

    def trim(self, end_seq: int) -> None:
        gone = [seq for seq in self.messages if seq <= end_seq]
        for seq in gone:
            del self.messages[seq]
        if gone:
            self.log.append(Change(ChangeKind.TRIM, self.revision + 1, 0, end_seq=end_seq))

    def rows(self, start_seq: int, end_seq: int | None = None) -> list[Message]:
        return [
            self.messages[seq]
            for seq in sorted(self.messages)
            if start_seq <= seq and (end_seq is None or seq <= end_seq)
        ]


def owner_of(count: int, first: int = 1) -> Owner:
    """An owner of so many messages, whose values are numbers."""
    owner = Owner()
    for number in range(first, first + count):
        owner.append(b"%d" % number, {})
    return owner


class Replica:
    """A replica, and what is on its way to and from it."""

    def __init__(self, owner: Owner, writer: str = "w", start_seq: int = 1) -> None:
        self.owner = owner
        self.live = LiveMessages(writer, start_seq)
        self.seen = 0
        self.flight: list[Draft] = []
        self.acks: list[Ack] | None = None
        #: A group that was given up, which the owner may get until it gets another one.
        self.late: list[Draft] = []
        self.unsure = False
        self.reset()

    def reset(self) -> None:
        self.live.changed(Change(ChangeKind.RESET, self.owner.revision, 0))
        for message in self.owner.rows(self.live.start_seq):
            self.live.changed(Change(ChangeKind.SET, message.revision, 0, message=message))
        self.live.changed(Change(ChangeKind.READY, self.owner.revision, 0))
        self.seen = self.owner.revision

    def follow(self, count: int | None = None) -> None:
        until = self.owner.revision if count is None else self.seen + count
        for change in self.owner.log[self.seen : until]:
            self.live.changed(change)
        self.seen = min(until, self.owner.revision)

    def catch_up(self) -> None:
        current = {message.revision for message in self.owner.messages.values()}
        for change in self.owner.log[self.seen :]:
            if change.message is None or change.revision in current:
                self.live.changed(change)
        self.seen = self.owner.revision

    def send(self) -> None:
        if not self.flight:
            self.flight = self.live.take_flight(3, 100)

    def arrive(self) -> None:
        """The owner gets the flight; whatever was given up before cannot be stored any more."""
        if not self.flight or self.acks is not None or self.unsure:
            return
        self.late = []
        self.acks = self._append(self.flight)

    def arrive_late(self) -> None:
        late, self.late = self.late, []
        self._append(late)

    def answer(self) -> None:
        if self.acks is not None:
            self.live.stored(self.acks)
            self._landed()

    def give_up(self) -> None:
        if self.flight and not self.unsure:
            self.unsure = True
            self.late = self.flight if self.acks is None else []
            self.acks = None

    def look(self) -> None:
        """Have the owner answer a write that does nothing, so that nothing is late, then look."""
        if self.unsure:
            self.unsure, self.late = False, []
            self.live.looked_for(self.owner.rows(self.flight[0].last_seq + 1))
            self._landed()

    def save(self) -> None:
        for step in (self.send, self.look, self.arrive, self.answer, self.follow):
            step()

    def _append(self, drafts: Sequence[Draft]) -> list[Ack]:
        return [self.owner.append(draft.value, self.live.headers_of(draft)) for draft in drafts]

    def _landed(self) -> None:
        self.flight, self.acks, self.late = [], None, []


def values(replica: Replica) -> list[bytes]:
    return [each.value for each in [*replica.live.messages, *replica.live.drafts]]


def told(replica: Replica) -> list[tuple[MessageChangeKind, bytes, Origin]]:
    return [
        (each.kind, each.message.value, each.origin)
        for each in replica.live.notices.take()
        if isinstance(each, MessageChange)
    ]


def test_a_local_message_is_at_the_end_at_once_and_gets_its_seq_later() -> None:
    owner = Owner()
    owner.append(b"old", {})
    ada = Replica(owner)
    ada.live.append(b"mine", {"user": "ada"})
    owner.append(b"theirs", {})
    ada.follow()
    assert values(ada) == [b"old", b"theirs", b"mine"]
    ada.save()
    assert values(ada) == [b"old", b"theirs", b"mine"]
    assert [message.seq for message in ada.live.messages] == [1, 2, 3]
    assert told(ada) == [
        (MessageChangeKind.ADDED, b"mine", Origin.LOCAL),
        (MessageChangeKind.ADDED, b"theirs", Origin.REMOTE),
        (MessageChangeKind.CONFIRMED, b"mine", Origin.LOCAL),
    ]
    assert not ada.live.drafts


@pytest.mark.parametrize("first", [Replica.answer, Replica.follow])
def test_answer_and_broadcast_count_once_in_any_order(first: Callable[[Replica], None]) -> None:
    ada = Replica(Owner())
    for value in (b"1", b"2"):
        ada.live.append(value, {})
    ada.send()
    ada.arrive()
    first(ada)
    assert (values(ada), len(ada.live.drafts)) == ([b"1", b"2"], 0)
    ada.answer()
    ada.follow()
    assert values(ada) == [b"1", b"2"]
    assert len(told(ada)) == 4


def test_deletes_trims_and_sets_are_followed() -> None:
    owner = owner_of(12)
    ada = Replica(owner)
    owner.delete(11)
    owner.trim(8)
    owner.set(9, b"NINE")
    owner.set(3, b"again")
    ada.follow()
    assert values(ada) == [b"again", b"NINE", b"10", b"12"]
    kinds = [kind for kind, _, _ in told(ada)]
    assert kinds == [MessageChangeKind.REMOVED] * 9 + ["replaced", "added"]


def test_numbers_are_ordered_as_numbers() -> None:
    """D4: 8 to 11 are a range, not text."""
    owner = Owner()
    ada = Replica(owner)
    for number in range(1, 12):
        owner.append(b"%d" % number, {})
    for change in sorted(owner.log, key=lambda change: str(change.revision)):
        ada.live.changed(change)
    assert [message.seq for message in ada.live.messages] == list(range(1, 12))


def test_deletes_that_were_missed_are_made_up_for_with_a_reset() -> None:
    """D3 and D5: what is gone is told, what is still there is not told again."""
    owner = owner_of(3, first=0)
    ada = Replica(owner)
    owner.delete(2)
    owner.append(b"new", {})
    ada.reset()
    assert values(ada) == [b"0", b"2", b"new"]
    assert told(ada) == [
        (MessageChangeKind.REMOVED, b"1", Origin.REMOTE),
        (MessageChangeKind.ADDED, b"new", Origin.REMOTE),
    ]


def test_a_rejected_message_goes_away_and_the_others_stay() -> None:
    ada = Replica(Owner())
    for value in (b"1", b"2"):
        ada.live.append(value, {})
    told(ada)
    error = LimitExceededError(what="max_bytes", limit=1, value=2)
    ada.live.take_flight(1, 100)
    ada.live.rejected(error)
    assert values(ada) == [b"2"]
    assert ada.live.notices.take()[0] == Rejection(None, b"1", error)
    ada.save()
    assert (values(ada), ada.live.unsaved_bytes) == ([b"2"], 0)


def test_older_messages_are_loaded_with_what_happens_to_them_meanwhile() -> None:
    owner = owner_of(10)
    ada = Replica(owner, start_seq=8)
    owner.set(2, b"ignored")
    ada.follow()
    assert values(ada) == [b"8", b"9", b"10"]
    owner.set(3, b"known to the owner")
    ada.live.begin_load()
    rows = owner.rows(2, 7)
    owner.delete(4)
    owner.set(5, b"FIVE")
    owner.append(b"11", {})
    ada.follow()
    assert ada.live.end_load(2, rows)
    assert ada.live.start_seq == 2
    assert values(ada) == [message.value for message in owner.rows(2)]


def test_a_load_that_fails_or_is_overtaken_by_a_reset_changes_nothing() -> None:
    """D17: where the replica begins is moved only with what is there."""
    owner = owner_of(4)
    ada = Replica(owner, start_seq=3)
    ada.live.begin_load()
    ada.live.cancel_load()
    assert (ada.live.start_seq, values(ada)) == (3, [b"3", b"4"])
    ada.live.begin_load()
    rows = owner.rows(1, 2)
    ada.reset()
    assert not ada.live.end_load(1, rows)
    assert (ada.live.start_seq, values(ada)) == (3, [b"3", b"4"])


def test_unsaved_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_messages, "MAX_UNSAVED_WRITES", 2)
    monkeypatch.setattr(live_messages, "MAX_UNSAVED_BYTES", 10)
    ada = Replica(Owner())
    ada.live.append(b"1", {})
    with pytest.raises(BusyError):
        ada.live.append(b"x" * 10, {})
    ada.live.append(b"2", {})
    with pytest.raises(BusyError):
        ada.live.append(b"3", {})
    ada.save()
    ada.live.append(b"3", {})


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 1 << 32))
def test_whatever_happens_each_message_is_stored_once_in_order_and_all_replicas_are_alike(
    seed: int,
) -> None:
    chance = random.Random(seed)
    owner = owner_of(chance.randrange(5), first=0)
    replicas = [Replica(owner, name, chance.choice([1, 1, 3])) for name in "abc"]

    def write(replica: Replica) -> None:
        replica.live.append(b"%d" % replica.live.last_write, {})

    def interfere(_: Replica) -> None:
        # Not with what a replica may still look for: what is gone cannot be found.
        unsure = {
            each
            for one in replicas
            for each in map(one.live.headers_of, one.flight)
            for each in each.values()
        }
        seqs = [s for s, m in owner.messages.items() if m.headers.get(LIVE_HEADER) not in unsure]
        if seqs:
            seq = chance.choice(seqs)
            if chance.random() < 0.2 and not unsure:
                owner.trim(seq)
            elif chance.random() < 0.5:
                owner.delete(seq)
            else:
                owner.set(seq, b"set")

    def load(replica: Replica) -> None:
        replica.live.begin_load()
        rows = owner.rows(1, replica.live.start_seq - 1)
        if chance.random() < 0.5:
            replica.follow(chance.randrange(3))
        replica.live.end_load(1, rows)

    steps: list[Callable[[Replica], None]] = [
        *[write] * 3,
        interfere,
        load,
        Replica.send,
        Replica.arrive,
        Replica.answer,
        lambda replica: replica.follow(chance.randrange(3)),
        Replica.catch_up,
        Replica.reset,
        Replica.give_up,
        Replica.arrive_late,
        Replica.look,
    ]
    for _ in range(chance.randrange(100)):
        chance.choice(steps)(chance.choice(replicas))
    for _ in range(60):
        if all(not each.live.drafts and each.seen == owner.revision for each in replicas):
            break
        for replica in replicas:
            replica.save()
    for replica in replicas:
        live = replica.live
        assert not live.drafts
        assert live.unsaved_bytes == 0
        assert live.messages == owner.rows(live.start_seq)
        prefix = live.headers_of(Draft(0, b"", {}, 0))[LIVE_HEADER].removesuffix("0")
        stored = [name for name in owner.appended if name.startswith(prefix)]
        assert stored == [f"{prefix}{number}" for number in range(1, live.last_write + 1)]
