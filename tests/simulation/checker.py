"""The checker: a history in, everything that is wrong with it out.

Pure. What was promised, and how it is judged from outside:

- **One order.** Acks, reads, broadcasts, followers and the final state each say what happened at
  some revision of a store. No two may say different things of one revision.
- **Nothing lost.** What any of them said is in the final state, or was replaced or removed later by
  an operation that somebody asked for.
- **Nothing twice.** Values are unique, so none may appear at two revisions.
- **Refused is refused.** The value of an operation that ended in a definite error appears nowhere.
- **Seqs are dense** and given once: a message that was appended is the first of its seq.
- **Real time.** What starts after an answer sees at least what that answer saw.
- **Transactions** happened whole, at a moment at which all that they had read was still so.
- **Stored** writes are in a cluster that is rebuilt from the bucket alone, and whatever is there is
  as it was at some revision.
- **Followers** are given the order itself: each change once, in order, all deletes, and of the sets
  all but those that were overwritten; in the end they have what the store has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.protocol.messages import ChangeKind
from holdfast.protocol.names import StoreKind
from simulation.history import (
    ChangeOf,
    Final,
    Following,
    History,
    Key,
    Operation,
    Outcome,
    Store,
    Transaction,
    What,
)
from simulation.queueing import check_deliveries


def check(history: History) -> list[str]:
    """Return what is wrong, as sentences; empty if all is well."""
    found = list(history.failures)
    stores = {operation.store for operation in history.operations} | set(history.final)
    for store in sorted(stores):
        found.extend(f"{_name(store)}: {what}" for what in _check_store(history, store))
    found.extend(f"queue: {what}" for what in check_deliveries(history))
    return found


def _name(store: Store) -> str:
    return f"{StoreKind(store[0]).word} {store[1]}"


def _check_store(history: History, store: Store) -> Iterator[str]:
    operations = [each for each in history.operations if each.store == store]
    final = history.final.get(store)
    if final is None:
        yield "its final state could not be read"
        return
    facts = _Facts(operations, final, history.max_messages.get(store), bool(history.max_messages))
    yield from facts.learn_all(history, store)
    yield from _nothing_lost(facts)
    yield from _nothing_twice(facts)
    yield from _every_value_was_asked_for(facts)
    yield from _seqs_are_dense(facts, store)
    yield from _conditions_held(facts)
    for transaction in history.transactions:
        if transaction.store == store:
            yield from _transaction_held(facts, transaction)
    yield from _real_time(facts)
    if store in history.rebuilt:
        yield from _rebuilt_is_right(facts, history.rebuilt[store])
    for following in history.followings:
        if following.store == store:
            for what in _check_following(facts, following):
                yield f"follower {following.follower}: {what}"


@dataclass
class _Facts:
    """What is known of one store."""

    operations: list[Operation]
    final: Final
    max_messages: int | None = None
    #: Whether the run has limits and ttl.
    limited: bool = False
    #: Revision to what happened there and who said so.
    changes: dict[int, tuple[ChangeOf, str]] = field(default_factory=dict)
    #: Key to the revisions that changed it, in order. Trims are in `trims`.
    by_key: dict[Key, list[int]] = field(default_factory=dict)
    trims: list[int] = field(default_factory=list)
    by_value: dict[bytes, list[int]] = field(default_factory=dict)

    def learn_all(self, history: History, store: Store) -> Iterator[str]:
        """Put together what everybody says; yield contradictions."""
        for revision, change, source in _statements(history, store, self):
            known = self.changes.get(revision)
            if known is None:
                self.changes[revision] = (change, source)
            elif not _agree(known[0], change):
                yield (
                    f"two orders: revision {revision} is {_text(known[0])} for {known[1]} and "
                    f"{_text(change)} for {source}"
                )
            elif known[0].what is What.TRIM and known[0].end is None:
                self.changes[revision] = (change, source)
        by_key: dict[Key, list[int]] = defaultdict(list)
        by_value: dict[bytes, list[int]] = defaultdict(list)
        for revision in sorted(self.changes):
            change, _ = self.changes[revision]
            if change.what is What.TRIM:
                self.trims.append(revision)
            for key in change.keys:
                by_key[key].append(revision)
            if change.what is What.SET:
                by_value[change.value].append(revision)
        self.by_key, self.by_value = dict(by_key), dict(by_value)
        beyond = [revision for revision in self.changes if revision > self.final.revision]
        if beyond:
            revision = min(beyond)
            change, source = self.changes[revision]
            yield (
                f"lost: the store ends at revision {self.final.revision}, but {source} knows "
                f"revision {revision}, {_text(change)}"
            )

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

    def changed_between(self, key: Key, after: int, up_to: int) -> int | None:
        """Return a revision above `after` and up to `up_to` known to have changed `key`."""
        revision = self.last_change(key, up_to)
        return revision if revision > after else None

    def may_be_removed(self, key: Key, after: int, before: int | None = None) -> bool:
        """Tell if a delete may have removed `key` after revision `after`. With `before`, only one
        that was asked for before that position counts."""
        if self._may_have_gone(key, after):
            return True
        if before is None and any(
            revision > after and self.changes[revision][0].what is not What.SET
            for revision in (*self.by_key.get(key, ()), *self.trims)
            if self.changes[revision][0].covers(key)
        ):
            return True
        return any(
            operation.may_remove(key)
            and (before is None or operation.invoked < before)
            and (
                operation.outcome is Outcome.UNKNOWN
                or (operation.count > 0 and operation.revisions[0] > after)
            )
            for operation in self.operations
            if operation.deletes
        )

    def went_after(self, last: int) -> dict[int, ChangeOf]:
        """Return what was removed after revision `last`, in a run with limits: a follower is done
        with the last value, which may be what older ones have to go for."""
        return {
            revision: change
            for revision, (change, _) in self.changes.items()
            if self.limited and revision > last and change.what is not What.SET
        }

    def _may_have_gone(self, key: Key, after: int) -> bool:
        """Tell if `key`, as set at revision `after` or later, may have had to go by itself: with
        its ttl, or for newer ones since there may be only `max_messages`."""
        for operation in self.operations:
            if operation.expires and (not operation.keys or key in operation.keys):
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
        newer = {
            other
            for other, revisions in self.by_key.items()
            if other != key and revisions[-1] > after
        }
        newer |= {
            other
            for operation in self.operations
            if operation.outcome is Outcome.UNKNOWN and operation.action == "set"
            for other in operation.keys
        }
        return len(newer - {key}) >= self.max_messages


def _statements(
    history: History, store: Store, facts: _Facts
) -> Iterator[tuple[int, ChangeOf, str]]:
    for broadcast in history.broadcasts:
        if broadcast.store == store:
            for revision, change in broadcast.changes:
                yield revision, change, f"a broadcast of {broadcast.incarnation}"
    for key, (value, revision) in facts.final.rows.items():
        yield revision, ChangeOf(What.SET, (key,), value), "the final state"
    for following in history.followings:
        if following.store == store and not following.prefix:
            for _, revision, followed in following.changes:
                if followed is not None:
                    yield revision, followed, f"follower {following.follower}"
    for operation in facts.operations:
        if operation.outcome is not Outcome.OK:
            continue
        who = f"{operation.action} of {operation.client}"
        if operation.writes:
            keys: tuple[Key, ...] = operation.seqs or operation.keys
            for key, value, revision in zip(
                keys, operation.values, operation.revisions, strict=True
            ):
                yield revision, ChangeOf(What.SET, (key,), value), who
        elif operation.action == "delete" and operation.count:
            yield operation.revisions[0], ChangeOf(What.DELETE, operation.keys), who
        elif operation.action == "delete_all" and operation.count:
            yield operation.revisions[0], ChangeOf(What.TRIM, end=None), who
        for key, (value, revision) in operation.seen.items():
            yield revision, ChangeOf(What.SET, (key,), value), who


def _agree(one: ChangeOf, other: ChangeOf) -> bool:
    if one.what is What.TRIM and other.what is What.TRIM:
        return one.end is None or other.end is None or one.end == other.end
    return one == other


def _text(change: ChangeOf) -> str:
    if change.what is What.SET:
        return f"set {change.keys[0]!r} to {change.value[:40]!r}"
    if change.what is What.DELETE:
        return f"delete {list(change.keys)!r}"
    return f"trim up to {change.end}"


def _nothing_lost(facts: _Facts) -> Iterator[str]:
    rows = facts.final.rows
    for revision, (change, source) in sorted(facts.changes.items()):
        if revision > facts.final.revision:
            continue
        if change.what is What.SET:
            key = change.keys[0]
            row = rows.get(key)
            if row is None:
                if not facts.may_be_removed(key, revision):
                    yield f"lost: {_text(change)} at revision {revision}, says {source}"
            elif row[1] < revision:
                yield (
                    f"lost: {_text(change)} at revision {revision}, says {source}, but the final "
                    f"state has {row[0][:40]!r} of revision {row[1]}"
                )
        else:
            for key, row in rows.items():
                if row[1] < revision and change.covers(key):
                    yield f"undone: {_text(change)} at revision {revision}, but {key!r} is there"


def _nothing_twice(facts: _Facts) -> Iterator[str]:
    for value, revisions in facts.by_value.items():
        if len(revisions) > 1:
            yield f"stored twice: {value[:40]!r} at revisions {revisions}"


def _every_value_was_asked_for(facts: _Facts) -> Iterator[str]:
    asked: dict[bytes, Operation] = {}
    for operation in facts.operations:
        for value in operation.values:
            # A value with a `msg_id` may be asked for again, after an outcome that was not known.
            if value not in asked or asked[value].outcome is Outcome.REFUSED:
                asked[value] = operation
    for value, revisions in facts.by_value.items():
        asker = asked.get(value)
        change, source = facts.changes[revisions[0]]
        if asker is None:
            yield f"made up: {value[:40]!r} at revision {revisions[0]}, says {source}"
        elif asker.outcome is Outcome.REFUSED:
            yield (
                f"refused and stored: {value[:40]!r} at revision {revisions[0]}, says {source}, "
                f"though its {asker.action} ended in {asker.error}"
            )
        elif asker.action == "set" and change.keys != asker.keys:
            yield f"misplaced: {_text(change)}, but it was set to {asker.keys[0]!r}"


def _seqs_are_dense(facts: _Facts, store: Store) -> Iterator[str]:
    if store[0] != StoreKind.STREAM:
        return
    for seq in range(1, facts.final.last_seq + 1):
        if seq not in facts.final.rows and not facts.may_be_removed(seq, 0):
            yield f"not dense: seq {seq} is missing and nobody deleted it"
    if any(int(seq) > facts.final.last_seq for seq in facts.final.rows):
        yield f"beyond the end: rows above the last seq {facts.final.last_seq}"
    appended = {
        value: operation
        for operation in facts.operations
        if operation.action in ("append", "append_many")
        for value in operation.values
    }
    last_seq = 0
    for revision, (change, _) in sorted(facts.changes.items()):
        if change.what is not What.SET or change.value not in appended:
            continue
        seq = int(change.keys[0])
        first = next(each for each in facts.by_key[seq] if facts.changes[each][0].what is What.SET)
        if first != revision:
            other = facts.changes[first][0]
            yield f"seq {seq} was given twice: to {other.value[:40]!r}, then to {_text(change)}"
        if seq <= last_seq:
            yield f"seqs go back: {_text(change)} at revision {revision} after seq {last_seq}"
        last_seq = max(last_seq, seq)
    for operation in facts.operations:
        if operation.action == "append_many" and operation.outcome is Outcome.OK:
            start, end = operation.seqs[0], operation.seqs[-1]
            if list(operation.seqs) != list(range(start, end + 1)):
                yield f"torn: append_many of {operation.client} got the seqs {operation.seqs}"
    yield from _batches_are_whole(facts)


def _batches_are_whole(facts: _Facts) -> Iterator[str]:
    for operation in facts.operations:
        if operation.action != "append_many":
            continue
        known = [facts.by_value.get(value, [0])[0] for value in operation.values]
        if not any(known):
            continue
        first = max(known) - known.index(max(known))
        for index, value in enumerate(operation.values):
            revision = first + index
            there = facts.changes.get(revision)
            if revision > facts.final.revision or (there is not None and there[0].value != value):
                yield f"torn: of append_many of {operation.client}, {value[:40]!r} is missing"


def _conditions_held(facts: _Facts) -> Iterator[str]:
    for operation in facts.operations:
        if operation.outcome is not Outcome.OK or operation.expected is None:
            continue
        if operation.duplicate:
            continue
        if operation.action == "append":
            if operation.seqs[0] != operation.expected + 1:
                yield f"expected last seq {operation.expected}, got seq {operation.seqs[0]}"
        elif operation.revisions and operation.action == "set":
            key, revision = operation.keys[0], operation.revisions[0]
            before = facts.last_change(key, revision - 1)
            if before > operation.expected and not (
                operation.expected == 0
                and (
                    facts.changes[before][0].what is not What.SET
                    or facts.may_be_removed(key, before, operation.returned)
                )
            ):
                yield (
                    f"expected revision {operation.expected} of {key!r} held at {revision}, though "
                    f"{_text(facts.changes[before][0])} happened at {before}"
                )


def _transaction_held(facts: _Facts, transaction: Transaction) -> Iterator[str]:
    who = f"transaction of {transaction.client}"
    writes = transaction.writes
    values = [operation.values[0] for operation in writes if operation.values]
    known = [facts.by_value.get(value, [0])[0] for value in values]
    first = next((each - index for index, each in enumerate(known) if each), 0)
    for index, value in enumerate(values if first else ()):
        there = facts.changes.get(first + index)
        if first + index > facts.final.revision or (there and there[0].value != value):
            yield f"torn: of a {who}, {value[:40]!r} is missing"
    if not first:
        if transaction.outcome is not Outcome.OK:
            return
        # It wrote nothing: all that it saw was so at one time, or when it deleted.
        first = max([0, *transaction.conditions.values()]) + 1
        first = max([first, *(each.revisions[0] - each.count + 1 for each in writes)])
    for key, revision in transaction.conditions.items():
        changed = facts.last_change(key, first - 1)
        if changed <= revision or (
            revision == 0
            and (
                facts.changes[changed][0].what is not What.SET or facts.may_be_removed(key, changed)
            )
        ):
            continue
        yield (
            f"not serialisable: {who} at revision {first} had read {key!r} as of {revision}, "
            f"though {_text(facts.changes[changed][0])} happened at {changed}"
        )


def _real_time(facts: _Facts) -> Iterator[str]:
    done = [each for each in facts.operations if each.returned is not None]
    done = [each for each in done if each.outcome is Outcome.OK]
    by_return = sorted(done, key=lambda each: each.returned or 0)
    floor = 0
    floor_of = "nothing"
    index = 0
    for operation in sorted(done, key=lambda each: each.invoked):
        while index < len(by_return) and (by_return[index].returned or 0) < operation.invoked:
            seen = _seen_revision(by_return[index])
            if seen > floor:
                floor = seen
                floor_of = f"{by_return[index].action} of {by_return[index].client}"
            index += 1
        for what in _at_least(facts, operation, floor):
            yield f"stale: {operation.action} of {operation.client} after {floor_of}: {what}"


def _rebuilt_is_right(facts: _Facts, rebuilt: Final) -> Iterator[str]:
    for operation in facts.operations:
        if operation.stored and operation.outcome is Outcome.OK:
            last = max(operation.revisions)
            if last > rebuilt.revision:
                yield (
                    f"not stored: revision {last} was acknowledged to {operation.client} as "
                    "stored, "
                    f"and the bucket has the store up to {rebuilt.revision}"
                )
    if rebuilt.revision > facts.final.revision:
        yield f"rebuilt beyond the truth: {rebuilt.revision}, and not {facts.final.revision}"
    for key, row in facts.final.rows.items():
        if row[1] <= rebuilt.revision and rebuilt.rows.get(key) != row:
            yield f"rebuilt with {key!r} as {rebuilt.rows.get(key)}, and not {row}"
    for key, (value, revision) in rebuilt.rows.items():
        known = facts.changes.get(revision)
        if known is not None and known[0] != ChangeOf(What.SET, (key,), value):
            yield f"rebuilt with {key!r} at {revision}, which is {_text(known[0])}"
        last = facts.last_change(key, rebuilt.revision)
        if last > revision:
            change = _text(facts.changes[last][0])
            yield f"rebuilt with {key!r} as of {revision}, though {change} at {last}"


def _seen_revision(operation: Operation) -> int:
    seen = max((revision for _, revision in operation.seen.values()), default=0)
    return max(seen, operation.head_revision, *operation.revisions, 0)


def _at_least(facts: _Facts, operation: Operation, floor: int) -> Iterator[str]:
    """Yield how an operation's answer does not know of revision `floor`."""
    if operation.writes:
        if not operation.duplicate and operation.revisions[0] <= floor:
            yield f"revision {operation.revisions[0]}, though {floor} had been answered"
        return
    if operation.deletes or operation.action == "head":
        revision = operation.revisions[0] if operation.deletes else operation.head_revision
        if revision < floor or (operation.count and revision == floor):
            yield f"revision {revision}, though {floor} had been answered"
        return
    keys = operation.keys
    if operation.action == "get_all":
        keys = tuple(
            key
            for key in facts.by_key
            if operation.end is None or type(key) is str or int(key) <= operation.end
        )
    for key in keys:
        saw = operation.seen.get(key)
        last = facts.last_change(key, floor)
        if saw is not None:
            if saw[1] < last:
                yield f"{key!r} as of {saw[1]}, though {_text(facts.changes[last][0])} at {last}"
        elif (
            last
            and facts.changes[last][0].what is What.SET
            and not facts.may_be_removed(key, last, operation.returned)
        ):
            yield f"no {key!r}, though {_text(facts.changes[last][0])} at {last}"


