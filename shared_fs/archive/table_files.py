"""Opens a table, and tells whether the files that it names are there. Reads no rows.

    missing_files(TableLocation("s3://acme/holdfast/tables/changes"))     # [] if all is well

Needs the packages pyarrow and deltalake, which are imported at the first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from holdfast.shared_fs.archive.table_location import TableLocation

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Tries to open a table whose log an erasure is removing.
_OPENINGS: Final = 8
_GONE: Final = ("not found", "No such file")
#: How many files are looked at together: on S3 each takes a round trip.
_LOOKS_AT_ONCE: Final = 16


def open_delta(location: TableLocation, version: int | None = None) -> DeltaTable:
    """Open a table, or an earlier version of it. If its log is being removed, look again.

    Raises TableNotFoundError of deltalake, its DeltaError.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    for left in reversed(range(_OPENINGS)):
        try:
            return DeltaTable(
                location.uri, version=version, storage_options=location.delta_options
            )
        except TableNotFoundError:
            raise
        except DeltaError as error:
            if not left or not log_is_gone(error):
                raise
    raise AssertionError("the last try returns or raises")


def log_is_gone(error: Exception) -> bool:
    """Return whether an error of deltalake says that a part of the log is gone. An erasure removes
    the log before its checkpoint, also under those who have just listed it, or read it lazily."""
    return any(word in str(error) for word in _GONE)


def missing_files(location: TableLocation) -> list[str]:
    """Return why files of the newest version cannot be read: a line for each one that is gone or
    has another size. Lists the table's folder.

    Raises TableNotFoundError of deltalake, its DeltaError, OSError, and boto3's errors.
    """
    there = {found.path: found.size_bytes for found in location.list()}
    if not _different(named_files(location), there):
        return []
    # What was replaced and removed, or added, while the folder was listed is not missing.
    return unreadable(location, _different(named_files(location), there))


def unreadable(location: TableLocation, sizes: Mapping[str, int]) -> list[str]:
    """Return why files cannot be read, given the size of each by its path. Looks at each of them.

    Raises OSError, and boto3's errors.
    """

    def look(path: str) -> str | None:
        found = location.size_of(path)
        if found is None:
            return f"its file {path} is gone"
        if found != sizes[path]:
            return f"its file {path} has {found} bytes instead of {sizes[path]}"
        return None

    with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
        return [reason for reason in pool.map(look, sizes) if reason is not None]


def named_files(location: TableLocation) -> dict[str, int]:
    """Return the sizes of the files that the newest version names, by their paths. Raises as
    `missing_files`."""
    import pyarrow as pa

    table = open_delta(location)
    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"])
    return dict(zip(*actions.to_pydict().values(), strict=True))


def _different(named: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
    return {path: size for path, size in named.items() if there.get(path) != size}
