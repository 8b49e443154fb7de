"""Who pages through archived messages, and how far ahead of each reader they are fetched."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.persist.prefetch.archive_readers import (
    KEPT_SECONDS,
    AheadFetch,
    AheadPart,
    ArchiveReaders,
)
from holdfast.protocol.limits import (
    KIB,
    MAX_PREFETCH_READERS,
    MAX_WINDOW_BYTES,
    PAGE_BYTES,
    PREFETCH_IDLE_SECONDS,
    PREFETCH_STEP_BYTES,
    START_WINDOW_BYTES,
)
from tests.support.effort import examples

MESSAGE_BYTES = 4 * KIB
PAGE = PAGE_BYTES // MESSAGE_BYTES


class History:
    """A stream with `last_seq` archived messages of `MESSAGE_BYTES`, and its readers."""

    def __init__(self, last_seq: int = 1 << 30) -> None:
        self.readers = ArchiveReaders(MESSAGE_BYTES)
        self.last_seq = last_seq
        self.now = 0.0
        #: How often each message was fetched.
        self.fetched: dict[int, int] = {}

    def read(self, start_seq: int, *, missed: bool, count: int = PAGE) -> int:
        """Read a page, and return where to go on."""
        after = start_seq + count
        self.readers.has_read(start_seq, after, count * MESSAGE_BYTES, self.now, missed=missed)
        return after

    def begin(self, fetch: AheadFetch) -> AheadFetch:
        count = max(1, fetch.size_bytes // MESSAGE_BYTES)
        last_seq = min(fetch.start_seq + count - 1, self.last_seq)
        if fetch.before_seq is not None:
            last_seq = min(last_seq, fetch.before_seq - 1)
        fetch = fetch._replace(last_seq=last_seq)
        self.readers.fetches(fetch)
        return fetch

    def end(self, fetch: AheadFetch) -> None:
        last_seq = fetch.last_seq
        keys = tuple((seq, seq) for seq in range(fetch.start_seq, last_seq + 1))
        for seq, _ in keys:
            self.fetched[seq] = self.fetched.get(seq, 0) + 1
        size_bytes = len(keys) * MESSAGE_BYTES
        part = AheadPart(fetch.start_seq, last_seq, size_bytes, self.now, keys)
        self.readers.fetched(fetch, part)

    def fill(self) -> None:
        while fetch := self.readers.ahead():
            self.end(self.begin(fetch))

    def has(self, seq: int) -> bool:
        return any(part.start_seq <= seq <= part.last_seq for part in self.readers.parts)


def test_nothing_is_fetched_for_a_reader_that_has_not_gone_on() -> None:
    history = History()
    for seq in range(1, 100_000, 1000):
        history.read(seq, missed=True, count=1)
    assert history.readers.ahead() is None
    assert len(history.readers.readers) == MAX_PREFETCH_READERS


def test_a_reader_that_goes_on_finds_the_first_window_there() -> None:
    history = History()
    seq = history.read(1, missed=True)
    seq = history.read(seq, missed=True)
    history.fill()
    assert history.readers.held_bytes == START_WINDOW_BYTES
    assert history.has(seq) and not history.has(seq - 1)


def test_a_window_doubles_at_each_miss_and_is_no_larger_than_what_was_read() -> None:
    history, seq, windows = History(), 1, []
    for _ in range(300):
        seq = history.read(seq, missed=True)
        windows.append(history.readers.window_bytes)
    assert windows[:3] == [0, START_WINDOW_BYTES, 2 * START_WINDOW_BYTES]
    for pages, window in enumerate(windows, 1):
        assert window <= max(START_WINDOW_BYTES, pages * PAGE_BYTES)
    assert windows[-1] == MAX_WINDOW_BYTES
    history.read(seq, missed=False)
    assert history.readers.window_bytes == MAX_WINDOW_BYTES


def test_tiny_reads_that_miss_earn_no_window() -> None:
    history, seq = History(), 1
    for _ in range(60):
        seq = history.read(seq, missed=True, count=1)
    assert history.readers.window_bytes == START_WINDOW_BYTES


def test_what_left_before_it_was_read_halves_the_window() -> None:
    history, seq = History(), 1
    for _ in range(8):
        seq = history.read(seq, missed=True)
    window = history.readers.window_bytes
    history.fill()
    history.now += KEPT_SECONDS
    history.readers.readers[0].used_at = history.now
    assert history.readers.pass_on(history.now)
    assert history.readers.parts == []
    assert history.readers.window_bytes == window // 2


def test_a_fetch_that_failed_ends_the_window_until_the_reader_has_gone_on() -> None:
    history = History()
    seq = history.read(history.read(1, missed=True), missed=True)
    fetch = history.readers.ahead()
    assert fetch is not None
    history.readers.fetched(history.begin(fetch), None)
    assert history.readers.ahead() is None
    history.read(seq, missed=True)
    assert history.readers.window_bytes == START_WINDOW_BYTES


def test_the_end_is_asked_for_once_and_again_when_a_reader_finds_more() -> None:
    history = History()
    seq = history.read(history.read(1, missed=True), missed=True)
    fetch = history.readers.ahead()
    assert fetch is not None
    history.readers.ends_at(fetch)
    assert history.readers.ahead() is None
    history.read(seq, missed=True)
    assert history.readers.ahead() is not None


def test_where_a_reader_will_come_is_told_as_far_ahead_as_it_has_read() -> None:
    history, seq, told = History(), 1, []
    for pages in range(1, 300):
        seq = history.read(seq, missed=True)
        warming = history.readers.far_ahead()
        if warming is not None:
            assert warming.next_seq == seq
            far_bytes = (warming.far_seq - seq) * MESSAGE_BYTES
            assert far_bytes == min(pages * PAGE_BYTES, MAX_WINDOW_BYTES)
            told.append(warming.far_seq)
        assert history.readers.far_ahead() is None, "once"
    assert all((b - a) * MESSAGE_BYTES >= PREFETCH_STEP_BYTES for a, b in pairwise(told))
    assert len(told) > 20


def test_readers_of_the_same_place_share_what_is_fetched() -> None:
    history = History()
    for _ in range(3):
        history.read(history.read(1, missed=True), missed=True)
    assert len(history.readers.readers) == 1
    history.fill()
    assert max(history.fetched.values()) == 1


def test_readers_that_leave_leave_nothing() -> None:
    history = History()
    history.read(history.read(1, missed=True), missed=True)
    history.fill()
    history.now += PREFETCH_IDLE_SECONDS
    assert history.readers.pass_on(history.now)
    assert not history.readers.readers and not history.readers.parts


class Paging(RuleBasedStateMachine):
    """Readers at any places, whose fetches end in any order, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History(last_seq=20 * PAGE)
        self.places = [1]

    @rule(at=st.integers(0, 7), missed=st.booleans())
    def go_on(self, at: int, missed: bool) -> None:
        index = at % len(self.places)
        if self.places[index] <= self.history.last_seq:
            self.places[index] = self.history.read(self.places[index], missed=missed)

    @precondition(lambda self: len(self.places) < 8)
    @rule(seq=st.integers(1, 20 * PAGE))
    def come(self, seq: int) -> None:
        self.places.append(self.history.read(seq, missed=True))

    @rule()
    def begin(self) -> None:
        fetch = self.history.readers.ahead()
        if fetch is None:
            return
        if fetch.start_seq > self.history.last_seq:
            self.history.readers.ends_at(fetch)
        else:
            self.history.begin(fetch)

    @precondition(lambda self: self.history.readers.fetching)
    @rule(at=st.integers(0, 7), fails=st.integers(0, 4))
    def end(self, at: int, fails: int) -> None:
        fetching = self.history.readers.fetching
        fetch = fetching[at % len(fetching)]
        if fails == 0:
            self.history.readers.fetched(fetch, None)
        elif fails == 1:
            self.history.readers.withdrawn(fetch)
        else:
            self.history.end(fetch)

    @rule(seconds=st.sampled_from([0.0, 1.0, PREFETCH_IDLE_SECONDS / 2, KEPT_SECONDS]))
    def pass_on(self, seconds: float) -> None:
        self.history.now += seconds
        before = list(self.history.readers.parts)
        gone = self.history.readers.pass_on(self.history.now)
        assert sorted([*gone, *self.history.readers.parts]) == sorted(before)

    @invariant()
    def parts_do_not_overlap_and_windows_are_bounded(self) -> None:
        readers = self.history.readers
        for reader in readers.readers:
            most = max(START_WINDOW_BYTES, reader.read_bytes)
            assert reader.window_bytes <= min(most, MAX_WINDOW_BYTES)
        assert len(readers.readers) <= MAX_PREFETCH_READERS
        covered = [(part.start_seq, part.last_seq) for part in readers.parts]
        covered += [(fetch.start_seq, fetch.last_seq) for fetch in readers.fetching]
        covered.sort()
        for (_, last_seq), (start_seq, _) in pairwise(covered):
            assert last_seq < start_seq, "nothing is fetched twice"


TestPaging = Paging.TestCase
TestPaging.settings = settings(max_examples=examples(400), stateful_step_count=50)
