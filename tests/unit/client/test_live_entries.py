"""The state of a live kv: what shows, what is sent, and that all replicas end alike."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client.live import live_entries
from holdfast.client.live.live_entries import (
    EntryChange,
    EntryWrite,
    LiveEntries,
    Merge,
    local_wins,
)
from holdfast.client.live.live_notices import Origin, Rejection
from holdfast.protocol.errors import BusyError, LargeValueNotHeldError, LimitExceededError
from holdfast.protocol.messages import Change, ChangeKind, Entry, Headers, LargeValue
from tests.support.effort import examples

REFUSAL = LimitExceededError(what="max_messages", limit=1, value=2)


class Owner:
    """The kv as its owner has it, with every change that it ever made."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.log: list[Change] = []

    @property
    def revision(self) -> int:
        return len(self.log)

    def write(self, write: EntryWrite) -> int | None:
        """Return the revision of a write; None if it was refused."""
        before = self.entries.get(write.key)
        if write.expected_revision != (0 if before is None else before.revision):
            return None
        if write.value is not None:
            entry = Entry(write.key, write.value, dict(write.headers), self.revision + 1, 0)
            self.entries[write.key] = entry
            self.log.append(Change(ChangeKind.SET, entry.revision, 0, entry=entry))
        elif self.entries.pop(write.key, None):
            self.log.append(Change(ChangeKind.DELETE, self.revision + 1, 0, keys=(write.key,)))
        return self.revision

    def put_large(self, key: str, large: LargeValue, headers: Headers | None = None) -> None:
        """Somebody else uploads a value."""
        entry = Entry(key, b"", dict(headers or {}), self.revision + 1, 0, large)
        self.entries[key] = entry
        self.log.append(Change(ChangeKind.SET, entry.revision, 0, entry=entry))

    def clear(self) -> None:
        if self.entries:
            self.entries.clear()
            self.log.append(Change(ChangeKind.TRIM, self.revision + 1, 0))

    def state(self) -> list[Change]:
        """The whole state, as it follows a RESET."""
        rows = [Change(ChangeKind.SET, e.revision, 0, entry=e) for e in self.entries.values()]
        return [*rows, Change(ChangeKind.READY, self.revision, 0)]

    def since(self, revision: int) -> list[Change]:
        """What a follower that was away is told: overwritten states are left out."""
        current = {entry.revision for entry in self.entries.values()}
        return [
            change
            for change in self.log[revision:]
            if change.entry is None or change.revision in current
        ]


class Replica:
    """A replica, and what is on its way to and from it."""

    def __init__(self, owner: Owner, merge: Merge = local_wins) -> None:
        self.owner = owner
        self.live = LiveEntries(merge)
        self.seen = 0
        #: Writes that the owner has not got, and answers that have not arrived.
        self.requests: list[EntryWrite] = []
        self.answers: list[tuple[EntryWrite, int | None]] = []
        self.reset()

    def reset(self) -> None:
        self.live.changed(Change(ChangeKind.RESET, self.owner.revision, 0))
        for change in self.owner.state():
            self.live.changed(change)
        self.seen = self.owner.revision

    def follow(self, count: int | None = None) -> None:
        until = self.owner.revision if count is None else self.seen + count
        for change in self.owner.log[self.seen : until]:
            self.live.changed(change)
        self.seen = min(until, self.owner.revision)

    def catch_up(self) -> None:
        for change in self.owner.since(self.seen):
            self.live.changed(change)
        self.seen = self.owner.revision

    def send(self) -> None:
        if not self.requests and not self.answers:
            self.requests = self.live.take_flight(3, 100)

    def arrive(self) -> None:
        while self.requests:
            write = self.requests.pop(0)
            self.answers.append((write, self.owner.write(write)))

    def answer(self) -> None:
        while self.answers:
            write, revision = self.answers.pop(0)
            if revision is None:
                self.live.refused(write.key)
            else:
                self.live.stored(write.key, revision, 0)

    def lose(self) -> None:
        """Give up: the requests never arrived, the answers were lost."""
        for write in self.requests + [write for write, _ in self.answers]:
            self.live.unanswered(write.key)
        self.requests, self.answers = [], []

    def look(self) -> None:
        """Ask the owner, ahead of what the follower brings."""
        for key in self.live.conflicts or tuple(self.live.visible):
            self.live.found(key, self.owner.entries.get(key), self.owner.revision)

    def save(self) -> None:
        """One round of everything."""
        self.arrive()
        self.answer()
        self.send()
        self.arrive()
        self.answer()
        self.follow()


def pair(merge: Merge = local_wins) -> tuple[Owner, Replica, Replica]:
    owner = Owner()
    return owner, Replica(owner, merge), Replica(owner, merge)


