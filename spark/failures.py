"""Turns what Spark raises into one line: what failed, why, and what to do next.

An error in a task reaches the driver inside a Java exception, with the traceback of the Python
worker and hundreds of lines of Java. Its cause is one line of these: the last one of the last
traceback, or the last `Caused by:` where no Python was involved. `failing` finds it.

A data source cannot choose what Spark shows: it is always a traceback. `briefly` cuts it down to
the one frame that raises, so that the cause is all there is to read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, ParamSpec, TypeVar

from pyspark.errors import PySparkException

from holdfast.protocol.errors import HoldfastError
from holdfast.spark.errors import SparkFailedError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_TRACEBACK: Final = "Traceback (most recent call last):"
#: `package.module.SomeError: text`, not indented, as a traceback ends.
_RAISED: Final = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?")
_CAUSE: Final = re.compile(r"^Caused by: (?P<text>.+)$", re.MULTILINE)
#: Before what a task died of: `Job aborted ...: Lost task 0.3 in stage 1.0 (TID 7) (host ...): `.
_LOST: Final = re.compile(r"Lost task [^:]*?\(TID \d+\)(?: \([^)]*\))?:\s*")
#: What py4j and Spark put before what happened.
_CALLING: Final = "An error occurred while calling "
_SPARK_CLASS: Final = "org.apache.spark.SparkException: "
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
_LONGEST: Final = 500

#: What to do about a cause, by words in it; the first that fits.
_ADVICE: Final = {
    ("exited unexpectedly", "Python worker", "worker crashed"): (
        "give the Python workers more memory: fewer cores, as with --master 'local[1,4]', or "
        "executors with more memory; then run it again"
    ),
    ("OutOfMemoryError", "Java heap space"): (
        "give Spark more memory (spark.driver.memory, spark.executor.memory) and run it again"
    ),
    ("No space left on device", "Disk quota exceeded"): (
        "free space in the temporary folders of the executors (TMPDIR, spark.local.dir) and where "
        "the table is; then run it again"
    ),
    ("No module named",): ("install holdfast with the extra spark in the Python of every executor"),
    ("Master URL", "master URL"): (
        "--master 'local[2,4]', spark://HOST:PORT, sc://HOST:PORT, yarn or k8s://URL"
    ),
    ("redentials", "AccessDenied", "Forbidden", "(403)", "Permission denied"): (
        "check the credentials of the bucket, which every executor needs in its environment"
    ),
}
_ANY_ADVICE: Final = "run it again; what was not committed is not visible"


def cause_of(text: str) -> str:
    """Return the line that says why, of the text of an exception of Spark."""
    lines = text.replace("\r", "").split("\n")
    starts = [number for number, line in enumerate(lines) if line.strip() == _TRACEBACK]
    starts += [number for number, line in enumerate(lines) if line.rstrip().endswith(_TRACEBACK)]
    for line in lines[max(starts) + 1 :] if starts else ():
        found = None if line.startswith((" ", "\t")) else _RAISED.fullmatch(line.rstrip())
        if found is not None:
            return _short(_plain(found))
    causes = _CAUSE.findall(text)
    if causes:
        return _short(causes[-1])
    told = [line for line in lines if line.strip() and not line.startswith(_CALLING)]
    first = told[0] if told else "Spark did not say why"
    return _short(_LOST.split(first)[-1].removeprefix(": ").removeprefix(_SPARK_CLASS))


def advice_for(cause: str) -> str:
    """Return what to do next about a cause."""
    for words, advice in _ADVICE.items():
        if any(word in cause for word in words):
            return advice
    return _ANY_ADVICE


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Raise SparkFailedError, one line, in place of an error of Spark in the body.

    `what` is what fails then, such as "the export".
    """
    try:
        yield
    except Exception as error:
        # py4j belongs to pyspark; a client of Spark Connect does not have it.
        if not isinstance(error, PySparkException) and type(error).__module__ != "py4j.protocol":
            raise
        cause = cause_of(str(error))
        # What a task raised may tell already what to do.
        cause, _, advice = cause.partition(". Try: ")
        raise SparkFailedError(
            what=what, reason=cause, advice=advice or advice_for(cause)
        ) from error


def briefly(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a method of the data source: its own errors are raised without their tracebacks."""

    @functools.wraps(method)
    def brief(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except HoldfastError as error:
            failure: HoldfastError = error
        raise failure.with_traceback(None) from None

    return brief


def briefly_each(method: Callable[_P, Iterator[_T]]) -> Callable[_P, Iterator[_T]]:
    """As `briefly`, for a method that yields."""

    @functools.wraps(method)
    def brief(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        try:
            yield from method(*args, **kwargs)
        except HoldfastError as error:
            failure: HoldfastError = error
        else:
            return
        raise failure.with_traceback(None) from None

    return brief


def _plain(found: re.Match[str]) -> str:
    """Return what a traceback ends with; the name of the class only of others than ours."""
    name, text = found["name"], _SQLSTATE.sub("", found["text"] or "")
    if name.startswith("holdfast.") and text:
        return text
    return f"{name.rpartition('.')[2]}: {text}" if text else name


def _short(text: str) -> str:
    text = _SQLSTATE.sub("", text).strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def quiet(spark: Any) -> None:
    """Keep the JVM of a session that was just started from logging, with a hundred lines of Java
    each, what the exceptions of a query say."""
    jvm = spark.sparkContext._jvm
    off = jvm.org.apache.logging.log4j.Level.OFF
    for name in (
        "executor.Executor",
        "scheduler.TaskSetManager",
        "util.Utils",
        "sql.execution.datasources.v2.AppendDataExec",
        "sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    ):
        logger = f"org.apache.spark.{name}"
        jvm.org.apache.logging.log4j.core.config.Configurator.setLevel(logger, off)
