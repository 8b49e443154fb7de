"""Where a store file lies, and a new one of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.small_store_files import STREAM


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.b.stream.1.db"


@pytest.fixture
def file(path: Path) -> Iterator[StoreFile]:
    file = StoreFile.create(path, STREAM, time=1)
    yield file
    file.abandon()
