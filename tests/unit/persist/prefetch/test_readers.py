"""Who reads a large stream from its file, and how far ahead of each reader it is in memory."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.persist.prefetch.readers import AHEAD_PIECES, Fetch, StoreReaders
from holdfast.protocol.limits import (
    KIB,
    MAX_PREFETCH_READERS,
    MAX_WINDOW_BYTES,
    PREFETCH_IDLE_SECONDS,
    PREFETCH_STEP_BYTES,
    START_WINDOW_BYTES,
)
from holdfast.shared_fs.read_ahead.bringing import CachedPiece
from tests.support.effort import examples

#: Messages of a KiB, one after the other: seq 1 is at offset 0.
MESSAGE_BYTES = KIB
PAGE = 512


def brought(
    start_seq: int, count: int, *, was_there: bool = False, most: int = 256
) -> list[CachedPiece]:
    """Return the pieces of a fetch, each of `most` messages at most."""
    pieces, end_seq = [], start_seq + count
    while start_seq < end_seq:
        size = min(most, end_seq - start_seq)
        size_bytes = size * MESSAGE_BYTES
        disk_bytes = 0 if was_there else size_bytes
        offset = (start_seq - 1) * MESSAGE_BYTES
        last_seq = start_seq + size - 1
        pieces.append(CachedPiece(start_seq, last_seq, offset, size_bytes, disk_bytes))
        start_seq += size
    return pieces


class Disk:
    """A store that is read, and what its fetches brought."""

    def __init__(self, *, was_there: bool = False, most: int = 256) -> None:
        """`most` is how many messages a piece has at most."""
        self.readers = StoreReaders(MESSAGE_BYTES)
        self.was_there = was_there
        self.most = most
        self.now = 0.0
        self.given_back: list[CachedPiece] = []

    def make(self, fetch: Fetch) -> None:
        self.readers.fetches(fetch)
        self.end(fetch)

    def end(self, fetch: Fetch) -> None:
        pieces = brought(
            fetch.start_seq,
            -(-fetch.size_bytes // MESSAGE_BYTES),
            was_there=self.was_there,
            most=self.most,
        )
        if fetch.is_ahead:
            pieces = pieces[:AHEAD_PIECES]
        self.given_back += self.readers.fetched(fetch, pieces)

    def read(self, seq: int, count: int = PAGE) -> Fetch | None:
        """Read a page as a client does. Return what had to be fetched for it."""
        fetch = None
        found = self.readers.asks(seq, count * MESSAGE_BYTES, self.now)
        if isinstance(found, Fetch):
            fetch = found
            if fetch not in self.readers.fetching:
                self.readers.fetches(fetch)
            self.end(fetch)
        self.readers.has_read(seq, seq + count, count * MESSAGE_BYTES, self.now)
        return fetch

    def go_ahead(self) -> list[Fetch]:
        """Fetch all that is wanted ahead."""
        made = []
        while (fetch := self.readers.ahead()) is not None:
            assert fetch not in made, "it is fetched again without end"
            self.make(fetch)
            made.append(fetch)
        return made


def test_a_single_read_fetches_what_it_reads_and_no_more() -> None:
    disk = Disk()
    assert disk.read(1000, 10) == Fetch(1000, 10 * MESSAGE_BYTES)
    assert disk.go_ahead() == []
    assert disk.readers.window_bytes == 0


def test_a_reader_that_goes_on_finds_what_follows_in_memory() -> None:
    disk = Disk()
    disk.read(1)
    assert disk.read(1 + PAGE) is not None
    for page in range(2, 50):
        assert disk.go_ahead(), page
        assert disk.read(1 + page * PAGE) is None


def test_a_window_grows_at_each_miss_up_to_the_largest() -> None:
    disk = Disk()
    windows = []
    for page in range(200):
        # Nothing is fetched ahead in time, so each page is a miss.
        disk.read(1 + page * PAGE)
        if not windows or windows[-1] != disk.readers.window_bytes:
            windows.append(disk.readers.window_bytes)
    assert windows[:2] == [0, START_WINDOW_BYTES]
    for before, after in pairwise(windows[1:]):
        assert before < after <= 2 * before
    assert windows[-1] == MAX_WINDOW_BYTES


def test_a_window_is_filled_step_by_step() -> None:
    disk = Disk()
    for page in range(200):
        disk.read(1 + page * PAGE)
    made = disk.go_ahead()
    assert all(fetch.size_bytes <= PREFETCH_STEP_BYTES for fetch in made)
    ahead_bytes = sum(fetch.size_bytes for fetch in made)
    assert MAX_WINDOW_BYTES // 2 <= ahead_bytes <= MAX_WINDOW_BYTES


def test_a_window_shrinks_when_what_was_fetched_left_memory_before_it_was_read() -> None:
    disk = Disk()
    for page in range(200):
        disk.read(1 + page * PAGE)
    disk.go_ahead()
    seq, window = 1 + 200 * PAGE, MAX_WINDOW_BYTES
    for _ in range(10):
        found = disk.readers.asks(seq, PAGE * MESSAGE_BYTES, 0.0)
        assert isinstance(found, list)
        fetch = disk.readers.lost(seq, PAGE * MESSAGE_BYTES, found)
        assert fetch == Fetch(seq, PAGE * MESSAGE_BYTES)
        window = max(START_WINDOW_BYTES, window // 2)
        assert disk.readers.window_bytes == window
        disk.make(fetch)
    assert window == START_WINDOW_BYTES


def test_what_a_reader_has_passed_is_given_back() -> None:
    disk = Disk()
    disk.read(1)
    for page in range(1, 20):
        disk.read(1 + page * PAGE)
        disk.go_ahead()
    given_back = disk.readers.pass_on(1.0)
    assert given_back
    assert max(piece.last_seq for piece in given_back) <= 20 * PAGE
    assert sum(piece.size_bytes for piece in given_back) == 19 * PAGE * MESSAGE_BYTES
    assert disk.readers.pass_on(1.0) == []


def test_nothing_is_given_back_that_a_reader_close_behind_needs() -> None:
    disk = Disk()
    for start in (1, 1 + PAGE):
        disk.read(start)
        disk.read(start + 2 * PAGE)
    for page in range(4, 20):
        disk.read(1 + page * PAGE)
    # One has stayed behind, and goes on before it is forgotten.
    disk.now = PREFETCH_IDLE_SECONDS - 1
    assert disk.read(1 + 4 * PAGE) is None


def test_a_reader_far_behind_holds_nothing_of_one_far_ahead() -> None:
    disk = Disk()
    disk.read(1)
    disk.read(1 + PAGE)
    far = 1 + 4 * MAX_WINDOW_BYTES // MESSAGE_BYTES
    for page in range(20):
        disk.read(far + page * PAGE)
    given_back = disk.readers.pass_on(1.0)
    assert any(piece.first_seq >= far for piece in given_back)


def test_what_was_in_memory_before_is_never_given_back() -> None:
    disk = Disk(was_there=True)
    for page in range(3):
        disk.read(1 + page * PAGE)
    assert disk.readers.held_bytes == 0
    assert disk.readers.pass_on(2 * PREFETCH_IDLE_SECONDS) == []


def test_what_was_fetched_for_a_single_read_is_left_to_the_system() -> None:
    disk = Disk()
    disk.read(1000, 10)
    assert disk.readers.held_bytes == 0
    assert disk.readers.pass_on(2 * PREFETCH_IDLE_SECONDS) == []


def test_readers_that_leave_are_forgotten_and_what_was_fetched_for_them_given_back() -> None:
    disk = Disk()
    disk.read(1)
    disk.read(1 + PAGE)
    disk.go_ahead()
    held_bytes = disk.readers.held_bytes
    assert held_bytes > 0
    given_back = disk.readers.pass_on(PREFETCH_IDLE_SECONDS)
    assert sum(piece.disk_bytes for piece in given_back) == held_bytes
    assert disk.readers.readers == []
    assert disk.readers.held_bytes == 0


def test_a_file_in_memory_is_trusted_until_a_read_waits_for_the_disk() -> None:
    disk = Disk(was_there=True)
    pages = 0
    while not disk.readers.is_trusted:
        disk.read(1 + 10 * pages * PAGE)
        pages += 1
        assert pages < 10
    assert disk.go_ahead() == []
    disk.readers.waited_for_disk()
    assert not disk.readers.is_trusted


def test_readers_at_the_same_place_share_one_fetch() -> None:
    disk = Disk()
    fetch = disk.readers.asks(1, PAGE * MESSAGE_BYTES, 0.0)
    assert isinstance(fetch, Fetch)
    disk.readers.fetches(fetch)
    assert disk.readers.asks(1, PAGE * MESSAGE_BYTES, 0.0) == fetch
    assert disk.readers.asks(100, 10 * MESSAGE_BYTES, 0.0) == fetch


def test_a_failed_fetch_brings_nothing_and_is_asked_for_again() -> None:
    disk = Disk()
    fetch = disk.readers.asks(1, PAGE * MESSAGE_BYTES, 0.0)
    assert isinstance(fetch, Fetch)
    disk.readers.fetches(fetch)
    assert disk.readers.fetched(fetch, []) == []
    assert disk.readers.asks(1, PAGE * MESSAGE_BYTES, 0.0) == fetch
    assert not disk.readers.is_trusted


def test_thousands_of_readers_at_random_places_are_bounded() -> None:
    disk = Disk()
    for number in range(3000):
        disk.read(1 + number * 7919 % 100_000 * PAGE, 1)
        assert disk.go_ahead() == []
        assert len(disk.readers.readers) <= MAX_PREFETCH_READERS
    assert disk.readers.held_bytes == 0
    disk.readers.pass_on(0.0)
    assert len(disk.readers.pieces) <= MAX_PREFETCH_READERS


def test_a_file_out_of_order_is_not_fetched_ahead_again_and_again() -> None:
    # Each message is a piece of its own.
    disk = Disk(most=1)
    for page in range(20):
        disk.read(1 + page * PAGE)
        disk.readers.pass_on(0.0)
        if page % 3 == 0:
            # At other times nothing is fetched in time, so the window grows.
            disk.go_ahead()
    assert disk.readers.window_bytes > START_WINDOW_BYTES


def test_single_reads_here_and_there_leave_room_for_what_is_fetched_ahead() -> None:
    disk = Disk()
    for number in range(2000):
        disk.read(20_000 + number * 7919 % 10_000, 1)
    for page in range(10):
        disk.read(1 + page * PAGE)
        disk.read(20_000 + page, 1)
        assert page == 0 or disk.go_ahead(), page


class ReadersMachine(RuleBasedStateMachine):
    """Some readers, fetches that take their time, memory that loses things, and a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.readers = self.disk.readers
        self.places = [1, 5000, 5100]
        #: What all reads were for, and all that was fetched ahead.
        self.read_bytes = self.ahead_bytes = 0
        self.given_back: set[CachedPiece] = set()

    @rule(which=st.integers(0, 2), count=st.integers(1, PAGE), jump=st.booleans())
    def read(self, which: int, count: int, jump: bool) -> None:
        seq = self.places[which] + (3000 if jump else 0)
        found = self.readers.asks(seq, count * MESSAGE_BYTES, self.disk.now)
        if isinstance(found, Fetch):
            if found not in self.readers.fetching:
                assert found == Fetch(seq, count * MESSAGE_BYTES)
                self.readers.fetches(found)
            return
        assert found[0].first_seq <= seq
        assert found[-1].last_seq >= seq + count - 1
        self.readers.has_read(seq, seq + count, count * MESSAGE_BYTES, self.disk.now)
        self.read_bytes += count * MESSAGE_BYTES
        self.places[which] = seq + count

    @rule()
    def go_ahead(self) -> None:
        fetch = self.readers.ahead()
        if fetch is not None:
            assert fetch.is_ahead and fetch not in self.readers.fetching
            self.ahead_bytes += fetch.size_bytes
            self.readers.fetches(fetch)

    @precondition(lambda self: self.readers.fetching)
    @rule(data=st.data(), fails=st.booleans())
    def end_a_fetch(self, data: st.DataObject, fails: bool) -> None:
        fetch = data.draw(st.sampled_from(self.readers.fetching))
        if fails:
            assert self.readers.fetched(fetch, []) == []
        else:
            self.disk.end(fetch)
        assert fetch not in self.readers.fetching

    @precondition(lambda self: self.readers.pieces)
    @rule(data=st.data())
    def lose_a_piece(self, data: st.DataObject) -> None:
        piece = data.draw(st.sampled_from(self.readers.pieces))
        before = self.readers.window_bytes
        self.readers.lost(piece.first_seq, MESSAGE_BYTES, [piece])
        assert piece not in self.readers.pieces
        assert self.readers.window_bytes <= before

    @rule(seconds=st.sampled_from([0.0, 1.0, PREFETCH_IDLE_SECONDS]))
    def pass_on(self, seconds: float) -> None:
        self.disk.now += seconds
        for piece in self.readers.pass_on(self.disk.now):
            assert piece.disk_bytes
            for reader in self.readers.readers:
                ahead_bytes = (piece.first_seq - reader.next_seq) * MESSAGE_BYTES
                assert reader.next_seq > piece.last_seq or ahead_bytes > MAX_WINDOW_BYTES

    @invariant()
    def windows_are_earned(self) -> None:
        for reader in self.readers.readers:
            assert reader.window_bytes == 0 or (
                START_WINDOW_BYTES <= reader.window_bytes <= MAX_WINDOW_BYTES
            )
            assert reader.window_bytes <= max(START_WINDOW_BYTES, reader.read_bytes)

    @invariant()
    def pieces_are_in_order_and_apart(self) -> None:
        pieces = self.readers.pieces
        for before, after in pairwise(pieces):
            assert before.last_seq < after.first_seq
        assert all(0 <= piece.disk_bytes <= piece.size_bytes for piece in pieces)

    @invariant()
    def readers_are_few(self) -> None:
        assert len(self.readers.readers) <= MAX_PREFETCH_READERS


ReadersMachine.TestCase.settings = settings(
    max_examples=examples(400), stateful_step_count=40, deadline=None
)
test_readers_keep_their_invariants = ReadersMachine.TestCase
