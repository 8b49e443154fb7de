"""Many users at once: each types into a stream of its own, keeps its cursor in a kv of its own, and
follows a room that it shares with others (`plan.py`). They run in a few client processes.

For clusters of several sizes and a fixed offered load, it measures how much was answered in time,
the latency of acks, the latency from a message to a room to its followers, both from when it was
due, and the CPU and memory of each process. Afterwards it reads back every stream, kv and room. If
one is wrong, or a follower has not seen its whole room in order, the benchmark fails. Joining
creates all the stores and is not part of the measured time; `join_seconds` is its duration.

Everything shares the machine, so the clients' own work limits what a small machine can show. The
processor time of each process shows the bottleneck.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.bench.figures import figures_table
from holdfast.bench.harness import Figures, Goal, Measurement, Report, Table, Work
from holdfast.bench.machine import machine_facts
from holdfast.bench.options import BenchOptions
from holdfast.bench.processes import BenchCluster, BenchProcess, ProcessUsage, running_cluster
from holdfast.bench.read_back import WrongReadBackError
from holdfast.bench.users.client import ClientResult, ClientTask
from holdfast.bench.users.histogram import Histogram

WORK_NAMES: Final = ("users",)
_PHASE_SECONDS: Final = 600.0
_POLL_SECONDS: Final = 0.02
#: The time between the announcement and the beginning: longer than a client takes to read it.
_BEGIN_SECONDS: Final = 0.5
_TARGET_SIDE: Final = "2 servers"
#: The part of the offered load to reach: operations due in the last moment are answered after the
#: end.
_KEPT_RATIO: Final = 0.98
_SHOWN: Final = (
    "per_second",
    "ack_p50_ms",
    "ack_p99_ms",
    "deliveries_per_second",
    "delivery_p50_ms",
    "delivery_p99_ms",
    "join_seconds",
    "*_cpu_ratio",
    "*_rss_bytes",
)


@dataclass(frozen=True, slots=True)
class UsersSettings:
    """The crowd and the load. There is only one round for each number of servers, because it is
    long and has a million operations."""

    users: int = 10_000
    #: Users that share a room.
    room_users: int = 100
    seconds: float = 60.0
    #: Operations offered by all users together.
    per_second: float = 20_000.0
    servers: tuple[int, ...] = (1, 2, 4)
    #: Client processes.
    clients: int = 2
    #: A folder of editing traces. Without one the edits are synthetic.
    traces: Path | None = None
    #: The option of each server, or None for its default.
    max_open_stores: int | None = None

    def to_json(self) -> dict[str, object]:
        return dataclasses.asdict(self) | {
            "traces": None if self.traces is None else self.traces.name,
            "servers": list(self.servers),
        }


QUICK: Final = UsersSettings(users=40, room_users=10, seconds=1.0, per_second=200.0, servers=(1, 2))


def run(options: BenchOptions, settings: UsersSettings | None = None) -> Report:
    """Measure each number of servers. Raises WrongReadBackError, BenchProcessError."""
    settings = settings or (QUICK if options.quick else UsersSettings())
    sides: dict[str, Measurement] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-users-", dir=options.directory) as name:
        machine = machine_facts(Path(name), options.nats_server)
        for servers in settings.servers:
            side = f"{servers} server{'s' if servers > 1 else ''}"
            options.say(f"users: {side}")
            figures = _measure(options, settings, servers, Path(name) / f"users-{servers}")
            sides[side] = Measurement((figures,))
    targets = (
        Goal(_TARGET_SIDE, "per_second", settings.per_second * _KEPT_RATIO),
        Goal(_TARGET_SIDE, "ack_p99_ms", 100.0, at_least=False),
    )
    work = Work("users", f"{settings.users:,} users", sides, targets)
    return Report("users", machine, options.to_json() | settings.to_json(), (work,))


def table(report: Report) -> Table:
    """Return the report for people."""
    return figures_table(report, _SHOWN)


def _measure(options: BenchOptions, settings: UsersSettings, servers: int, folder: Path) -> Figures:
    arguments = []
    if settings.max_open_stores is not None:
        arguments = ["--max-open-stores", str(settings.max_open_stores)]
    with running_cluster(options, folder, servers, arguments) as cluster:
        meeting = _Meeting(options, settings, cluster, folder / "clients")
        try:
            return meeting.measure()
        finally:
            meeting.end()


class _Meeting:
    """The client processes of one round, and the files for communication with them."""

    def __init__(
        self, options: BenchOptions, settings: UsersSettings, cluster: BenchCluster, folder: Path
    ) -> None:
        self._options = options
        self._settings = settings
        self._cluster = cluster
        self._folder = folder
        folder.mkdir()
        self._clients: list[BenchProcess] = []

    def measure(self) -> Figures:
        for number in range(self._settings.clients):
            self._clients.append(self._start_client(number))
        self._await_all("joined")
        self._options.say("  all have joined")
        self._tell("joined")
        begin_at = time.monotonic() + _BEGIN_SECONDS
        self._tell("begin", str(begin_at))
        time.sleep(max(0.0, begin_at - time.monotonic()))
        before = self._usage()
        end_at = begin_at + self._settings.seconds
        while time.monotonic() < end_at:
            self._check()
            time.sleep(min(1.0, max(0.0, end_at - time.monotonic())))
        after = self._usage()
        self._await_all("sent")
        self._options.say("  all is answered")
        self._tell("sent")
        results = [ClientResult(**json.loads(text)) for text in self._await_all("checked")]
        problems = [problem for result in results for problem in result.problems]
        if problems:
            raise WrongReadBackError(side="holdfast", work="users", reason="; ".join(problems[:5]))
        return _figures(self._settings, results, before, after)

    def end(self) -> None:
        for client in self._clients:
            client.stop()

    def _start_client(self, number: int) -> BenchProcess:
        settings = self._settings
        task = ClientTask(
            url=self._cluster.url,
            folder=str(self._folder),
            client=number,
            clients=settings.clients,
            users=settings.users,
            room_users=settings.room_users,
            per_second=settings.per_second / settings.clients,
            seconds=settings.seconds,
            traces=None if settings.traces is None else str(settings.traces),
        )
        program = [sys.executable, "-P", "-m", "holdfast.bench.users.client"]
        command = [*program, json.dumps(dataclasses.asdict(task))]
        name = f"client{number + 1}"
        log_file = self._folder / f"{name}.log"
        return BenchProcess(name, self._options.tethered(command), log_file)

    def _usage(self) -> Mapping[str, ProcessUsage]:
        return {**self._cluster.usage(), **{each.name: each.usage() for each in self._clients}}

    def _check(self) -> None:
        self._cluster.check()
        for client in self._clients:
            client.check()

    def _tell(self, phase: str, text: str = "") -> None:
        draft = self._folder / f"{phase}.new"
        draft.write_text(text)
        draft.rename(self._folder / phase)

    def _await_all(self, phase: str) -> Sequence[str]:
        """Wait until all clients have finished `phase`. Return the contents of their files."""
        give_up_at = time.monotonic() + _PHASE_SECONDS
        paths = [self._folder / f"{phase}.{number}" for number in range(len(self._clients))]
        while not all(path.exists() for path in paths):
            self._cluster.check()
            for client, path in zip(self._clients, paths, strict=True):
                if not path.exists():
                    client.check()
                    if time.monotonic() > give_up_at:
                        raise client.failure(f"did not come to {phase!r}")
            time.sleep(_POLL_SECONDS)
        return [path.read_text() for path in paths]


def _figures(
    settings: UsersSettings,
    results: Sequence[ClientResult],
    before: Mapping[str, ProcessUsage],
    after: Mapping[str, ProcessUsage],
) -> Figures:
    seconds = settings.seconds
    acks, deliveries = Histogram(), Histogram()
    for result in results:
        acks.merge(Histogram.from_json(result.ack))
        deliveries.merge(Histogram.from_json(result.delivery))
    in_time = sum(result.answered_in_time for result in results)
    figures = {
        "operations": float(acks.count),
        "seconds": seconds,
        "offered_per_second": sum(result.offered for result in results) / seconds,
        "per_second": in_time / seconds,
        **acks.figures("ack"),
        "deliveries_per_second": deliveries.count / seconds,
        **deliveries.figures("delivery"),
        "join_seconds": max(result.join_seconds for result in results),
    }
    for name, usage in after.items():
        process = name.replace("-", "_")
        taken_seconds = usage.cpu_seconds - before[name].cpu_seconds
        figures[f"{process}_cpu_ratio"] = taken_seconds / seconds
        figures[f"{process}_rss_bytes"] = float(usage.rss_bytes)
    return figures
