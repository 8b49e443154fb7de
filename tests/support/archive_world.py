"""A table of changes made by the export itself, its tasks done in this process: no Spark, no
Java."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.spark.export import compaction, export

#: Runs a persist server that looks for what may be archived all the time, and kills itself within
#: the transaction of its KILL_AT-th block.
EAGER_SERVER = """
import os, signal, sys
from holdfast.protocol import limits
limits.ARCHIVE_LOOK_SECONDS = 0.05
from holdfast.shared_fs.store_file import archived_blocks
archived_blocks.ARCHIVE_BLOCK_ROWS = 16
archive, left = archived_blocks.ArchivedBlocks.archive, [int(os.environ.get("KILL_AT", "0"))]
def archive_and_die(self, *arguments):
    archive(self, *arguments)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
archived_blocks.ArchivedBlocks.archive = archive_and_die
from holdfast.persist.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run_here(
    spark: Any,
    name: str,
    function: Callable[[Any, Any], Any],
    job: object,
    tasks: Sequence[object],
    progress: object,
) -> list[Any]:
    return [function(job, task) for task in tasks]


def exported(monkeypatch: pytest.MonkeyPatch, bucket_url: str) -> export.ExportReport:
    """Run an export of a bucket to its own table."""
    monkeypatch.setattr(export, "run_job", run_here)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    return export.export(spark, bucket_url)


def compacted(monkeypatch: pytest.MonkeyPatch, table: str) -> compaction.CompactionReport:
    """Merge a table's files, and remove those that were merged at once."""
    monkeypatch.setattr(compaction, "run_job", run_here)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    return compaction.compact(spark, table, keep_hours=0)
