"""A nats-server for each test that wants one, and a data folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.nats_server import NatsServer, running_nats_server


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path) as server:
        yield server


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())
