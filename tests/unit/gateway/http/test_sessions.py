"""The clients of an HTTP gateway: one for each token, and never more than there is room for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from holdfast.gateway.http import sessions
from holdfast.gateway.http.problems import ProblemError
from holdfast.gateway.http.sessions import Sessions
from holdfast.protocol.errors import BusyError, LoginFailedError, UnavailableError


class _Client:
    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        cluster.connected += 1
        cluster.most = max(cluster.most, cluster.connected)

    def kv(self, name: str) -> None:
        return None

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._cluster.connected -= 1


class _Cluster:
    """Counts the clients that are connected."""

    def __init__(self) -> None:
        self.connected = self.most = self.asked = 0
        #: What the next logins raise.
        self.failures: list[Exception] = []

    async def connect(self, token: str | None) -> Any:
        self.asked += 1
        failure = self.failures.pop() if self.failures else None
        for _ in range(3):
            await asyncio.sleep(0)
        if failure is not None:
            raise failure
        return _Client(self)


@pytest.fixture
def cluster() -> _Cluster:
    return _Cluster()


@pytest.fixture
def found(cluster: _Cluster) -> Sessions:
    return Sessions(cluster.connect, allows_anonymous=True)


async def _use(found: Sessions, token: str, until: asyncio.Event | None = None) -> None:
    async with found.of({"authorization": f"Bearer {token}"}):
        if until is not None:
            await until.wait()


async def test_requests_with_one_token_share_a_client(cluster: _Cluster, found: Sessions) -> None:
    await asyncio.gather(*(_use(found, "t") for _ in range(20)))
    assert (cluster.asked, cluster.connected, found.count) == (1, 1, 1)


async def test_no_client_is_left_behind_when_the_first_login_fails(
    cluster: _Cluster, found: Sessions
) -> None:
    """Those that waited for it log in one after the other, also with one that came later."""
    cluster.failures = [UnavailableError(reason="away")]
    first = [asyncio.ensure_future(_use(found, "t")) for _ in range(3)]
    while cluster.asked < 2:
        await asyncio.sleep(0)
    await asyncio.gather(*first, *(_use(found, "t") for _ in range(3)), return_exceptions=True)
    assert (cluster.connected, found.count) == (1, 1)
    await found.close()
    assert cluster.connected == 0


async def test_clients_that_log_in_at_once_stay_within_the_bound(
    cluster: _Cluster, found: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 10)
    results = await asyncio.gather(
        *(_use(found, f"t{number}") for number in range(50)), return_exceptions=True
    )
    assert cluster.most <= 10
    assert all(each is None or isinstance(each, BusyError) for each in results)
    # What nobody uses makes room.
    await _use(found, "another")
    assert cluster.most <= 10 and found.count <= 10


async def test_clients_that_are_used_are_not_closed_for_others(
    cluster: _Cluster, found: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    over = asyncio.Event()
    using = [asyncio.ensure_future(_use(found, f"t{number}", over)) for number in range(2)]
    while found.count < 2:
        await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await _use(found, "third")
    over.set()
    await asyncio.gather(*using)
    await _use(found, "third")
    assert cluster.most == 2


async def test_tokens_that_nobody_accepts_are_looked_at_so_many_at_a_time(
    cluster: _Cluster, found: Sessions
) -> None:
    count = 2 * sessions.MAX_CONNECTING
    refusal = {"url": "", "reason": "no", "advice": ""}
    cluster.failures = [LoginFailedError(**refusal) for _ in range(count)]
    results = await asyncio.gather(
        *(_use(found, f"t{number}") for number in range(count)), return_exceptions=True
    )
    assert cluster.asked == sessions.MAX_CONNECTING
    assert sum(isinstance(each, BusyError) for each in results) == count - cluster.asked
    assert sum(isinstance(each, ProblemError) for each in results) == cluster.asked
    with contextlib.suppress(ProblemError):
        await _use(found, "t0")
    assert cluster.asked == sessions.MAX_CONNECTING + 1
