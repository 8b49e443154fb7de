"""A table of changes made by the export itself, its tasks done in this process: no Spark, no
Java."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.spark.export import compaction, export


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
    monkeypatch.setattr(export, "parallelism", lambda spark: 1)
    spark: Any = None
    return export.export(spark, bucket_url)


def compacted(monkeypatch: pytest.MonkeyPatch, table: str) -> compaction.CompactionReport:
    """Merge a table's files, and remove those that were merged at once."""
    monkeypatch.setattr(compaction, "run_job", run_here)
    spark: Any = None
    return compaction.compact(spark, table, keep_hours=0)
