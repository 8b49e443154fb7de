"""What an export says of the changes that it cannot have."""

from __future__ import annotations

from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.snapshots.lag_marks import (
    LagMark,
    list_marks,
    put_mark,
    read_marks,
    remove_mark,
)
from holdfast.spark.export.staleness import Staleness, staleness


def mark(
    server: str = "s1", *, at: int = 1_000_000, behind: int = 0, until: int | None = None
) -> LagMark:
    """Return a mark that is to be replaced within a minute, with a bound of five."""
    return LagMark(server, f"i-{server}", at, at + 60_000, behind, until or at, 300_000)


def test_a_cluster_without_marks_says_nothing_and_is_not_stale() -> None:
    assert staleness([], 5) == Staleness()
    assert not Staleness().is_stale


def test_what_the_servers_lack_is_counted_and_the_oldest_change_is_told() -> None:
    found = staleness(
        [mark(behind=2, until=900_000), mark("s2", behind=1, until=950_000), mark("s3")], 1_010_000
    )
    assert (found.behind, found.oldest_unexported_seconds) == (3, 110.0)
    assert (found.complete_until, found.lag_bound_seconds) == (900_000, 300.0)
    assert not found.is_stale


def test_an_idle_cluster_lacks_nothing_however_old_its_marks_are() -> None:
    found = staleness([mark()], 1_000_000 + 100_000)
    assert (found.behind, found.oldest_unexported_seconds, found.is_stale) == (0, 0.0, False)


def test_a_change_that_waits_beyond_the_bound_makes_an_export_stale() -> None:
    assert staleness([mark(behind=1, until=699_000)], 1_000_000).is_stale


def test_a_server_that_says_nothing_any_more_makes_an_export_stale() -> None:
    found = staleness([mark(), mark("s2", at=1_200_000)], 1_200_000)
    assert (found.silent_servers, found.oldest_unexported_seconds) == (["s1"], 200.0)
    assert found.is_stale


def test_a_mark_is_replaced_also_after_a_put_without_an_answer_and_removed() -> None:
    bucket = Bucket(MemoryBackend())
    first = put_mark(bucket, mark(), None)
    second = put_mark(bucket, mark(behind=1), first)
    assert put_mark(bucket, mark(behind=2), first) != second
    put_mark(bucket, mark("s2"), None)
    assert [(one.server, one.behind) for one in read_marks(bucket)] == [("s1", 2), ("s2", 0)]
    remove_mark(bucket, "s1", "i-s1")
    remove_mark(bucket, "s1", "i-s1")
    assert list_marks(bucket) == [("s2", "i-s2")]
