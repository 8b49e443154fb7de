"""The cursors of one open stream, in memory: which there are, and how large they are.

Pure but for the rows of a cursor, which are loaded from the file when the first of them changes.
The owner reads nothing of what a cursor says. It keeps their limits, and for that needs their
sizes. Only `apply` changes them, with the same changes that go to the log and the file.

Invariant: a cursor whose rows are not loaded has in the file the rows that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.protocol import changes, frames
from holdfast.protocol.limits import CURSOR_ROW_BYTES
from holdfast.shared_fs.store_file.consumers.cursor_rows import CURSOR_CHANGES, CursorTotals


@dataclass(slots=True)
class CursorState:
    """The size of one cursor. `rows` maps seq to the size of its data; None: not loaded."""

    name: str
    config_bytes: int = 0
    state_bytes: int = 0
    row_count: int = 0
    data_bytes: int = 0
    rows: dict[int, int] | None = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """What it counts in MAX_CURSORS_BYTES."""
        return (
            len(self.name.encode())
            + self.config_bytes
            + self.state_bytes
            + self.data_bytes
            + CURSOR_ROW_BYTES * self.row_count
        )


class Cursors:
    """All cursors of one stream."""

    def __init__(
        self, totals: Iterable[CursorTotals], load_sizes: Callable[[str], dict[int, int]]
    ) -> None:
        """`load_sizes` returns the rows of a cursor of the file: the size of the data by seq."""
        self._by_name = {each.name: CursorState(*each, rows=None) for each in totals}
        self._load_sizes = load_sizes
        self.size_bytes = sum(each.size_bytes for each in self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> CursorState | None:
        """Return a cursor, or None if there is none of this name."""
        return self._by_name.get(name)

    def rows(self, name: str) -> dict[int, int]:
        """Return the size of the data of each row of a cursor, by seq; empty if there is none."""
        found = self._by_name.get(name)
        if found is None:
            return {}
        if found.rows is None:
            found.rows = self._load_sizes(name)
            assert len(found.rows) == found.row_count, "the file has the rows of this cursor"
        return found.rows

    def apply(self, change: frames.WireChange) -> None:
        """Apply one change of the stream. Changes that concern no cursor do nothing."""
        if changes.number_of(change) not in CURSOR_CHANGES:
            return
        name = changes.cursor_name(change)
        if changes.number_of(change) == changes.CHANGE_DELETE_CURSOR:
            self.size_bytes -= self._by_name.pop(name).size_bytes
            return
        _, config, state, set_rows, removed = changes.cursor_set(change)
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = CursorState(name)
        else:
            self.size_bytes -= found.size_bytes
        if config is not None:
            found.config_bytes = len(config)
        if state is not None:
            found.state_bytes = len(state)
        if set_rows or removed:
            rows = self.rows(name)
            for seq, data in set_rows:
                found.data_bytes += len(data) - rows.get(seq, 0)
                rows[seq] = len(data)
            for seq in removed:
                found.data_bytes -= rows.pop(seq, 0)
            found.row_count = len(rows)
        self.size_bytes += found.size_bytes
