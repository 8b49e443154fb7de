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
- **Closed** histories, in which nobody else changes a store, explain every delete and revision.
- **Tokens**: nobody is answered what theirs does not allow, nor once it was revoked or has expired.
- **Followers** are given the order itself: each change once, in order, all deletes, and of the sets
  all but those that were overwritten; in the end they have what the store has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from holdfast.protocol.names import StoreKind
from tests.support.checking.deliveries import check_deliveries
from tests.support.checking.facts import Facts, name_of_store, text_of
from tests.support.checking.followers import before, check_following
from tests.support.checking.grants import check_grants
from tests.support.checking.history import (
    ChangeOf,
    Final,
    History,
    Operation,
    Outcome,
    Store,
    Transaction,
    What,
)


def check(history: History) -> list[str]:
    """Return what is wrong, as sentences; empty if all is well."""
    found = list(history.failures)
    stores = {operation.store for operation in history.operations} | set(history.final)
    for store in sorted(stores):
        name = name_of_store(store)
        found.extend(f"{name}: {what}" for what in _check_store(history, store))
    found.extend(f"queue: {what}" for what in check_deliveries(history))
    found.extend(f"tokens: {what}" for what in check_grants(history))
    return found


def _check_store(history: History, store: Store) -> Iterator[str]:
    final = history.final.get(store)
    if final is None:
        yield "its final state could not be read"
        return
    facts = Facts(history, store, final)
    yield from facts.learn_all()
    if history.closed:
        yield from _everything_was_asked_for(facts)
    yield from _rows_are_whole(final)
    yield from _nothing_lost(facts)
    yield from _nothing_twice(facts)
    yield from _every_value_was_asked_for(facts)
    yield from _seqs_are_dense(facts)
    yield from _batches_are_whole(facts)
    yield from _conditions_held(facts)
    for transaction in history.transactions:
        if transaction.store == store:
            yield from _transaction_held(facts, transaction)
    yield from _real_time(facts)
    if store in history.rebuilt:
        yield from _rebuilt_is_right(facts, history.rebuilt[store])
    for following in history.followings:
        if following.store == store:
            for what in check_following(facts, following, may_reset=history.may_reset):
                yield f"follower {following.follower}: {what}"


def _everything_was_asked_for(facts: Facts) -> Iterator[str]:
    """Of a closed history: each delete, and each revision that nobody saw, is that of an operation
    without an answer."""
    unknown = [each for each in facts.operations if each.outcome is Outcome.UNKNOWN]
    unknown.sort(key=lambda each: len(each.keys))
    acked = {
        each.revisions[0]
        for each in facts.operations
        if each.deletes and each.outcome is Outcome.OK and each.count
    }
    for revision, change, source in facts.in_order():
        if change.what is What.SET or revision in acked:
            continue
        asked = (e for e in unknown if id(e) not in facts.attributed and _made(e, change))
        operation = next(asked, None)
        if operation is None:
            yield f"made up: {text_of(change)} at revision {revision}, says {source}"
        else:
            facts.attributed.add(id(operation))
    possible = sum(
        max(1, len(each.values))
        for each in unknown
        if (each.writes or each.deletes)
        and id(each) not in facts.attributed
        and not any(value in facts.by_value for value in each.values)
    )
    gaps = facts.final.revision - bisect_right(facts.order, facts.final.revision)
    if gaps > possible:
        yield f"made up: {gaps} revisions that nobody saw, with {possible} writes not answered"


def _made(operation: Operation, change: ChangeOf) -> bool:
    """Tell if an operation without an answer can be what made a delete or trim."""
    if change.what is What.TRIM:
        return operation.action == "delete_all" and (
            operation.end is None or (change.end is not None and change.end <= operation.end)
        )
    return operation.action == "delete" and set(change.keys) <= set(operation.keys)


def _rows_are_whole(final: Final) -> Iterator[str]:
    if final.count not in (None, len(final.rows)):
        yield f"lost: the head counts {final.count}, and there are {len(final.rows)}"
    if any(not before(one, other) for one, other in pairwise(final.rows)):
        yield "read back out of order"


def _nothing_lost(facts: Facts) -> Iterator[str]:
    rows = facts.final.rows
    for revision, change, source in facts.in_order():
        if revision > facts.final.revision:
            continue
        if change.what is What.SET:
            key = change.keys[0]
            row = rows.get(key)
            if row is None:
                if not facts.may_be_removed(key, revision):
                    yield f"lost: {text_of(change)} at revision {revision}, says {source}"
            elif row[1] < revision:
                yield (
                    f"lost: {text_of(change)} at revision {revision}, says {source}, but the final "
                    f"state has {row[0][:40]!r} of revision {row[1]}"
                )
        else:
            for key, row in rows.items():
                if row[1] < revision and change.covers(key):
                    yield f"undone: {text_of(change)} at revision {revision}, but {key!r} is there"


def _nothing_twice(facts: Facts) -> Iterator[str]:
    for value, revisions in facts.by_value.items():
        if len(revisions) > 1:
            yield f"stored twice: {value[:40]!r} at revisions {revisions}"


def _every_value_was_asked_for(facts: Facts) -> Iterator[str]:
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
        elif asker.action == "set":
            key = asker.keys[asker.values.index(value)]
            if change.keys != (key,):
                yield f"misplaced: {text_of(change)}, but it was set to {key!r}"


