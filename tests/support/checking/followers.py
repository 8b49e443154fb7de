"""What a follower was given, judged by what is known of its store. Pure.

It is given the order itself: each change once, in order, all deletes, and of the sets all but those
that were overwritten; in the end it has what the store has.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

from holdfast.protocol.messages import ChangeKind
from holdfast.protocol.names import StoreKind
from tests.support.checking.facts import Facts, agree, text_of
from tests.support.checking.history import ChangeOf, Following, Key, What


def check_following(facts: Facts, following: Following, *, may_reset: bool) -> Iterator[str]:
    """Yield what is wrong with what a follower was given. After a reset, which it `may_reset` by,
    it begins anew."""
    parts = [following]
    for told in following.changes:
        kind, revision, _ = told
        if kind is ChangeKind.RESET:
            if not may_reset:
                yield f"was reset at revision {revision}"
                return
            start_seq = following.start_seq or 1
            parts.append(replace(following, start_seq=start_seq, live_after=revision, changes=[]))
        elif len(parts) > 1:
            parts[-1].changes.append(told)
    if len(parts) > 1:
        cut_at = next(i for i, told in enumerate(following.changes) if told[0] is ChangeKind.RESET)
        parts[0] = replace(following, changes=following.changes[:cut_at])
    for part in parts:
        part.complete = following.complete and part is parts[-1]
        yield from _check_part(facts, part)


def _check_part(facts: Facts, following: Following) -> Iterator[str]:
    yield from _ready_in_place(following)
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
            yield f"out of order or twice: {text_of(change)} at revision {revision} after {last}"
        last = max(last, revision)
    known = facts.changes
    delivered = {revision for revision, _ in changes}
    for revision, change in changes:
        there = known.get(revision)
        if there is not None and not following.prefix and not agree(there[0], change):
            yield f"got {text_of(change)} at revision {revision}, which is {text_of(there[0])}"
    went_after = facts.went_after(last)
    end = facts.final.revision if following.complete else last
    due = slice(bisect_right(facts.order, following.live_after), bisect_right(facts.order, end))
    for revision in facts.order[due]:
        if revision not in delivered:
            change = known[revision][0]
            if change.what is What.CONFIGURE or revision in went_after:
                continue
            if following.live_after == 0 and not _removes_any(change, revision, changes):
                # Who starts at nothing is not told that what it never heard of is gone.
                continue
            if _concerns(change, following.prefix) and not _overwritten(facts, revision):
                yield f"never got {text_of(change)} at revision {revision}"
    if following.complete:
        yield from _ends_right(facts, following, changes)


def _ready_in_place(following: Following) -> Iterator[str]:
    """Check that what came before the first READY is state, and what came after it is newer."""
    told = following.changes
    at = next((i for i, (kind, *_) in enumerate(told) if kind is ChangeKind.READY), len(told))
    for mark in [revision for _, revision, _ in told[at : at + 1]]:
        if any(revision > mark for _, revision, _ in told[:at]) or any(
            revision <= mark for _, revision, change in told[at + 1 :] if change is not None
        ):
            yield f"ready at revision {mark}, in the wrong place"


def _history_part(following: Following, history: list[tuple[int, ChangeOf]]) -> Iterator[str]:
    if history and following.start_seq is None and following.store[0] == StoreKind.STREAM:
        yield f"out of order: revision {history[-1][0]}, without having asked for history"
        return
    last: Key | None = None
    for revision, change in history:
        if change.what is not What.SET:
            yield f"out of order: {text_of(change)} at revision {revision}"
            return
        key = change.keys[0]
        if last is not None and not before(last, key):
            yield f"out of order or twice: {text_of(change)} at revision {revision}, after {last!r}"
            return
        last = key


def before(one: Key, other: Key) -> bool:
    """Tell if a store gives `one` before `other`."""
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


def _overwritten(facts: Facts, revision: int) -> bool:
    change = facts.changes[revision][0]
    if change.what is not What.SET:
        return False
    key = change.keys[0]
    row = facts.final.rows.get(key)
    if row is None or row[1] > revision:
        return True
    return facts.last_change(key, facts.final.revision) > revision


def _ends_right(
    facts: Facts, following: Following, changes: list[tuple[int, ChangeOf]]
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
