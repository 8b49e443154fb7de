"""Render values: tables and lines for people, JSON for programs.

docs/cli.md documents the JSON shapes, which are a contract. Bytes appear as base64, and also as
text if they are UTF-8. A large value appears as its size and checksum only.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.client.handles.dead_letters import DeadLetter
from holdfast.protocol.consumers import ConsumerInfo
from holdfast.protocol.control import StoreInfo
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.messages import (
    Ack,
    Change,
    ChangeKind,
    Deleted,
    Entry,
    Head,
    Message,
    SubjectInfo,
)
from holdfast.protocol.names import StoreKind

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Width of tables in a pipe or a file, which need not fit on a screen.
_PIPE_WIDTH: Final = 1000
_PREVIEW_CHARACTERS: Final = 120
#: Between two columns of a table.
_GAP: Final = 2
#: The colour of a word in a column of states. rich omits colours without a terminal and with
#: NO_COLOR.
_STATE_STYLES: Final = {
    **dict.fromkeys(("dead", "critical", "WRONG", "damaged", "gap", "failed"), "bold red"),
    **dict.fromkeys(("broken", "differs"), "bold red"),
    **dict.fromkeys(("suspect", "warning", "draining", "slow"), "yellow"),
}

JsonObject = dict[str, Any]


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    click.echo(json.dumps(value))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    states: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print rows under a header. Columns in `right` are aligned to the right; bad words in `states`
    are coloured. A terminal that is too narrow leaves out `optional` columns, the first one first.
    """
    console = stdout_console()
    table, left_out = fitted_table(
        columns,
        rows,
        console.width,
        right=right,
        states=states,
        optional=optional,
        wraps=console.is_terminal,
    )
    console.print(table)
    if left_out:
        click.echo(f"left out here: {', '.join(left_out)}; --json has all", err=True)


