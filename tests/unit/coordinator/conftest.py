"""The state file that tests of the coordinator's memory ask and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.coordinator.state.state_file import StateFile, open_state_file
from holdfast.shared_fs.disk.disk import Disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def state(path: Path) -> Iterator[StateFile]:
    with closing(open_state_file(path, Disk())) as state:
        yield state
