"""What of an open ephemeral store is durable: its configuration, and numbers it may use.

The content of such a store is in a file in memory, which ends with its owner. Its file on the disk
holds no content. It says that the store is ephemeral, how it is configured, and which revision and
seq no owner has gone beyond so far. An owner reserves numbers ahead, many at a time, by a change in
the commit log like any other. The next owner begins with the numbers after those that are reserved,
so no revision or seq is ever given twice, and followers of an earlier life have to begin anew.
Invariants:

- No revision from `revision` on, and no seq above `last_seq`, leaves the server before the record
  that reserves it is synced.
- The file never runs ahead of the durable log.

Pure but for the file.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.persist.ephemeral.memory_use import MemoryUse
from holdfast.protocol import changes, frames
from holdfast.protocol.names import StoreId
from holdfast.protocol.store_config import StoreConfig
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile

#: How many numbers a record reserves: a busy store needs one in tens of seconds.
RESERVED_NUMBERS: Final = 1 << 20
#: After so many changes, what a file in memory no longer needs is removed.
_TIDY_CHANGES: Final = 1 << 14


class Anchor:
    """The durable part of one open ephemeral store."""

    __slots__ = (
        "_due",
        "_has_place",
        "_memory_bytes",
        "_tidied_at",
        "_use",
        "_waiting",
        "config",
        "file",
        "first_revision",
        "last_seq",
        "revision",
    )

    def __init__(self, file: StoreFile, config: StoreConfig) -> None:
        """`file` is the one on the disk, `config` the configuration in it."""
        self.file: StoreFile | None = file
        self.config = config
        #: The first revision, and the last seq, that are not reserved.
        self.revision, self.last_seq = file.meta.revision, file.meta.last_seq
        #: What the last record reserves, until it is in the log.
        self._due: tuple[StoreConfig, AppliedBatch] | None = None
        #: The reservations that the file lacks, each with the tick whose record has it.
        self._waiting: deque[tuple[int, AppliedBatch]] = deque()
        #: The revision at which this life began.
        self.first_revision = self.revision
        self._use = MemoryUse()
        self._memory_bytes = 0
        self._has_place = False
        self._tidied_at = self.revision

    @property
    def is_full(self) -> bool:
        """No ephemeral store of this server may grow."""
        return self._use.is_full

    @property
    def has_reserved(self) -> bool:
        """It has numbers of this life, so most of its writes need no record."""
        return self.revision > self.first_revision

    def takes_place(self) -> bool:
        """Take the place of an ephemeral store that is written, once. Return False if the server
        has none left."""
        if not self._has_place and self._use.has_place:
            self._has_place = True
            self._use.written_stores += 1
        return self._has_place

    def record(
        self,
        store: StoreId,
        epoch: int,
        time: int,
        reached: tuple[int, int],
        config: StoreConfig,
    ) -> LogRecord | None:
        """Return the record that must be durable before changes up to `reached` (revision, seq)
        under `config` may leave; None if there is nothing to reserve. Raises StorageError."""
        revision, last_seq = reached
        if revision < self.revision and last_seq <= self.last_seq and config is self.config:
            return None
        assert self.file is not None, "an ephemeral store has a file"
        # Must precede the first accepted change that the file lacks.
        self.file.hold()
        is_stream = last_seq > 0
        until = revision + RESERVED_NUMBERS
        last_seq = last_seq + RESERVED_NUMBERS if is_stream else 0
        change = [changes.CHANGE_RESERVE, config.to_wire(), until, last_seq]
        self._due = config, AppliedBatch(self.revision, time, [change])
        payload = frames.encode_changes(epoch, self.revision, time, [change])
        return LogRecord(store, epoch, self.revision, until, [payload], [])

    def committed(self, tick: int) -> None:
        """Note that the log has the last record, with `tick`."""
        assert self._due is not None
        self.config, batch = self._due
        self._due = None
        _, _, self.revision, self.last_seq = batch.changes[0]
        self._waiting.append((tick, batch))

    def apply(self, tick: int) -> None:
        """Let the file hold what was reserved up to a tick that is synced. Raises StorageError."""
        while self._waiting and self._waiting[0][0] <= tick:
            assert self.file is not None, "an ephemeral store has a file"
            self.file.apply([self._waiting[0][1]])
            self._waiting.popleft()

    def joins(self, use: MemoryUse) -> None:
        """Count its memory in `use` from now on."""
        self._use = use
        use.change(self._memory_bytes)

    def leaves(self) -> None:
        """Count its memory no longer."""
        self._use.change(-self._memory_bytes)
        self._use.written_stores -= self._has_place
        self._use = MemoryUse()

    def takes(self, size_bytes: int) -> None:
        """Note how much memory the content takes, with the changes that wait to become rows."""
        self.grows(size_bytes - self._memory_bytes)

    def grows(self, added_bytes: int) -> None:
        """Note that the content takes so much more."""
        self._use.change(added_bytes)
        self._memory_bytes += added_bytes

    def needs_tidying(self, revision: int) -> bool:
        """Tell if the content in memory has changed much since it was last tidied."""
        return revision - self._tidied_at >= _TIDY_CHANGES

    def tidied(self, revision: int) -> None:
        """Note that the content was tidied at this revision."""
        self._tidied_at = revision
