"""A plain file on each mount, written and synced all the time: what the file system itself keeps.

What a cluster loses while its storage fails, or how long it pauses, may be the file system's own
doing. So a process on each host appends numbered records to a file of its own, syncs each, and
notes when that began and ended. At the end the files are read through the mount of another host:
a synced record that is not there was lost by the file system, and a sync that took ten seconds
would have kept every other program waiting as well.

    python -m tests.hosts.file_systems.witness FOLDER NOTES

runs until SIGTERM. After an error nobody knows what the file has, so it goes on in a new one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

_PAUSE_SECONDS: Final = 0.05
_RECORD_BYTES: Final = 64


class Note(NamedTuple):
    """One record: in which file, and from when to when it was written and synced, in monotonic
    seconds. `error` is "" or what the system said."""

    file: str
    number: int
    began_at: float
    ended_at: float
    error: str


class Testimony(NamedTuple):
    """What became of the records of one host."""

    host: str
    notes: tuple[Note, ...]
    synced_count: int
    lost: tuple[int, ...]
    errors: Mapping[str, int]
    #: Files that could not be read at the end. Their records are not counted as lost.
    unread: tuple[str, ...]


def record(number: int) -> bytes:
    """Return the record of a number; no two are equal, and half of one is none."""
    text = b"%016d %08x" % (number, zlib.crc32(b"%d" % number))
    return text.ljust(_RECORD_BYTES - 1) + b"\n"


def hear(host: str, notes: Iterable[Note], contents: Mapping[str, bytes]) -> Testimony:
    """Compare what was noted with what the files have, by their names."""
    notes = tuple(notes)
    synced = [note for note in notes if not note.error]
    found = {
        name: {content[at : at + _RECORD_BYTES] for at in range(0, len(content), _RECORD_BYTES)}
        for name, content in contents.items()
    }
    return Testimony(
        host,
        notes,
        len(synced),
        tuple(
            note.number
            for note in synced
            if note.file in found and record(note.number) not in found[note.file]
        ),
        Counter(note.error for note in notes if note.error),
        tuple(sorted({note.file for note in synced} - set(found))),
    )


def longest_sync_seconds(testimonies: Iterable[Testimony], since: float, until: float) -> float:
    """Return the longest that a record took that ended in this time, on any host."""
    return max(
        (
            note.ended_at - note.began_at
            for testimony in testimonies
            for note in testimony.notes
            if since <= note.ended_at <= until
        ),
        default=0.0,
    )


def read_notes(path: Path) -> list[Note]:
    """Return what a process has noted so far."""
    return [Note(**json.loads(line)) for line in path.read_text().splitlines()]


def write_all_the_time(folder: Path, notes: Path, ended: threading.Event) -> None:
    """Write records to files in `folder`, until `ended`."""
    number = 0
    with notes.open("w", buffering=1) as noting:
        while not ended.wait(_PAUSE_SECONDS):
            for note in _write_file(folder, number):
                noting.write(json.dumps(note._asdict()) + "\n")
                number += 1
                if ended.wait(_PAUSE_SECONDS):
                    break


def _write_file(folder: Path, number: int) -> Iterator[Note]:
    """Append records to a new file until an error, which is the last note."""
    name, began_at = f"plain-{number}", time.monotonic()
    try:
        with (folder / name).open("xb", buffering=0) as file:
            _sync_folder(folder)
            while True:
                written = file.write(record(number))
                assert written == _RECORD_BYTES, "a file system takes 64 bytes, or refuses"
                os.fdatasync(file.fileno())
                yield Note(name, number, began_at, time.monotonic(), "")
                number, began_at = number + 1, time.monotonic()
    except OSError as error:
        yield Note(name, number, began_at, time.monotonic(), os.strerror(error.errno or 0))


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


if __name__ == "__main__":
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.set())
    write_all_the_time(Path(sys.argv[1]), Path(sys.argv[2]), is_over)