def _check_following(facts: _Facts, following: Following) -> Iterator[str]:
    for kind, revision, _ in following.changes:
        if kind is ChangeKind.RESET:
            yield f"was reset at revision {revision}"
            return
    changes = [
        (revision, change) for _, revision, change in following.changes if change is not None
    ]
    live = 0
    while live < len(changes) and changes[live][0] <= following.live_after:
        live += 1
    yield from _history_part(following, changes[:live])
    last = following.live_after
    for revision, change in changes[live:]:
        if revision <= last:
            yield f"out of order or twice: {_text(change)} at revision {revision} after {last}"
        last = max(last, revision)
    known = facts.changes
    delivered = {revision for revision, _ in changes}
    for revision, change in changes:
        there = known.get(revision)
        if there is not None and not following.prefix and not _agree(there[0], change):
            yield f"got {_text(change)} at revision {revision}, which is {_text(there[0])}"
    went_after = facts.went_after(last)
    end = facts.final.revision if following.complete else last
    for revision in sorted(known):
        if following.live_after < revision <= end and revision not in delivered:
            change = known[revision][0]
            if change.what is What.CONFIGURE or revision in went_after:
                continue
            if following.live_after == 0 and not _removes_any(change, revision, changes):
                # Who starts at nothing is not told that what it never heard of is gone.
                continue
            if _concerns(change, following.prefix) and not _overwritten(facts, revision):
                yield f"never got {_text(change)} at revision {revision}"
    if following.complete:
        yield from _ends_right(facts, following, changes)


