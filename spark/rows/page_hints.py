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
from holdfast.shared_fs.store_file.pages.page_sizes import HEADER_BYTES, page_bytes_of

#: Of more leaves, the first ones are enough: whoever reads on gets large requests.
_LEAVES: Final = 20_000
#: The page of a table.
SELECT_ROOT: Final = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?"


def bring_rows(pages: ImagePages, root: int, first: int, last: int) -> None:
    """Fetch the pages of the rows from `first` to `last`, by their primary key, of the table that
    begins at page `root`. Raises as `ImagePages.read`."""

    page_bytes = page_bytes_of(pages.read(0, HEADER_BYTES))
    if page_bytes is None:
        return

    def page(number: int) -> bytes:
        return pages.read((number - 1) * page_bytes, page_bytes)

    found = takewhile(
        lambda span: span.first_seq <= last,
        spans(page, page_bytes, root, first, leaf_by_leaf=True),
    )
    try:
        places = [(span.offset, span.size_bytes) for span in islice(found, _LEAVES)]
    except NotATreeError:
        return
    pages.bring(places)
