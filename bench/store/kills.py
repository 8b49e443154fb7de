"""Kills: how long nobody can write, and nothing arrives, after `kill -9` of a store's owner alone.

Of two persist servers one owns a stream. Values are appended to it at a steady rate, whether
earlier ones are answered or not, and another connection follows it. Then its owner is killed. A
kill is over when what was appended after it is acknowledged and followed; the killed server is
started again, and the next kill is of the other one. From the kill on:

    first_ack_*       to the first ack of an append that was sent after it
    first_change_*    to the first such append that the follower is given
    longest_ack_*     the longest time that any append took that was under way or came later

In the end all that was appended is read back, and what was followed is compared with it."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import uvloop

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work, quantile
from holdfast.bench.load import value_of
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchCluster, running_cluster
from holdfast.bench.read_back import WrongReadBackError
from holdfast.client import Client, Stream, connect
from holdfast.protocol.control import ServerState

WORK_NAMES: Final = ("kills",)
_TENANT: Final = "bench"
_STORE: Final = "kills"
_SIDE: Final = "holdfast"
_SERVERS: Final = frozenset(("s1", "s2"))
_SHOWN: Final = ("*_ms",)
_TIMEOUT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
#: Between two appends.
_PACE_SECONDS: Final = 0.005
#: Kills come so long after both servers are there, and a bit more each time, so that they meet
#: different moments of heartbeats and checkpoints.
_SETTLING_SECONDS: Final = 0.3
_STEPS: Final = 7
_STEP_SECONDS: Final = 0.037


@dataclass(frozen=True, slots=True)
class KillsSettings:
    """How many kills there are."""

    kills: int = 20


QUICK: Final = KillsSettings(kills=1)


class _Appended:
    """What is appended at a steady rate: by number, when it was sent, acknowledged and followed, by
    time.perf_counter."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._numbers = itertools.count()
        self.sent_at: dict[int, float] = {}
        self.acked_at: dict[int, float] = {}
        self.followed_at: dict[int, float] = {}
        self.followed: list[bytes] = []

    async def append_at_a_rate(self) -> None:
        """Append until cancelled. What is not answered by then is lost track of."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self.append())
                await asyncio.sleep(_PACE_SECONDS)

    async def append(self) -> None:
        number = next(self._numbers)
        self.sent_at[number] = time.perf_counter()
        await self._stream.append(value_of(number))
        self.acked_at[number] = time.perf_counter()

    async def follow(self, stream: Stream) -> None:
        """Note what is followed, from the first message on, until cancelled."""
        async for change in stream.subscribe(start_seq=1):
            if change.message is not None:
                self.followed_at[int(change.message.value[:16], 16)] = time.perf_counter()
                self.followed.append(change.message.value)

    def is_answered(self, since: float) -> bool:
        """Return whether something sent after `since` is acknowledged and followed, and all that
        was sent before it is acknowledged."""
        later = [number for number, at in self.sent_at.items() if at > since]
        return any(each in self.acked_at and each in self.followed_at for each in later) and all(
            number in self.acked_at for number in range(later[0])
        )


def run(options: BenchOptions, settings: KillsSettings | None = None) -> Report:
    """Run the benchmark. Raises WrongReadBackError, BenchProcessError."""
    settings = settings or (QUICK if options.quick else KillsSettings())
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-", dir=options.directory) as folder:
        machine = machine_facts(Path(folder), options.nats_server)
        figures = uvloop.run(_measure(options, settings, Path(folder)))
    targets = tuple(
        Goal(_SIDE, f"{what}_{share}_ms", bound, at_least=False)
        for what in ("first_ack", "first_change")
        for share, bound in (("p50", 250.0), ("p99", 600.0))
    )
    work = Work("kills", f"{settings.kills} kills", {_SIDE: Measurement((figures,))}, targets)
    return Report("kills", machine, options.to_json() | asdict(settings), (work,))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


async def _measure(options: BenchOptions, settings: KillsSettings, folder: Path) -> Figures:
    with running_cluster(options, folder / "holdfast", len(_SERVERS)) as cluster:
        async with _connected(cluster) as writer, _connected(cluster) as follower:
            appended = _Appended(writer.stream(_STORE))
            await appended.append()
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(appended.append_at_a_rate()),
                    tasks.create_task(appended.follow(follower.stream(_STORE))),
                ]
                kills = []
                for number in range(settings.kills):
                    await _have_both(cluster, follower)
                    await asyncio.sleep(_SETTLING_SECONDS + number % _STEPS * _STEP_SECONDS)
                    kills.append(await _kill_owner(cluster, follower, appended))
                    if number % 20 == 19:
                        options.say(f"kills: {number + 1} of {settings.kills}")
                for task in running:
                    task.cancel()
            await _check(appended, follower.stream(_STORE))
    return _figures(appended, kills)


@asynccontextmanager
async def _connected(cluster: BenchCluster) -> AsyncIterator[Client]:
    async with connect(cluster.url, tenant=_TENANT, timeout_seconds=_TIMEOUT_SECONDS) as client:
        yield client


async def _kill_owner(cluster: BenchCluster, client: Client, appended: _Appended) -> float:
    """Kill the stream's owner and wait until it is replaced. Return when it was killed."""
    [owner] = [store.server async for store in client.stores() if store.name == _STORE]
    assert owner in cluster.processes, f"the owner is {owner!r}"
    killed_at = time.perf_counter()
    await asyncio.to_thread(cluster.kill, owner)
    while not appended.is_answered(killed_at):
        cluster.check()
        await asyncio.sleep(_POLL_SECONDS)
    return killed_at


