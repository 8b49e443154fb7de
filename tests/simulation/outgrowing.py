"""Limits so small that files are made anew with larger pages while a run goes on: most stores that
are written in bulk outgrow their first file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from holdfast.persist.write_path import materialising
from holdfast.shared_fs.store_file.pages import page_sizes

_PENDING_BYTES = 600
_CONTENT_BYTES = 300


@contextmanager
def outgrowing_files() -> Iterator[None]:
    """Let larger pages suit whatever waits in the body."""
    with (
        patch.object(materialising, "MAX_PENDING_BYTES", _PENDING_BYTES),
        patch.object(page_sizes, "_LARGE_CONTENT_BYTES", _CONTENT_BYTES),
        patch.object(page_sizes, "_LARGE_RECORD_BYTES", 1),
    ):
        yield
