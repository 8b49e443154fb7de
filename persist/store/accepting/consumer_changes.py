"""The changes of a stream's consumers and cursors, which are loaded when they are first used."""

from __future__ import annotations

from holdfast.persist.consumers.consumers import Consumers
from holdfast.persist.consumers.cursors import Cursors
from holdfast.persist.store.accepting.running_tick import RunningTick
from holdfast.persist.store.change_sizes import variable_bytes
from holdfast.protocol import frames


class ConsumerChanges(RunningTick):
    """Accepts changes of consumers and cursors."""

    __slots__ = ()

    @property
    def consumers(self) -> Consumers:
        """The stream's consumers after the last accepted change. They are loaded on first use."""
        if self._consumers is None:
            file = self.contents.file
            loaded = Consumers(file.consumers() if file is not None else ())
            for batch in self.unwritten():
                for change in batch.changes:
                    loaded.apply(change)
            self._consumers = loaded
        return self._consumers

    def consumer_lags(self) -> list[int]:
        """Return how many messages each consumer has not acknowledged. Reads nothing of the file:
        until the consumers are used, they are where they were when the store was opened."""
        behind = self.last_seq + 1
        if self._consumers is not None:
            loaded = self._consumers.by_id.values()
            self._consumer_places = [(each.next_seq, len(each.pending)) for each in loaded]
        return [
            max(0, behind - next_seq) + pending_count
            for next_seq, pending_count in self._consumer_places
        ]

    def change_consumer(self, change: frames.WireChange) -> None:
        """Accept a change of a consumer."""
        size_bytes = variable_bytes(change)
        try:
            self.consumers.apply(change)
        except Exception:
            # The change may be half applied: load the consumers again on next use.
            self._consumers = None
            raise
        self._accept(change, size_bytes)

    @property
    def cursors(self) -> Cursors:
        """The stream's cursors after the last accepted change. They are loaded on first use."""
        if self._cursors is None:
            file = self.contents.file
            loaded = Cursors(
                file.cursor_totals() if file is not None else (), self._cursor_sizes
            )
            for batch in self.unwritten():
                for change in batch.changes:
                    loaded.apply(change)
            self._cursors = loaded
        return self._cursors

    def change_cursor(self, change: frames.WireChange) -> None:
        """Accept a change of a cursor."""
        size_bytes = variable_bytes(change)
        try:
            self.cursors.apply(change)
        except Exception:
            # The change may be half applied: load the cursors again on next use.
            self._cursors = None
            raise
        self._accept(change, size_bytes)

    def _cursor_sizes(self, name: str) -> dict[int, int]:
        file = self.contents.file
        return {} if file is None else file.cursor_sizes(name)
