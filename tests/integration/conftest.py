"""A nats-server for each test that wants one, a data folder, and clients of fake servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.client import Client, connect
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.fake_persist import FakeCluster, fake_cluster
from tests.support.in_loop import entered
from tests.support.nats_server import NatsServer, running_nats_server


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path) as server:
        yield server


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return open_layout(tmp_path / "data", Disk())


@pytest.fixture(scope="session")
def shared_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A nats-server for the tests that leave it as it was."""
    with running_nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def servers() -> str:
    """The fake servers of a test, each named by one letter."""
    return "a"


@pytest.fixture
def cluster(runner: asyncio.Runner, shared_nats: NatsServer, servers: str) -> Iterator[FakeCluster]:
    """A cluster of fake servers."""
    with entered(runner, fake_cluster(shared_nats.url, *servers)) as cluster:
        yield cluster


@pytest.fixture
def client(
    runner: asyncio.Runner, shared_nats: NatsServer, cluster: FakeCluster
) -> Iterator[Client]:
    """A client of the fake servers."""
    with entered(runner, connect(shared_nats.url, timeout_seconds=10.0)) as client:
        yield client
