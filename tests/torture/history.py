"""What clients did and heard: written as JSON lines while it happens, read back to be judged.

One file for each client process. An operation is an `invoke` line and, once it is known, an `ok` or
an `error` line with the same id; one that has neither may or may not have happened. A session is a
subscription of one store from its start to its end: a `follow` line, and a line for each change.
Times are monotonic seconds, which all processes of a machine share.

A value is known by its name alone: `value_of` makes the bytes from it and `name_of` checks them, so
a value that was damaged on its way has no name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TextIO

Target = int | str
"""The seq of a message or the key of an entry."""

#: The name of a value that nobody can have written as it is.
DAMAGED = "damaged:"


class OperationKind(StrEnum):
    """What an operation does to its store."""

    APPEND = "append"
    SET = "set"
    DELETE = "delete"
    #: `delete_all`: of a stream up to `end_seq` or all, of a kv every key.
    TRIM = "trim"
    GET = "get"


class Outcome(StrEnum):
    """What the caller knows of an operation."""

    OK = "ok"
    #: A definite error: it did not and will not happen.
    REFUSED = "refused"
    #: No answer: it may have happened, or happen yet.
    UNKNOWN = "unknown"


class Place(NamedTuple):
    """Where a value was stored."""

    target: Target
    revision: int


@dataclass(slots=True)
class Operation:
    """One call of one client."""

    id: str
    store: str
    kind: OperationKind
    invoked_at: float
    #: What an append or set writes, in order; a batch has several.
    values: tuple[str, ...] = ()
    #: What a set, delete or get is aimed at; empty for an append.
    targets: tuple[Target, ...] = ()
    end_seq: int | None = None
    expected_revision: int | None = None
    expected_last_seq: int | None = None
    #: What to call it in a report: finer than `kind`.
    label: str = ""
    outcome: Outcome = Outcome.UNKNOWN
    returned_at: float = math.inf
    #: The error's code.
    code: str = ""
    text: str = ""
    #: Of an acknowledged append or set: where each value went.
    places: tuple[Place, ...] = ()
    #: Of an acknowledged delete or trim.
    count: int = 0
    revision: int = 0
    #: Of an answered get: the value's name and its place, or None.
    found: tuple[str, Place] | None = None

    @property
    def is_write(self) -> bool:
        return self.kind is not OperationKind.GET

    @property
    def last_revision(self) -> int:
        """The last revision of an acknowledged write."""
        return self.places[-1].revision if self.places else self.revision


class SeenKind(StrEnum):
    """What a follower is told; the words of `holdfast.client.ChangeKind`."""

    SET = "set"
    DELETE = "delete"
    TRIM = "trim"
    RESET = "reset"
    READY = "ready"


class Seen(NamedTuple):
    """One change that a follower was told. A trim of a kv has `end_seq` None."""

    kind: SeenKind
    revision: int
    targets: tuple[Target, ...] = ()
    value: str = ""
    end_seq: int | None = None


@dataclass(slots=True)
class Session:
    """One subscription. `whole`: it began with all that there was. `last`: it ran to the end, when
    nothing was written any more, and must have heard everything. `live_after` is a revision above
    which it had certainly begun to listen; before that, rows that were read stand for changes."""

    id: str
    store: str
    whole: bool
    live_after: int = 0
    last: bool = False
    changes: list[Seen] = field(default_factory=list)
    #: When each of them was told.
    told_at: list[float] = field(default_factory=list)


@dataclass(slots=True)
class FinalState:
    """One store as a fresh client read it at the end: the rows are value and place, in order."""

    store: str
    revision: int
    last_seq: int
    count: int
    rows: list[tuple[str, Place]]


@dataclass(slots=True)
class History:
    """All that was recorded, by store."""

    operations: dict[str, list[Operation]] = field(default_factory=dict)
    sessions: dict[str, list[Session]] = field(default_factory=dict)

    @property
    def stores(self) -> list[str]:
        return sorted(self.operations.keys() | self.sessions.keys())

    def all_operations(self) -> Iterable[Operation]:
        for operations in self.operations.values():
            yield from operations


class Recorder:
    """Writes one client process's file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, event: str, at: float, id: str, **fields: object) -> None:
        """Write one line; fields that are None or empty are left out."""
        line: dict[str, object] = {"event": event, "at": round(at, 6), "id": id}
        for name, value in fields.items():
            if value is not None and value != () and value != "":
                line[name] = value
        self._file.write(json.dumps(line) + "\n")


def load(paths: Iterable[Path]) -> History:
    """Read the files of all client processes."""
    history = History()
    for path in paths:
        with path.open() as file:
            _load_file(file, history)
    return history


def _load_file(file: TextIO, history: History) -> None:
    operations: dict[str, Operation] = {}
    sessions: dict[str, Session] = {}
    for line in file:
        record = json.loads(line)
        event, id = record["event"], record["id"]
        if event == "invoke":
            operation = operations[id] = _invoked(record)
            history.operations.setdefault(operation.store, []).append(operation)
        elif event == "ok":
            _answered(operations[id], record)
        elif event == "error":
            operation = operations[id]
            operation.returned_at = record["at"]
            operation.code, operation.text = record["code"], record.get("text", "")
            operation.outcome = Outcome.REFUSED if record["definite"] else Outcome.UNKNOWN
        elif event == "follow":
            session = sessions[id] = Session(
                id, record["store"], record["whole"], record["live_after"]
            )
            history.sessions.setdefault(session.store, []).append(session)
        elif event == "caught_up":
            sessions[id].last = True
        else:
            assert event == "change", event
            sessions[id].changes.append(_seen(record))
            sessions[id].told_at.append(record["at"])


def _invoked(record: dict[str, Any]) -> Operation:
    return Operation(
        id=record["id"],
        store=record["store"],
        kind=OperationKind(record["kind"]),
        invoked_at=record["at"],
        values=tuple(record.get("values", ())),
        targets=tuple(record.get("targets", ())),
        end_seq=record.get("end_seq"),
        expected_revision=record.get("expected_revision"),
        expected_last_seq=record.get("expected_last_seq"),
        label=record.get("label", record["kind"]),
    )


def _answered(operation: Operation, record: dict[str, Any]) -> None:
    operation.outcome = Outcome.OK
    operation.returned_at = record["at"]
    operation.places = tuple(Place(*place) for place in record.get("places", ()))
    operation.count = record.get("count", 0)
    operation.revision = record.get("revision", 0)
    found = record.get("found")
    operation.found = None if found is None else (found[0], Place(found[1], found[2]))


def _seen(record: dict[str, Any]) -> Seen:
    return Seen(
        SeenKind(record["kind"]),
        record["revision"],
        tuple(record.get("targets", ())),
        record.get("value", ""),
        record.get("end_seq"),
    )


def value_of(name: str) -> bytes:
    """Return the bytes that go by this name: a hash of it, repeated to a size that it decides."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    # Mostly small; one in sixteen up to 4 KiB, one in 256 up to 64 KiB.
    size_bytes = digest[0] % 64
    if digest[1] < 16:
        size_bytes = digest[0] * 16
    if digest[1] == 0:
        size_bytes = digest[0] * 256
    padding = (digest * (size_bytes // len(digest) + 1))[:size_bytes]
    return name.encode() + b"\0" + padding


def name_of(value: bytes) -> str:
    """Return the name of a value; one that starts with DAMAGED if it is not as it was written."""
    name = value.partition(b"\0")[0].decode(errors="replace")
    return name if value_of(name) == value else f"{DAMAGED}{value[:40]!r}"
