"""The history of a kv as rows of its file: former values, moved aside as changes are applied.

Tables are created when the kv is configured to keep a history (`history_schema.py`). Invariants,
checked by `inspection.py` or `tests/unit/shared_fs/test_history_rows.py`:

- Of each key at most `kept` values exist, its present one included.
- A value counts in the store's bytes as long as it exists, present or not.
- Of one key, the history loses the oldest values first; what a ttl ends may go from the middle.
- From revision `reaches` on, a value that is not there was not there. Below it only the values that
  are there count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import apsw

from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.bodies import Bodies
from holdfast.shared_fs.store_file.history import history_schema as sql
from holdfast.shared_fs.store_file.pages.page_sizes import raise_format
from holdfast.shared_fs.store_file.sqlite_connection import integers


class HistoryState(NamedTuple):
    """The row of `history_state`. `kept` is 0 without a history."""

    #: How many values of a key are kept, its present one included.
    kept: int = 0
    #: The least that `kept` has been.
    least: int = 0
    #: From this revision on the history is whole.
    reaches: int = 0
    #: No revision below this one can be read: the store was restored to an earlier state there.
    since: int = 0
    #: Of all former values.
    bytes: int = 0


NO_HISTORY: Final = HistoryState()


def kept_of(config: dict[str, Any]) -> int:
    """Return how many values of a key a configuration keeps, 0 if it keeps no history."""
    count: int = config.get("history", 1)
    return count if count > 1 else 0


class StoredHistory:
    """The history of one open file. Without one, nothing queries the file."""

    __slots__ = ("_execute", "state")

    def __init__(self, execute: Callable[..., apsw.Cursor]) -> None:
        """`execute(statement, bindings)` returns a cursor of the file."""
        self._execute = execute
        self.state = NO_HISTORY

    @property
    def exists(self) -> bool:
        """The kv keeps a history."""
        return self.state.kept > 0

    def count_anew(self) -> int:
        """Note how many bytes all former values have, and return it."""
        if not self.exists:
            return 0
        size_bytes: int = self._execute(sql.SUM_HISTORY).get
        self.state = self.state._replace(bytes=size_bytes)
        self._execute(sql.UPSERT_STATE, self.state)
        return size_bytes

    def load(self) -> None:
        """Read the state from a file of HISTORY_FORMAT."""
        self.state = NO_HISTORY
        if self._execute(sql.HAS_HISTORY).get:
            self.state = HistoryState(*self._execute(sql.SELECT_STATE).get)

    def go_back(self, state: HistoryState) -> None:
        """Return to the state before a transaction that is rolled back."""
        self.state = state

    def sizes_of(self, key: str) -> list[tuple[int, int]]:
        """Return `(revision, bytes)` of the former values of a key, by revision; there must be a
        history."""
        found: list[Any] = self._execute(sql.SELECT_SIZES, (key,)).fetchall()
        return found

    def oldest(self, limit: int) -> list[tuple[int, int, int]]:
        """Return `(revision, bytes, time)` of the values that were set first."""
        found: list[Any] = self._execute(sql.SELECT_BY_REVISION, (limit,)).fetchall()
        return found

    def expiring(self, limit: int) -> list[tuple[int, int, int]]:
        """Return `(revision, bytes, expires)` of the values whose ttls end first."""
        found: list[Any] = self._execute(sql.SELECT_BY_EXPIRES, (limit,)).fetchall()
        return found

    def damage(self) -> str:
        """Return what is wrong with the history; empty if it is sound. Reads all of it."""
        if not self.exists:
            return ""
        size_bytes = self._execute(sql.SUM_HISTORY).get
        if size_bytes != self.state.bytes:
            return f"the history has {size_bytes} bytes instead of {self.state.bytes}"
        overfull = self._execute(sql.SELECT_OVERFULL, (self.state.kept,)).get
        if overfull is not None:
            return f"key {overfull!r} has more values than the {self.state.kept} that are kept"
        overlap = self._execute(sql.SELECT_OVERLAP).get
        if overlap is not None:
            return f"key {overlap!r} had two values at one revision"
        return ""


class HistoryRows:
    """Writes the history in one transaction. Call `flush` at its end."""

    def __init__(self, cursor: apsw.Cursor, bodies: Bodies, stored: StoredHistory) -> None:
        self._execute = cursor.execute
        self._bodies = bodies
        self._stored = stored
        self._state = stored.state

    @property
    def exists(self) -> bool:
        return self._state.kept > 0

    def configure(self, kept: int, revision: int) -> int:
        """Keep `kept` values of each key from now on, 0: no history. Return the bytes of the values
        that are no longer kept."""
        state = self._state
        if kept == state.kept:
            return 0
        if not state.kept:
            for statement in sql.CREATE_HISTORY:
                self._execute(statement)
            raise_format(self._execute, schema.HISTORY_FORMAT)
            self._state = HistoryState(kept, kept, revision)
            return 0
        if not kept:
            self._bodies.drop_past()
            for statement in sql.DROP_HISTORY:
                self._execute(statement)
            self._state = NO_HISTORY
            return state.bytes
        beyond: Any = self._execute(sql.SELECT_ALL_BEYOND, (kept,)).fetchall()
        self._state = state._replace(kept=kept, least=min(kept, state.least))
        return self.remove([row[0] for row in beyond])

    def end(self, key: str, revision: int, deleted: int | None) -> int | None:
        """Move the value of a key, if it has one, to the history, because the change with
        `revision` replaces or, at the time `deleted`, deletes it. Return the bytes of the values
        that are no longer kept for that; None if it had no value.

        The caller deletes the row of the key.
        """
        moved: Any = self._execute(sql.MOVE_ENTRY, (revision, deleted, key)).fetchall()
        if not moved:
            return None
        [(value_revision, size_bytes)] = moved
        self._bodies.move(key, value_revision)
        self._add(size_bytes)
        return self.cut(key, is_present=deleted is None)

    def cut(self, key: str, *, is_present: bool) -> int:
        """Remove what a key has above the number of values that are kept, and return its bytes."""
        kept = self._state.kept - is_present
        beyond: Any = self._execute(sql.SELECT_BEYOND, (key, kept)).fetchall()
        return self.remove([row[0] for row in beyond]) if beyond else 0

    def end_all(self, revision: int, time: int) -> None:
        """Move every value to the history: all are deleted."""
        _, size_bytes = self._execute(schema.SUM_ENTRIES).get
        self._add(size_bytes)
        self._execute(sql.MOVE_ALL_ENTRIES, (revision, time))
        self._bodies.move_all()

    def evict(self, revisions: Sequence[int]) -> int:
        """`remove` for a limit: the history reaches back no further than to their end."""
        self.reach(self._execute(sql.SELECT_LAST_END, (integers(revisions),)).get)
        return self.remove(revisions)

    def expire(self, revisions: Sequence[int]) -> int:
        """`remove` for ttls that have ended: reads at earlier revisions do not find the values."""
        for revision in revisions:
            key = self._execute(sql.SELECT_KEY_OF, (revision,)).get
            if key is not None:
                self.thin(key)
        return self.remove(revisions)

    def thin(self, key: str) -> None:
        """Note that a value goes from the middle. Their number no longer tells whether older ones
        were cut off."""
        count, first = self._execute(sql.SELECT_EXTENT, (key,)).get
        if count >= self._state.least:
            self.reach(first)

    def remove(self, revisions: Iterable[int]) -> int:
        """Remove values, and return the bytes of those that were there."""
        gone_bytes = 0
        for revision in revisions:
            size_bytes: int | None = self._execute(sql.DELETE_VERSION, (revision,)).get
            if size_bytes is not None:
                self._bodies.drop_at(revision)
                gone_bytes += size_bytes
        self._add(-gone_bytes)
        return gone_bytes

    def remove_all_of(self, key: str) -> int:
        """Remove every former value of a key, and return their bytes."""
        return self.remove([revision for revision, _ in self._stored.sizes_of(key)])

    def reach(self, revision: int) -> None:
        """Note that the history is whole from `revision` on only."""
        if revision > self._state.reaches:
            self._state = self._state._replace(reaches=revision)

    def begin_anew(self, revision: int) -> None:
        """Note that revisions below this one cannot be read."""
        self._state = self._state._replace(reaches=revision, since=revision)

    def flush(self) -> None:
        """Write the state."""
        if self._state is not self._stored.state:
            if self.exists:
                self._execute(sql.UPSERT_STATE, self._state)
            self._stored.state = self._state

    def _add(self, size_bytes: int) -> None:
        self._state = self._state._replace(bytes=self._state.bytes + size_bytes)


class HistoryReads:
    """What reads of earlier revisions ask of a file."""

    def __init__(
        self, execute: Callable[..., apsw.Cursor], bodies: Bodies, stored: StoredHistory
    ) -> None:
        self._execute = execute
        self._bodies = bodies
        self._stored = stored

    def versions(self, key: str) -> list[tuple[Any, ...]]:
        """Return the former values of a key, `(key, revision, time, value, headers, ended,
        deleted)` by revision, with headers packed."""
        if not self._stored.exists:
            return []
        rows: list[Any] = self._execute(sql.SELECT_VERSIONS, (key,)).fetchall()
        return [self._resolved(row) for row in rows]

    def version_at(self, key: str, revision: int) -> tuple[tuple[Any, ...] | None, bool]:
        """Return the former value of `key` that was its value at a revision, in the form of an
        entry, or None; and whether none means that there was none. The present value, if there is
        one, is later."""
        state = self._stored.state
        if not state.kept:
            return None, False
        row: Any = self._execute(sql.SELECT_BEFORE, (key, revision)).get
        if row is not None and row[5] > revision:
            return self._resolved(row)[:5], True
        if revision < state.reaches:
            return None, False
        if row is not None:
            return None, True
        count, _ = self._execute(sql.SELECT_EXTENT, (key,)).get
        return None, count < state.least

    def entries_at(
        self, start: str, end: str | bytes, revision: int, limit: int, *, with_values: bool
    ) -> tuple[list[tuple[Any, ...]], bool]:
        """Return the first `limit` entries as of a revision of a half-open range of keys, by key;
        and whether these are all that there were up to the last of them. For a file with a
        history."""
        state = self._stored.state
        assert state.kept
        statement = sql.SELECT_ENTRIES_AT if with_values else sql.SELECT_KEYS_AT
        rows: Any = self._execute(statement, (start, end, revision, limit)).fetchall()
        looked_to = rows[-1][0] if len(rows) == limit else end
        cut = self._execute(sql.SELECT_CUT_SINCE, (start, looked_to, revision, state.least)).get
        whole = revision >= state.reaches and cut is None
        return [self._resolved(row)[:5] if row[5] else self._present(row) for row in rows], whole

    def _resolved(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a former value with a large value in its wire form."""
        return self._with_large(row, row[1])

    def _present(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._with_large(row, row[0])[:5]

    def _with_large(self, row: tuple[Any, ...], place: Any) -> tuple[Any, ...]:
        if row[3] != b"":
            return row
        value = self._bodies.value_at(place)
        return row if value is None else (*row[:3], value, *row[4:])