def told(replica: Replica) -> list[EntryChange | Rejection]:
    return replica.live.notices.take()


def test_a_write_shows_at_once_and_is_confirmed_once() -> None:
    owner, ada, bob = pair()
    ada.live.write("theme", b"dark")
    assert ada.live.visible == {"theme": b"dark"}
    assert ada.live.unsaved == ("theme",)
    assert told(ada) == [EntryChange("theme", b"dark", None, Origin.LOCAL)]
    ada.save()
    bob.follow()
    assert ada.live.unsaved == ()
    assert told(ada) == []
    assert told(bob) == [EntryChange("theme", b"dark", None, Origin.REMOTE)]
    assert bob.live.confirmed["theme"].revision == 1
    assert owner.revision == 1


def test_a_broadcast_before_the_answer_counts_once() -> None:
    _, ada, _ = pair()
    ada.live.write("k", b"1")
    ada.send()
    ada.arrive()
    ada.follow()
    assert ada.live.unsaved == ("k",)
    ada.answer()
    assert (ada.live.unsaved, ada.live.visible) == ((), {"k": b"1"})
    assert len(told(ada)) == 1


def test_the_answer_before_older_broadcasts_is_not_taken_back() -> None:
    _, ada, bob = pair()
    bob.live.write("k", b"old")
    bob.save()
    ada.follow()
    for value in (b"1", None, b"2", None):
        ada.live.write("k", value)
        ada.send()
        ada.arrive()
        ada.answer()
    assert ada.live.visible == {}
    told(ada)
    ada.follow()
    assert (ada.live.visible, told(ada)) == ({}, [])


def test_two_that_create_the_same_key_lose_no_update() -> None:
    """D15: a create has no base, and is a conflict all the same."""
    bases = []

    def both(base: bytes | None, local: bytes | None, remote: bytes | None) -> bytes:
        bases.append(base)
        return b"+".join(sorted([local or b"", remote or b""]))

    owner, ada, bob = pair(both)
    ada.live.write("k", b"ada")
    bob.live.write("k", b"bob")
    for _ in range(3):
        ada.save()
        bob.save()
    assert ada.live.visible == bob.live.visible == {"k": b"ada+bob"}
    assert owner.entries["k"].value == b"ada+bob"
    assert bases == [None]


def test_without_a_merge_the_last_writer_wins_everywhere() -> None:
    _, ada, bob = pair()
    ada.live.write("k", b"ada")
    bob.live.write("k", b"bob")
    for _ in range(3):
        ada.save()
        bob.save()
    assert ada.live.visible == bob.live.visible == {"k": b"bob"}


def test_a_delete_is_merged_too() -> None:
    seen = []

    def keep(base: bytes | None, local: bytes | None, remote: bytes | None) -> bytes | None:
        seen.append((base, local, remote))
        return remote

    _, ada, bob = pair(keep)
    ada.live.write("k", b"1")
    ada.save()
    bob.follow()
    ada.live.write("k", b"2")
    bob.live.write("k", None)
    ada.save()
    for _ in range(2):
        bob.save()
    assert seen == [(b"1", None, b"2")]
    assert ada.live.visible == bob.live.visible == {"k": b"2"}


def test_writes_made_while_one_is_on_its_way_leave_as_one() -> None:
    owner, ada, _ = pair()
    ada.live.write("k", b"1")
    ada.send()
    ada.live.write("k", b"2")
    ada.live.write("k", b"3")
    ada.arrive()
    ada.answer()
    assert ada.live.unsaved == ("k",)
    ada.save()
    assert [change.entry.value for change in owner.log if change.entry] == [b"1", b"3"]
    assert ada.live.unsaved == ()


def test_what_was_made_and_removed_unheard_is_never_sent() -> None:
    owner, ada, _ = pair()
    ada.live.write("k", b"1")
    ada.live.write("k", None)
    ada.save()
    assert (owner.revision, ada.live.unsaved) == (0, ())


def test_each_result_is_that_of_its_own_key() -> None:
    """D14: one rejected write among others takes none of them along."""
    _, ada, _ = pair()
    for key in ("a", "b", "c"):
        ada.live.write(key, b"1")
    told(ada)
    flight = ada.live.take_flight(10, 1000)
    ada.live.stored("a", 1, 0)
    ada.live.rejected("b", REFUSAL)
    ada.live.stored("c", 2, 0)
    assert [write.key for write in flight] == ["a", "b", "c"]
    assert (ada.live.visible, ada.live.unsaved) == ({"a": b"1", "c": b"1"}, ())
    assert told(ada) == [
        Rejection("b", b"1", REFUSAL),
        EntryChange("b", None, b"1", Origin.REJECTED),
    ]


