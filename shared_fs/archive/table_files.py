"""Whether the files that a table names are there. Reads no rows.

    missing_files(TableLocation("s3://acme/holdfast/tables/changes"))     # [] if all is well

Needs the packages pyarrow and deltalake, which are imported at the first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from holdfast.shared_fs.archive.table_location import TableLocation

#: How many files are looked at together: on S3 each takes a round trip.
_LOOKS_AT_ONCE: Final = 16


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
    from deltalake import DeltaTable

    table = DeltaTable(location.uri, storage_options=location.delta_options)
    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"])
    return dict(zip(*actions.to_pydict().values(), strict=True))


def _different(named: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
    return {path: size for path, size in named.items() if there.get(path) != size}
