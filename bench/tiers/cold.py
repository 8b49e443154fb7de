"""Cold stores of a real cluster: how fast one can be used again, and what a million of them cost.

`open_cold`: a server has made stores cold, so their files are gone. A client that waits then
reads or writes each store once. That includes the coordinator's answer, the manifest, the
snapshot, sha256 and quick_check, and for a write also the file on the disk and the coordinator's
record of it.

`many_cold`: a cluster with stores made by `cold_stores.py`. They are listed through the coordinator
by a client, and from the manifests as operators' commands do, and some of them are opened.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from holdfast.bench.harness import Figures, quantile
from holdfast.bench.load import Limit, closed_loop
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchCluster, BenchProcessError, stopped_cluster
from holdfast.bench.read_back import Checker
from holdfast.bench.store.idle_stores import TENANT, state_bytes, store_named
from holdfast.bench.tiers.cold_stores import MESSAGES, make_cold_stores
from holdfast.bench.tiers.snapshots import noise
from holdfast.client import Client, connect
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.shard import MANIFEST_PREFIX

_SERVER: Final = "s1"
_TIMEOUT_SECONDS: Final = 60.0
#: How long it may take until all stores are only in the bucket.
_COLD_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.2
_CREATING: Final = 64
_LISTING_SECONDS: Final = 600.0
#: Close, snapshot and cool stores as early as possible, but not while they are written.
_SOON_COLD: Final = (
    *("--idle-close-seconds", "1"),
    *("--snapshot-seconds", "1"),
    *("--cold-after-seconds", "1"),
)


async def measure_opening(
    options: BenchOptions, folder: Path, url: str, rounds: int, opened: int
) -> list[Figures]:
    """Let a server make stores cold. In each round, open some of them, half by reading."""
    count = rounds * 2 * opened
    with stopped_cluster(options, folder) as cluster:
        cluster.start_coordinator("--bucket", url)
        cluster.start_persist(_SERVER, "--bucket", url, *_SOON_COLD)
        async with connect(cluster.url, tenant=TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client:

            async def create(number: int) -> None:
                values = [noise(seq) for seq in range(1, MESSAGES + 1)]
                await client.stream(store_named(number).name).append_many(values)

            await closed_loop(create, _CREATING, Limit(operations=count))
            await _all_cold(cluster, client, count)
            options.say(f"  {count} stores are cold")
            # Restart with the defaults, because the early passes would disturb the measurement.
            await asyncio.to_thread(cluster.stop, _SERVER)
            cluster.start_persist(_SERVER, "--bucket", url)
            unused = iter(range(count))
            # This includes what a server does only once, at its first cold store.
            await _read(client, store_named(next(unused)).name)
            found: list[Figures] = []
            for _ in range(rounds):
                figures: dict[str, float] = {}
                figures |= await _each_timed("read", opened, unused, client, _read)
                figures |= await _each_timed("append", opened - 1, unused, client, _append)
                found.append(figures)
            cluster.check()
            return found


async def measure_many(
    options: BenchOptions, folder: Path, sample: int, count: int, opened: int
) -> list[Figures]:
    """In each round, start a cluster with `count` cold stores, list them and open some."""
    bucket_folder = folder / "bucket"
    bucket_folder.mkdir(parents=True)
    url = bucket_folder.as_uri()
    with stopped_cluster(options, folder) as cluster:
        cluster.data.parent.mkdir(exist_ok=True)
        with closing(open_bucket(url)) as bucket:
            began_at = time.perf_counter()
            make_cold_stores(cluster.data, bucket, _SERVER, sample, count, options.say)
            options.say(f"  made in {time.perf_counter() - began_at:.0f} s")
        unused = iter(range(sample))
        rounds: list[Figures] = []
        for _ in range(options.rounds):
            rounds.append(await _many_round(cluster, url, count, opened, unused))
            await asyncio.to_thread(cluster.stop_all)
        with closing(open_bucket(url)) as bucket:
            manifest_bytes = sum(each.size_bytes for each in bucket.list(MANIFEST_PREFIX))
        per_store = {
            "state_bytes_per_store": state_bytes(cluster.data) / count,
            "manifest_bytes_per_store": manifest_bytes / count,
        }
        return [{**one, **per_store} for one in rounds]


async def _many_round(
    cluster: BenchCluster, url: str, count: int, opened: int, unused: Iterator[int]
) -> Figures:
    figures: dict[str, float] = {}
    began_at = time.perf_counter()
    cluster.start_coordinator("--bucket", url)
    cluster.start_persist(_SERVER, "--bucket", url)
    async with connect(cluster.url, tenant=TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client:
        await _read(client, store_named(next(unused)).name)
        figures["first_read_ms"] = (time.perf_counter() - began_at) * 1000
        began_at = time.perf_counter()
        listed = cold = 0
        async for store in client.stores():
            listed += 1
            cold += store.cold
        figures["list_seconds"] = time.perf_counter() - began_at
        checker = Checker("holdfast", "many_cold")
        checker.count("the list", count, listed)
        checker.count("the list of cold stores", count, cold)
        figures |= await _each_timed("read", opened, unused, client, _read)
        for name, process in cluster.usage().items():
            if name in ("coordinator", _SERVER):
                role = "server" if name == _SERVER else name
                figures[f"{role}_rss_bytes"] = float(process.rss_bytes)
    said = await asyncio.to_thread(_listed_from_manifests, url)
    checker.count("the manifests", count, int(said["stores"]))
    figures["list_manifests_seconds"] = said["seconds"]
    figures["list_manifests_peak_rss_bytes"] = said["peak_rss_bytes"]
    return figures


def _listed_from_manifests(url: str) -> dict[str, float]:
    program = [sys.executable, "-P", "-m", "holdfast.bench.tiers.list_cold", url]
    said = subprocess.run(
        program, capture_output=True, text=True, timeout=_LISTING_SECONDS, check=False
    )
    if said.returncode != 0:
        raise BenchProcessError(process="list_cold", reason=said.stderr.strip()[-500:])
    found: dict[str, float] = json.loads(said.stdout)
    return found


async def _all_cold(cluster: BenchCluster, client: Client, count: int) -> None:
    """Wait until every store is cold and no file is left."""
    give_up_at = time.monotonic() + _COLD_SECONDS
    while True:
        cluster.check()
        cold = [store.cold async for store in client.stores()]
        files = list((cluster.data / "stores").rglob("*.db"))
        if cold.count(True) == count and not files:
            return
        if time.monotonic() > give_up_at:
            reason = f"{cold.count(True)} of {count} stores went cold, {len(files)} files are left"
            raise BenchProcessError(process=_SERVER, reason=reason)
        await asyncio.sleep(_POLL_SECONDS)


async def _each_timed(
    what: str,
    count: int,
    unused: Iterator[int],
    client: Client,
    use: Callable[[Client, str], Awaitable[None]],
) -> Figures:
    """Use `count` stores for the first time, one after the other."""
    latencies = []
    for _ in range(count):
        name = store_named(next(unused)).name
        began_at = time.perf_counter()
        await use(client, name)
        latencies.append(time.perf_counter() - began_at)
    latencies.sort()
    return {
        f"{what}_p50_ms": quantile(latencies, 0.5) * 1000,
        f"{what}_p99_ms": quantile(latencies, 0.99) * 1000,
    }


async def _read(client: Client, name: str) -> None:
    message = await client.stream(name).get(MESSAGES)
    found = b"" if message is None else message.value
    Checker("holdfast", "cold").entries({name: noise(MESSAGES)}, {name: found})


async def _append(client: Client, name: str) -> None:
    ack = await client.stream(name).append(noise(MESSAGES + 1))
    Checker("holdfast", "cold").count(name, MESSAGES + 1, ack.seq or 0)
