"""Who reads a large stream from its file, how far ahead of each reader the file is in memory, and
what of that nobody needs any more. Pure; one object for each store that is read so.

A read carries no name. Whoever goes on where an earlier read ended is taken for the same reader,
and several who read the same share what is there. Invariants:

- A reader's window begins with `START_WINDOW_BYTES` when it has gone on once, doubles each time
  that it comes to something that is not in memory yet, and is halved when what was fetched was
  gone from memory before it was read. It is never larger than `MAX_WINDOW_BYTES`, nor than what the
  reader has read in all, if that is more than the first window: so what is fetched in vain is
  bounded by what is read, whoever asks.
- Nothing is fetched ahead of a reader that has not gone on, and only what its read needs.
- A piece that came from the disk for a reader with a window is given back once no reader is at it
  or comes to it within the largest window. What was in memory already, or was fetched for a single
  read, is left to the system, which knows what else uses it.
- Nothing is fetched ahead while `AHEAD_PIECES` pieces are there that somebody needs. What is out of
  order takes a piece for each leaf: more of them would be forgotten at once, and fetched again
  without end.
- A file that is in memory costs nothing: once `_TRUSTED_FETCHES` fetches for single reads, or all
  of the largest window, were found there, the store is trusted, until a read needs the disk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from holdfast.protocol.limits import (
    MAX_PREFETCH_READERS,
    MAX_WINDOW_BYTES,
    PREFETCH_IDLE_SECONDS,
    PREFETCH_STEP_BYTES,
    START_WINDOW_BYTES,
)
from holdfast.shared_fs.read_ahead.bringing import CachedPiece

_TRUSTED_FETCHES: Final = 4
#: Pieces of a store that are remembered.
_MAX_PIECES: Final = 512
#: A fetch ahead brings so many at most.
AHEAD_PIECES: Final = _MAX_PIECES // 2
_first_seq_of: Final = attrgetter("first_seq")
_last_seq_of: Final = attrgetter("last_seq")


class Fetch(NamedTuple):
    """What to get into memory: about `size_bytes` of messages from `start_seq` on."""

    start_seq: int
    size_bytes: int
    #: No read waits for it yet.
    is_ahead: bool = False


@dataclass(slots=True, eq=False)
class FileReader:
    """A place at which somebody reads."""

    next_seq: int
    used_at: float
    #: 0 until it has gone on where it was.
    window_bytes: int = 0
    #: What it has read in all.
    read_bytes: int = 0


class StoreReaders:
    """The readers of one store."""

    def __init__(self, message_bytes: int) -> None:
        """`message_bytes` is what a message takes in the file, about."""
        self.message_bytes = max(1, message_bytes)
        self.readers: list[FileReader] = []
        #: In order of seqs; they do not overlap.
        self.pieces: list[CachedPiece] = []
        self.fetching: list[Fetch] = []
        #: What has been found in memory since something was not.
        self._found_bytes = 0

    @property
    def is_trusted(self) -> bool:
        """All of the file seems to be in memory."""
        return self._found_bytes >= MAX_WINDOW_BYTES

    @property
    def held_bytes(self) -> int:
        """What was fetched and may yet be given back."""
        return sum(piece.disk_bytes for piece in self.pieces)

    @property
    def window_bytes(self) -> int:
        return sum(reader.window_bytes for reader in self.readers)

    # Before a read
    def asks(self, start_seq: int, size_bytes: int, now: float) -> list[CachedPiece] | Fetch:
        """Note that somebody wants to read from `start_seq` on. Return the pieces that have it, or
        what to fetch first. If that is in `fetching` already, the read may wait for it."""
        reader = self._reader_at(start_seq, now)
        found = self._having(start_seq, self._seq_after(start_seq, size_bytes) - 1)
        if found:
            return found
        if reader.window_bytes:
            earned = max(START_WINDOW_BYTES, reader.read_bytes)
            reader.window_bytes = min(2 * reader.window_bytes, earned, MAX_WINDOW_BYTES)
        return self._fetching_of(start_seq) or Fetch(start_seq, size_bytes)

    def lost(self, start_seq: int, size_bytes: int, pieces: Iterable[CachedPiece]) -> Fetch:
        """Note that `pieces`, which a read from `start_seq` on needs, have left memory. Return what
        to fetch."""
        for piece in pieces:
            if piece in self.pieces:
                self.pieces.remove(piece)
        for reader in self.readers:
            if reader.next_seq == start_seq and reader.window_bytes:
                reader.window_bytes = max(START_WINDOW_BYTES, reader.window_bytes // 2)
        return self._fetching_of(start_seq) or Fetch(start_seq, size_bytes)

    def fetches(self, fetch: Fetch) -> None:
        """Note that a fetch is to be made."""
        self.fetching.append(fetch)

    def fetched(self, fetch: Fetch, brought: Sequence[CachedPiece]) -> list[CachedPiece]:
        """Note the result of a fetch, nothing if it failed. Return what to give back."""
        self.fetching.remove(fetch)
        is_ours = fetch.is_ahead or any(
            reader.window_bytes and reader.next_seq == fetch.start_seq for reader in self.readers
        )
        if any(piece.disk_bytes for piece in brought):
            self._found_bytes = 0
        elif is_ours:
            self._found_bytes += sum(piece.size_bytes for piece in brought)
        elif brought:
            self._found_bytes += MAX_WINDOW_BYTES // _TRUSTED_FETCHES
        gone = []
        if not is_ours and len(self.pieces) >= AHEAD_PIECES:
            self._forget_singles()
        for piece in brought:
            gone += self._add(piece if is_ours else piece._replace(disk_bytes=0))
        return gone

    # After a read
    def has_read(self, start_seq: int, next_seq: int, size_bytes: int, now: float) -> None:
        """Note that somebody has read from `start_seq` on and will go on at `next_seq`."""
        reader = self._reader_at(start_seq, now)
        reader.next_seq = max(next_seq, start_seq)
        reader.read_bytes += size_bytes
        same = [each for each in self.readers if each.next_seq == reader.next_seq]
        if len(same) > 1:
            # They go on as one.
            most = max(same, key=attrgetter("window_bytes", "read_bytes"))
            self.readers = [each for each in self.readers if each not in same or each is most]
            most.used_at = now

    def ahead(self) -> Fetch | None:
        """Return what to fetch next ahead of the readers, a step at a time, if less than half of
        a window is there."""
        if self.is_trusted or self._is_crowded:
            return None
        for reader in self.readers:
            if not reader.window_bytes:
                continue
            ahead_seq = self._ahead_of(reader.next_seq)
            left_bytes = (ahead_seq - reader.next_seq) * self.message_bytes
            if 2 * left_bytes <= reader.window_bytes and self._fetching_of(ahead_seq) is None:
                size_bytes = min(reader.window_bytes - left_bytes, PREFETCH_STEP_BYTES)
                return Fetch(ahead_seq, size_bytes, is_ahead=True)
        return None

    def waited_for_disk(self) -> None:
        """Note that a read that was believed to be in memory was not."""
        self._found_bytes = 0

    def pass_on(self, now: float) -> list[CachedPiece]:
        """Forget readers that have left. Return the pieces to give back: nobody needs them."""
        self.readers = [
            reader for reader in self.readers if now - reader.used_at < PREFETCH_IDLE_SECONDS
        ]
        passed = [piece for piece in self.pieces if not self._is_wanted(piece)]
        if passed:
            self.pieces = [piece for piece in self.pieces if self._is_wanted(piece)]
        return [piece for piece in passed if piece.disk_bytes]

    # Inside
    def _seq_after(self, start_seq: int, size_bytes: int) -> int:
        return start_seq + max(1, size_bytes // self.message_bytes)

    def _fetching_of(self, seq: int) -> Fetch | None:
        """Return the fetch under way that brings `seq`."""
        for fetch in self.fetching:
            if fetch.start_seq <= seq < self._seq_after(fetch.start_seq, fetch.size_bytes):
                return fetch
        return None

    def _reader_at(self, start_seq: int, now: float) -> FileReader:
        for reader in self.readers:
            if reader.next_seq == start_seq:
                if reader.read_bytes and not reader.window_bytes:
                    reader.window_bytes = START_WINDOW_BYTES
                reader.used_at = now
                return reader
        if len(self.readers) >= MAX_PREFETCH_READERS:
            self.readers.remove(min(self.readers, key=attrgetter("window_bytes", "used_at")))
        reader = FileReader(start_seq, now)
        self.readers.append(reader)
        return reader

    def _having(self, start_seq: int, end_seq: int) -> list[CachedPiece]:
        """Return the pieces that together have all from `start_seq` to `end_seq`; none if some of
        it is missing."""
        found = []
        index = bisect_right(self.pieces, start_seq, key=_first_seq_of) - 1
        for piece in self.pieces[max(0, index) :]:
            if not piece.first_seq <= start_seq <= piece.last_seq:
                break
            found.append(piece)
            if piece.last_seq >= end_seq:
                return found
            start_seq = piece.last_seq + 1
        return []

    def _ahead_of(self, seq: int) -> int:
        """Return the first seq from `seq` on that no piece has."""
        index = bisect_right(self.pieces, seq, key=_first_seq_of) - 1
        for piece in self.pieces[max(0, index) :]:
            if not piece.first_seq <= seq <= piece.last_seq:
                break
            seq = piece.last_seq + 1
        return seq

    def _add(self, piece: CachedPiece) -> list[CachedPiece]:
        """Remember a piece, in place of those that it overlaps. Return what is forgotten for it and
        came from the disk."""
        # Of what is out of order there are hundreds at once.
        begin = bisect_left(self.pieces, piece.first_seq, key=_last_seq_of)
        end = bisect_right(self.pieces, piece.last_seq, key=_first_seq_of)
        kept_bytes = sum(other.disk_bytes for other in self.pieces[begin:end])
        piece = piece._replace(disk_bytes=min(piece.size_bytes, piece.disk_bytes + kept_bytes))
        self.pieces[begin:end] = [piece]
        if len(self.pieces) <= _MAX_PIECES:
            return []
        return [each for each in [self.pieces.pop(0)] if each.disk_bytes]

    @property
    def _is_crowded(self) -> bool:
        """Somebody needs as many pieces as may be there before something is fetched ahead."""
        count = len(self.pieces)
        return count >= AHEAD_PIECES and sum(map(self._is_wanted, self.pieces)) >= AHEAD_PIECES

    def _forget_singles(self) -> None:
        """Forget pieces that need not be given back and that no reader is at, so that many reads
        here and there leave room for what is fetched ahead."""
        self.pieces = [
            piece
            for piece in self.pieces
            if piece.disk_bytes
            or any(piece.first_seq <= each.next_seq <= piece.last_seq for each in self.readers)
        ]

    def _is_wanted(self, piece: CachedPiece) -> bool:
        return any(
            reader.next_seq <= piece.last_seq
            and (piece.first_seq - reader.next_seq) * self.message_bytes <= MAX_WINDOW_BYTES
            for reader in self.readers
        )
