"""What one open store has accepted: its counters, and the changes of the tick that is being built.

Operations accept changes. A tick of changes succeeds or is taken back as a whole; so is the work of
one operation, and an atomic batch. Invariants:

- `revision`, `last_seq`, `count` and `bytes` are the values after every change accepted so far.
- The file, plus the memtable for what the file does not hold yet, answers every question about a
  message or key as of the last accepted change (`contents.py`).

Each kind of change has a module in `accepting/`; here is the configuration, which concerns all.
Pure but for look-ups in the file. This module knows nothing of clocks, NATS or the log, nor of when
the file is written.
"""

from __future__ import annotations

from holdfast.persist.store.accepting.consumer_changes import ConsumerChanges
from holdfast.persist.store.accepting.entry_changes import EntryChanges
from holdfast.persist.store.accepting.message_changes import MessageChanges
from holdfast.persist.store.accepting.upload_changes import UploadChanges
from holdfast.persist.store.change_sizes import variable_bytes
from holdfast.persist.store.retention import Retention
from holdfast.protocol import changes as rows
from holdfast.protocol.chain.hashing import GENESIS
from holdfast.protocol.control import StoreTotals
from holdfast.protocol.store_config import DEFAULT_CONFIG, StoreConfig
from holdfast.shared_fs.store_file.applying import last_seq_configured
from holdfast.shared_fs.store_file.history.history_rows import kept_of


class Accepted(MessageChanges, EntryChanges, UploadChanges, ConsumerChanges):
    """The counters of one store, and the changes it accepts."""

    __slots__ = ()

    @property
    def store_totals(self) -> StoreTotals:
        """What the coordinator is told of the store. Asks the file, if there are uploads."""
        return StoreTotals(self.held_bytes, self.count, self.time)

    @property
    def config(self) -> StoreConfig:
        """The configuration after the last accepted change."""
        return DEFAULT_CONFIG if self.retention is None else self.retention.config

    def configure(self, config: StoreConfig) -> None:
        """Accept a new configuration."""
        change = [rows.CHANGE_CONFIGURE, config.to_wire()]
        kept = kept_of(config.to_wire())
        loses = self.keeps_history and kept < kept_of(self.config.to_wire())
        self._accept(change, variable_bytes(change))
        self._memtable.keep_versions(kept)
        if loses:
            # Of keys that nobody has touched, only the file knows what they lose.
            with self.contents.previewed(list(self.unwritten())):
                self.bytes = self.contents.bytes_in_file
        if self.is_stream:
            self.last_seq = last_seq_configured(self.last_seq, config.to_wire())
        if config.chain and self.chain is None:
            self.chain = GENESIS
        has_ttl = self.retention is not None and self.retention.has_ttl
        before, self.retention = self.retention, Retention.needed(config, has_ttl=has_ttl)
        if self.retention is not None:
            self.retention.sweep(before)
        self._tell_of_expiry()

    def expect_expiry(self, expires: int | None) -> None:
        """Note that the row just set expires at `expires` (None: it has no ttl). A maximum age of
        the store may end it earlier."""
        if expires is not None:
            if self.retention is None:
                self.retention = Retention(DEFAULT_CONFIG, has_ttl=True)
                self._tell_of_expiry()
            self.retention.wrote_expiring(expires)
        if self.retention is not None:
            self.retention.wrote(self.time)
