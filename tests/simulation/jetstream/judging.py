"""Judges what applications of JetStream saw against what the streams hold in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.simulation.jetstream.notes import (
    CONSUMERS,
    FACTS,
    ORDERS,
    TASKS,
    Copied,
    Notes,
    Publication,
)


def judge(notes: Notes) -> list[str]:
    """Return what is wrong, as sentences; empty if all is well."""
    return [
        *_stored_once(notes),
        *_in_order(notes),
        *_expectations_held(notes),
        *_nothing_is_lost(notes),
        *_nothing_comes_back(notes),
        *_copies_are_exact(notes),
        *_what_is_republished_is_in_order(notes),
    ]


def _stored_once(notes: Notes) -> Iterator[str]:
    """Every acknowledged publish is stored, once, with its seq, and nothing else is."""
    asked = {each.id: each for each in notes.publications}
    seqs: dict[str, set[int]] = defaultdict(set)
    for stream, messages in notes.stored.items():
        for message in messages:
            seqs[message.id].add(message.seq)
            publication = asked.get(message.id)
            if publication is None:
                yield f"{stream} has {message.id!r}, which nobody published"
            elif (publication.stream, publication.subject) != (stream, message.subject):
                yield f"{message.id} is stored in {stream} with subject {message.subject}"
    for (stream, seq), handled in notes.handled.items():
        if len(handled.ids) > 1:
            yield f"{stream} {seq} was delivered as {sorted(handled.ids)}"
        for each in handled.ids:
            seqs[each].add(seq)
            if each not in asked or asked[each].stream != stream:
                yield f"{stream} {seq} was delivered as {each}, which nobody published there"
    for publication in notes.publications:
        found = seqs[publication.id]
        if len(found) > 1:
            yield f"{publication.id} is stored {len(found)} times: {sorted(found)}"
        if publication.seq is not None and found != {publication.seq}:
            yield (
                f"{publication.id} was acknowledged as {publication.stream} {publication.seq} "
                f"and is stored as {sorted(found)}"
            )
        if publication.refused and found:
            yield f"{publication.id} was refused, and is stored as {sorted(found)}"
    taken: dict[tuple[str, int], str] = {}
    for publication in notes.publications:
        if publication.seq is not None:
            key = publication.stream, publication.seq
            other = taken.setdefault(key, publication.id)
            if other != publication.id:
                yield f"{other} and {publication.id} were both acknowledged as {key}"


def _in_order(notes: Notes) -> Iterator[str]:
    """What a publisher sent once is stored in the order in which it was sent; so is what it
    published after an answer."""
    last: dict[tuple[str, str], Publication] = {}
    seqs = {
        (stream, message.id): message.seq
        for stream, messages in notes.stored.items()
        for message in messages
    }
    for publication in notes.publications:
        seq = publication.seq or seqs.get((publication.stream, publication.id))
        if publication.attempts > 1 or seq is None:
            continue
        publication.seq = seq
        before = last.get((publication.publisher, publication.stream))
        if before is not None and before.seq is not None and before.seq > seq:
            yield (
                f"{before.id} was sent before {publication.id} and is stored behind it: "
                f"{before.seq}, {seq}"
            )
        last[publication.publisher, publication.stream] = publication


def _expectations_held(notes: Notes) -> Iterator[str]:
    """Each fact was stored upon the last one of its subject."""
    last: dict[str, int] = defaultdict(int)
    for message in notes.stored.get(FACTS, ()):
        if message.expected is not None and message.expected != last[message.subject]:
            yield (
                f"{message.id} expected {message.expected} and is stored as {message.seq} "
                f"behind {last[message.subject]}"
            )
        last[message.subject] = message.seq


def _nothing_is_lost(notes: Notes) -> Iterator[str]:
    """Nothing counts as done unless somebody said so. The consumers are empty by now."""
    wanted = {(ORDERS, message.seq): message.id for message in notes.stored.get(ORDERS, ())}
    wanted |= {
        (TASKS, each.seq): each.id
        for each in notes.publications
        if each.stream == TASKS and each.seq is not None
    }
    for (stream, seq), name in wanted.items():
        handled = notes.handled.get((stream, seq))
        if handled is None:
            yield f"{stream} {seq} ({name}) was never delivered"
        elif not handled.finished:
            yield f"{stream} {seq} ({name}) counts as done, and nobody said so"
    if notes.stored.get(TASKS):
        yield f"{TASKS} still has {notes.stored[TASKS][:3]}"


def _nothing_comes_back(notes: Notes) -> Iterator[str]:
    """What was acknowledged for certain is not delivered again, whichever gateway confirmed it: one
    that another has deposed knows it, or asks before it delivers."""
    for sent in notes.sent:
        handled = notes.handled.get((sent.stream, sent.seq))
        if sent.stream not in CONSUMERS or handled is None or handled.confirmed_at is None:
            continue
        if sent.at > handled.confirmed_at:
            yield (
                f"{sent.stream} {sent.seq} is delivered by {sent.gateway} at {sent.at:.6f} "
                f"(epoch {sent.epoch} of {sent.last_epoch}), "
                f"and its ack was confirmed at {handled.confirmed_at:.6f}"
            )


def _copies_are_exact(notes: Notes) -> Iterator[str]:
    """Each message of an origin is copied, once, in the order of the origin."""
    for copy, found in notes.copied.items():
        wanted = notes.originals[copy]
        by_origin: dict[str, list[Copied]] = defaultdict(list)
        for each in found:
            by_origin[each.origin].append(each)
        for origin in {each.origin for each in (*found, *wanted)}:
            theirs = [each for each in wanted if each.origin == origin]
            ours = by_origin[origin]
            if ours == theirs:
                continue
            seqs = [each.origin_seq for each in ours]
            doubles = sorted({each for each in seqs if seqs.count(each) > 1})
            missing = sorted({each.origin_seq for each in theirs} - set(seqs))
            yield (
                f"{copy} has {len(ours)} of {len(theirs)} messages of {origin}: "
                f"missing {missing[:5]}, twice {doubles[:5]}"
            )


def _what_is_republished_is_in_order(notes: Notes) -> Iterator[str]:
    """Each gateway republishes in the order of the stream, each message once, as long as it serves
    the stream. Copies may be missing, and each tells which one its subject had before."""
    stored = {message.seq: message for message in notes.stored.get(ORDERS, ())}
    last: dict[tuple[str, int], int] = defaultdict(int)
    for copy in notes.republished:
        message = stored.get(copy.seq)
        if message is None or message.id != copy.id:
            yield f"{copy.id} is republished as {ORDERS} {copy.seq}, which is {message}"
            continue
        before = last[copy.gateway, copy.epoch]
        if copy.seq <= before:
            yield f"{copy.gateway} republishes {ORDERS} {copy.seq} behind {before}"
        last[copy.gateway, copy.epoch] = copy.seq
        found = (each for each in stored.values() if each.subject == message.subject)
        expected = max((each.seq for each in found if each.seq < copy.seq), default=0)
        if copy.last_seq not in (0, expected):
            yield (
                f"{ORDERS} {copy.seq} is republished behind {copy.last_seq} of its subject, "
                f"and that is {expected}"
            )
