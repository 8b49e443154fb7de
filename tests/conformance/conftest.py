"""The conformance suite: what holdfast promises, through the public API alone.

It says nothing of how: another implementation of `holdfast.client`, or of the servers behind it,
has to pass as it is. One real cluster serves all tests, so each has a tenant of its own; only the
tutorial starts one for itself. Two files have faults, `test_convergence.py` and `test_tutorial.py`;
the other folders are about faults."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from holdfast.client import KV, Client, Stream, connect
from tests.support.holdfast_up import RunningUp, running_up

_tenants = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """The cluster of this run, with a bucket: forks need one."""
    folder = tmp_path_factory.mktemp("conformance")
    with running_up(folder / "data", "--bucket", f"file://{folder / 'bucket'}") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def nats(cluster: RunningUp) -> str:
    """Where the cluster of this run listens."""
    return cluster.nats


@pytest.fixture
def tenant() -> str:
    """A tenant that no other test has."""
    return f"t{next(_tenants)}"


@pytest.fixture
def hf(runner: asyncio.Runner, nats: str, tenant: str) -> Iterator[Client]:
    """A client of the test's tenant: whoever acts."""
    yield from _client(runner, nats, tenant)


@pytest.fixture
def other(runner: asyncio.Runner, nats: str, tenant: str) -> Iterator[Client]:
    """Another client of the same tenant: whoever looks on."""
    yield from _client(runner, nats, tenant)


@pytest.fixture
def stream(hf: Client) -> Stream:
    """A stream that is empty, for whoever acts."""
    return hf.stream("s")


@pytest.fixture
def kv(hf: Client) -> KV:
    """A kv that is empty, for whoever acts."""
    return hf.kv("k")


def _client(runner: asyncio.Runner, nats: str, tenant: str) -> Iterator[Client]:
    async def begin() -> Client:
        return await connect(nats, tenant=tenant)

    client = runner.run(begin())
    yield client
    runner.run(client.close())
