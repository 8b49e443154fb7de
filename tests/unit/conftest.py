"""A file system for SQLite whose faults a test chooses."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support.faulty_vfs import FaultyVfs


@pytest.fixture
def vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyVfs]:
    # apsw reports what a VFS method raises twice: as SQLite's error, and as unraisable.
    monkeypatch.setattr(sys, "unraisablehook", lambda *details: None)
    monkeypatch.setattr(sys, "excepthook", lambda *details: None)
    vfs = FaultyVfs()
    yield vfs
    vfs.heal()
    vfs.unregister()
