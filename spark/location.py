"""Where a table lies, for those who read and write one with this package; see
`shared_fs/table_location.py`, which servers use too."""

from __future__ import annotations

from holdfast.shared_fs.table_location import (
    DEFAULT_TABLE,
    FoundFile,
    TableLocation,
    default_table,
)

__all__ = ["DEFAULT_TABLE", "FoundFile", "TableLocation", "default_table"]
