"""`python -m tests.hosts.takeover.store_files FS [COUNT]`: what a new owner sees of a store file.

Two owners on two hosts have a store in turn. The second one reads all of the file and closes it;
the first one opens it, overwrites some values, checkpoints and closes it; then the second one opens
it again, at once. Its mount has something older to show. Either it opens the file as it is, or, as
a takeover does, once what SQLite will read is what a direct read returns. Needs what `make hosts`
needs.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.protocol.changes import CHANGE_SET_ENTRY
from holdfast.protocol.errors import BusyError, StorageFailedError, StoreDamagedError
from holdfast.protocol.limits import MIB
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.hosts.network import Host
from tests.hosts.takeover.command import measure_file_system

_HOSTS: Final = (Host("h1", 11), Host("h2", 12))
_STORE: Final = StoreId("acme", StoreKind.KV, "notes")
_VALUE_BYTES: Final = 3900
#: Some values of each file are overwritten: fewer than it has pages.
_OVERWRITTEN: Final = 8
#: Of a file of 0.1 MiB, and of one of 8.
_KEYS: Final = (12, 2000)
_BUSY_SECONDS: Final = 5.0

Values = dict[str, bytes]


class Round(NamedTuple):
    """What the second owner found, and how long it took to open the file."""

    verdict: str
    took_ms: float


class Store:
    """One store, its owners, and what it holds."""

    def __init__(self, first: Path, second: Path, keys: int, seed: int) -> None:
        self._first, self._second = first, second
        self._chance = random.Random(seed)
        self._revision = 0
        self._values: Values = {}
        StoreFile.create(first, _STORE, time=1000).close()
        self._write([f"k{number}" for number in range(keys)])

    def round(self, show: Callable[[Path], None]) -> Round:
        """Have the second owner look, the first one write, and the second one open the file."""
        opened(self._second, Disk(direct=True, remote=True).refresh).close()
        self._second.read_bytes()
        self._write(self._chance.sample(sorted(self._values), _OVERWRITTEN))
        began_at = time.monotonic()
        try:
            file = opened(self._second, show)
            took_ms = (time.monotonic() - began_at) * 1000
            try:
                verdict = self._judge(file)
            finally:
                # Nothing of what it saw may go back to the file.
                file.abandon()
        except StoreDamagedError:
            return Round("damaged", (time.monotonic() - began_at) * 1000)
        except StorageFailedError:
            return Round("refused", (time.monotonic() - began_at) * 1000)
        return Round(verdict, took_ms)

    def _judge(self, file: StoreFile) -> str:
        file.quick_check()
        found = {row[0]: row[3] for row in file.entries("", None, 10_000, with_values=True)}
        if file.meta.revision < self._revision:
            return "older"
        return "right" if found == self._values else "mixed"

    def _write(self, keys: list[str]) -> None:
        values = {key: self._chance.randbytes(_VALUE_BYTES) for key in keys}
        file = opened(self._first, Disk(direct=True, remote=True).refresh)
        changes = [[CHANGE_SET_ENTRY, key, value] for key, value in values.items()]
        file.apply([AppliedBatch(self._revision, 1000 + self._revision, changes)], [])
        file.close()
        self._revision += len(changes)
        self._values |= values


def opened(path: Path, show: Callable[[Path], None]) -> StoreFile:
    """Open a file that its last owner may still be closing on the other host."""
    give_up_at = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            show(path)
            return StoreFile.open(path, _STORE)
        except (BusyError, FileNotFoundError):
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.005)


def measure(name: str, folders: list[Path], count: int) -> None:
    """Measure one file system, and print a line for each way."""
    first, second = folders
    ways: dict[str, Callable[[Path], None]] = {
        "as it is": lambda path: None,
        "once it shows what is there": Disk(direct=True, remote=True).refresh,
    }
    for keys in _KEYS:
        for number, (way, show) in enumerate(ways.items()):
            place = f"{keys}.{number}.db"
            store = Store(first / place, second / place, keys, number)
            rounds = [store.round(show) for _ in range(count)]
            found = Counter(each.verdict for each in rounds)
            took = [each.took_ms for each in rounds]
            print(
                f"{name}, {(first / place).stat().st_size / MIB:.1f} MiB, opened {way}: "
                + ", ".join(f"{found[verdict]} {verdict}" for verdict in sorted(found))
                + f"; after {statistics.median(took):.0f} ms, at most {max(took):.0f}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(measure_file_system(_HOSTS, measure))