def test_a_rejection_leaves_what_was_written_since() -> None:
    _, ada, _ = pair()
    ada.live.write("k", b"too much")
    ada.live.take_flight(10, 1000)
    ada.live.write("k", b"less")
    ada.live.rejected("k", REFUSAL)
    assert ada.live.visible == {"k": b"less"}
    ada.save()
    assert ada.live.confirmed["k"].value == b"less"


def test_a_lost_answer_is_known_by_value_and_headers() -> None:
    owner, ada, _ = pair()
    ada.live.write("k", b"1", {"by": "ada"}, 60.0)
    ada.send()
    ada.arrive()
    ada.lose()
    ada.follow()
    assert (ada.live.unsaved, owner.revision) == ((), 1)
    assert ada.live.confirmed["k"].headers == {"by": "ada"}


def test_the_same_value_of_others_is_no_reason_to_drop_headers_or_a_ttl() -> None:
    for headers, ttl_seconds in (({"by": "ada"}, None), ({}, 60.0)):
        owner, ada, bob = pair()
        ada.live.write("k", b"1", headers, ttl_seconds)
        bob.live.write("k", b"1")
        bob.save()
        ada.save()
        ada.save()
        assert ada.live.unsaved == ()
        assert owner.revision == 2
        assert owner.entries["k"].headers == headers


def test_a_later_write_of_the_same_value_has_its_own_ttl() -> None:
    owner, ada, _ = pair()
    ada.live.write("k", b"1")
    ada.send()
    ada.arrive()
    ada.lose()
    ada.live.write("k", b"1", {}, 60.0)
    ada.follow()
    ada.save()
    assert (ada.live.unsaved, owner.revision) == ((), 2)


def test_an_own_large_value_is_held_until_it_is_stored_also_if_its_answer_was_lost() -> None:
    value = bytes(range(256)) * 5000
    large = LargeValue(bytes(16), len(value), hashlib.sha256(value).digest(), 7)
    for is_lost in (False, True):
        owner, ada, _ = pair()
        ada.live.write("k", value, {"by": "ada"})
        [write] = ada.live.take_flight(3, 100)
        owner.put_large(write.key, large, write.headers)
        if is_lost:
            ada.live.unanswered("k")
        else:
            ada.live.stored("k", owner.revision, 0, large)
        ada.follow()
        assert (ada.live.visible, ada.live.unsaved) == ({"k": large}, ())
        assert ada.live.confirmed["k"].headers == {"by": "ada"}
        assert told(ada) == [EntryChange("k", value, None, Origin.LOCAL)], "once, as it was written"


LARGE = LargeValue(bytes(16), 5_000_000, bytes(32), 7)


def test_a_large_value_shows_as_what_stands_for_it_and_the_last_writer_wins_over_it() -> None:
    owner, ada, bob = pair()
    owner.put_large("k", LARGE)
    ada.live.write("k", b"unaware")
    bob.follow()
    assert bob.live.visible == {"k": LARGE}
    assert bob.live.notices.take() == [EntryChange("k", LARGE, None, Origin.REMOTE)]
    for _ in range(2):
        ada.save()
    bob.follow()
    assert ada.live.visible == bob.live.visible == {"k": b"unaware"}
    assert bob.live.notices.take() == [EntryChange("k", b"unaware", LARGE, Origin.REMOTE)]


@pytest.mark.parametrize("replaced", [False, True])
def test_no_merge_is_asked_about_a_large_value_the_local_write_is_rejected(replaced: bool) -> None:
    """Large on the other side, or the base of both."""

    def never(base: bytes | None, local: bytes | None, remote: bytes | None) -> bytes:
        raise AssertionError("it would be asked about bytes that are not here")

    owner, ada, bob = pair(never)
    owner.put_large("k", LARGE)
    if replaced:
        ada.follow()
    ada.live.write("k", b"mine")
    if replaced:
        bob.follow()
        bob.live.write("k", b"theirs")
        bob.save()
        bob.save()
    ada.live.notices.take()
    for _ in range(2):
        ada.save()
    remote = b"theirs" if replaced else LARGE
    assert ada.live.visible == {"k": remote}
    assert ada.live.unsaved == () and ada.live.unsaved_bytes == 0
    rejection, change = ada.live.notices.take()
    assert isinstance(rejection, Rejection)
    assert (rejection.key, rejection.value) == ("k", b"mine")
    assert isinstance(rejection.error, LargeValueNotHeldError)
    assert change == EntryChange("k", remote, b"mine", Origin.REJECTED)
    ada.live.write("k", b"knowing")
    ada.save()
    assert owner.entries["k"].value == b"knowing"