def _seqs_are_dense(facts: Facts) -> Iterator[str]:
    if facts.store[0] != StoreKind.STREAM:
        return
    for seq in range(1, facts.final.last_seq + 1):
        if seq not in facts.final.rows and not facts.may_be_removed(seq, 0):
            yield f"not dense: seq {seq} is missing and nobody deleted it"
    if any(int(seq) > facts.final.last_seq for seq in facts.final.rows):
        yield f"beyond the end: rows above the last seq {facts.final.last_seq}"
    appended = {
        value
        for operation in facts.operations
        if operation.action in ("append", "append_many")
        for value in operation.values
    }
    given: dict[int, ChangeOf] = {}
    last_seq = last_given = previous = unseen = 0
    for revision, change, _ in facts.in_order():
        unseen += revision - previous - 1
        previous = revision
        if change.what is not What.SET:
            continue
        seq = int(change.keys[0])
        is_append = change.value in appended
        if is_append and seq in given:
            other = given[seq]
            yield (f"seq {seq} was given twice: to {other.value[:40]!r}, then to {text_of(change)}")
        if is_append and seq <= last_given:
            yield f"seqs go back: {text_of(change)} at revision {revision} after seq {last_given}"
        # Each revision that nobody saw may be that of an append; a set may be one, too.
        left_out = max(0, seq - last_seq - 1)
        if left_out > unseen:
            yield f"not dense: {text_of(change)} at revision {revision} after seq {last_seq}"
        unseen = max(0, unseen - left_out)
        given.setdefault(seq, change)
        last_given = max(last_given, seq) if is_append else last_given
        last_seq = max(last_seq, seq)
    if last_seq > facts.final.last_seq:
        yield f"lost: seq {last_seq}, and the store ends at seq {facts.final.last_seq}"


def _batches_are_whole(facts: Facts) -> Iterator[str]:
    for operation in facts.operations:
        if operation.writes and operation.outcome is Outcome.OK:
            acks = len(operation.revisions)
            in_a_row = all(
                other == one + 1
                for numbers in (operation.revisions, operation.seqs)
                for one, other in pairwise(numbers)
            )
            if acks != len(operation.values) or not in_a_row:
                yield (
                    f"torn: {operation.action} of {operation.client} got the revisions "
                    f"{operation.revisions} and the seqs {operation.seqs}"
                )
        if len(operation.values) < 2:
            continue
        known = [facts.by_value.get(value, [0])[0] for value in operation.values]
        if not any(known):
            continue
        first = max(known) - known.index(max(known))
        for revision, value in enumerate(operation.values, start=first):
            there = facts.changes.get(revision)
            if not 0 < revision <= facts.final.revision or (there and there[0].value != value):
                yield (
                    f"torn: of {operation.action} of {operation.client}, {value[:40]!r} is missing"
                )


def _conditions_held(facts: Facts) -> Iterator[str]:
    for operation in facts.operations:
        if operation.outcome is not Outcome.OK or operation.expected is None:
            continue
        if operation.duplicate:
            continue
        if operation.action == "append":
            if operation.seqs[0] != operation.expected + 1:
                yield f"expected last seq {operation.expected}, got seq {operation.seqs[0]}"
        elif operation.revisions and (operation.action == "set" or operation.count):
            key, revision = operation.keys[0], operation.revisions[0]
            last = facts.last_change(key, revision - 1)
            if operation.expected > last:
                # Nobody saw it, unless it was something else.
                if operation.expected in facts.changes or operation.expected >= revision:
                    yield f"expected revision {operation.expected} of {key!r}, which has {last}"
            elif last > operation.expected and not (
                operation.expected == 0
                and (
                    facts.changes[last][0].what is not What.SET
                    or facts.may_be_removed(key, last, operation.returned, revision)
                )
            ):
                yield (
                    f"expected revision {operation.expected} of {key!r} held at {revision}, though "
                    f"{text_of(facts.changes[last][0])} happened at {last}"
                )


def _transaction_held(facts: Facts, transaction: Transaction) -> Iterator[str]:
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
            f"though {text_of(facts.changes[changed][0])} happened at {changed}"
        )


def _real_time(facts: Facts) -> Iterator[str]:
    removed: dict[int, Operation] = {}
    asked: dict[bytes, float] = {}
    for operation in facts.operations:
        for value in operation.values:
            asked.setdefault(value, operation.invoked)
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
        for value, _ in operation.seen.values():
            if operation.returned is not None and asked.get(value, 0) > operation.returned:
                yield f"too early: {operation.action} of {operation.client} saw {value[:40]!r}"
        if operation.deletes and operation.count:
            other = removed.setdefault(operation.revisions[0], operation)
            if other is not operation:
                yield (
                    f"two orders: revision {operation.revisions[0]} was acknowledged to "
                    f"{other.client} and to {operation.client}"
                )
        for what in _at_least(facts, operation, floor):
            yield f"stale: {operation.action} of {operation.client} after {floor_of}: {what}"


def _rebuilt_is_right(facts: Facts, rebuilt: Final) -> Iterator[str]:
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
            yield f"rebuilt with {key!r} at {revision}, which is {text_of(known[0])}"
        last = facts.last_change(key, rebuilt.revision)
        if last > revision:
            change = text_of(facts.changes[last][0])
            yield f"rebuilt with {key!r} as of {revision}, though {change} at {last}"


def _seen_revision(operation: Operation) -> int:
    seen = max((revision for _, revision in operation.seen.values()), default=0)
    return max(seen, operation.head_revision, *operation.revisions, 0)


def _at_least(facts: Facts, operation: Operation, floor: int) -> Iterator[str]:
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
                yield f"{key!r} as of {saw[1]}, though {text_of(facts.changes[last][0])} at {last}"
        elif (
            last
            and facts.changes[last][0].what is What.SET
            and not facts.may_be_removed(key, last, operation.returned)
        ):
            yield f"no {key!r}, though {text_of(facts.changes[last][0])} at {last}"
