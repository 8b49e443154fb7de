"""Running a function on executors, as far as that needs no Spark."""

from __future__ import annotations

from typing import Any

from holdfast.spark.jobs import run_job


def test_a_job_without_tasks_needs_no_spark() -> None:
    session: Any = None
    assert run_job(session, "the test", lambda job, task: task, None, [], None) == []