def _history_part(following: Following, history: list[tuple[int, ChangeOf]]) -> Iterator[str]:
    if history and following.start_seq is None and following.store[0] == StoreKind.STREAM:
        yield f"out of order: revision {history[-1][0]}, without having asked for history"
        return
    last: Key | None = None
    for revision, change in history:
        if change.what is not What.SET:
            yield f"out of order: {_text(change)} at revision {revision}"
            return
        key = change.keys[0]
        if last is not None and not _before(last, key):
            yield f"out of order or twice: {_text(change)} at revision {revision}, after {last!r}"
            return
        last = key


def _before(one: Key, other: Key) -> bool:
    if isinstance(one, int) and isinstance(other, int):
        return one < other
    return str(one).encode() < str(other).encode()


def _concerns(change: ChangeOf, prefix: str) -> bool:
    if not prefix or change.what is What.TRIM:
        return True
    return any(str(key).startswith(prefix) for key in change.keys)


def _removes_any(change: ChangeOf, revision: int, changes: list[tuple[int, ChangeOf]]) -> bool:
    """Tell if `change` is a set, or removes something that `changes` had set before."""
    return change.what is What.SET or any(
        earlier < revision and each.what is What.SET and change.covers(each.keys[0])
        for earlier, each in changes
    )


def _overwritten(facts: _Facts, revision: int) -> bool:
    change = facts.changes[revision][0]
    if change.what is not What.SET:
        return False
    key = change.keys[0]
    row = facts.final.rows.get(key)
    if row is None or row[1] > revision:
        return True
    return facts.changed_between(key, revision, facts.final.revision) is not None


