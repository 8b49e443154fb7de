"""Reads archived messages back from the table of changes that an export has written.

    archive = Archive("s3://acme/holdfast")                    # the cluster's bucket
    bodies = archive.bodies(messages)                          # {(seq, revision): (value, headers)}

A message is identified by store, revision and seq. It is accepted only if time and
checksum match those in the store file; the size there is that of the stored value,
which may be compressed. Invariants:

- Either everything requested is returned or ArchiveMissingError is raised, never a part.
- The files are those of the table's newest version. If a file is gone (merged with others, and
  collected) or a message is not found, the version is looked up once more before that is an error.
- A row group that several threads want at the same time is read once, whatever their streams.
- Memory is bounded whatever the table's size: only rows of some row groups, filtered to the
  requested store, and some open files are kept.

Blocking and thread-safe. Needs the packages pyarrow and deltalake, which are imported at the first
use, so a server that never reads an archive does not need them.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import (
    ArchiveMissingError,
    ArchiveUnreadableError,
    UnavailableError,
)
from holdfast.protocol.limits import MIB
from holdfast.shared_fs.archive.table_layout import GROUP_COLUMN, TableLayout, layout_of
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.shared_fs.store_file.applying import pack_headers
from holdfast.shared_fs.store_file.archived_blocks import (
    ArchivedMessage,
    ArchivePlace,
    Bodies,
    Body,
    checksum_of,
)
from holdfast.shared_fs.store_file.encrypted.encrypted_values import box_in_table
from holdfast.shared_fs.store_file.exported_values import stored_again

_KEPT_FILES: Final = 16
#: The total size of rows that are kept, for a reader that pages through a long stream: where it is,
#: and what comes next. The export writes row groups of up to 64 MiB.
_KEPT_BYTES: Final = 160 * MIB
_COLUMNS: Final = ["store", "kind", "operation", "seq", "revision", "time", "headers", "value"]
#: For deltalake with S3. Without limits it retries for three minutes, longer than readers wait.
_PATIENCE: Final = {"max_retries": "3", "retry_timeout": "10s", "timeout": "15s"}
#: Delta may truncate the greatest text.
_LAST_TEXT: Final = "\U0010ffff"


#: The path of a file, the number of a row group, the tenant and the name of a stream.
_RowsKey = tuple[str, int, str, str]


class _File(NamedTuple):
    """A file of the table, with the smallest and largest values of
    the columns used to find rows."""

    path: str
    first_tenant: str
    last_tenant: str
    first_date: str
    last_date: str
    first_store: str
    last_store: str
    first_revision: int
    last_revision: int


class Archive:
    """The tables into which the messages of one cluster are archived."""

    def __init__(self, bucket_url: str) -> None:
        """`bucket_url` is the URL of the cluster's bucket, which
        contains the cluster's own table."""
        self._bucket_url = bucket_url
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()

    def bodies(self, messages: Sequence[ArchivedMessage]) -> Bodies:
        """Return values and headers of archived messages of one store.

        Raises ArchiveMissingError, ArchiveUnreadableError if a package is missing, and
        UnavailableError while the table cannot be reached.
        """
        by_place: dict[ArchivePlace, list[ArchivedMessage]] = {}
        for message in messages:
            by_place.setdefault(message.place, []).append(message)
        found: dict[tuple[int, int], Body] = {}
        for place, wanted in by_place.items():
            found |= self._table(place.table).bodies(place, wanted)
        return found

    def warm(self, messages: Sequence[ArchivedMessage]) -> None:
        """Read the row group that has the last of these messages of one stream, if there is room
        for it in memory once those that have none from the first message on were dropped. Errors
        as `bodies`, but that nothing is missing."""
        first, last = messages[0], messages[-1]
        self._table(last.place.table).warm(last.place, first.revision, last)

    def look_again(self, table: str) -> None:
        """Make the next read of a table look up its newest version.

        Call it before values are left to the archive for good: they must be in that version.
        """
        self._table(table).look_again()

    def forget(self) -> None:
        """Drop all rows that are in memory, and close all files."""
        with self._lock:
            tables = list(self._tables.values())
        for table in tables:
            table.forget()

    def _table(self, url: str) -> _Table:
        with self._lock:
            table = self._tables.get(url)
            if table is None:
                location = TableLocation(url or default_table(self._bucket_url))
                table = self._tables[url] = _Table(location)
            return table


