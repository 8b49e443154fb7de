"""Tells an image that is read by pages which of them a scan of its rows is about to read.

SQLite would ask for one page after the other, each a request to the bucket, as rows that were
written lately may be all over the file. The upper pages of the table tell where they are. That is a
hint: whatever it says, SQLite reads the pages that it needs.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import Final

from holdfast.shared_fs.framed_images.image_pages import ImagePages
from holdfast.shared_fs.read_ahead.tree_places import NotATreeError, spans
from holdfast.shared_fs.store_file.schema import PAGE_BYTES

#: Of more leaves, the first ones are enough: whoever reads on gets large requests.
_LEAVES: Final = 20_000
#: The page of a table.
SELECT_ROOT: Final = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?"


def bring_rows(pages: ImagePages, root: int, first: int, last: int) -> None:
    """Fetch the pages of the rows from `first` to `last`, by their primary key, of the table that
    begins at page `root`. Raises as `ImagePages.read`."""

    def page(number: int) -> bytes:
        return pages.read((number - 1) * PAGE_BYTES, PAGE_BYTES)

    found = takewhile(
        lambda span: span.first_seq <= last, spans(page, root, first, leaf_by_leaf=True)
    )
    try:
        places = [(span.offset, span.size_bytes) for span in islice(found, _LEAVES)]
    except NotATreeError:
        return
    pages.bring(places)