def test_an_own_write_whose_answer_was_lost_is_known_again() -> None:
    def never(base: bytes | None, local: bytes | None, remote: bytes | None) -> bytes:
        raise AssertionError("there is no conflict")

    owner, ada, _ = pair(never)
    ada.live.write("k", b"1")
    ada.send()
    ada.live.write("k", b"12")
    ada.arrive()
    ada.lose()
    ada.save()
    ada.save()
    assert [change.entry.value for change in owner.log if change.entry] == [b"1", b"12"]
    assert ada.live.unsaved == ()


def test_deletes_that_were_missed_are_made_up_for_with_a_reset() -> None:
    """D3: what is gone is gone, and is told."""
    owner, ada, bob = pair()
    for key in ("a", "b"):
        ada.live.write(key, b"1")
    ada.save()
    bob.follow()
    told(bob)
    owner.clear()
    ada.live.write("c", b"1")
    ada.save()
    ada.save()
    bob.live.changed(Change(ChangeKind.RESET, owner.revision, 0))
    assert bob.live.visible == {"a": b"1", "b": b"1"}, "nothing goes before all is known"
    bob.reset()
    assert bob.live.visible == {"c": b"1"}
    assert {(each.key, each.value) for each in told(bob)} == {("a", None), ("b", None), ("c", b"1")}


def test_a_reset_without_news_tells_of_no_change() -> None:
    """D5: a reconnect is not a change."""
    _, ada, bob = pair()
    ada.live.write("a", b"1")
    ada.save()
    bob.follow()
    told(bob)
    bob.reset()
    assert told(bob) == []


def test_many_keys_may_be_set_in_one_go() -> None:
    _, ada, _ = pair()
    for number in range(20_000):
        ada.live.write(f"{number}", b"1")
    sent = []
    while flight := ada.live.take_flight(512, 1 << 20):
        sent += [write.key for write in flight]
    assert sent == [f"{number}" for number in range(20_000)]


def test_unsaved_writes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_entries, "MAX_UNSAVED_WRITES", 2)
    monkeypatch.setattr(live_entries, "MAX_UNSAVED_BYTES", 10)
    _, ada, _ = pair()
    ada.live.write("a", b"1")
    ada.live.write("b", b"1")
    with pytest.raises(BusyError):
        ada.live.write("c", b"1")
    ada.live.write("a", b"2")
    with pytest.raises(BusyError):
        ada.live.write("a", b"x" * 10)
    assert ada.live.visible == {"a": b"2", "b": b"1"}
    ada.save()
    assert ada.live.unsaved_bytes == 0
    ada.live.write("c", b"1")


def union(base: bytes | None, local: bytes | None, remote: bytes | None) -> bytes:
    """The merge of sets of words."""
    old, mine, theirs = (set((each or b"").split()) for each in (base, local, remote))
    return b" ".join(sorted((theirs | (mine - old)) - (old - mine)))


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_whatever_happens_all_replicas_end_alike_and_no_update_is_lost(
    seed: int, merging: bool
) -> None:
    chance = random.Random(seed)
    owner = Owner()
    replicas = [Replica(owner, union if merging else local_wins) for _ in range(3)]
    keys = ["a", "b"]
    words: dict[str, set[bytes]] = {key: set() for key in keys}
    headers_of: dict[bytes, dict[str, str]] = {}

    def write(replica: Replica) -> None:
        key = chance.choice(keys)
        word = b"w%d" % sum(map(len, words.values()))
        if merging:
            words[key].add(word)
            before = replica.live.visible.get(key, b"")
            replica.live.write(key, b" ".join(sorted([*before.split(), word])))
        elif key in replica.live.visible and chance.random() < 0.3:
            replica.live.write(key, None)
        else:
            words[key].add(word)
            headers_of[word] = chance.choice([{}, {"w": word.decode()}])
            replica.live.write(key, word, headers_of[word], chance.choice([None, 60.0]))

    steps: list[Callable[[Replica], None]] = [
        *[write] * 3,
        Replica.send,
        Replica.arrive,
        Replica.answer,
        lambda replica: replica.follow(chance.randrange(3)),
        Replica.catch_up,
        Replica.reset,
        Replica.lose,
        Replica.look,
    ]
    for _ in range(chance.randrange(80)):
        chance.choice(steps)(chance.choice(replicas))
    for _ in range(40):
        if all(not each.live.unsaved and each.seen == owner.revision for each in replicas):
            break
        for replica in replicas:
            replica.save()
    final = {key: entry.value for key, entry in owner.entries.items()}
    for replica in replicas:
        assert replica.live.unsaved == replica.live.conflicts == ()
        assert replica.live.unsaved_bytes == 0
        assert replica.live.visible == final
        for entry in replica.live.confirmed.values():
            assert entry.headers == headers_of.get(entry.value, {})
    if merging:
        assert {key: set(value.split()) for key, value in final.items()} == {
            key: found for key, found in words.items() if found
        }
