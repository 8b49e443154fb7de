"""Reads plain images of small stores without SQLite, hundreds of them together.

Nearly all small stores are plain: their messages were only appended, or each of their entries is as
it was set, without ttl, subject, large value, configuration, chain, history or archive. All that an
export wants of such an image is in two tables, and `pages.py` reads these of all images at once. It
takes a fifth of the time that SQLite takes.

What is not plain here is left to `image_rows.py`: whatever a table or a column holds that is not
named below, a change other than a set, a table of changes that cannot continue with this image, and
pages that are not as they must be. So this module never has to tell what is wrong with an image.

SQLite itself says which pages tables begin at, once for all images that have the same schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import apsw
import numpy as np

from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.pages.page_sizes import format_of
from holdfast.spark.rows.batches import SetColumns
from holdfast.spark.rows.image_slot import schema_parts
from holdfast.spark.rows.paged_rows import TABLES, columns_of, set_columns
from holdfast.spark.rows.planning import ImageWork
from holdfast.spark.sqlite_pages.pages import DatabasePages, Trees, read_rows
from holdfast.spark.sqlite_pages.records import PageError, Rows
from holdfast.spark.tables.watermarks import Watermark

#: Of its header what the layout of an image depends on: the size of pages and what is reserved of
#: them; encoding and version.
_HEADER: Final = (slice(16, 21), slice(44, 64))
_RESERVED: Final = 20
_UTF8: Final = 1
_ENCODING: Final = slice(56, 60)
_USER_VERSION: Final = slice(60, 64)
#: The layouts that an image is compared with before its schema is read anew.
_KNOWN_LAYOUTS: Final = 8

#: The tables and indexes that the images of each kind may have. Consumers, and uploads
#: that were spent, have nothing to do with messages and entries.
_BESIDE: Final = frozenset(
    (
        *("meta", "changes", "outcomes", "sqlite_autoindex_outcomes_1"),
        *("consumers", "deliveries", "cursors", "cursor_rows"),
        *("spent_uploads", "spent_uploads_time"),
    )
)
_NAMES: Final = {
    StoreKind.STREAM: _BESIDE | {"messages", "messages_replaced", "msg_ids"},
    StoreKind.KV: _BESIDE | {"entries", "sqlite_autoindex_entries_1"},
}
#: Those that are NULL in every row of a plain store.
_EMPTY: Final = frozenset(("replaced", "expires", "body_bytes"))
_META_NUMBERS: Final = (
    *("kind", "epoch", "revision", "time", "last_seq", "created"),
    *("count", "changes_from"),
)
_SELECT_ROOTS: Final = "SELECT name, rootpage FROM sqlite_schema"


class _Layout(NamedTuple):
    """Where an image has what is read of it."""

    page_bytes: int
    reserved_bytes: int
    kind: StoreKind
    #: The roots of the tables.
    meta: int
    changes: int
    rows: int
    meta_columns: tuple[str, ...]
    columns: tuple[str, ...]


class PlainStore(NamedTuple):
    """A store whose new rows are in `columns`, from `start` on."""

    columns: SetColumns
    start: int
    row_count: int
    #: That of the whole image.
    mark: Watermark


class PlainImages:
    """Reads groups of images, and remembers the layouts that it has seen."""

    def __init__(self) -> None:
        self._known: list[tuple[bytes, tuple[slice, ...], _Layout | None]] = []

    def read(
        self, works: Sequence[ImageWork], contents: Sequence[bytes | None]
    ) -> list[PlainStore | None]:
        """Return what is new in each image, and None of one that is not plain or is not there."""
        found: list[PlainStore | None] = [None] * len(works)
        by_layout: dict[_Layout, list[int]] = {}
        for index, (work, content) in enumerate(zip(works, contents, strict=True)):
            layout = None if content is None else self._layout(content)
            if content is None or layout is None or layout.kind != work.store.kind:
                continue
            # A part of a page would move all images that are read with it.
            if len(content) % layout.page_bytes == 0:
                by_layout.setdefault(layout, []).append(index)
        for layout, indexes in by_layout.items():
            images = [content for index in indexes if (content := contents[index]) is not None]
            try:
                stores = _read(layout, [works[index] for index in indexes], images)
            except PageError:
                # Of one of them, which `image_rows.py` will find.
                continue
            for index, store in zip(indexes, stores, strict=True):
                found[index] = store
        return found

    def _layout(self, content: bytes) -> _Layout | None:
        header = b"".join(content[part] for part in _HEADER)
        for key, parts, layout in self._known:
            if key == header + b"".join([content[part] for part in parts]):
                return layout
        parts = schema_parts(content) or ()
        if not parts:
            return None
        key = header + b"".join(content[part] for part in parts)
        layout = _layout_of(content)
        self._known = [(key, parts, layout), *self._known[: _KNOWN_LAYOUTS - 1]]
        return layout


def _layout_of(content: bytes) -> _Layout | None:
    """Return the layout of an image, None if it is not that of a plain one."""
    version = format_of(int.from_bytes(content[_USER_VERSION]))
    # Encrypted images may have to be decrypted.
    if version >= schema.ENCRYPTED_FORMAT or int.from_bytes(content[_ENCODING]) != _UTF8:
        return None
    connection = apsw.Connection(":memory:")
    try:
        connection.deserialize("main", content)
        roots = dict(connection.execute(_SELECT_ROOTS))
        kind = StoreKind.STREAM if "messages" in roots else StoreKind.KV
        if not roots.keys() <= _NAMES[kind]:
            return None
        columns = columns_of(connection, kind)
        if columns is None:
            return None
        meta = tuple(row[1] for row in connection.execute("PRAGMA table_info(meta)"))
        page_bytes = connection.pragma("page_size")
        assert isinstance(page_bytes, int)
        if not {*_META_NUMBERS, "tenant", "name"} <= {*meta}:
            return None
        places = (roots["meta"], roots["changes"], roots[TABLES[kind]])
        return _Layout(page_bytes, content[_RESERVED], kind, *places, meta, columns)
    except (apsw.Error, KeyError):
        return None
    finally:
        connection.close(True)


def _read(
    layout: _Layout, works: Sequence[ImageWork], contents: Sequence[bytes]
) -> list[PlainStore | None]:
    """Return what is new in images of one layout. Raises PageError."""
    pages = DatabasePages(b"".join(contents), layout.page_bytes, layout.reserved_bytes)
    counts = np.array([len(content) // layout.page_bytes for content in contents])
    firsts = np.cumsum(counts) - counts
    meta = _Meta(layout, works, pages, firsts, counts)
    plain = np.flatnonzero(meta.is_plain & _are_empty(pages, firsts, counts, layout.changes))
    found: list[PlainStore | None] = [None] * len(works)
    if not len(plain):
        return found
    trees = Trees(firsts[plain], counts[plain], np.full(len(plain), layout.rows))
    table = _Table(layout, list(read_rows(pages, trees, len(layout.columns))))
    fit = table.fit(meta, plain)
    columns, row_counts = table.columns(meta.after[plain], fit)
    starts = np.cumsum(row_counts) - row_counts
    for place, index in enumerate(plain.tolist()):
        if fit[place]:
            start, count = int(starts[place]), int(row_counts[place])
            found[index] = PlainStore(columns, start, count, meta.marks[index])
    return found


def _are_empty(pages: DatabasePages, firsts: Any, counts: Any, root: int) -> Any:
    """Return for each image whether the table with this root has no row."""
    trees = Trees(firsts, counts, np.full(len(firsts), root))
    at = trees.places(np.arange(len(firsts)), trees.root)
    leaf_without_cells = np.array([13, 0, 0], np.uint8)
    return (pages.rows[at][:, [0, 3, 4]] == leaf_without_cells).all(axis=1)


class _Meta:
    """What images of one layout say of themselves."""

    def __init__(
        self,
        layout: _Layout,
        works: Sequence[ImageWork],
        pages: DatabasePages,
        firsts: Any,
        counts: Any,
    ) -> None:
        """Raises PageError."""
        trees = Trees(firsts, counts, np.full(len(works), layout.meta))
        place = {name: index for index, name in enumerate(layout.meta_columns)}
        found = list(read_rows(pages, trees, len(place)))
        if len(found) != 1 or not np.array_equal(found[0].tree, np.arange(len(works))):
            raise PageError("an image has no row of itself, or several")
        rows = found[0]
        number = {name: rows.integers(place[name]) for name in _META_NUMBERS}
        names = zip(
            rows.binaries(place["tenant"], is_text=True).to_pylist(),
            number["kind"].tolist(),
            rows.binaries(place["name"], is_text=True).to_pylist(),
            strict=True,
        )
        own = np.array([name == work.store for name, work in zip(names, works, strict=True)], bool)
        # Files of the first format have no configuration.
        configured = ~rows.nulls(place["config"]) if "config" in place else False
        since = [work.since or _NOTHING for work in works]
        #: The revision that the table goes up to, and the time of its last change.
        self.after = np.array([each.revision for each in since], np.int64)
        self.after_time = np.array([each.time for each in since], np.int64)
        created = np.array([each.created for each in since], np.int64)
        config = np.array([each.config for each in since], np.int64)
        self.revision, self.count = number["revision"], number["count"]
        begun = self.after > 0
        continues = (
            ((created == 0) | (created == number["created"]))
            & (self.after <= self.revision)
            & (self.after >= number["changes_from"])
            & (config == 0)
        )
        known = np.array([work.since is not None for work in works], bool)
        chained = np.array([bool(each.chain) for each in since], bool)
        self.is_plain = own & ~chained & np.logical_not(configured) & (continues | ~known)
        self.is_known = known & begun
        columns = ("epoch", "revision", "last_seq", "time", "created")
        self.marks = [
            Watermark(*values)
            for values in zip(*(number[name].tolist() for name in columns), strict=True)
        ]


_NOTHING: Final = Watermark(0, 0)


class _Table:
    """The messages or entries of images of one layout."""

    def __init__(self, layout: _Layout, parts: Sequence[Rows]) -> None:
        """Raises PageError."""
        self._layout = layout
        self._parts = parts
        self._place = {name: index for index, name in enumerate(layout.columns)}
        self._tree = _joined([part.tree for part in parts])
        self._times = _joined([part.integers(self._place["time"]) for part in parts])
        if layout.kind is StoreKind.STREAM:
            revision = self._place["revision"]
            self._revisions = _joined([part.integers(revision) for part in parts])
        else:
            self._revisions = _joined([part.rowid for part in parts])

    def fit(self, meta: _Meta, plain: Any) -> Any:
        """Return for each image whether its rows are those of a plain store that goes on from what
        the table has. `plain` are the images that were read, among those of `meta`."""
        tree, revisions = self._tree, self._revisions
        count = len(plain)
        row_counts = np.bincount(tree, minlength=count)
        odd = revisions > meta.revision[plain][tree]
        odd[1:] |= (tree[1:] == tree[:-1]) & (revisions[1:] <= revisions[:-1])
        start = 0
        for part in self._parts:
            stop = start + len(part.tree)
            for name in _EMPTY & self._place.keys():
                if not part.are_null(self._place[name]):
                    odd[start:stop] |= ~part.nulls(self._place[name])
            start = stop
        fit = row_counts == meta.count[plain]
        fit[tree[odd]] = False
        # The last row that the table has: a store that was restored to an earlier state and then
        # written may have others under these revisions.
        before = np.bincount(tree[revisions <= meta.after[plain][tree]], minlength=count)
        ends = np.cumsum(row_counts) - row_counts + before - 1
        some = np.flatnonzero(meta.is_known[plain] & (before > 0))
        fit[some[self._times[ends[some]] > meta.after_time[plain][some]]] = False
        return fit

    def columns(self, after: Any, fit: Any) -> tuple[SetColumns, Any]:
        """Return the rows after these revisions of images that fit, and how many each has."""
        wanted = fit[self._tree] & (self._revisions > after[self._tree])
        parts = [part for part in self._wanted_parts(wanted) if len(part.tree)]
        columns = set_columns(parts, self._layout.columns, self._layout.kind)
        return columns, np.bincount(self._tree[wanted], minlength=len(fit))

    def _wanted_parts(self, wanted: Any) -> Iterator[Rows]:
        start = 0
        for part in self._parts:
            some = wanted[start : start + len(part.tree)]
            start += len(part.tree)
            yield part if some.all() else part.some(some)


def _joined(arrays: Sequence[Any]) -> Any:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
