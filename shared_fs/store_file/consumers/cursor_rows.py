"""Cursors as rows of a stream's file: applied with the changes, read by page.

A cursor is what a gateway records of one consumer: a name, `config` and `state`, which are bytes
that nobody here reads, and rows `seq -> data`. There are two tables, created with the first
cursor: `cursors`, and `cursor_rows`. A change says what is set and what is removed, so a row is
written without reading one. Of many changes in one transaction, only the final state is written.
`persist/operations/cursors.py` checks what a change may say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import apsw

from holdfast.protocol import changes, frames
from holdfast.shared_fs.store_file import schema

#: The changes that `CursorRows` takes.
CURSOR_CHANGES: Final = frozenset((changes.CHANGE_SET_CURSOR, changes.CHANGE_DELETE_CURSOR))

#: What a cursor, and one of its rows, takes in a page besides its bytes, roughly.
_ELEMENT_BYTES: Final = 16


class CursorTotals(NamedTuple):
    """The size of a cursor. `data_bytes` are those of the data of all its rows."""

    name: str
    config_bytes: int
    state_bytes: int
    row_count: int
    data_bytes: int


class CursorPage(NamedTuple):
    """Some cursors, each `(name, config, state, [(seq, data), ...])`, as the wire carries them.

    If rows are missing, the next page begins at cursor `next_name`. If `next_after_seq` is set,
    only those of its rows are missing that come after this seq.
    """

    cursors: list[tuple[str, bytes | None, bytes | None, list[tuple[int, bytes]]]]
    next_name: str | None
    next_after_seq: int | None
    size_bytes: int


class CursorRows:
    """The effect of one transaction's changes on the rows. `flush` writes it."""

    def __init__(self, sqlite: apsw.Cursor) -> None:
        self._sqlite = sqlite
        #: The ids of cursors by name, of those that changed.
        self._ids: dict[str, int] = {}
        #: By id: the last config and state, None as they are.
        self._texts: dict[int, list[bytes | None]] = {}
        #: By (id, seq): the data of the row, None once it is removed.
        self._rows: dict[tuple[int, int], bytes | None] = {}

    def apply(self, change: frames.WireChange) -> None:
        """Take a change of a cursor."""
        id_ = self._id_of(changes.cursor_name(change))
        if changes.number_of(change) == changes.CHANGE_DELETE_CURSOR:
            self.flush()
            self._ids.clear()
            self._sqlite.execute(schema.DELETE_CURSOR_ROWS, (id_,))
            self._sqlite.execute(schema.DELETE_CURSOR, (id_,))
            return
        _, config, state, rows, removed = changes.cursor_set(change)
        if config is not None or state is not None:
            texts = self._texts.setdefault(id_, [None, None])
            texts[0] = texts[0] if config is None else config
            texts[1] = texts[1] if state is None else state
        for seq, data in rows or ():
            self._rows[id_, seq] = data
        for seq in removed or ():
            self._rows[id_, seq] = None

    def flush(self) -> None:
        """Write the final state after the changes so far."""
        if self._texts:
            texts = [(*both, id_) for id_, both in self._texts.items()]
            self._sqlite.executemany(schema.UPDATE_CURSOR, texts)
            self._texts.clear()
        if self._rows:
            gone = [key for key, data in self._rows.items() if data is None]
            rows = [(*key, data) for key, data in self._rows.items() if data is not None]
            self._sqlite.executemany(schema.DELETE_CURSOR_ROW, gone)
            self._sqlite.executemany(schema.UPSERT_CURSOR_ROW, rows)
            self._rows.clear()

    def _id_of(self, name: str) -> int:
        """Return the id of a cursor, which is created if there is none."""
        found = self._ids.get(name)
        if found is None:
            if not self._ids:
                for statement in schema.CREATE_CURSORS:
                    self._sqlite.execute(statement)
            self._sqlite.execute(schema.INSERT_CURSOR, (name,))
            found = self._ids[name] = self._sqlite.execute(schema.SELECT_CURSOR_ID, (name,)).get
        assert found is not None
        return found


def damage(execute: Callable[..., apsw.Cursor]) -> str:
    """Return what is wrong with the cursors of a file; empty if nothing is. Reads all of them."""
    if not execute(schema.HAS_CURSORS).get:
        return ""
    wrong: Any = execute(schema.SELECT_ROW_OF_NO_CURSOR).fetchone()
    return "" if wrong is None else f"seq {wrong[1]} is of cursor {wrong[0]}, which does not exist"


def read_totals(execute: Callable[..., apsw.Cursor]) -> list[CursorTotals]:
    """Return the size of each cursor of a stream's file, in order of name."""
    if not execute(schema.HAS_CURSORS).get:
        return []
    found: list[Any] = execute(schema.SELECT_CURSOR_TOTALS).fetchall()
    return list(map(CursorTotals._make, found))


def read_sizes(execute: Callable[..., apsw.Cursor], name: str) -> dict[int, int]:
    """Return the size of the data of each row of a cursor, by seq."""
    if not execute(schema.HAS_CURSORS).get:
        return {}
    found: list[Any] = execute(schema.SELECT_CURSOR_ROW_SIZES, (name,)).fetchall()
    return dict(found)


def read_page(
    execute: Callable[..., apsw.Cursor],
    name: str | None,
    from_name: str | None,
    after_seq: int | None,
    *,
    max_rows: int,
    max_bytes: int,
) -> CursorPage:
    """Return cursors in order of name, with their rows by seq: all of them, or only `name`.

    It begins at `from_name`; with `after_seq`, with those of its rows that come after this seq
    alone: config and state are then None. At most `max_rows` cursors and rows together, and
    not much more than `max_bytes`, but at least one.
    """
    page = CursorPage([], None, None, 0)
    if not execute(schema.HAS_CURSORS).get:
        return page
    at = from_name or ""
    size_bytes = row_count = 0
    while True:
        statement = schema.SELECT_CURSOR_FROM if name is None else schema.SELECT_CURSOR
        found = execute(statement, (at if name is None else name,)).fetchone()
        if found is None:
            return page._replace(size_bytes=size_bytes)
        id_, found_name, config, state = found
        goes_on = after_seq is not None and found_name == from_name
        if goes_on:
            config = state = None
        wanted_bytes = _ELEMENT_BYTES + len(found_name.encode())
        wanted_bytes += len(config or b"") + len(state or b"")
        if page.cursors and (row_count == max_rows or size_bytes + wanted_bytes > max_bytes):
            return page._replace(next_name=found_name, size_bytes=size_bytes)
        size_bytes += wanted_bytes
        row_count += not goes_on
        rows: list[tuple[int, bytes]] = []
        page.cursors.append((found_name, config, state, rows))
        after = after_seq if goes_on else 0
        # One more than fits, to see whether more follow.
        some: list[Any] = execute(
            schema.SELECT_CURSOR_ROWS, (id_, after, max_rows - row_count + 1)
        ).fetchall()
        for seq, data in some:
            row_bytes = _ELEMENT_BYTES + len(data)
            full = row_count == max_rows or size_bytes + row_bytes > max_bytes
            if full and not (goes_on and not rows):
                last_seq = rows[-1][0] if rows else after
                return page._replace(
                    next_name=found_name, next_after_seq=last_seq, size_bytes=size_bytes
                )
            rows.append((seq, data))
            row_count += 1
            size_bytes += row_bytes
        if name is not None:
            return page._replace(size_bytes=size_bytes)
        # In the order of UTF-8 bytes, nothing is between a name and the same with a NUL appended.
        at = found_name + "\x00"
