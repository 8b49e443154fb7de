"""Merges sorted files into sorted rows, with a slice of each file in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.shared_fs.archive.table_layout import TableLayout
from holdfast.spark.tables.order import in_order, order_columns

_MAX_BATCH_ROWS: Final = 8192

_Key = tuple[Any, ...]


class SortedSource:
    """One sorted file, with a slice of it in memory."""

    def __init__(
        self,
        file: pq.ParquetFile,
        layout: TableLayout,
        conform: Callable[[pa.Table], pa.Table],
        budget_bytes: int,
    ) -> None:
        """The rows are sorted as those of `layout` are; `conform` gives them its columns."""
        self._conform = conform
        self._order = order_columns(layout)
        metadata = file.metadata
        groups = range(metadata.num_row_groups)
        size_bytes = sum(metadata.row_group(group).total_byte_size for group in groups)
        mean_bytes = size_bytes // max(1, metadata.num_rows) + 1
        rows = max(16, min(_MAX_BATCH_ROWS, budget_bytes // mean_bytes))
        self._batches = file.iter_batches(rows)
        self.rows: pa.Table | None = None
        self.advance()

    def advance(self) -> None:
        """Load the next slice, or None at the end."""
        batch = next((batch for batch in self._batches if batch.num_rows), None)
        self.rows = None if batch is None else self._conform(pa.Table.from_batches([batch]))

    def key(self, index: int) -> _Key:
        assert self.rows is not None
        return tuple(self.rows.column(name)[index].as_py() for name in self._order)

    def take_up_to(self, cut: _Key) -> pa.Table:
        """Remove and return the rows up to a key."""
        assert self.rows is not None
        count = bisect_right(range(self.rows.num_rows), cut, key=self.key)
        taken = self.rows.slice(0, count)
        if count == self.rows.num_rows:
            self.advance()
        else:
            self.rows = self.rows.slice(count)
        return taken


def merged(sources: Sequence[SortedSource], layout: TableLayout) -> Iterator[pa.Table]:
    """Yield the rows of all sources in order, in pieces that no later slice can add to."""
    while open_sources := [source for source in sources if source.rows is not None]:
        cut = min(source.key(-1) for source in open_sources)
        parts = [part for source in open_sources if len(part := source.take_up_to(cut))]
        if len(parts) == 1:
            yield parts[0]
        else:
            yield in_order(pa.concat_tables(parts), layout)
