"""A Spark session with what holdfast needs: a Java, the same Python on executors, bounded batches.

All settings are defaults. The caller's `master` and `settings` replace them, and a session that is
already running (of a notebook, or of `spark-submit`) is used as it is.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from holdfast.spark.failures import failing, quiet
from holdfast.spark.java import use_java

#: All cores, and four tries of each task, as on a cluster: `local[*]` has one try, and a worker
#: that is killed, for memory say, would end the whole run.
DEFAULT_MASTER: Final = "local[*,4]"
_SETTINGS: Final = {
    # Row batches between the JVM and Python: bounded by bytes as well as by rows.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
    # A data source with `pushFilters` cannot be read at all without it.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Between the JVM and Python. By TCP, each task waits 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    app: str = "holdfast",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    register: bool = True,
) -> SparkSession:
    """Return the running Spark session, or start one.

    - `app` is the name of a new session's application.
    - `master` is the Spark master of a new session, or a server of Spark Connect, `sc://HOST:PORT`.
      Without it, the session uses SPARK_REMOTE or the master of `spark-submit`, otherwise all cores
      of this machine.
    - `settings` are Spark settings for a new session. They replace holdfast's defaults.
    - `register` makes `spark.read.format("holdfast")` known to the session.

    A session that is already running keeps its settings.

    Raises JavaMissingError if there is no Java 17 or newer, and SparkFailedError.

        from holdfast.spark.session import session

        spark = session(master="local[2]")
    """
    active = SparkSession.getActiveSession()
    if active is None:
        remote = os.environ.get("SPARK_REMOTE") if master is None else master
        with failing("the start of Spark"):
            if remote is not None and remote.startswith("sc://"):
                active = _connected(remote, settings or {})
            else:
                active = _started(app, master, settings or {})
    if register:
        register_sources(active)
    return active


def _connected(remote: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of Spark Connect. The server has its own settings of all but SQL."""
    builder: Any = SparkSession.builder.remote(remote)
    for name, value in {**_SETTINGS, **settings}.items():
        if name.startswith("spark.sql."):
            builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def _started(app: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    use_java()
    # The workers import holdfast, so they must run in the same environment.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    builder = builder.appName(app)
    for name, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    if master is None and "PYSPARK_SUBMIT_ARGS" not in os.environ:
        master = DEFAULT_MASTER
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1").config(
                "spark.driver.bindAddress", "127.0.0.1"
            )
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    quiet(made)
    return made


def paths_are_local(master: str | None) -> bool:
    """Return whether a new session with this master reads paths from the disks of this machine."""
    master = master or os.environ.get("SPARK_REMOTE")
    if master is None and "PYSPARK_SUBMIT_ARGS" in os.environ:
        return False
    return "HADOOP_CONF_DIR" not in os.environ and (master or DEFAULT_MASTER).startswith("local")


def register_sources(spark: SparkSession) -> None:
    """Make the format "holdfast" known to a session."""
    from holdfast.spark.source.source import HoldfastSource

    spark.dataSource.register(HoldfastSource)