async def _have_both(cluster: BenchCluster, client: Client) -> None:
    """Start the server that was killed, and wait until both may own stores."""
    for killed in _SERVERS.difference(cluster.processes):
        cluster.start_persist(killed)
    while await _live(client) != _SERVERS:
        cluster.check()
        await asyncio.sleep(_POLL_SECONDS)


async def _live(client: Client) -> set[str]:
    return {each.server for each in await client.servers() if each.state == ServerState.LIVE}


async def _check(appended: _Appended, stream: Stream) -> None:
    """Raise WrongReadBackError unless the stream has what was acknowledged, each once, and what was
    followed is the beginning of it."""
    found = [message.value async for message in stream.get_all()]
    expected = {value_of(number) for number in appended.acked_at}
    if len(set(found)) != len(found) or not expected <= set(found):
        missing = len(expected - set(found))
        reason = f"{len(found)} messages, {missing} of the acknowledged ones are missing"
        raise WrongReadBackError(side=_SIDE, work="kills", reason=reason)
    if appended.followed != found[: len(appended.followed)]:
        reason = "what was followed is not what is there"
        raise WrongReadBackError(side=_SIDE, work="kills", reason=reason)


def _figures(appended: _Appended, kills: list[float]) -> Figures:
    figures: dict[str, float] = {"kills": float(len(kills))}
    ends = [*kills[1:], float("inf")]
    latencies: dict[str, list[float]] = {"first_ack": [], "first_change": [], "longest_ack": []}
    for killed_at, end in zip(kills, ends, strict=True):
        later = [number for number, at in appended.sent_at.items() if killed_at < at < end]
        for name, at in (("first_ack", appended.acked_at), ("first_change", appended.followed_at)):
            latencies[name].append(min(at[each] for each in later if each in at) - killed_at)
        latencies["longest_ack"].append(
            max(
                acked_at - appended.sent_at[number]
                for number, acked_at in appended.acked_at.items()
                if killed_at < acked_at and appended.sent_at[number] < end
            )
        )
    for name, found in latencies.items():
        ordered = sorted(found)
        for share, value in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            figures[f"{name}_{share}_ms"] = quantile(ordered, value) * 1000
    return figures
