"""`holdfast stores`: what is asked of whom, and how rows are sorted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from holdfast.cli.settings import Settings
from holdfast.cli.stores.details import StoreDetails, ask_owners, known, read_manifests, to_json
from holdfast.cli.stores.listing import Order, listed
from holdfast.cli.stores.stores import sorted_rows
from holdfast.client import Client
from holdfast.protocol.control import StoreInfo, StoreState
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.messages import Head
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.manifest import Manifests, open_manifests
from holdfast.shared_fs.snapshots.shard import shard_of
from holdfast.shared_fs.snapshots.store_entry import SnapshotVersion, StoreEntry


def info(name: str, size_bytes: int | None = None, *, cold: bool = False) -> StoreInfo:
    return StoreInfo(StoreKind.STREAM, name, "s1", "i", 1, StoreState.DURABLE, cold, size_bytes)


class Handle:
    def __init__(self, name: str, asked: list[str]) -> None:
        self._name = name
        self._asked = asked

    async def head(self) -> Head:
        self._asked.append(self._name)
        if self._name == "damaged":
            raise StoreDamagedError(store=self._name, reason="it is torn")
        return Head(7, 1, 7, 5, 812, 1, "s1", 1000)


class Asked:
    """As much of a client as is used."""

    def __init__(self, *stores: StoreInfo) -> None:
        self._stores = stores
        self.asked: list[str] = []

    def stream(self, name: str) -> Handle:
        return Handle(name, self.asked)

    async def stores(self, **asked: Any) -> AsyncIterator[StoreInfo]:
        for one in self._stores:
            yield one


async def test_a_cold_store_is_not_opened_and_one_that_is_damaged_hides_no_other() -> None:
    client = Asked()
    rows = known([info("a"), info("cold", 10, cold=True), info("damaged", 20), info("b")])
    found = await ask_owners(cast(Client, client), rows)
    assert client.asked == ["a", "damaged", "b"]
    assert [one.count for one in found] == [5, None, None, 5]
    assert [one.bytes for one in found] == [812, 10, 20, 812]
    assert [one.error for one in found] == ["", "", "store_damaged", ""]
    assert to_json(found[2], {})["error"] == "store_damaged"
    assert found[0].time == 1000


def test_the_bucket_tells_of_cold_stores_and_how_far_snapshots_lag(tmp_path: Any) -> None:
    url = tmp_path.as_uri()
    bucket = open_bucket(url)
    open_manifests(bucket)
    for name, revision in (("hot", 5), ("cold", 9)):
        version = SnapshotVersion("k", 0, 1, "", 1, 1, revision, 4, 3, 77, 500, 600)
        store = StoreId("acme", StoreKind.STREAM, name)
        entry = StoreEntry((version,), archived_seq=2 if name == "hot" else 0)
        Manifests(bucket).update(shard_of(store), lambda _, e={store: entry}: e)  # type: ignore[misc]
    hot = StoreDetails(info("hot"), count=8, bytes=90, time=700, revision=7)
    rows = [hot, *known([info("cold", 1, cold=True), info("never"), info("open")])]
    found = read_manifests(url, "acme", rows)
    assert (found[0].lag, found[0].tier, found[0].count) == (2, "hot, archived", 8)
    assert (found[1].lag, found[1].tier, found[1].count) == (0, "cold", 3)
    assert (found[1].bytes, found[1].time, found[1].snapshot_time) == (77, 500, 600)
    assert (found[2].snapshot_revision, found[2].lag) == (0, None)


async def test_the_largest_are_found_among_more_than_are_kept() -> None:
    sizes = [(number * 7919) % 10_007 for number in range(10_000)]
    stores = [info(f"n{number:05}", size or None) for number, size in enumerate(sizes)]
    client = cast(Client, Asked(*stores))
    found = await listed(client, Settings(), None, "", 3, Order.BYTES)
    assert [one.bytes for one in found] == sorted(sizes, reverse=True)[:3]
    assert [one.name for one in await listed(client, Settings(), None, "", 2)] == [
        "n00000",
        "n00001",
    ]


@pytest.mark.parametrize(
    ("order", "names"), [(Order.COUNT, "bac"), (Order.TIME, "abc"), (Order.NAME, "abc")]
)
def test_rows_of_which_it_is_not_known_come_last(order: Order, names: str) -> None:
    rows = [
        StoreDetails(info("a"), count=1, time=9),
        StoreDetails(info("b"), count=2),
        StoreDetails(info("c")),
    ]
    assert "".join(one.info.name for one in sorted_rows(rows, order)) == names
