"""One Spark session and one embedded cluster for all tests of this folder.

The tests are skipped where no Java is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.spark.errors import JavaMissingError
from holdfast.spark.java import use_java
from holdfast.spark.session import session
from tests.support.bucket_world import BucketWorld
from tests.support.holdfast_up import RunningUp, running_up

#: The first test waits for three JVMs, and all fail with it if a busy machine is late.
START_SECONDS = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(START_SECONDS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        use_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_WORKER_DIR", str(tmp_path_factory.mktemp("workers")))
        started = _started(tmp_path_factory.mktemp("warehouse"))
    yield started
    started.stop()


def _started(warehouse: Path) -> SparkSession:
    # Compiling what runs for seconds takes longer than running it.
    light = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return session(
        "holdfast-tests",
        # An executor with a JVM of its own, as on a cluster.
        master="local-cluster[1,2,512]",
        settings={
            "spark.driver.extraJavaOptions": light,
            "spark.executor.extraJavaOptions": light,
            "spark.executor.memory": "512m",
            # Two tries of each task.
            "spark.task.maxFailures": "2",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
            # What moto's server takes; executors do not have the environment of a test.
            "spark.executorEnv.AWS_ACCESS_KEY_ID": "test",
            "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "test",
        },
    )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """A `holdfast up` of this run; each test has a tenant of its own."""
    with running_up(tmp_path_factory.mktemp("cluster") / "data") as running:
        yield running


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BucketWorld]:
    (tmp_path / "stores").mkdir()
    made = BucketWorld(tmp_path / "stores", f"file://{tmp_path}/bucket")
    yield made
    made.close()
