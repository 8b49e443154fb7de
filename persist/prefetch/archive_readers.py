"""Who pages through archived messages of a stream, how far ahead of each reader they are fetched,
and what of that nobody needs any more. Pure; one object for each stream that is read so.

The rules are those of readers of large files (`persist/prefetch/readers.py`): whoever goes on where
an earlier read ended is taken for the same reader, and several share what is there. What differs is
what is held: values that came from a table, in the memory of this server, not pages of a file in
that of its host. Invariants:

- A reader's window begins with `START_WINDOW_BYTES` when it has gone on once, doubles each time
  that its read had to wait for the archive, and is halved when something that was fetched for it
  left before it was read. It is never larger than `MAX_WINDOW_BYTES`, nor than what the reader has
  read in all, if that is more than the first window.
- Nothing is fetched ahead of a reader that has not gone on, and nothing twice.
- Further on, as far as a reader has read already and `MAX_WINDOW_BYTES` at most, whoever reads the
  table is told where it will come: a group of rows there takes seconds to get and to decode.
- A part is kept only while it continues what some reader reads next, and `KEPT_SECONDS` at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from holdfast.protocol.limits import (
    MAX_PREFETCH_READERS,
    MAX_WINDOW_BYTES,
    PAGE_BYTES,
    PREFETCH_IDLE_SECONDS,
    PREFETCH_STEP_BYTES,
    START_WINDOW_BYTES,
)

#: A value that was fetched and not read leaves after so long: an erasure must not find it here for
#: long, and its reader has most likely left.
KEPT_SECONDS: Final = 60.0


class AheadFetch(NamedTuple):
    """What to fetch: archived messages from `start_seq` on and before `before_seq`, if there is
    something from there on, about `size_bytes` of them."""

    start_seq: int
    before_seq: int | None
    size_bytes: int
    #: The last seq that it brings, once that is known.
    last_seq: int = 0


class AheadPart(NamedTuple):
    """Archived messages that were fetched: all that the stream has from `start_seq` to
    `last_seq`."""

    start_seq: int
    last_seq: int
    #: What they take in memory.
    size_bytes: int
    fetched_at: float
    #: Seq and revision of each.
    keys: tuple[tuple[int, int], ...]


class Warming(NamedTuple):
    """A reader is at `next_seq`, and will soon be at `far_seq`."""

    next_seq: int
    far_seq: int


@dataclass(slots=True, eq=False)
class ArchiveReader:
    """A place at which somebody reads archived messages."""

    next_seq: int
    used_at: float
    #: 0 until it has gone on where it was.
    window_bytes: int = 0
    #: What it has read in all.
    read_bytes: int = 0
    #: Up to where whoever reads the table was told that it will come.
    warmed_seq: int = 0


class ArchiveReaders:
    """The readers of the archived messages of one stream."""

    def __init__(self, message_bytes: int) -> None:
        """`message_bytes` is what a message has, about."""
        self.message_bytes = max(1, message_bytes)
        self.readers: list[ArchiveReader] = []
        #: By seq; they do not overlap.
        self.parts: list[AheadPart] = []
        self.fetching: list[AheadFetch] = []
        #: No archived message is at or after it, as far as is known.
        self._end_seq: int | None = None

    @property
    def held_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def window_bytes(self) -> int:
        return sum(reader.window_bytes for reader in self.readers)

    def has_read(
        self, start_seq: int, next_seq: int, size_bytes: int, now: float, *, missed: bool
    ) -> bool:
        """Note that somebody has read from `start_seq` on and goes on at `next_seq`; `missed` if
        that had to wait for the archive. Return whether something is fetched ahead for it."""
        found = next((each for each in self.readers if each.next_seq == start_seq), None)
        if found is None:
            found = self._new_reader(start_seq, now)
        elif not found.window_bytes:
            found.window_bytes = START_WINDOW_BYTES
        elif missed:
            earned = max(START_WINDOW_BYTES, found.read_bytes)
            found.window_bytes = min(2 * found.window_bytes, earned, MAX_WINDOW_BYTES)
        if missed:
            # There is more than was known.
            self._end_seq = None
        found.next_seq, found.used_at = max(next_seq, start_seq), now
        found.read_bytes += size_bytes
        same = [each for each in self.readers if each.next_seq == found.next_seq]
        if len(same) > 1:
            # They go on as one.
            found = max(same, key=attrgetter("window_bytes", "read_bytes"))
            self.readers = [each for each in self.readers if each not in same or each is found]
            found.used_at = now
        return found.window_bytes > 0

    def ahead(self) -> AheadFetch | None:
        """Return what to fetch next, a page at a time, if less than half of a window is there."""
        for reader in self.readers:
            if not reader.window_bytes:
                continue
            seq, held_bytes, _ = self._reach(reader)
            if 2 * held_bytes > reader.window_bytes or self._is_at_end(seq):
                continue
            if any(fetch.start_seq <= seq <= fetch.last_seq for fetch in self.fetching):
                continue
            size_bytes = min(reader.window_bytes - held_bytes, PAGE_BYTES)
            return AheadFetch(seq, self._next_start(seq), size_bytes)
        return None

    def far_ahead(self) -> Warming | None:
        """Return where a reader will come, if it has gone on by `PREFETCH_STEP_BYTES` since that
        was told last."""
        for reader in self.readers:
            if not reader.window_bytes:
                continue
            far_bytes = min(reader.read_bytes, MAX_WINDOW_BYTES)
            far_seq = reader.next_seq + far_bytes // self.message_bytes
            if (far_seq - reader.warmed_seq) * self.message_bytes >= PREFETCH_STEP_BYTES:
                reader.warmed_seq = far_seq
                return Warming(reader.next_seq, far_seq)
        return None

    def fetches(self, fetch: AheadFetch) -> None:
        """Note that a fetch is to be made, whose last seq is known."""
        self.fetching.append(fetch)

    def ends_at(self, fetch: AheadFetch) -> None:
        """Note that there is nothing to fetch."""
        if fetch.before_seq is None:
            self._end_seq = fetch.start_seq

    def withdrawn(self, fetch: AheadFetch) -> None:
        """Note that a fetch is not made."""
        self.fetching.remove(fetch)

    def fetched(self, fetch: AheadFetch, part: AheadPart | None) -> None:
        """Note the result of a fetch, nothing if it failed: then its readers go on without, until
        they have gone on again."""
        self.fetching.remove(fetch)
        if part is not None:
            self.parts.append(part)
            self.parts.sort(key=attrgetter("start_seq"))
            return
        for reader in self.readers:
            if self._reach(reader)[0] == fetch.start_seq:
                reader.window_bytes = 0

    def pass_on(self, now: float) -> list[AheadPart]:
        """Forget readers that have left. Return the parts that nobody needs, which are forgotten
        too."""
        self.readers = [
            reader for reader in self.readers if now - reader.used_at < PREFETCH_IDLE_SECONDS
        ]
        old = {part for part in self.parts if now - part.fetched_at >= KEPT_SECONDS}
        wanted: set[AheadPart] = set()
        for reader in self.readers:
            _, _, found = self._reach(reader)
            wanted.update(found)
            if reader.window_bytes and not old.isdisjoint(found):
                reader.window_bytes = max(START_WINDOW_BYTES, reader.window_bytes // 2)
        gone = [part for part in self.parts if part in old or part not in wanted]
        self.parts = [part for part in self.parts if part in wanted and part not in old]
        return gone

    # Inside
    def _reach(self, reader: ArchiveReader) -> tuple[int, int, list[AheadPart]]:
        """Return the first seq ahead of a reader that no part has, what there is before it, about,
        and the parts that have that."""
        seq, size_bytes, found = reader.next_seq, 0, []
        for part in self.parts:
            if part.start_seq <= seq <= part.last_seq:
                left, count = part.last_seq + 1 - seq, part.last_seq + 1 - part.start_seq
                size_bytes += part.size_bytes * left // count
                seq = part.last_seq + 1
                found.append(part)
        return seq, size_bytes, found

    def _next_start(self, seq: int) -> int | None:
        """Return where the next part begins that is there or on its way."""
        starts = [part.start_seq for part in self.parts]
        starts += [fetch.start_seq for fetch in self.fetching]
        return min((start for start in starts if start > seq), default=None)

    def _is_at_end(self, seq: int) -> bool:
        return self._end_seq is not None and seq >= self._end_seq

    def _new_reader(self, seq: int, now: float) -> ArchiveReader:
        if len(self.readers) >= MAX_PREFETCH_READERS:
            self.readers.remove(min(self.readers, key=attrgetter("window_bytes", "used_at")))
        reader = ArchiveReader(seq, now)
        self.readers.append(reader)
        return reader
