"""What is known of one store: which change each revision is, from all that anybody said. Pure.

A revision is exactly one change. It is learnt from the ack of whoever made it, from broadcasts,
followers, reads and the final state, and all of them must agree.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from holdfast.protocol.names import StoreKind
from tests.support.checking.history import (
    ChangeOf,
    Final,
    History,
    Key,
    Operation,
    Outcome,
    Store,
    What,
)


class Facts:
    """What is known of one store. `learn_all` comes first."""

    def __init__(self, history: History, store: Store, final: Final) -> None:
        self.store = store
        self.final = final
        self.operations = [each for each in history.operations if each.store == store]
        self.max_messages = history.max_messages.get(store)
        #: Whether the run has limits and ttl.
        self.limited = bool(history.max_messages)
        #: Revision to what happened there and who said so.
        self.changes: dict[int, tuple[ChangeOf, str]] = {}
        #: The revisions of `changes`, in order.
        self.order: list[int] = []
        #: Key to the revisions that changed it, in order. Trims are in `trims`.
        self.by_key: dict[Key, list[int]] = {}
        self.trims: list[int] = []
        self.by_value: dict[bytes, list[int]] = {}
        #: Of a closed history: deletes without an answer of which it is known what they did.
        self.attributed: set[int] = set()
        self._history = history
        self._last_gap = 0
        self._trimmers: list[Operation] = []
        self._deleters: dict[Key, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            if operation.action == "delete_all":
                self._trimmers.append(operation)
            elif operation.action == "delete":
                for key in operation.keys:
                    self._deleters[key].append(operation)
        self._expiring = [each for each in self.operations if each.expires]
        self._keys_of_unknown_sets = {
            key
            for each in self.operations
            if each.outcome is Outcome.UNKNOWN and each.action == "set"
            for key in each.keys
        }

    def learn_all(self) -> Iterator[str]:
        """Put together what everybody says; yield contradictions."""
        for revision, change, source in self._statements():
            known = self.changes.get(revision)
            if known is None:
                self.changes[revision] = (change, source)
            elif not agree(known[0], change):
                yield (
                    f"two orders: revision {revision} is {text_of(known[0])} for {known[1]} and "
                    f"{text_of(change)} for {source}"
                )
            elif _is_loose(known[0]):
                self.changes[revision] = (change, source)
        self._complete_batches()
        self.order = sorted(self.changes)
        by_key: dict[Key, list[int]] = defaultdict(list)
        by_value: dict[bytes, list[int]] = defaultdict(list)
        for revision in self.order:
            change, _ = self.changes[revision]
            if change.what is What.TRIM:
                self.trims.append(revision)
            for key in change.keys:
                by_key[key].append(revision)
            if change.what is What.SET:
                by_value[change.value].append(revision)
        self.by_key, self.by_value = dict(by_key), dict(by_value)
        self._last_gap = next(
            (each for each in range(self.final.revision, 0, -1) if each not in self.changes), 0
        )
        if self.order and self.order[-1] > self.final.revision:
            revision = self.order[bisect_right(self.order, self.final.revision)]
            change, source = self.changes[revision]
            yield (
                f"lost: the store ends at revision {self.final.revision}, but {source} knows "
                f"revision {revision}, {text_of(change)}"
            )

    def in_order(self) -> Iterator[tuple[int, ChangeOf, str]]:
        """Yield each revision, what happened there, and who said so."""
        for revision in self.order:
            yield revision, *self.changes[revision]

    def last_change(self, key: Key, up_to: int) -> int:
        """Return the last revision up to `up_to` known to have changed `key`; 0 if none is."""
        found = 0
        revisions = self.by_key.get(key, [])
        index = bisect_right(revisions, up_to)
        if index:
            found = revisions[index - 1]
        for revision in reversed(self.trims[: bisect_right(self.trims, up_to)]):
            if revision < found:
                break
            if self.changes[revision][0].covers(key):
                return revision
        return found

    def may_be_removed(
        self, key: Key, after: int, before: float | None = None, until: float = math.inf
    ) -> bool:
        """Tell if a delete may have removed `key` after revision `after`, and before `until`. With
        `before`, only one that was asked for before that position counts."""
        if self._may_have_gone(key, after):
            return True
        was_seen = any(
            after < revision < until and self.changes[revision][0].what is not What.SET
            for revision in (*self.by_key.get(key, ()), *self.trims)
            if self.changes[revision][0].covers(key)
        )
        if was_seen and before is None:
            return True
        for operation in (*self._deleters.get(key, ()), *self._trimmers):
            if not operation.may_remove(key) or (
                before is not None and operation.invoked >= before
            ):
                continue
            if operation.outcome is Outcome.UNKNOWN:
                # What it did has a revision of its own.
                is_open = self._last_gap > after and id(operation) not in self.attributed
                if was_seen or is_open:
                    return True
            elif operation.count > 0 and after < operation.revisions[0] < until:
                return True
        return False

    def went_after(self, last: int) -> dict[int, ChangeOf]:
        """Return what was removed after revision `last`, in a run with limits: a follower is done
        with the last value, which may be what older ones have to go for."""
        return {
            revision: change
            for revision, change, _ in self.in_order()
            if self.limited and revision > last and change.what is not What.SET
        }

    def _may_have_gone(self, key: Key, after: int) -> bool:
        """Tell if `key`, as set at revision `after` or later, may have had to go by itself: with
        its ttl, or for newer ones since there may be only `max_messages`."""
        for operation in self._expiring:
            if not operation.keys or key in operation.keys:
                if operation.outcome is Outcome.UNKNOWN:
                    return True
                if operation.outcome is Outcome.OK and (
                    key in operation.seqs or key in operation.keys
                ):
                    return True
        if self.max_messages is None:
            return False
        if isinstance(key, int):
            return key <= self.final.last_seq - self.max_messages
        newer = {other for other, revisions in self.by_key.items() if revisions[-1] > after}
        return len((newer | self._keys_of_unknown_sets) - {key}) >= self.max_messages

    def _statements(self) -> Iterator[tuple[int, ChangeOf, str]]:
        history, store = self._history, self.store
        for broadcast in history.broadcasts:
            if broadcast.store == store:
                for revision, change in broadcast.changes:
                    yield revision, change, f"a broadcast of {broadcast.incarnation}"
        for key, (value, revision) in self.final.rows.items():
            yield revision, ChangeOf(What.SET, (key,), value), "the final state"
        for following in history.followings:
            if following.store == store and not following.prefix:
                for _, revision, followed in following.changes:
                    if followed is not None:
                        yield revision, followed, f"follower {following.follower}"
        for operation in self.operations:
            if operation.outcome is Outcome.OK:
                yield from _of_operation(operation)

    def _complete_batches(self) -> None:
        """A batch is stored whole: one member that was seen places all the others."""
        batches = [each for each in self.operations if len(each.values) > 1]
        batched = {value for each in batches for value in each.values}
        seen = {
            change.value: (revision, change.keys[0])
            for revision, (change, _) in self.changes.items()
            if change.what is What.SET and change.value in batched
        }
        for operation in batches:
            found = next((each for each in operation.values if each in seen), None)
            if found is None:
                continue
            index, (revision, key) = operation.values.index(found), seen[found]
            for offset, value in enumerate(operation.values, start=-index):
                of = operation.keys[index + offset] if operation.keys else int(key) + offset
                if revision + offset > 0:
                    change = ChangeOf(What.SET, (of,), value)
                    source = f"the batch of {operation.client}"
                    self.changes.setdefault(revision + offset, (change, source))


def _of_operation(operation: Operation) -> Iterator[tuple[int, ChangeOf, str]]:
    who = f"{operation.action} of {operation.client}"
    if operation.writes:
        # That there is an ack for each value is checked elsewhere.
        keys: tuple[Key, ...] = operation.seqs or operation.keys
        for key, value, revision in zip(keys, operation.values, operation.revisions, strict=False):
            yield revision, ChangeOf(What.SET, (key,), value), who
    elif operation.action == "delete" and operation.count:
        bound = operation.count if len(operation.keys) > 1 else None
        yield operation.revisions[0], ChangeOf(What.DELETE, operation.keys, bound=bound), who
    elif operation.action == "delete_all" and operation.count:
        yield operation.revisions[0], ChangeOf(What.TRIM, bound=operation.end), who
    for key, (value, revision) in operation.seen.items():
        yield revision, ChangeOf(What.SET, (key,), value), who


def agree(one: ChangeOf, other: ChangeOf) -> bool:
    """Tell if two that speak of the same revision can both be right."""
    if one.what is not other.what or one.what in (What.SET, What.CONFIGURE):
        return one == other
    if one.bound is None:
        one, other = other, one
    if one.what is What.TRIM:
        ends = [each for each in (one.end, other.end) if each is not None]
        within = one.bound is None or all(end <= one.bound for end in ends)
        return len(set(ends)) < 2 and within
    if one.bound is None or other.bound is not None:
        return one == other
    return set(other.keys) <= set(one.keys) and len(other.keys) == one.bound


def _is_loose(change: ChangeOf) -> bool:
    """Tell if somebody else may say more exactly what a change did."""
    return change.bound is not None or (change.what is What.TRIM and change.end is None)


def text_of(change: ChangeOf) -> str:
    """Return what a change did, in words."""
    if change.what is What.SET:
        return f"set {change.keys[0]!r} to {change.value[:40]!r}"
    if change.what is What.DELETE:
        return f"delete {list(change.keys)!r}"
    return f"trim up to {change.end}"


def name_of_store(store: Store) -> str:
    """Return kind and name, for people."""
    return f"{StoreKind(store[0]).word} {store[1]}"
