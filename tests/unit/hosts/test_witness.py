"""A witness tells what a file system has lost, and which syncs it kept waiting."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.hosts.file_systems.witness import (
    Note,
    hear,
    longest_sync_seconds,
    read_notes,
    record,
    write_all_the_time,
)

NOTES = [
    Note("plain-0", 0, 1.0, 1.1, ""),
    Note("plain-0", 1, 1.2, 11.2, ""),
    Note("plain-0", 2, 11.3, 11.4, "Input/output error"),
    Note("plain-3", 3, 11.5, 11.6, ""),
]
WHOLE = {"plain-0": record(0) + record(1), "plain-3": record(3)}


def test_what_was_synced_and_is_there_is_not_lost() -> None:
    found = hear("h1", NOTES, WHOLE)
    assert (found.synced_count, found.lost, found.unread) == (3, (), ())
    assert found.errors == {"Input/output error": 1}


def test_a_synced_record_that_is_missing_or_torn_is_lost() -> None:
    torn = record(1)[:-7] + b"\0" * 7
    assert hear("h1", NOTES, WHOLE | {"plain-0": record(0)}).lost == (1,)
    assert hear("h1", NOTES, WHOLE | {"plain-0": record(0) + torn}).lost == (1,)
    assert hear("h1", NOTES, WHOLE | {"plain-0": b"\0" * 64 + record(1)}).lost == (0,)


def test_a_file_that_cannot_be_read_is_named_and_nothing_of_it_counts_as_lost() -> None:
    found = hear("h1", NOTES, {"plain-3": record(3)})
    assert (found.lost, found.unread) == ((), ("plain-0",))


def test_the_longest_sync_is_that_of_its_time() -> None:
    testimonies = [hear("h1", NOTES, WHOLE)]
    assert longest_sync_seconds(testimonies, 0.0, 20.0) == 10.0
    assert round(longest_sync_seconds(testimonies, 11.3, 20.0), 3) == 0.1
    assert longest_sync_seconds(testimonies, 12.0, 20.0) == 0.0


class EndsAfter(threading.Event):
    """Is set when it has been waited for so many times; nobody waits in vain."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def wait(self, timeout: float | None = None) -> bool:
        self._looks -= 1
        return self._looks < 0


def test_what_is_noted_as_synced_is_in_the_file(tmp_path: Path) -> None:
    write_all_the_time(tmp_path, tmp_path / "notes", EndsAfter(5))
    notes = read_notes(tmp_path / "notes")
    assert [note.number for note in notes] == [0, 1, 2, 3, 4]
    contents = {"plain-0": (tmp_path / "plain-0").read_bytes()}
    assert hear("h1", notes, contents).synced_count == 5
    assert hear("h1", notes, contents).lost == ()


def test_after_an_error_it_goes_on_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "plain-0").touch()
    write_all_the_time(tmp_path, tmp_path / "notes", EndsAfter(4))
    refused, *others = read_notes(tmp_path / "notes")
    assert (refused.file, refused.error) == ("plain-0", "File exists")
    assert {note.file for note in others} == {"plain-1"}