def fitted_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    width: int,
    *,
    right: Sequence[str] = (),
    states: Sequence[str] = (),
    optional: Sequence[str] = (),
    wraps: bool = True,
) -> tuple[Table, list[str]]:
    """Return the table that `print_table` prints in `width` characters, and the columns that it
    leaves out."""
    # Imported here, because the import takes longer than most commands.
    from rich.table import Table
    from rich.text import Text

    texts = [[str(value) for value in row] for row in rows]
    shown = _fitting(columns, texts, optional, width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in shown:
        table.add_column(
            columns[index],
            justify="right" if columns[index] in right else "left",
            no_wrap=not wraps,
            overflow="fold",
        )
    for row in texts:
        table.add_row(
            *(
                Text(
                    row[index],
                    _STATE_STYLES.get(row[index], "") if columns[index] in states else "",
                )
                for index in shown
            )
        )
    return table, [column for index, column in enumerate(columns) if index not in shown]


def _fitting(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], width: int
) -> list[int]:
    """Return the indexes of the columns that are shown side by side in `width` characters."""
    from rich.cells import cell_len

    widths = [
        max(cell_len(text) for text in (column, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    for column in optional:
        if sum(widths[index] + _GAP for index in shown) - _GAP <= width:
            break
        shown.remove(columns.index(column))
    return shown


def stdout_console() -> Console:
    """Return a console on stdout as it is now."""
    from holdfast.cli.console import PipeConsole

    console = PipeConsole(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def print_fields(fields: Mapping[str, object]) -> None:
    """Print names and values, one pair to a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        click.echo(f"{name:<{width}}  {value}")


def print_bytes(value: bytes) -> None:
    """Write `value` to stdout as it is, at once."""
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def size(count_bytes: int) -> str:
    """Return a size for people: `812 B`, `1.4 MiB`."""
    amount = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"


def moment(time_ms: int) -> str:
    """Return a time for people, in the local zone."""
    local = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d}"


def preview(value: bytes) -> str:
    """Return a value on one line: its start on a terminal, all of it in a pipe or a file, where a
    program may search for its end. For a value that is not text, return its size."""
    text = as_text(value)
    if text is None:
        return f"<{size(len(value))} of binary data>"
    if len(text) <= _PREVIEW_CHARACTERS or not sys.stdout.isatty():
        return printable(text)
    return f"{printable(text[:_PREVIEW_CHARACTERS])}... ({size(len(value))})"


def printable(text: str) -> str:
    """Return `text` on one line, without control characters that a terminal obeys."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def as_text(value: bytes) -> str | None:
    """Return `value` as text if it is UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


# JSON objects and lines of each kind of value.


def value_json(value: bytes) -> JsonObject:
    found: JsonObject = {"value_base64": base64.b64encode(value).decode()}
    text = as_text(value)
    if text is not None:
        found["value"] = text
    return found


def message_json(message: Message) -> JsonObject:
    return _row_json(message) | _row_value_json(message)


def message_line(message: Message) -> str:
    about = "" if message.subject is None else f"{printable(message.subject)}  "
    about += _headers(message.headers)
    return f"{message.seq:>6}  {moment(message.time)}  {about}{_row_preview(message)}"


def subject_json(subject: SubjectInfo) -> JsonObject:
    return asdict(subject)


def entry_json(entry: Entry) -> JsonObject:
    return _row_json(entry) | _row_value_json(entry)


def entry_line(entry: Entry) -> str:
    what = f"{printable(entry.key)}  {_headers(entry.headers)}{_row_preview(entry)}"
    return f"{entry.revision:>6}  {moment(entry.time)}  {what}"


def saved_json(row: Message | Entry, file: Path) -> JsonObject:
    """Return the report on a value that was written to a file."""
    return _row_json(row) | {"size_bytes": row.size_bytes, "file": str(file)}


def _row_json(row: Message | Entry) -> JsonObject:
    named: JsonObject = {"seq": row.seq} if isinstance(row, Message) else {"key": row.key}
    headers = row.headers
    told = headers.joined() if isinstance(headers, HeaderBlock) else dict(headers)
    shown = named | {"revision": row.revision, "time": row.time, "headers": told}
    if isinstance(row, Message) and row.subject is not None:
        shown["subject"] = row.subject
    return shown


def _row_value_json(row: Message | Entry) -> JsonObject:
    large = row.large
    if row.unreadable is not None:
        return {"unreadable": str(row.unreadable)}
    if large is None:
        return value_json(row.value)
    return {"large": {"size_bytes": large.size_bytes, "sha256": large.sha256.hex()}}


def _row_preview(row: Message | Entry) -> str:
    if row.unreadable is not None:
        return f"<{row.unreadable}>"
    if row.large is None:
        return preview(row.value)
    return f"<{size(row.large.size_bytes)}, a large value: get shows it>"


def change_json(change: Change) -> JsonObject:
    found: JsonObject = {
        "change": change.kind.value,
        "revision": change.revision,
        "time": change.time,
    }
    if change.message is not None:
        found |= message_json(change.message)
    if change.entry is not None:
        found |= entry_json(change.entry)
    if change.seqs:
        found["seqs"] = list(change.seqs)
    if change.keys:
        found["keys"] = list(change.keys)
    if change.end_seq:
        found["end_seq"] = change.end_seq
    return found


def change_line(change: Change) -> str:
    if change.message is not None:
        return message_line(change.message)
    if change.entry is not None:
        return entry_line(change.entry)
    what = {
        ChangeKind.DELETE: f"deleted {_gone(change)}",
        ChangeKind.TRIM: f"deleted all up to {change.end_seq}" if change.end_seq else "deleted all",
        ChangeKind.RESET: "what was shown so far is void; the whole state follows",
        ChangeKind.READY: "this is the state; what follows is live",
    }[change.kind]
    return f"{change.revision:>6}  {what}"


def ack_json(ack: Ack) -> JsonObject:
    found: JsonObject = {
        "revision": ack.revision,
        "time": ack.time,
        "durability": ack.durability.word,
        "duplicate": ack.duplicate,
    }
    return found if ack.seq is None else {"seq": ack.seq, **found}


def deleted_json(deleted: Deleted) -> JsonObject:
    return {"deleted": deleted.count, "revision": deleted.revision}


def head_json(head: Head) -> JsonObject:
    return {
        "revision": head.revision,
        "first_seq": head.first_seq,
        "last_seq": head.last_seq,
        "count": head.count,
        "bytes": head.bytes,
        "server": head.server,
        "epoch": head.epoch,
        "time": head.time,
        "chain": None if head.chain is None else head.chain.hex(),
        "ephemeral": head.ephemeral,
    }


def consumer_json(info: ConsumerInfo) -> JsonObject:
    return {**asdict(info), "config": info.config.to_wire()}


def dead_letter_json(letter: DeadLetter) -> JsonObject:
    return message_json(letter.message) | {
        "stream": letter.stream,
        "stream_seq": letter.seq,
        "consumer": letter.consumer,
        "delivery_count": letter.delivery_count,
        "reason": letter.reason,
    }


def dead_letter_line(letter: DeadLetter) -> str:
    return f"{message_line(letter.message)}  (message {letter.seq}: {letter.reason})"


def store_row(info: StoreInfo) -> JsonObject:
    return {
        "kind": StoreKind(info.kind).word,
        "name": info.name,
        "server": info.server,
        "incarnation": info.incarnation,
        "epoch": info.epoch,
        "state": "cold" if info.cold else info.state.name.lower(),
        "tier": "cold" if info.cold else "hot",
        "bytes": info.bytes,
        "count": info.message_count,
        "time": info.time,
    }


def _headers(headers: Mapping[str, str]) -> str:
    told = headers.joined() if isinstance(headers, HeaderBlock) else headers
    return "".join(f"{printable(name)}={printable(text)}  " for name, text in told.items())


def _gone(change: Change) -> str:
    names = [str(seq) for seq in change.seqs] or [printable(key) for key in change.keys]
    return ", ".join(names)


def print_remains(rows: Sequence[dict[str, Any]]) -> None:
    """Print one line for each place that has something left; nothing if none has."""
    if rows:
        print_table(
            ("place", "count", "bytes", "example", "removed by"),
            [
                (row["place"], row["count"], size(row["bytes"]), row["example"], row["removed_by"])
                for row in rows
            ],
            right=("count", "bytes"),
            optional=("example",),
        )
