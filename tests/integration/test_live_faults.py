"""Live replicas against servers in memory that show faults on demand, over a real NATS."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from holdfast.client import (
    Client,
    ConnectionFailedError,
    LimitExceededError,
    OperationTimeoutError,
    StorageFailedError,
    connect,
)
from holdfast.protocol.own_headers import LIVE_HEADER
from tests.support.client_of_fakes import KV, STREAM
from tests.support.fake_persist import FakeCluster
from tests.support.in_loop import entered
from tests.support.nats_server import NatsServer
from tests.support.present import present
from tests.support.waiting import until


@pytest.fixture
def ada(client: Client) -> Client:
    return client


@pytest.fixture
def bob(runner: asyncio.Runner, shared_nats: NatsServer, cluster: FakeCluster) -> Iterator[Client]:
    with entered(runner, connect(shared_nats.url, timeout_seconds=10)) as bob:
        yield bob


def stored(cluster: FakeCluster) -> list[bytes]:
    return [row[2] for row in cluster.store(*STREAM).messages.values()]


async def test_everything_goes_on_while_the_servers_are_away_and_is_saved_afterwards(
    ada: Client, cluster: FakeCluster
) -> None:
    async with ada.live_kv("k") as settings, ada.live_stream("s") as notes:
        settings["before"] = b"1"
        notes.append(b"1")
        await settings.save()
        await notes.save()
        cluster.servers[0].silent = True
        settings["after"] = b"1"
        settings["after"] = b"2"
        del settings["before"]
        for number in range(2, 5):
            notes.append(b"%d" % number, headers={"user": "ada"})
        assert dict(settings) == {"after": b"2"}
        assert set(settings.unsaved) == {"after", "before"}
        assert [note.value for note in notes] == [b"1", b"2", b"3", b"4"]
        assert [note.seq for note in notes] == [1, None, None, None]
        with pytest.raises(OperationTimeoutError):
            await settings.save(timeout_seconds=0.05)
        cluster.servers[0].silent = False
        await settings.save()
        await notes.save()
        assert (settings.unsaved, notes.unsaved) == ((), [])
        assert [note.seq for note in notes] == [1, 2, 3, 4]
        assert notes[-1].headers == {"user": "ada"}
    assert {key: row[2] for key, row in cluster.store(*KV).entries.items()} == {"after": b"2"}
    assert stored(cluster) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("lost", ["drop_replies", "drop_requests"])
async def test_a_flight_without_an_answer_is_looked_for_and_stored_once(
    monkeypatch: pytest.MonkeyPatch, lost: str, ada: Client, cluster: FakeCluster
) -> None:
    monkeypatch.setattr("holdfast.client.live.live_stream.FLIGHT_SECONDS", 0.3)
    monkeypatch.setattr("holdfast.client.live.live_kv.FLIGHT_SECONDS", 0.3)
    async with ada.live_stream("s") as notes, ada.live_kv("k") as settings:
        cluster.lose_broadcasts = 1
        setattr(cluster.servers[0], lost, 1)
        notes.append(b"1")
        notes.append(b"2")
        await until(lambda: getattr(cluster.servers[0], lost) == 0)
        notes.append(b"3")
        await notes.save()
        assert stored(cluster) == [b"1", b"2", b"3"]
        assert [note.seq for note in notes] == [1, 2, 3]
        setattr(cluster.servers[0], lost, 1)
        settings["a"] = b"1"
        await settings.save()
        assert cluster.store(*KV).revision == 1


async def test_a_conflict_whose_broadcast_was_lost_is_asked_about(
    ada: Client, bob: Client, cluster: FakeCluster
) -> None:
    def join(base: bytes | None, local: bytes | None, remote: bytes | None) -> bytes:
        return b"+".join(each for each in (local, remote) if each)

    async with ada.live_kv("k", merge=join) as settings:
        cluster.lose_broadcasts = 1
        await bob.kv("k").set("a", b"bob")
        settings["a"] = b"ada"
        await settings.save()
        assert settings["a"] == b"ada+bob"
        cluster.lose_broadcasts = 1
        await bob.kv("k").delete("a")
        settings["a"] = b"ada"
        await settings.save()
        assert settings["a"] == b"ada"


async def test_an_owner_that_is_lost_while_the_copy_is_made_hangs_nobody(
    ada: Client, bob: Client, cluster: FakeCluster
) -> None:
    """D6: opening has a deadline."""
    await bob.kv("k").set("a", b"1")
    cluster.servers[0].silent = True
    settings = ada.live_kv("k")
    with pytest.raises(OperationTimeoutError):
        await settings.open(timeout_seconds=0.3)
    with pytest.raises(ConnectionFailedError):
        settings["a"] = b"2"
    cluster.servers[0].silent = False
    async with ada.live_kv("k") as settings:
        assert settings["a"] == b"1"


async def test_a_copy_that_is_closed_while_it_is_made_hangs_nobody(
    ada: Client, cluster: FakeCluster
) -> None:
    for replica in (ada.live_kv("k"), ada.live_stream("s")):
        cluster.servers[0].silent = True
        opening = asyncio.create_task(replica.open(timeout_seconds=300))
        await until(lambda: bool(ada._replicas))
        await replica.aclose()
        with pytest.raises(ConnectionFailedError, match="has been closed"):
            await opening
        cluster.servers[0].silent = False
    async with ada.live_kv("k") as settings:
        assert settings.connected
    assert not settings.connected


async def test_what_cannot_be_saved_at_the_end_is_told(
    caplog: pytest.LogCaptureFixture, ada: Client, cluster: FakeCluster
) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.client"):
        settings = await ada.live_kv("k").open()
        notes = await ada.live_stream("s").open()
        cluster.servers[0].silent = True
        settings["a"] = b"1"
        notes.append(b"1")
        with pytest.raises(OperationTimeoutError, match="1 writes of k are not confirmed"):
            await settings.aclose(timeout_seconds=0.1)
        await settings.aclose()
        with pytest.raises(ConnectionFailedError):
            settings["a"] = b"2"
        assert settings["a"] == b"1"
        await ada.close()
        assert not notes.connected
        with pytest.raises(ConnectionFailedError):
            await notes.save()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["client.unsaved store=k count=1", "client.unsaved store=s count=1"]


async def test_what_callbacks_and_merges_raise_hurts_nobody(
    ada: Client, bob: Client, cluster: FakeCluster
) -> None:
    """D7: a reader in trouble is no failure of the writer."""
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))

    def fail(*_: object) -> bytes:
        raise ValueError("no")

    heard: list[str] = []
    async with ada.live_kv("k", merge=fail) as settings, bob.live_kv("k") as others:
        settings.on_change(fail)
        end = settings.on_change(lambda change: heard.append(change.key))
        settings["a"] = b"1"
        await settings.save()
        assert heard == ["a"]
        # Bob writes over what he has heard: a conflict would be his to merge.
        await until(lambda: others.get("a") == b"1")
        cluster.servers[0].hold = []
        others["a"] = b"bob"
        await until(lambda: bool(cluster.servers[0].hold))
        settings["a"] = b"ada"
        await until(lambda: len(cluster.servers[0].hold or []) > 1)
        end()
        cluster.servers[0].release()
        await settings.save()
        await until(lambda: others["a"] == b"ada")
    assert heard == ["a", "a"]
    assert [each.partition(":")[0] for each in reported] == [
        "a callback of a live replica failed",
        "a callback of a live replica failed",
        "the merge of a live kv failed",
    ]


async def test_a_refusal_drops_one_write_and_an_outage_none(
    ada: Client, cluster: FakeCluster
) -> None:
    async with ada.live_stream("s") as notes:
        rejected: list[bytes | None] = []
        notes.on_reject(lambda rejection: rejected.append(rejection.value))
        error = LimitExceededError(what="max_bytes", limit=1, value=2)
        # All three together, then the first one alone.
        cluster.servers[0].refuse = [error, error]
        for value in (b"1", b"2", b"3"):
            notes.append(value)
        with pytest.raises(LimitExceededError):
            await notes.save()
        await notes.save()
        assert rejected == [b"1"]
        assert [note.value for note in notes] == [b"2", b"3"]
        cluster.servers[0].refuse = [StorageFailedError(reason="full")]
        notes.append(b"4")
        await notes.save()
        assert stored(cluster) == [b"2", b"3", b"4"]


async def test_the_header_of_a_live_stream_is_seen_by_others_only(ada: Client, bob: Client) -> None:
    async with ada.live_stream("s", codec="msgpack") as notes, bob.live_stream("s") as others:
        notes.append({"a": 1}, headers={"user": "ada"})
        await notes.save()
        await until(lambda: len(others) == 1)
        assert others[0].headers == notes[0].headers == {"user": "ada"}
        assert (notes[0].value, notes.find(1), notes.find(2)) == ({"a": 1}, notes[0], None)
        assert set(present(await bob.stream("s").get(1)).headers) == {"user", LIVE_HEADER}