def _ends_right(
    facts: _Facts, following: Following, changes: list[tuple[int, ChangeOf]]
) -> Iterator[str]:
    state: dict[Key, tuple[bytes, int]] = {}
    went_after = facts.went_after(changes[-1][0] if changes else facts.final.revision)
    for revision, change in [*changes, *sorted(went_after.items())]:
        if change.what is What.SET:
            state[change.keys[0]] = (change.value, revision)
        else:
            for key in [key for key in state if change.covers(key)]:
                del state[key]
    start_seq = following.start_seq
    expected = dict(facts.final.rows)
    if following.store[0] == StoreKind.KV:
        expected = {k: row for k, row in expected.items() if str(k).startswith(following.prefix)}
        state = {k: row for k, row in state.items() if str(k).startswith(following.prefix)}
    elif start_seq is None:
        after = following.live_after
        expected = {seq: row for seq, row in expected.items() if row[1] > after}
    else:
        expected = {seq: row for seq, row in expected.items() if int(seq) >= start_seq}
        state = {seq: row for seq, row in state.items() if int(seq) >= start_seq}
    for key in sorted(state.keys() | expected.keys(), key=str):
        if state.get(key) != expected.get(key):
            yield f"ends with {key!r} as {state.get(key)}, the store with {expected.get(key)}"
