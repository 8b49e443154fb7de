"""The last part of the demo: exports its data to a table, which Spark rebuilds and queries.

Every store is snapshotted to the cluster's bucket. A process of its own exports the bucket and lets
Spark compute git's id of each version in the table. The demo compares these ids, the headers and
the latest version of each path with the plan. So the bytes pass from the writers through log, store
file, snapshot and table, and git's ids verify them.

`python -m holdfast.cli.demo.export TASK` is that process. It writes its findings to its result
file, and a line of JSON on stdout says why it failed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from holdfast.cli.advice import explain
from holdfast.cli.cluster.die_with_parent import tethered
from holdfast.cli.demo.plan import DemoPlan, PlannedFile, blob_id
from holdfast.cli.owner_jobs import ConnectedOwners, connected_owners
from holdfast.cli.settings import DEFAULT_TENANT, Settings
from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId, StoreKind

_CONCURRENT_BACKUPS: Final = 16
_BACKUP_SECONDS: Final = 60.0
_EXPORT_SECONDS: Final = 900.0
_MAX_PROBLEMS: Final = 20
_PACKAGES: Final = ("pyspark", "deltalake", "pyarrow", "numpy", "pandas", "zstandard")
#: The JVM works only for seconds, so starting fast matters most.
_SETTINGS: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}
#: Computes git's id of each content, as git does.
_VERSIONS: Final = """
SELECT kind, store, seq, key, headers,
    {digest}(concat(encode(concat('blob ', octet_length(value)), 'UTF-8'), X'00', value)) AS blob
