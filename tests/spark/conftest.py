"""One Spark session and one embedded cluster for all tests of this folder.

The tests are skipped where no Java is found. What integration tests share can be imported by its plain
name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.spark.errors import JavaMissingError
from holdfast.spark.java import use_java
from holdfast.spark.session import session

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration")]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        use_java()
    except JavaMissingError as error:
        pytest.skip(str(error))
    started = session(
        "holdfast-tests",
        # Two tries of each task.
        master="local[2,2]",
        settings={
            # Compiling what runs for seconds takes longer than running it.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
            # What moto's server takes; executors do not have the environment of a test.
            "spark.executorEnv.AWS_ACCESS_KEY_ID": "test",
            "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "test",
        },
    )
    yield started
    started.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A `holdfast up` of this run; each test has a tenant of its own."""
    from holdfast_up import running_up

    with running_up(tmp_path_factory.mktemp("cluster") / "data") as running:
        yield running