class _Gone(Exception):
    """The known files do not have everything that was requested."""


class _Table:
    """One table, as far as it has been read."""

    def __init__(self, location: TableLocation) -> None:
        self._location = location
        self._lock = threading.Lock()
        #: By the folder that `TableLayout.folder` names.
        self._files: dict[str, list[_File]] | None = None
        self._layout = TableLayout()
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._rows: OrderedDict[_RowsKey, Any] = OrderedDict()
        #: The last revision in each of them.
        self._last_revisions: dict[_RowsKey, int] = {}
        self._rows_bytes = 0
        #: Row groups that a thread is reading. Others that want one wait for that.
        self._reading: dict[tuple[str, int], Future[Any]] = {}

    def look_again(self) -> None:
        with self._lock:
            self._files = None

    def bodies(self, place: ArchivePlace, wanted: Sequence[ArchivedMessage]) -> Bodies:
        fresh = self._files is None
        try:
            return self._tried(place, wanted)
        except _Gone as error:
            if fresh:
                raise self._missing(place, wanted, error) from error
        self.forget()
        try:
            return self._tried(place, wanted)
        except _Gone as error:
            raise self._missing(place, wanted, error) from error

    def warm(self, place: ArchivePlace, passed_before: int, message: ArchivedMessage) -> None:
        with contextlib.suppress(_Gone), self._errors_of(place):
            for file in reversed(self._candidates(place, [message])):
                with self._opened(file.path) as opened:
                    for index in _groups_with(
                        opened, place.name, message.revision, message.revision
                    ):
                        if self._has_room(opened, file.path, index, place, passed_before):
                            self._group(opened, file.path, index, place)

    def _has_room(
        self, opened: Any, path: str, index: int, place: ArchivePlace, passed_before: int
    ) -> bool:
        """Tell whether a row group fits, beside what readers may be at. Drop what they have
        passed: groups whose rows of the stream all are of revisions before `passed_before`."""
        needed_bytes = opened.metadata.row_group(index).total_byte_size
        with self._lock:
            for key in [key for key in self._rows if key[2:] == (place.tenant, place.name)]:
                if self._rows_bytes + needed_bytes <= _KEPT_BYTES:
                    break
                if self._last_revisions[key] < passed_before:
                    self._drop(key)
            is_new = (path, index, place.tenant, place.name) not in self._rows
            return is_new and self._rows_bytes + needed_bytes <= _KEPT_BYTES

    def _drop(self, key: _RowsKey) -> None:
        self._rows_bytes -= self._rows.pop(key).nbytes
        del self._last_revisions[key]

    def _missing(
        self, place: ArchivePlace, wanted: Sequence[ArchivedMessage], error: _Gone
    ) -> ArchiveMissingError:
        return ArchiveMissingError(
            store=place.name,
            first_seq=min(message.seq for message in wanted),
            last_seq=max(message.seq for message in wanted),
            table=self._location.uri,
            reason=str(error),
        )

    def _tried(self, place: ArchivePlace, wanted: Sequence[ArchivedMessage]) -> Bodies:
        with self._errors_of(place):
            return self._read(place, wanted)

    @contextlib.contextmanager
    def _errors_of(self, place: ArchivePlace) -> Iterator[None]:
        """Raise what is wrong with the table in the body as one of our errors, or as _Gone."""
        try:
            yield
        except ImportError as error:
            raise ArchiveUnreadableError(
                store=place.name, reason=f"{error}. Try: {how_to_install('archive')}"
            ) from error
        except FileNotFoundError as error:
            raise _Gone(f"a file is missing: {error}") from error
        except ValueError as error:
            raise _Gone(f"a file cannot be read: {error}") from error
        except OSError as error:
            if error.errno is None:
                # pyarrow raises it without errno for a problem with a file's content.
                raise _Gone(f"a file cannot be read: {error}") from error
            raise UnavailableError(reason=f"the archive of {place.name}: {error}") from error

    def _read(self, place: ArchivePlace, wanted: Sequence[ArchivedMessage]) -> Bodies:
        sought = {(message.seq, message.revision): message for message in wanted}
        found: dict[tuple[int, int], Body] = {}
        # Newest files first: if a store was exported again as a whole, its rows are there.
        for file in reversed(self._candidates(place, wanted)):
            for seq, revision, time, headers, value in self._rows_of(file, place, wanted):
                message = sought.get((seq, revision))
                if message is None or value is None or (seq, revision) in found:
                    continue
                body = _body_of(message, value, dict(headers) if headers else None)
                if time == message.time and body is not None:
                    found[seq, revision] = body
            if len(found) == len(sought):
                return found
        lacking = min(seq for seq, revision in sought.keys() - found.keys())
        raise _Gone(f"no version of its files has seq {lacking} as it was archived")

    # Files
    def _candidates(self, place: ArchivePlace, wanted: Sequence[ArchivedMessage]) -> list[_File]:
        first = min(message.revision for message in wanted)
        last = max(message.revision for message in wanted)
        dates = {_date_of(message.time) for message in wanted}
        with self._lock:
            if self._files is None:
                self._files = self._listed()
            files = self._files.get(self._layout.folder(place.tenant), [])
        return [
            file
            for file in files
            if any(file.first_date <= date <= file.last_date for date in dates)
            and file.first_tenant <= place.tenant <= file.last_tenant
            and file.first_store <= place.name <= file.last_store
            and file.first_revision <= last
            and file.last_revision >= first
        ]

    def _listed(self) -> dict[str, list[_File]]:
        """Return the files of the table's newest version by folder, and note its layout.
        Raises _Gone if there is no table."""
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        location = self._location
        options = location.delta_options
        try:
            table = DeltaTable(location.uri, storage_options=options and options | _PATIENCE)
            actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            metadata = table.metadata()
            layout = layout_of(metadata.partition_columns, metadata.configuration)
        except TableNotFoundError as error:
            raise _Gone("there is no table") from error
        except (DeltaError, OSError, ValueError) as error:
            # Failing to look does not mean that anything is lost.
            raise UnavailableError(reason=f"the archive {location.uri}: {error}") from error
        files: dict[str, list[_File]] = {}
        for row in sorted(actions, key=lambda action: str(action["path"])):
            if layout.is_grouped:
                folder = f"{GROUP_COLUMN}={row[f'partition.{GROUP_COLUMN}']}"
                tenants = _bounds(row, "tenant", "", _LAST_TEXT)
                dates = _bounds(row, "date", "", _LAST_TEXT)
            else:
                folder = layout.folder(row["partition.tenant"])
                tenants = row["partition.tenant"], row["partition.tenant"]
                dates = row["partition.date"], row["partition.date"]
            stores = _bounds(row, "store", "", _LAST_TEXT)
            revisions = _bounds(row, "revision", 0, (1 << 63) - 1)
            found = _File(row["path"], *tenants, str(dates[0]), str(dates[1]), *stores, *revisions)
            files.setdefault(folder, []).append(found)
        self._layout = layout
        return files

    def forget(self) -> None:
        with self._lock:
            self._files = None
            self._rows.clear()
            self._last_revisions.clear()
            self._rows_bytes = 0
            opened, self._open = self._open, OrderedDict()
        for file in opened.values():
            file.close(force=True)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        """Open a file for this thread alone."""
        import pyarrow.parquet as pq

        with self._lock:
            file = self._open.pop(path, None)
        if file is None:
            # deltalake's own file system holds the interpreter lock while it waits for S3.
            file = pq.ParquetFile(self._location.to_read_parts(path), pre_buffer=True)
        try:
            yield file
        except BaseException:
            file.close(force=True)
            raise
        with self._lock:
            spare = self._open.pop(path, None)
            self._open[path] = file
            if spare is None and len(self._open) > _KEPT_FILES:
                spare = self._open.popitem(last=False)[1]
        if spare is not None:
            spare.close(force=True)

    # Rows
    def _rows_of(
        self, file: _File, place: ArchivePlace, wanted: Sequence[ArchivedMessage]
    ) -> Iterable[tuple[int, int, int, Any, bytes | None]]:
        """Yield `(seq, revision, time, headers, value)` of the rows with a wanted revision."""
        import pyarrow as pa
        import pyarrow.compute as pc

        revisions = sorted({message.revision for message in wanted})
        sought = pa.array(revisions, pa.int64())
        with self._opened(file.path) as opened:
            groups = [
                self._group(opened, file.path, index, place)
                for index in _groups_with(opened, place.name, revisions[0], revisions[-1])
            ]
        for rows in groups:
            chosen = rows.filter(pc.is_in(rows.column("revision"), value_set=sought))
            yield from zip(
                chosen.column("seq").to_pylist(),
                chosen.column("revision").to_pylist(),
                pc.divide(chosen.column("time").cast(pa.int64()), 1000).to_pylist(),
                chosen.column("headers").to_pylist(),
                chosen.column("value").to_pylist(),
                strict=True,
            )

    def _group(self, opened: Any, path: str, index: int, place: ArchivePlace) -> Any:
        """Return the sets of one stream in a row group."""
        import pyarrow.compute as pc

        key = (path, index, place.tenant, place.name)
        with self._lock:
            kept = self._rows.get(key)
            if kept is not None:
                self._rows.move_to_end(key)
                return kept
        # Where tenants share a file, it has their names.
        of_tenant = ["tenant"] if "tenant" in opened.schema_arrow.names else []
        rows = self._read_once(opened, path, index, [*of_tenant, *_COLUMNS])
        mask = pc.equal(rows.column("operation"), "set")
        identity = {"store": place.name, "kind": "stream", "tenant": place.tenant}
        for name in ["store", "kind", *of_tenant]:
            mask = pc.and_(mask, pc.equal(rows.column(name), identity[name]))
        rows = rows.filter(mask).drop_columns(["store", "kind", "operation", *of_tenant])
        with self._lock:
            if rows.nbytes <= _KEPT_BYTES and key not in self._rows:
                self._rows[key] = rows
                self._last_revisions[key] = pc.max(rows.column("revision")).as_py() or 0
                self._rows_bytes += rows.nbytes
            while self._rows_bytes > _KEPT_BYTES:
                self._drop(next(iter(self._rows)))
        return rows

    def _read_once(self, opened: Any, path: str, index: int, columns: list[str]) -> Any:
        """Return a row group as it is. Several threads that want it at once have it read once."""
        key = path, index
        with self._lock:
            reading = self._reading.get(key)
            if reading is None:
                mine: Future[Any] = Future()
                self._reading[key] = mine
        if reading is not None:
            return reading.result()
        try:
            rows = opened.read_row_group(index, columns=columns)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._reading[key]
        mine.set_result(rows)
        return rows