FROM demo_state WHERE tenant = '{tenant}' AND startswith(store, '{prefix}') ORDER BY store, seq
"""
_BUSIEST: Final = """
SELECT headers['path'] AS path, count(*) AS versions, sum(octet_length(value)) AS bytes
FROM demo_state WHERE kind = 'stream' AND tenant = '{tenant}' AND startswith(store, '{prefix}')
GROUP BY 1 ORDER BY versions DESC, path LIMIT 3
"""


class DemoExportError(HoldfastError):
    """The process that exports failed."""

    code = "demo_export"
    template = "the export of the demo failed: {reason}"


@dataclass(frozen=True, slots=True)
class ExportTask:
    """The task of the exporting process."""

    bucket: str
    plan: str
    result: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class TableVerdict:
    """The result of the export. A file is identical if the table has exactly its versions."""

    table: str
    rows: int
    files: int
    bytes: int
    seconds: float
    documents_identical: int
    kv_identical: bool
    #: The paths with the most versions: path, versions, bytes.
    busiest: list[tuple[str, int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> TableVerdict:
        found = json.loads(path.read_text())
        return cls(**{**found, "busiest": [tuple(one) for one in found["busiest"]]})


def missing_for_export() -> str | None:
    """Return what has to be installed for an export, or None."""
    if [name for name in _PACKAGES if find_spec(name) is None]:
        return how_to_install("spark")
    from holdfast.spark.errors import JavaMissingError
    from holdfast.spark.java import find_java

    try:
        find_java()
    except JavaMissingError as error:
        return str(error)
    return None


async def export_demo(
    nats: str, prefix: str, bucket: str, plan: DemoPlan, work: Path
) -> TableVerdict:
    """Snapshot every store of the demo, export the bucket and check the table.

    `work` has the saved plan as `plan`. Raises HoldfastError.
    """
    tenant = DEFAULT_TENANT
    settings = Settings(nats=nats, tenant=tenant, prefix=prefix, timeout=_BACKUP_SECONDS, json=True)
    async with connected_owners(settings) as owners:
        # A stream that was only followed, and never written to, has nothing to snapshot.
        streams = [
            StoreId(tenant, StoreKind.STREAM, one.stream) for one in plan.files if one.messages
        ]
        kvs = [StoreId(tenant, StoreKind.KV, plan.kv)]
        await _back_up(owners, [*streams, *kvs])
    task = ExportTask(bucket, str(work / "plan"), str(work / "table"))
    await _run_process(task, work)
    return TableVerdict.load(Path(task.result))


async def _back_up(owners: ConnectedOwners, stores: Iterable[StoreId]) -> None:
    room = asyncio.Semaphore(_CONCURRENT_BACKUPS)

    async def back_up(store: StoreId) -> None:
        async with room:
            await owners.ask(store, "backup")

    async with asyncio.TaskGroup() as tasks:
        for store in stores:
            tasks.create_task(back_up(store))


async def _run_process(task: ExportTask, work: Path) -> None:
    program = [sys.executable, "-P", "-m", "holdfast.cli.demo.export", task.to_json()]
    # Everything that Spark leaves behind is removed with this folder.
    scratch = work / "scratch"
    scratch.mkdir()
    log = work / "export.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *tethered(program),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)},
            cwd=scratch,
            start_new_session=True,
        )
    try:
        async with asyncio.timeout(_EXPORT_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError as error:
        raise DemoExportError(reason=f"not done in {_EXPORT_SECONDS:g} s") from error
    finally:
        if process.returncode is None:
            # Kill the whole group, with the JVM that the process has started.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        lines = [*log.read_text(errors="replace").split("\n"), *said.decode().split("\n")]
        last = next((line for line in reversed(lines) if line), f"exit code {process.returncode}")
        reason = json.loads(last)["error"] if last.startswith('{"error"') else last
        raise DemoExportError(reason=reason)


# The exporting process
def judge(
    plan: DemoPlan, versions: Iterable[Any], paths: Iterable[Any]
) -> tuple[int, bool, list[str]]:
    """Compare a table with a plan. Return how many documents are identical, whether the kv is, and
    the first differences. Pure.

    `versions` are rows of messages with `store`, `seq`, `headers` and git's id `blob`, in the order
    of seqs. `paths` are rows of entries with `key` and `blob`.
    """
    problems: list[str] = []
    found: defaultdict[str, list[tuple[int, dict[str, str], str]]] = defaultdict(list)
    for row in versions:
        found[row["store"]].append((row["seq"], row["headers"], row["blob"]))
    for file in plan.files:
        if found.pop(file.stream, []) != _versions_of(file):
            problems.append(f"table: {file.path} differs")
    identical = len(plan.files) - len(problems)
    problems += [f"table: {stream} is not of the demo" for stream in found]
    entries = {row["key"]: row["blob"] for row in paths}
    is_kv_identical = entries == plan.latest()
    if not is_kv_identical:
        problems.append("table: the kv differs")
    return identical, is_kv_identical, problems[:_MAX_PROBLEMS]


def _versions_of(file: PlannedFile) -> list[tuple[int, dict[str, str], str]]:
    return [
        (seq, one.headers, one.blob or blob_id(b"", one.headers["commit"]))
        for seq, one in enumerate(file.messages, 1)
    ]


def _export_and_judge(task: ExportTask) -> TableVerdict:
    from holdfast.spark.export.export import export
    from holdfast.spark.session import session
    from holdfast.spark.state import latest

    plan = DemoPlan.load(Path(task.plan))
    with session("holdfast demo", register=False, settings=_SETTINGS) as spark:
        report = export(spark, task.bucket)
        latest(spark, report.table).createOrReplaceTempView("demo_state")
        commit = next(one.headers["commit"] for file in plan.files for one in file.messages)
        names = {"tenant": DEFAULT_TENANT, "prefix": plan.prefix}
        digest = "sha1" if len(commit) == 40 else "sha256"
        rows = spark.sql(_VERSIONS.format(digest=digest, **names)).collect()
        messages = [row for row in rows if row["kind"] == "stream"]
        entries = [row for row in rows if row["kind"] == "kv"]
        identical, is_kv_identical, problems = judge(plan, messages, entries)
        busiest = spark.sql(_BUSIEST.format(**names)).collect()
        return TableVerdict(
            table=report.table,
            rows=report.rows,
            files=report.files,
            bytes=report.bytes_out,
            seconds=report.seconds,
            documents_identical=identical,
            kv_identical=is_kv_identical,
            busiest=[(row["path"], row["versions"], row["bytes"]) for row in busiest],
            problems=[*report.damaged, *problems],
        )


def main() -> int:
    """Do the task in this process's first argument. Return the exit code."""
    task = ExportTask(**json.loads(sys.argv[1]))
    try:
        found = _export_and_judge(task)
    except (HoldfastError, OSError) as error:
        print(json.dumps({"error": explain(error)}), flush=True)
        return 1
    found.save(Path(task.result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
