"""What Spark raises becomes one line: what failed, why, and what to do next."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from holdfast.shared_fs.bucket.bucket_errors import NoBucketError
from holdfast.spark.errors import SparkFailedError
from holdfast.spark.failures import briefly, briefly_each, cause_of, failing

OF_A_TASK = """An error occurred while calling o42.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed \
4 times, most recent failure: Lost task 1.3 in stage 3.0 (TID 9) (h executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/venv/holdfast/spark/export/tasks.py", line 101, in run_task
    bucket = _bucket(job.bucket)
             ^^^^^^^^^^^^^^^^^^^
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/venv/pyspark/worker.py", line 1, in main
holdfast.shared_fs.bucket.bucket_errors.BucketUnavailableError: bucket s3://acme: no answer
 SQLSTATE: 38000

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:572)
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2898)
Caused by: org.apache.spark.api.python.PythonException: something
\t... 1 more
"""
OF_A_WORKER = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.1 executor 2): \
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.apply(P.scala:1)
"""
OF_JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'locl[2]'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3222)
"""
OF_MEMORY = "failed\n\tat a.b(C.scala:1)\nCaused by: java.lang.OutOfMemoryError: Java heap space\n"


@pytest.mark.parametrize(
    ("text", "cause", "advice"),
    [
        (OF_A_TASK, "bucket s3://acme: no answer", "run it again"),
        (OF_A_WORKER, "Python worker exited unexpectedly (crashed)", "more memory"),
        (OF_MEMORY, "java.lang.OutOfMemoryError: Java heap space", "spark.driver.memory"),
        (OF_JAVA, "Could not parse Master URL: 'locl[2]'", "--master"),
        ("Traceback (most recent call last):\n  x\nOSError: [Errno 28] No space left on device\n",
         "OSError: [Errno 28] No space left on device", "TMPDIR"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_with_its_cause_and_what_to_do(
    text: str, cause: str, advice: str
) -> None:
    with pytest.raises(SparkFailedError) as caught, failing("the export"):
        raise Py4JError(text)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("the export failed: ")
    assert cause in line
    assert advice in line


def test_the_advice_that_an_error_of_ours_has_already_is_kept() -> None:
    text = "Traceback (most recent call last):\nholdfast.x.E: cannot reach NATS. Try: holdfast up"
    with pytest.raises(SparkFailedError) as caught, failing("the import"):
        raise PySparkException(text)
    assert str(caught.value) == "the import failed: cannot reach NATS. Try: holdfast up"


def test_a_text_without_a_cause_is_shortened() -> None:
    assert len(cause_of("x" * 10_000)) < 600
    assert cause_of("") == "Spark did not say why"


def test_errors_of_ours_reach_spark_without_their_frames() -> None:
    def deep() -> None:
        raise NoBucketError(bucket="s3://acme", reason="none")

    @briefly
    def method() -> None:
        deep()

    @briefly_each
    def rows() -> Iterator[int]:
        yield 1
        deep()

    for attempt in (method, lambda: list(rows())):
        with pytest.raises(NoBucketError) as caught:
            attempt()
        shown = "".join(traceback.format_exception(caught.value))
        assert "deep" not in shown
        assert shown.rstrip().endswith("no holdfast bucket here: s3://acme none")
