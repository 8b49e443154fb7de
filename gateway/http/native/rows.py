"""Messages, entries and changes as JSON, one object a line.

A value that is UTF-8 text is `value`; any other is `value_base64`. Times are int milliseconds since
the epoch. Whoever wants the bytes of one value as they are asks for that one value.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from holdfast.protocol.messages import Change, Entry, LargeValue, Message


def message_row(message: Message) -> dict[str, Any]:
    """Return a message as an object."""
    row: dict[str, Any] = {
        "seq": message.seq,
        "revision": message.revision,
        "time": message.time,
        **_value(message.value, message.large),
    }
    if message.subject is not None:
        row["subject"] = message.subject
    return _with_headers(row, message)


def entry_row(entry: Entry) -> dict[str, Any]:
    """Return an entry as an object."""
    row = {
        "key": entry.key,
        "revision": entry.revision,
        "time": entry.time,
        **_value(entry.value, entry.large),
    }
    return _with_headers(row, entry)


def change_row(change: Change) -> dict[str, Any]:
    """Return a change as an object: its `kind`, and what it is about."""
    row: dict[str, Any] = {
        "kind": str(change.kind), "revision": change.revision, "time": change.time
    }
    if change.message is not None:
        row["message"] = message_row(change.message)
    if change.entry is not None:
        row["entry"] = entry_row(change.entry)
    if change.seqs:
        row["seqs"] = list(change.seqs)
    if change.keys:
        row["keys"] = list(change.keys)
    if change.end_seq:
        row["end_seq"] = change.end_seq
    return row


def line(row: dict[str, Any]) -> bytes:
    """Return an object as a line."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _with_headers(row: dict[str, Any], of: Message | Entry) -> dict[str, Any]:
    if of.headers:
        row["headers"] = dict(of.headers)
    return row


def _value(value: bytes, large: LargeValue | None) -> dict[str, Any]:
    if large is not None:
        return {"size_bytes": large.size_bytes}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
