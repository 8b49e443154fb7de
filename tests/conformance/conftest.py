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
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.encryption.master_keys import key_in_file
from holdfast.shared_fs.encryption.registry import keys_in_folder
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_BYTES
from tests.support.holdfast_up import RunningUp, running_up

_tenants = itertools.count(1)


#: Whose tests run a second time, with a tenant whose values are encrypted at rest.
_ALSO_ENCRYPTED = frozenset(("test_kvs", "test_streams", "test_subjects", "test_values"))
_ENCRYPTED_TENANTS = [f"encrypted{number}" for number in range(1, 121)]
_encrypted = iter(_ENCRYPTED_TENANTS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in _ALSO_ENCRYPTED and "tenant" in metafunc.fixturenames:
        metafunc.parametrize("tenant", ("clear", "encrypted"), indirect=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """The cluster of this run, with a bucket: forks need one. It has encrypted tenants."""
    folder = tmp_path_factory.mktemp("conformance")
    master = folder / "master.key"
    master.touch(0o600)
    master.write_bytes(bytes(range(32)))
    registry = keys_in_folder(open_layout(folder / "data" / "shared", Disk()))
    registry.encrypt(_ENCRYPTED_TENANTS, key_in_file(master), 1)
    bucket = ("--bucket", f"file://{folder / 'bucket'}")
    with running_up(folder / "data", *bucket, "--master-key-file", str(master)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def nats(cluster: RunningUp) -> str:
    """Where the cluster of this run listens."""
    return cluster.nats


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """A tenant that no other test has."""
    if getattr(request, "param", "clear") == "encrypted":
        return next(_encrypted)
    return f"t{next(_tenants)}"


@pytest.fixture
def box_bytes(tenant: str) -> int:
    """What encryption adds to the bytes of a value, if the tenant's values are encrypted."""
    return BOX_BYTES if tenant in _ENCRYPTED_TENANTS else 0


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
