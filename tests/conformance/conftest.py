"""The conformance suite: what holdfast promises, through the public API alone.

It says nothing of how: another implementation of `holdfast.client`, or of the servers behind it,
has to pass as it is. One real cluster serves all tests, so each has a tenant of its own; only the
tutorial starts one for itself. Two files have faults, `test_convergence.py` and `test_tutorial.py`;
the other folders are about faults. """

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator

import pytest
from support.holdfast_up import RunningUp, running_up

from holdfast.client import Client, connect

Test = Callable[[Client, Client], Awaitable[None]]
_tenants = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """The cluster of this run."""
    with running_up(tmp_path_factory.mktemp("conformance") / "data") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def nats(cluster: RunningUp) -> str:
    """Where the cluster of this run listens."""
    return cluster.nats


@pytest.fixture
def run(nats: str) -> Callable[[Test], None]:
    """Runs a test with two clients of a new tenant: whoever acts, and whoever looks on."""

    def run(test: Test) -> None:
        tenant = f"t{next(_tenants)}"

        async def main() -> None:
            async with (
                connect(nats, tenant=tenant) as client,
                connect(nats, tenant=tenant) as other,
                asyncio.timeout(60),
            ):
                await test(client, other)

        asyncio.run(main())

    return run
