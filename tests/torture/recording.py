"""What clients did and heard: written as JSON lines while it happens, read back to be judged.

One file for each client process. An operation is an `invoke` line and, once it is known, an `ok` or
an `error` line with the same id; one that has neither may or may not have happened. A session is a
subscription of one store from its start to its end: a `follow` line, and a line for each change.
Times are monotonic seconds, which all processes of a machine share.

A value is known by its name alone: `value_of` makes the bytes from it and `name_of` checks them, so
a value that was damaged on its way has a name that nobody wrote.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TextIO

from holdfast.protocol.messages import ChangeKind, Entry, Message
from tests.support.checking.checker import check
from tests.support.checking.facts import name_of_store
from tests.support.checking.history import (
    ChangeOf,
    Final,
    Following,
    History,
    Operation,
    Outcome,
    Store,
    What,
)

#: The end of the names of values whose messages have a subject.
WITH_SUBJECT = b".s"
#: What a client may be told while parts of the cluster are away, or because of what others did.
EXPECTED_ERRORS = frozenset(
    {
        "timeout",
        "no_server",
        "no_coordinator",
        "connection_failed",
        "wrong_last_seq",
        "wrong_revision",
        "invalid_seq",
        "stale_write",
    }
)


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

    def invoke(self, operation: Operation) -> None:
        """An operation begins."""
        self.write(
            "invoke",
            operation.invoked,
            operation.client,
            store=operation.store,
            action=operation.action,
            keys=operation.keys,
            values=[value.decode() for value in operation.values],
            end=operation.end,
            expected=operation.expected,
            label=operation.label,
        )

    def ok(self, operation: Operation) -> None:
        """An operation was answered."""
        assert operation.returned is not None
        self.write(
            "ok",
            operation.returned,
            operation.client,
            revisions=operation.revisions,
            seqs=operation.seqs,
            count=operation.count or None,
            seen=[(key, row[0].decode(), row[1]) for key, row in operation.seen.items()],
        )


def load(paths: Iterable[Path]) -> History:
    """Read the files of all client processes."""
    history = History()
    history.closed = history.may_reset = True
    for path in paths:
        with path.open() as file:
            _load_file(file, history)
    return history


def judge(
    history: History, final: dict[Store, Final], expected: Collection[str] = EXPECTED_ERRORS
) -> list[str]:
    """Return what is wrong, as sentences, with `final` as it was read back; `expected` are the
    codes of errors that nobody wonders about."""
    history.final = final
    return check(history) + [
        f"{name_of_store(one.store)}: unexpected error: {one.label} of {one.client}: {one.error}"
        for one in history.operations
        if one.error and one.error.partition(":")[0] not in expected
    ]


def _load_file(file: TextIO, history: History) -> None:
    operations: dict[str, Operation] = {}
    followings: dict[str, Following] = {}
    for line in file:
        record = json.loads(line)
        event, id = record["event"], record["id"]
        if event == "invoke":
            operations[id] = _invoked(record)
            history.operations.append(operations[id])
        elif event == "ok":
            _answered(operations[id], record)
        elif event == "error":
            operation = operations[id]
            operation.returned, operation.error = record["at"], record["error"]
            operation.outcome = Outcome.REFUSED if record["definite"] else Outcome.UNKNOWN
        elif event == "follow":
            kind, name = record["store"]
            followings[id] = Following(id, (kind, name), record.get("start_seq"))
            followings[id].live_after = record["live_after"]
            history.followings.append(followings[id])
        elif event == "caught_up":
            followings[id].complete = True
        else:
            assert event == "change", event
            followings[id].changes.append(_told(record))
            followings[id].told_at.append(record["at"])


def _invoked(record: dict[str, Any]) -> Operation:
    kind, name = record["store"]
    return Operation(
        client=record["id"],
        store=(kind, name),
        action=record["action"],
        invoked=record["at"],
        keys=tuple(record.get("keys", ())),
        values=tuple(value.encode() for value in record.get("values", ())),
        end=record.get("end"),
        expected=record.get("expected"),
        label=record["label"],
    )


def _answered(operation: Operation, record: dict[str, Any]) -> None:
    operation.outcome = Outcome.OK
    operation.returned = record["at"]
    operation.revisions = tuple(record.get("revisions", ()))
    operation.seqs = tuple(record.get("seqs", ()))
    operation.count = record.get("count", 0)
    operation.seen = {
        key: (value.encode(), revision) for key, value, revision in record.get("seen", ())
    }


def _told(record: dict[str, Any]) -> tuple[ChangeKind, int, ChangeOf | None]:
    kind, change = ChangeKind(record["kind"]), None
    if kind in (ChangeKind.SET, ChangeKind.DELETE, ChangeKind.TRIM):
        value = record.get("value", "").encode()
        keys = tuple(record.get("keys", ()))
        change = ChangeOf(What(kind.value), keys, value, record.get("end"))
    return kind, record["revision"], change


def value_of(name: bytes) -> bytes:
    """Return the bytes that go by this name: a hash of it, repeated to a size that it decides."""
    digest = hashlib.blake2b(name, digest_size=16).digest()
    # Mostly small; one in sixteen up to 4 KiB, one in 256 up to 64 KiB.
    size_bytes = digest[0] % 64
    if digest[1] < 16:
        size_bytes = digest[0] * 16
    if digest[1] == 0:
        size_bytes = digest[0] * 256
    padding = (digest * (size_bytes // len(digest) + 1))[:size_bytes]
    return name + b"\0" + padding


def subject_of(name: bytes) -> str | None:
    """Return the subject of the message whose value has this name; None if it has none."""
    if not name.endswith(WITH_SUBJECT):
        return None
    digest = hashlib.blake2b(name, digest_size=2).digest()
    return f"torture.{digest[0] % 4}.{digest[1] % 8}"


def name_of(row: Message | Entry) -> bytes:
    """Return the name of a row's value; one that nobody wrote if it is not as it was written."""
    name: bytes = row.value.partition(b"\0")[0]
    subject = subject_of(name)
    if subject is not None and isinstance(row, Message) and row.subject != subject:
        return f"of subject {row.subject}: {name!r}".encode()
    return name if value_of(name) == row.value else f"damaged:{row.value[:40]!r}".encode()
