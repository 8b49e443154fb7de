"""Erasures, compactions and exports of a table in processes that are killed with SIGKILL before or
after any of their writes, and in several processes at once.

Whatever was killed, the table can be read and has every row that was not erased; what is erased is
in no byte of its folder once an erasure has ended.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.archive.table_location import TableLocation
from holdfast.shared_fs.erasure.sought import Sought
from holdfast.spark.errors import TableConflictError
from holdfast.spark.export.compaction import MergeJob, merge
from holdfast.spark.tables.erasing import erase_rows
from holdfast.spark.tables.table import ChangesTable
from holdfast.spark.tables.writing import FILE_BYTES
from tests.spark.test_table_erasure import ACME, KEY, NOTES, SECRET, SETTINGS, export, row
from tests.support.effort import tries
from tests.support.raw_search import files_with

#: A process that is forked from one which has the modules already takes no second to start.
PROCESSES: Any = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
OTHER = StoreId("acme", StoreKind.STREAM, "other")
SECONDS = 60
#: Each point is a process. An odd step has points before and after a write.
STEP = tries(5, 3, 1)


def made(location: TableLocation) -> list[tuple[str, int]]:
    """Make a table of three exports, and return the rows that must stay."""
    export(location, [row(NOTES, 1, seq=1), row(SETTINGS, 1, key=KEY, value=SECRET)])
    export(location, [row(NOTES, 2, seq=2), row(SETTINGS, 2, key="theme")])
    export(location, [row(SETTINGS, 3, key=KEY, operation="delete")])
    return [("notes", 1), ("notes", 2), ("settings", 2)]


def rows_of(location: TableLocation) -> list[tuple[str, int]]:
    found = DeltaTable(location.uri).to_pyarrow_dataset().to_table(["store", "revision"])
    return sorted((each["store"], each["revision"]) for each in found.to_pylist())


# What processes do
def erase(url: str) -> None:
    erase_rows(TableLocation(url), Sought(ACME, {SETTINGS: 1}), KEY)


def compact(url: str) -> None:
    """Merge all files, as a compaction does, and remove what it can."""
    table = ChangesTable(TableLocation(url))
    merged = merge(MergeJob(table.location, table.layout, FILE_BYTES), table.files())
    table.replace(merged.replaced, merged.added)
    table.collect(0)


def add(url: str) -> None:
    revision = random.SystemRandom().randrange(10, 1 << 40)
    export(TableLocation(url), [row(OTHER, revision, seq=revision)])


def killed_at(work: Callable[[str], None], url: str, point: int) -> None:
    """Do some work, and die before (an even point) or after (an odd one) its n-th write."""
    left = point // 2

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0 and point % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            found = method(*args, **kwargs)
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return done

    for kind, name in (
        (TableLocation, "put_file"),
        (TableLocation, "delete"),
        (DeltaTable, "create_write_transaction"),
        (DeltaTable, "create_checkpoint"),
    ):
        setattr(kind, name, dying(getattr(kind, name)))
    work(url)


def tried(work: Callable[[str], None], url: str) -> None:
    """Do some work again and again until nobody else is faster."""
    for _ in range(50):
        try:
            work(url)
        except TableConflictError:
            continue
        return
    raise AssertionError("lost to others fifty times")


def run(target: Callable[..., None], *arguments: Any) -> int:
    process = PROCESSES.Process(target=target, args=arguments)
    process.start()
    process.join(SECONDS)
    assert process.exitcode is not None, "it hangs"
    return int(process.exitcode)


def points(work: Callable[[str], None], folder: Path) -> Iterator[tuple[TableLocation, Any]]:
    """Kill some work at its points, each time on a new table; until it ends."""
    for point in range(0, 100, STEP):
        location = TableLocation(f"file://{folder}/{point}")
        expected = made(location)
        code = run(killed_at, work, location.url, point)
        yield location, expected
        if code == 0:
            # It has fewer writes than that.
            assert point >= 6
            return
        assert code == -signal.SIGKILL
    raise AssertionError("it never ended")


def test_an_erasure_killed_at_any_write_is_completed_by_the_next(tmp_path: Path) -> None:
    for location, expected in points(erase, tmp_path):
        found = rows_of(location)
        assert [one for one in found if one in expected] == expected
        assert run(erase, location.url) == 0
        assert rows_of(location) == expected
        for value in (SECRET, KEY.encode()):
            assert files_with(value, location.folder) == []


def test_a_compaction_killed_at_any_write_changes_no_row(tmp_path: Path) -> None:
    for location, expected in points(compact, tmp_path):
        before = sorted([*expected, ("settings", 1), ("settings", 3)])
        assert rows_of(location) == before
        assert run(tried, compact, location.url) == 0
        assert rows_of(location) == before
        assert len(DeltaTable(location.uri).file_uris()) == 1
        # An erasure also finds what the killed one has left.
        assert run(erase, location.url) == 0
        assert files_with(SECRET, location.folder) == []
        assert rows_of(location) == expected


@pytest.mark.parametrize("seed", range(tries(1, 1, 6)))
def test_erasures_compactions_and_exports_at_once_lose_nothing_and_keep_no_secret(
    tmp_path: Path, seed: int
) -> None:
    location = TableLocation(f"file://{tmp_path}/table")
    expected = made(location)
    works = [erase, erase, compact, compact, add, add, add]
    random.Random(seed).shuffle(works)
    victims = [PROCESSES.Process(target=killed_at, args=(compact, location.url, seed % 4))]
    processes = [PROCESSES.Process(target=tried, args=(work, location.url)) for work in works]
    for process in (*processes, *victims):
        process.start()
    for process in (*processes, *victims):
        process.join(SECONDS)
    assert {process.exitcode for process in processes} == {0}
    # Of those that ran at the same time, one may have left a file that another could not see.
    done = erase_rows(location, Sought(ACME, {SETTINGS: 1}), KEY)
    assert done.left == []
    found = rows_of(location)
    assert [one for one in found if one[0] != OTHER.name] == expected
    assert len([one for one in found if one[0] == OTHER.name]) == works.count(add)
    for value in (SECRET, KEY.encode()):
        assert files_with(value, location.folder) == []
