"""Export, compaction and import through Spark Connect, whose sessions have no SparkContext; and
a driver that is killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.cli.cluster.ports import free_port
from holdfast.client import connect
from holdfast.shared_fs.archive.table_location import TableLocation, default_table
from holdfast.spark.export.export import export
from holdfast.spark.tables.table import ChangesTable
from tests.support.bucket_world import BucketWorld, age, entry, kv, message, state_of, stream
from tests.support.holdfast_up import RunningUp

pytest.importorskip("grpc")
NOTES = stream("notes")

CLIENT = """
import json, os, signal, sys
from holdfast.spark.errors import SparkFailedError
from holdfast.spark.export.compaction import compact
from holdfast.spark.export.export import export
from holdfast.spark.jobs import is_connected, run_job
from holdfast.spark.replay import Target, import_table
from holdfast.spark.session import session
from holdfast.spark.state import latest
from holdfast.spark.tables.table import ChangesTable

remote, bucket, nats, other = sys.argv[1:]
spark = session(master=remote)
assert is_connected(spark)
told = []
report = export(spark, bucket, progress=lambda done, total: told.append((done, total)))
again = export(spark, bucket)
# The plan of one is made when it runs: after the other one was asked for.
empty, whole = latest(spark, report.table, version=0), latest(spark, report.table)
target = Target(nats, tenant="connected")
imported = import_table(spark, report.table, target)
merged = compact(spark, report.table)

def fail(job, task):
    raise ValueError(f"task {task}")

try:
    run_job(spark, "the test", fail, None, [7], None)
except SparkFailedError as error:
    failure = str(error)
print(json.dumps({
    "rows": report.rows, "again": again.rows, "held": [empty.count(), whole.count()],
    "last": told[-1], "imported": imported.rows, "merged": merged.merged_files, "failure": failure,
}), flush=True)
assert callable(ChangesTable.commit)
ChangesTable.commit = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
export(spark, other)
"""


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[str]:
    """A server of Spark Connect in the JVM that the tests have: another one would take long."""
    jvm: Any = spark.sparkContext._jvm
    port = free_port()
    settings = spark.sparkContext._jsc.sc().conf()
    settings.set("spark.connect.grpc.binding.address", "127.0.0.1")
    settings.set("spark.connect.grpc.binding.port", str(port))
    # py4j cannot call the service itself, whose methods have types that Spark has moved.
    plugin = jvm.org.apache.spark.sql.connect.SparkConnectPlugin().driverPlugin()
    plugin.init(spark.sparkContext._jsc.sc(), None)
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        plugin.shutdown()


@pytest.mark.timeout(300)
def test_a_client_of_spark_connect_exports_imports_and_leaves_nothing_visible_if_it_is_killed(
    spark: SparkSession, server: str, cluster: RunningUp, tmp_path: Path
) -> None:
    (tmp_path / "stores").mkdir()
    world = BucketWorld(tmp_path / "stores", f"file://{tmp_path}/bucket")
    world.change(NOTES, *[message(seq, b"value %d" % seq) for seq in range(1, 51)])
    world.publish()
    world.change(kv("settings"), entry("theme", b"dark"))
    world.publish(kv("settings"))
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "bucket", other)
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server, world.url, cluster.nats, other.as_uri()],
        capture_output=True,
        timeout=270,
        check=False,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("failure").startswith("the test failed: ValueError: task 7. Try: ")
    assert found == {
        "rows": 51,
        "again": 0,
        "held": [0, 51],
        "last": [1, 1],
        "imported": 51,
        "merged": 0,
    }
    assert state_of(default_table(world.url)) == world.state()

    # It was killed before it could commit what it had written.
    table = ChangesTable(TableLocation(default_table(other.as_uri())))
    assert table.files() == []
    assert len(list(table.location.folder.rglob("*.parquet"))) > 0
    age(table.location.url, hours=25)
    report = export(spark, other.as_uri(), keep_hours=0)
    assert state_of(report.table) == world.state()
    # Its files, and its watermarks.
    assert report.collected == report.files + 1
    world.close()

    async def held() -> int:
        async with connect(cluster.nats, tenant="connected") as client:
            return (await client.stream(NOTES.name).head()).count

    assert asyncio.run(held()) == 50
