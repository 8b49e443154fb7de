"""What the writers do: a seeded choice of operations on few stores. Pure.

Stores are shared by all writers, so that conditional writes meet each other. Every value is new.
Some operations have short timeouts, so that they are given up in the middle of a fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.protocol.names import StoreKind
from tests.support.checking.history import Operation, Outcome, Store
from tests.torture.recording import WITH_SUBJECT

STREAM_COUNT: Final = 20
KV_COUNT: Final = 5
KEY_COUNT: Final = 30
#: A trim leaves about this many messages: enough to page through, few enough to read back.
KEPT_MESSAGES: Final = 300
#: One in so many operations is given up early, after a time in this range.
SHORT_TIMEOUT_RATIO: Final = 0.1
SHORT_TIMEOUT_SECONDS: Final = (0.05, 2.0)

STREAMS: Final[tuple[Store, ...]] = tuple(
    (int(StoreKind.STREAM), f"torture.s{number}") for number in range(STREAM_COUNT)
)
KVS: Final[tuple[Store, ...]] = tuple(
    (int(StoreKind.KV), f"torture.k{number}") for number in range(KV_COUNT)
)
#: The last write to every store, by which followers know that they have heard everything.
MARKER_ID: Final = b"marker"
MARKER_KEY: Final = "zz-marker"


def is_stream(store: Store) -> bool:
    return store[0] == StoreKind.STREAM


@dataclass(slots=True)
class _Knowledge:
    """What one writer last heard of a store: old, since others write too."""

    last_seq: int = 0
    revision_of: dict[str, int] = field(default_factory=dict)


class Workload:
    """Draws the operations of one writer."""

    def __init__(self, writer: str, rng: random.Random) -> None:
        self._writer = writer
        self._rng = rng
        self._count = 0
        self._known: dict[Store, _Knowledge] = {}

    def draw(self, at: float, store: Store | None = None) -> Operation:
        """Return the next operation, as invoked at `at`: on `store`, or on any."""
        self._count += 1
        id = f"{self._writer}-{self._count}"
        rng = self._rng
        if store is None:
            store = rng.choice(STREAMS if rng.random() < 0.75 else KVS)
        draws = _STREAM_DRAWS if is_stream(store) else _KV_DRAWS
        knowledge = self._known.setdefault(store, _Knowledge())
        operation = Operation(id, store, "get", at)
        [draw] = rng.choices(list(draws), weights=list(draws.values()))
        draw(operation, knowledge, rng)
        if not operation.label:
            operation.label = operation.action
        return operation

    def timeout_seconds(self) -> float | None:
        """Return how long the caller of the next operation waits; None is the usual."""
        if self._rng.random() < SHORT_TIMEOUT_RATIO:
            return self._rng.uniform(*SHORT_TIMEOUT_SECONDS)
        return None

    def learn(self, operation: Operation) -> None:
        """Take note of an answer."""
        if operation.outcome is not Outcome.OK:
            return
        knowledge = self._known[operation.store]
        knowledge.last_seq = max(knowledge.last_seq, *operation.seqs, 0)
        if operation.writes:
            written = zip(operation.keys, operation.revisions, strict=False)
            knowledge.revision_of |= {str(key): revision for key, revision in written}
        elif operation.action in ("delete", "get"):
            for key in operation.keys:
                knowledge.revision_of.pop(str(key), None)
            for key, (_, revision) in operation.seen.items():
                knowledge.revision_of[str(key)] = revision


_Draw = Callable[[Operation, _Knowledge, random.Random], None]


def _append(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = "append"
    operation.values = (operation.client.encode(),)


def _append_with_subject(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    _append(operation, knowledge, rng)
    operation.label = "append with subject"
    operation.values = (operation.values[0] + WITH_SUBJECT,)


def _append_with_msg_id(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    _append(operation, knowledge, rng)
    operation.label = "append with msg_id"


def _append_expecting(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    _append(operation, knowledge, rng)
    operation.label = "append expecting"
    operation.expected = knowledge.last_seq


def _numbered(operation: Operation, count: int) -> tuple[bytes, ...]:
    return tuple(f"{operation.client}.{number}".encode() for number in range(count))


def _append_many(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = operation.label = "append_many"
    operation.values = _numbered(operation, rng.randint(2, 12))


def _some_seq(knowledge: _Knowledge, rng: random.Random) -> int:
    """A seq that is likely there, now and then the next one or far too high."""
    if rng.random() < 0.02:
        return knowledge.last_seq + rng.choice((1, 1_000_000))
    return rng.randint(max(1, knowledge.last_seq - KEPT_MESSAGES), max(1, knowledge.last_seq))


def _set(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = "set"
    operation.values = (operation.client.encode(),)
    operation.keys = (_some_seq(knowledge, rng),)


def _delete(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = "delete"
    seqs = {_some_seq(knowledge, rng) for _ in range(rng.choice((1, 1, 1, 5)))}
    operation.keys = tuple(sorted(seqs))


def _trim(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = operation.label = "delete_all"
    if rng.random() < 0.95:
        operation.end = max(1, knowledge.last_seq - KEPT_MESSAGES)


def _get(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.keys = (_some_seq(knowledge, rng),)


def _some_key(rng: random.Random) -> str:
    return f"key-{rng.randrange(KEY_COUNT):02d}"


def _kv_set(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = "set"
    operation.values = (operation.client.encode(),)
    operation.keys = (_some_key(rng),)


def _kv_set_expecting(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    _kv_set(operation, knowledge, rng)
    operation.label = "set expecting"
    operation.expected = knowledge.revision_of.get(str(operation.keys[0]), 0)


def _kv_set_many(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = "set"
    operation.label = "set_many"
    keys = {_some_key(rng) for _ in range(rng.randint(2, 6))}
    operation.keys = tuple(sorted(keys))
    operation.values = _numbered(operation, len(keys))


def _kv_delete(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = "delete"
    operation.keys = (_some_key(rng),)
    if rng.random() < 0.3:
        operation.label = "delete expecting"
        operation.expected = knowledge.revision_of.get(str(operation.keys[0]), 0)


def _kv_clear(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.action = operation.label = "delete_all"


def _kv_get(operation: Operation, knowledge: _Knowledge, rng: random.Random) -> None:
    operation.keys = (_some_key(rng),)


_STREAM_DRAWS: Final[dict[_Draw, float]] = {
    _append: 40,
    _append_with_subject: 10,
    _append_with_msg_id: 6,
    _append_expecting: 4,
    _append_many: 8,
    _set: 10,
    _delete: 10,
    _trim: 1,
    _get: 11,
}
_KV_DRAWS: Final[dict[_Draw, float]] = {
    _kv_set: 45,
    _kv_set_expecting: 18,
    _kv_set_many: 5,
    _kv_delete: 18,
    _kv_clear: 0.5,
    _kv_get: 13.5,
}
