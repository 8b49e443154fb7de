"""`holdfast demo`: store a git history, kill a server midway, and check every byte.

The demo starts an embedded cluster. Several writer processes store the history of a git repository
at once, while a follower process follows everything live, and one persist server is killed midway.
At the end a fresh client reads everything back. If Java is installed, Spark exports it to a table,
rebuilds every file from the table and queries it. The package `holdfast.cli.demo` has the plan, the
workers that carry it out, the checks and the report.

The demo leaves no process behind, and without --data no file.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from holdfast.cli.advice import EXIT_FAILED, first_error
from holdfast.cli.cluster.cluster import MAX_SERVERS, Cluster, ClusterOptions, running_cluster
from holdfast.cli.cluster.die_with_parent import tethered
from holdfast.cli.demo.export import TableVerdict, export_demo, missing_for_export
from holdfast.cli.demo.git_history import BlobReader, GitError, repository_root
from holdfast.cli.demo.plan import DemoPlan, plan_repository
from holdfast.cli.demo.progress import DemoProgress
from holdfast.cli.demo.report import AckTimes, DemoReport, Kill
from holdfast.cli.demo.verify import DemoVerdict, verify
from holdfast.cli.demo.worker import WorkerTask
from holdfast.cli.settings import Settings, pass_settings, shared_options
from holdfast.cli.signals import cancelled_by_signals
from holdfast.client.connecting import Connecting, connect
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import unpack
from holdfast.protocol.names import StoreKind

#: The kill comes once this share of the messages is acknowledged.
KILL_RATIO: Final = 0.4
_LINE_BYTES: Final = 64 * 1024


class DemoFailedError(HoldfastError):
    """A writer or the follower failed."""

    code = "demo_failed"
    template = "the {worker} failed: {reason}"


class DemoUsedError(HoldfastError):
    """The data folder holds an earlier demo of the same repository."""

    code = "demo_used"
    template = "{data} already holds stores of {prefix!r}, from an earlier demo"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    repository: Path
    data: Path
    server_count: int
    writer_count: int
    limit: int | None
    kill: bool
    prefix: str
    #: The cluster's bucket, which is exported. None if nothing is exported.
    bucket: str | None = None
    #: The reason why nothing is exported.
    not_exported: str | None = None


@click.command()
@click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A git repository.  [default: holdfast's own, else the current folder's]",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep all data in this folder.  [default: a temporary one]",
)
@click.option(
    "--servers",
    type=click.IntRange(1, MAX_SERVERS),
    default=2,
    show_default=True,
    help="How many persist servers.",
)
@click.option(
    "--writers",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="How many writer processes.",
)
@click.option("--limit", type=click.IntRange(1), help="Store only this many file versions.")
@click.option(
    "--kill/--no-kill", default=True, help="Kill a persist server midway.  [default: kill]"
)
@click.option(
    "--export/--no-export",
    default=True,
    help="Export to a table and query it with Spark.  [default: export, if Java is installed]",
)
@click.option(
    "--progress/--no-progress",
    default=True,
    help="Show the progress on stderr.  [default: progress]",
)
@shared_options("prefix", "json")
@pass_settings
def demo(
    settings: Settings,
    repo: Path | None,
    data: Path | None,
    servers: int,
    writers: int,
    limit: int | None,
    kill: bool,
    export: bool,
    progress: bool,
) -> None:
    """Store a git history, kill a server, and check every byte.

    The exit code is 0 only if nothing was lost, duplicated, changed or delivered out of order.
    """
    with ExitStack() as stack:
        if data is None:
            temporary = tempfile.TemporaryDirectory(prefix="holdfast-demo-")
            folder = Path(stack.enter_context(temporary))
        else:
            folder = data.resolve()
        not_exported = missing_for_export() if export else "not wanted"
        options = DemoOptions(
            repository=_choose_repository(repo),
            data=folder,
            server_count=servers,
            writer_count=writers,
            limit=limit,
            kill=kill,
            prefix=settings.prefix,
            bucket=None if not_exported else (folder / "bucket").as_uri(),
            not_exported=not_exported,
        )
        shown = stack.enter_context(DemoProgress(enabled=progress))
        report = asyncio.run(_run_until_interrupted(options, shown))
    report.print(as_json=settings.json)
    if data is not None:
        up = ["holdfast", "up", "--data", str(data)]
        if options.bucket is not None:
            up += ["--bucket", options.bucket]
        click.echo(f"the data is kept; to look at it: {shlex.join(up)}", err=True)
    if report.problems:
        click.get_current_context().exit(EXIT_FAILED)


async def _run_until_interrupted(options: DemoOptions, progress: DemoProgress) -> DemoReport:
    with cancelled_by_signals() as interruption:
        try:
            return await run_demo(options, progress)
        except asyncio.CancelledError:
            if interruption.signal is None:
                raise
            progress.say("interrupted; everything is cleaned up")
    sys.exit(interruption.exit_code)


async def run_demo(options: DemoOptions, progress: DemoProgress) -> DemoReport:
    """Run the demo. Raises HoldfastError if it cannot be completed."""
    started_at = time.monotonic()
    progress.stage(f"reading the history of {options.repository}")
    plan = await asyncio.to_thread(
        plan_repository, options.repository, options.limit, options.writer_count
    )
    if not plan.message_count:
        raise GitError(repository=str(options.repository), reason="no file version to store")
    progress.stage(f"starting nats-server, a coordinator and {options.server_count} servers")
    cluster_options = ClusterOptions(
        data=options.data,
        server_count=options.server_count,
        port=0,
        prefix=options.prefix,
        bucket=options.bucket,
    )
    async with running_cluster(cluster_options, progress.say) as cluster:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-work-") as work:
            run = _Run(options, plan, cluster, Path(work), progress)
            await run.refuse_earlier_demo()
            verdict = await run.carry_out()
            changes_followed, follower_problems = run.follower_result()
            table = await run.export()
            return DemoReport(
                plan=plan,
                server_count=options.server_count,
                writer_count=options.writer_count,
                acks=run.acks(),
                kill=run.kill,
                verdict=verdict,
                changes_followed=changes_followed,
                follower_problems=follower_problems,
                table=table,
                not_exported=options.not_exported,
                total_seconds=time.monotonic() - started_at,
            )


class _Worker:
    """A writer or the follower, seen from outside."""

    def __init__(self, name: str, task: WorkerTask, on_news: Callable[[], None]) -> None:
        self.name = name
        self.count = 0
        #: Whether it waits for `go`, or has ended.
        self.waits = False
        self.result = Path(task.result)
        self._task = task
        self._on_news = on_news
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Start it and listen to it until it ends. Raises DemoFailedError."""
        program = [sys.executable, "-P", "-m", "holdfast.cli.demo.worker"]
        process = await asyncio.create_subprocess_exec(
            *tethered([*program, self._task.to_json()]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_BYTES,
        )
        self._process = process
        try:
            reason = await self._listen(process)
            exit_code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if exit_code != 0:
            raise DemoFailedError(worker=self.name, reason=reason or f"exit code {exit_code}")

    async def _listen(self, process: asyncio.subprocess.Process) -> str | None:
        assert process.stdout is not None
        reason = None
        async for line in process.stdout:
            said = json.loads(line)
            reason = said.get("error", reason)
            self.count = said.get("count", self.count)
            self.waits = self.waits or "waits" in said
            self._on_news()
        self.waits = True
        self._on_news()
        return reason

    def tell(self, word: str) -> None:
        """Send it a word, unless it has ended."""
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            process.stdin.write(f"{word}\n".encode())


class _Run:
    """One run of the demo on a running cluster."""

    def __init__(
        self,
        options: DemoOptions,
        plan: DemoPlan,
        cluster: Cluster,
        work: Path,
        progress: DemoProgress,
    ) -> None:
        self.kill: Kill | None = None
        self._options = options
        self._plan = plan
        self._cluster = cluster
        self._work = work
        self._progress = progress
        self._kill_due = asyncio.Event()
        self._writers = [
            _Worker(f"writer {number + 1}", self._task("writer", number), self._on_written)
            for number in range(options.writer_count)
        ]
        self._follower = _Worker("follower", self._task("follower", 0), self._on_followed)

    async def refuse_earlier_demo(self) -> None:
        """Raises DemoUsedError if the stores exist, because their messages would count
        as duplicates."""
        async with self._connect() as client:
            async for _ in client.stores(prefix=self._plan.prefix):
                raise DemoUsedError(data=str(self._options.data), prefix=self._plan.prefix)

    async def carry_out(self) -> DemoVerdict:
        """Write, follow, kill, and read back. The follower listens on for duplicates until all
        has been read back. Raises DemoFailedError."""
        self._plan.save(self._work / "plan")
        self._progress.begin(self._plan.message_count)
        async with asyncio.TaskGroup() as tasks:
            follower = tasks.create_task(self._follower.run())
            async with asyncio.TaskGroup() as writing:
                for writer in self._writers:
                    writing.create_task(writer.run())
                writing.create_task(self._kill_in_the_middle())
            verdict = await self._verify()
            self._follower.tell("finish")
            await follower
        return verdict

    async def export(self) -> TableVerdict | None:
        """Export all data, if there is a bucket. Raises HoldfastError."""
        bucket = self._options.bucket
        if bucket is None:
            return None
        self._progress.stage("exporting all of it to a table, with Spark")
        try:
            return await export_demo(
                self._cluster.nats_url, self._options.prefix, bucket, self._plan, self._work
            )
        except ExceptionGroup as group:
            error = first_error(group)
            if isinstance(error, HoldfastError):
                raise error from group
            raise

    def acks(self) -> list[AckTimes]:
        """Return every append of every writer."""
        return [AckTimes(*one) for worker in self._writers for one in _unpack_file(worker.result)]

    def follower_result(self) -> tuple[int, list[str]]:
        """Return how many changes the follower received, and what was wrong with them."""
        count, problems = _unpack_file(self._follower.result)
        return count, problems

    async def _kill_in_the_middle(self) -> None:
        await self._kill_due.wait()
        if self._options.kill:
            await self._kill_busiest_server()
        for writer in self._writers:
            writer.tell("go")

    async def _kill_busiest_server(self) -> None:
        """Kill the server that owns most streams of the demo, with SIGKILL."""
        file_of_stream = {file.stream: index for index, file in enumerate(self._plan.files)}
        owned: defaultdict[str, set[int]] = defaultdict(set)
        async with self._connect() as client:
            async for store in client.stores(kind=StoreKind.STREAM, prefix=self._plan.prefix):
                if store.server and store.name in file_of_stream:
                    owned[store.server].add(file_of_stream[store.name])
        if not owned:
            return
        busiest = max(owned, key=lambda server: (len(owned[server]), server))
        victim = next(part for part in self._cluster.servers if part.name == busiest)
        self.kill = Kill(busiest, time.monotonic(), self._acked(), frozenset(owned[busiest]))
        victim.signal(signal.SIGKILL)
        self._progress.stage(f"killed {busiest}, which owned {len(owned[busiest])} streams")

    async def _verify(self) -> DemoVerdict:
        checked = 0

        def on_file(message_count: int) -> None:
            nonlocal checked
            checked += message_count
            self._progress.show("read back", checked)

        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._connect())
            blobs = await stack.enter_async_context(BlobReader(self._options.repository))
            return await verify(client, blobs, self._plan, on_file)

    def _acked(self) -> int:
        return sum(writer.count for writer in self._writers)

    def _on_written(self) -> None:
        self._progress.show("written", self._acked())
        enough = self._acked() >= KILL_RATIO * self._plan.message_count
        if enough or all(writer.waits for writer in self._writers):
            self._kill_due.set()

    def _on_followed(self) -> None:
        self._progress.show("followed", self._follower.count)

    def _connect(self) -> Connecting:
        return connect(self._cluster.nats_url, prefix=self._options.prefix)

    def _task(self, role: str, number: int) -> WorkerTask:
        return WorkerTask(
            role=role,
            plan=str(self._work / "plan"),
            result=str(self._work / f"{role}-{number}"),
            nats=self._cluster.nats_url,
            prefix=self._options.prefix,
            number=number,
        )


def _unpack_file(path: Path) -> Any:
    """Return the result of a worker."""
    return unpack(path.read_bytes())


def _choose_repository(given: Path | None) -> Path:
    if given is not None:
        root = repository_root(given)
        if root is None:
            raise GitError(repository=str(given), reason="not in a git repository")
        return root
    own = Path(__file__).resolve().parents[2]
    if repository_root(own) == own:
        return own
    current = repository_root(Path.cwd())
    if current is None:
        raise GitError(repository=str(Path.cwd()), reason="not in a git repository")
    return current