def _body_of(
    message: ArchivedMessage, value: bytes, headers: dict[str, str] | None
) -> Body | None:
    """Return what a row of the table has of a message; None if it is not what was archived."""
    if checksum_of(value, pack_headers(headers)) == message.checksum:
        return stored_again(value, headers, message.size_bytes)
    box = box_in_table(headers) if headers else None
    if box is not None and checksum_of(value, box) == message.checksum:
        return value, box
    return None


def _bounds(action: Mapping[str, Any], name: str, least: Any, most: Any) -> tuple[Any, Any]:
    """Return the bounds of a column in a file; `least` and `most` if nobody knows them."""
    low, high = action.get(f"min.{name}"), action.get(f"max.{name}")
    return least if low is None else low, most if high is None else high


def _groups_with(opened: Any, store: str, first: int, last: int) -> list[int]:
    """Return the row groups of a file that may have rows of a store between two revisions."""
    metadata = opened.metadata
    places = {metadata.schema.column(index).name: index for index in range(metadata.num_columns)}
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        stores = group.column(places["store"]).statistics
        revisions = group.column(places["revision"]).statistics
        if stores is not None and stores.has_min_max and not stores.min <= store <= stores.max:
            continue
        if (
            revisions is not None
            and revisions.has_min_max
            and (revisions.min > last or revisions.max < first)
        ):
            continue
        found.append(number)
    return found


def _date_of(time: int) -> str:
    return datetime.fromtimestamp(time / 1000, UTC).date().isoformat()
