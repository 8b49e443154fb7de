"""Reads by subject against a plain model, whatever way the owner takes: few subjects and many, few
messages and many, pages of any size, and a loop that is late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.persist.operations import reads, subject_reads
from holdfast.persist.operations.read_rows import ReadBounds
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.limits import MAX_FILTERS, MAX_INTEGER, PAGE_BYTES
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subject_filters import matches
from holdfast.shared_fs.store_file import subject_reads as in_file
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples

TIME = 1000


class Stream:
    """A stream on a real file, and what should be in it."""

    def __init__(self, path: Path) -> None:
        self.id = StoreId("acme", StoreKind.STREAM, "a.b")
        self.file = StoreFile.create(path, self.id, time=TIME)
        self.store = Store(self.id, 1, self.file, lambda: self.file)
        #: By seq: revision, time, value and subject.
        self.messages: dict[int, tuple[int, int, bytes, str | None]] = {}
        self.last_seq = 0
        self.time = TIME
        self.is_late = False

    def change(self, *changes: list[Any]) -> None:
        """Apply changes in one transaction."""
        self.time += 1
        revision = self.file.meta.revision
        self.file.apply([AppliedBatch(revision, self.time, list(changes))])
        for made, (number, what, *more) in enumerate(changes, revision + 1):
            if number == CHANGE_SET_MESSAGE:
                subject = more[4] if len(more) > 4 else None
                self.messages[what] = (made, self.time, more[0], subject)
                self.last_seq = max(self.last_seq, what)
            elif number == CHANGE_DELETE_MESSAGES:
                for seq in what:
                    self.messages.pop(seq, None)
            else:
                self.messages = {seq: row for seq, row in self.messages.items() if seq > what}
        assert self.file.meta.count == len(self.messages)

    def reopen(self) -> None:
        """Close the file and open it again."""
        path = self.file.path
        self.file.close()
        self.file = self.store.file = StoreFile.open(path, self.id)

    def append(self, *subjects: str | None, value: bytes = b"v") -> None:
        self.change(
            *(
                [CHANGE_SET_MESSAGE, seq, value, None, None, None, subject]
                if subject is not None
                else [CHANGE_SET_MESSAGE, seq, value]
                for seq, subject in enumerate(subjects, self.last_seq + 1)
            )
        )

    def ask(self, *operation: Any) -> Any:
        """Return the answer to one read, as it comes from the wire."""
        [result] = reads.execute(
            self.store, "s1", [list(operation)], bounds=ReadBounds(lambda: self.is_late)
        )
        packed = frames.pack(result)
        assert len(packed) < PAGE_BYTES + 40_000
        return frames.unpack(packed)

    # What it should say
    def matching(self, filters: list[str], start: int = 1, end: int | None = None) -> list[int]:
        return [
            seq
            for seq, (*_, subject) in sorted(self.messages.items())
            if seq >= start and (end is None or seq <= end) and fits(filters, subject)
        ]

    def lasts(self, filters: list[str], end: int | None = None) -> list[int]:
        found = {self.messages[seq][3]: seq for seq in self.matching(filters or [">"], 1, end)}
        return sorted(found.values())

    # What it says, page by page
    def by_subject(self, filters: list[str], start: int | None = None, **more: Any) -> list[int]:
        seqs: list[int] = []
        while True:
            page, next_seq = self.ask(
                frames.GET_BY_SUBJECT, filters, start, None,
                more.get("limit"), more.get("max_bytes"),
            )  # fmt: skip
            assert len(page) <= more.get("limit", 1 << 30)
            for row in page:
                self.check_row(row)
            seqs += [row[0] for row in page]
            if next_seq is None:
                return seqs
            assert next_seq > max([start or 1, *seqs]) - 1
            assert page or next_seq > (start or 0)
            start = next_seq

    def get_lasts(
        self, filters: list[str], up_to: int | None = None, limit: int | None = None
    ) -> list[int]:
        seqs: list[int] = []
        after = None
        while True:
            page, next_after = self.ask(frames.GET_LASTS, filters, up_to, after, limit)
            for row in page:
                self.check_row(row)
            seqs += [row[0] for row in page]
            if next_after is None:
                return seqs
            assert next_after > (after or 0) or (page and next_after >= page[-1][0])
            after = next_after

    def subjects(self, wanted: str | None, limit: int | None = None) -> list[list[Any]]:
        found: list[list[Any]] = []
        after = None
        while True:
            page, after = self.ask(frames.SUBJECTS, wanted, after, limit)
            found += page
            if after is None:
                return found

    def count(
        self, filters: list[str], start: int | None, end: int | None = None, lasts: bool = False
    ) -> int:
        total = 0
        while True:
            found, last_seq, start = self.ask(frames.COUNT, filters, start, lasts, end)
            assert last_seq == self.last_seq
            total += found
            if start is None:
                return total

    def gaps(self, start: int | None = None, limit: int | None = None) -> list[int]:
        found: list[int] = []
        while True:
            page, start = self.ask(frames.GAPS, start, limit)
            assert limit is None or len(page) <= limit
            found += page
            if start is None:
                return found

    def check_row(self, row: list[Any]) -> None:
        seq, revision, time, value, headers, *subject = row
        wanted = self.messages[seq]
        assert (revision, time, value, headers) == (*wanted[:3], None)
        assert (subject or [None]) == [wanted[3]]


def fits(filters: list[str], subject: str | None) -> bool:
    if not filters:
        return True
    return subject is not None and any(matches(each, subject) for each in filters)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(tmp_path / "store.db")
    yield stream
    stream.file.close()


TOKENS = ("a", "b", "c", "ü")
TEXTS = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=3).map(".".join)
FILTERS = st.lists(
    st.one_of(
        TEXTS,
        st.sampled_from([">", "*", "a.*", "*.b", "a.>", "a.*.c", "*.*", "ü.>", "none.>", "none"]),
    ),
    max_size=3,
)
STEPS = st.lists(
    st.one_of(
        st.lists(st.one_of(TEXTS, TEXTS, st.none()), min_size=1, max_size=12),
        st.lists(st.one_of(TEXTS, TEXTS, st.none()), min_size=1, max_size=12),
        st.tuples(st.just("delete"), st.lists(st.integers(1, 60), min_size=1, max_size=9)),
        st.tuples(st.just("trim"), st.integers(1, 30)),
        st.tuples(st.just("set"), st.integers(1, 60)),
    ),
    max_size=8,
)


def grow(stream: Stream, steps: list[Any]) -> None:
    for step in steps:
        if type(step) is list:
            stream.append(*step)
        elif step[0] == "delete" and set(step[1]) & stream.messages.keys():
            stream.change([CHANGE_DELETE_MESSAGES, step[1]])
        elif step[0] == "trim":
            stream.change([CHANGE_TRIM, min(step[1], stream.last_seq)])
        elif step[0] == "set" and (row := stream.messages.get(step[1])) is not None:
            stream.change([CHANGE_SET_MESSAGE, step[1], b"again", None, None, None, row[3]])


def check(stream: Stream, filters: list[str], place: int, end: int, limit: int) -> None:
    """Compare every read with the model."""
    assert stream.by_subject(filters, limit=limit) == stream.matching(filters)
    assert stream.by_subject(filters, place) == stream.matching(filters, place)
    assert stream.by_subject(filters, place, max_bytes=limit) == stream.matching(filters, place)
    assert stream.get_lasts(filters) == stream.lasts(filters)
    assert stream.get_lasts(filters, end, limit) == stream.lasts(filters, end)
    for start, upto in ((None, None), (place, None), (place, end), (None, end)):
        wanted = stream.matching(filters, start or 1, upto)
        assert stream.count(filters, start, upto) == len(wanted)
        lasts = [seq for seq in stream.lasts(filters, upto) if seq >= (start or 1)]
        assert stream.count(filters, start, upto, lasts=True) == len(lasts)
    for wanted in [*filters, None]:
        rows = []
        for subject in {row[3] for row in stream.messages.values() if row[3] is not None}:
            seqs = stream.matching([subject])
            if wanted is None or matches(wanted, subject):
                rows.append([subject, len(seqs), seqs[0], seqs[-1]])
        rows.sort(key=lambda row: row[0].encode())
        assert stream.subjects(wanted, limit) == rows
    present = sorted(stream.messages)
    inner = range(present[0], stream.last_seq + 1) if present else range(0)
    missing = [seq for seq in inner if seq not in stream.messages]
    assert stream.gaps(limit=limit) == missing
    assert stream.gaps(place) == [seq for seq in missing if seq >= place]


#: Which ways there are, by limits that are made small.
WAYS: dict[str, dict[str, int]] = {
    "as it is": {},
    "a scan": {
        "_MAX_SUBJECTS": 0,
        "_SUBJECTS_CHUNK": 2,
        "_FIRST_CHUNK": 1,
        "_MAX_CHUNK": 4,
        "_MIN_LOOKED_AT": 1,
        "_MAX_LOOKED_AT": 7,
    },
    "a scan of known subjects": {
        "_MAX_MERGED": 0,
        "_MAX_COLLECTED": 0,
        "_MAX_COUNTED": 0,
        "_FIRST_CHUNK": 2,
        "_MAX_CHUNK": 3,
        "_MAX_LOOKED_AT": 3,
    },
    "all seqs of known subjects": {"_MAX_MERGED": 0},
    "small pieces of the index": {"_MAX_COUNTED": 4, "_FIRST_SEQS": 1, "_MAX_SEQS": 2},
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=examples(100), deadline=None)
@given(
    steps=STEPS,
    filters=FILTERS,
    place=st.integers(-1, 70),
    end=st.integers(0, 70),
    limit=st.integers(1, 9),
    is_late=st.booleans(),
)
def test_every_read_says_what_a_plain_model_says(
    way: str,
    steps: list[Any],
    filters: list[str],
    place: int,
    end: int,
    limit: int,
    is_late: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stream = Stream(tmp_path_factory.mktemp("stream") / "store.db")
    with closing(stream.file), pytest.MonkeyPatch.context() as patch:
        for name, value in WAYS[way].items():
            patch.setattr(in_file, name, value)
        if way != "as it is":
            patch.setattr(subject_reads, "_MAX_SEQS", 3)
            patch.setattr(subject_reads, "_MAX_STATEMENTS", 2)
        stream.is_late = is_late
        grow(stream, steps)
        check(stream, filters, place, end, limit)


@pytest.mark.parametrize(
    "operation",
    [
        [frames.GET_BY_SUBJECT, "a"],
        [frames.GET_BY_SUBJECT, [1]],
        [frames.GET_BY_SUBJECT, ["a..b"]],
        [frames.GET_BY_SUBJECT, ["a.>.b"]],
        [frames.GET_BY_SUBJECT, ["a b"]],
        [frames.GET_BY_SUBJECT, ["\ud800"]],
        [frames.GET_BY_SUBJECT, [], "1"],
        [frames.GET_BY_SUBJECT, [], 1 << 63],
        [frames.GET_BY_SUBJECT, [], None, 1.5],
        [frames.GET_BY_SUBJECT, [], None, None, True],
        [frames.GET_BY_SUBJECT, [], None, None, None, b""],
        [frames.GET_LASTS, {}],
        [frames.GET_LASTS, [None]],
        [frames.GET_LASTS, [], "1"],
        [frames.GET_LASTS, [], None, "1"],
        [frames.GET_LASTS, [], None, None, "1"],
        [frames.SUBJECTS, ""],
        [frames.SUBJECTS, b"a"],
        [frames.SUBJECTS, None, 1],
        [frames.SUBJECTS, None, None, "1"],
        [frames.COUNT, ["."]],
        [frames.COUNT, [], "1"],
        [frames.COUNT, [], None, 1],
        [frames.COUNT, [], None, None, "1"],
        [frames.GAPS, "1"],
        [frames.GAPS, None, "1"],
    ],
)
def test_arguments_that_make_no_sense_are_refused(stream: Stream, operation: list[Any]) -> None:
    assert stream.ask(*operation)[0] == "invalid_argument"
    stream.append("a", None)
    assert stream.ask(*operation)[0] == "invalid_argument"


def test_too_many_filters_and_too_long_ones_are_refused(stream: Stream) -> None:
    assert stream.ask(frames.COUNT, ["a"] * (MAX_FILTERS + 1))[0] == "too_large"
    assert stream.ask(frames.COUNT, ["a" * 1025])[0] == "too_large"
    stream.append("a")
    many = [f"x{number}" for number in range(MAX_FILTERS - 1)]
    assert stream.ask(frames.COUNT, [*many, "a"]) == [1, 1, None]


@pytest.mark.parametrize("extreme", [MAX_INTEGER, -MAX_INTEGER - 1, 0, -1])
def test_extreme_numbers_are_places_without_messages(stream: Stream, extreme: int) -> None:
    stream.append("a", None, "b")
    stream.change([CHANGE_DELETE_MESSAGES, [2]])
    beyond = extreme > 3
    [seqs, following] = stream.ask(frames.GET_BY_SUBJECT, [">"], extreme)
    assert ([row[0] for row in seqs], following) == ([] if beyond else [1, 3], None)
    assert len(stream.ask(frames.GET_BY_SUBJECT, [">"], None, None, None, extreme)[0]) == (
        2 if beyond else 1
    )
    assert stream.ask(frames.GET_BY_SUBJECT, [">"], None, extreme)[1] is None
    assert len(stream.ask(frames.GET_BY_SUBJECT, [">"], None, None, extreme)[0]) == 2 * beyond
    assert len(stream.ask(frames.GET_LASTS, [], extreme)[0]) == 2 * beyond
    assert len(stream.ask(frames.GET_LASTS, [], None, extreme)[0]) == 2 * (not beyond)
    assert stream.ask(frames.COUNT, [], extreme)[0] == 2 * (not beyond)
    assert stream.ask(frames.COUNT, [], None, False, extreme)[0] == 2 * beyond
    assert stream.ask(frames.COUNT, [">"], None, False, extreme)[0] == 2 * beyond
    assert stream.ask(frames.GAPS, extreme)[0] == [2] * (not beyond)


def test_a_store_that_was_never_written_has_no_subject(tmp_path: Path) -> None:
    stream = StoreId("acme", StoreKind.STREAM, "none")
    store = Store(stream, 1, None, lambda _: StoreFile.create(tmp_path / "s", stream, time=1))
    asked = [
        [frames.GET_BY_SUBJECT, ["a"]],
        [frames.GET_LASTS, []],
        [frames.SUBJECTS],
        [frames.COUNT, ["a"]],
        [frames.GAPS],
    ]
    answers = reads.execute(store, "s1", asked)
    assert answers == [[[], None], [[], None], [[], None], [0, 0, None], [[], None]]


def test_a_stream_without_subjects_has_no_subject_and_gives_all_to_no_filter(
    stream: Stream,
) -> None:
    stream.append(None, None, None)
    stream.change([CHANGE_DELETE_MESSAGES, [2]])
    check(stream, [], 2, 3, 1)
    check(stream, [">"], 1, 3, 1)


def test_a_filter_that_matches_little_is_looked_for_in_pieces(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_file, "_MAX_SUBJECTS", 10)
    names = [f"s.{number}" for number in range(3000)]
    stream.append(*names)
    stream.append("wanted.x")
    monkeypatch.setattr(in_file, "_MAX_LOOKED_AT", 1000)
    pages = []
    start = None
    while True:
        page, start = stream.ask(frames.GET_BY_SUBJECT, ["*.x"], start)
        pages.append(len(page))
        if start is None:
            break
    assert sum(pages) == 1
    assert len(pages) >= 2
    stream.is_late = True
    page, start = stream.ask(frames.GET_BY_SUBJECT, ["*.x"])
    assert (page, start) == ([], in_file._MIN_LOOKED_AT + 1)
    assert stream.by_subject(["*.x"]) == [3001]
    assert stream.count(["*.x"], 1) == 1
    assert stream.get_lasts(["*.x"]) == [3001]
    assert stream.subjects("*.x") == [["wanted.x", 1, 3001, 3001]]


def test_a_page_of_large_messages_and_of_long_subjects_fits_into_a_frame(stream: Stream) -> None:
    for number in range(8):
        stream.append(f"a.{number}", value=bytes(200_000))
    assert stream.by_subject(["a.*"]) == list(range(1, 9))
    assert stream.get_lasts([]) == list(range(1, 9))
    stream.append(*[f"{number:04}" + "x" * 1000 for number in range(1500)])
    assert len(stream.subjects(None)) == 1508
    assert len(stream.by_subject([])) == len(stream.by_subject([">"])) == 1508
    seqs: list[int] = []
    start: int | None = 1
    while start is not None:
        page, start = stream.ask(frames.GET_MESSAGES, start)
        seqs += [row[0] for row in page]
        assert len({row[5] for row in page}) == len(page)
    assert seqs == list(range(1, 1509))
    page, _ = stream.ask(frames.GET_SEQS, [seq for seq in seqs if seq % 2])
    assert page[-1][5] == stream.messages[page[-1][0]][3]


def test_a_head_tells_of_the_first_and_the_last_message_and_of_subjects(stream: Stream) -> None:
    def head() -> list[Any]:
        *found, changed_at = stream.ask(frames.HEAD)[7:]
        assert changed_at >= found[1]
        return found

    assert head() == [0, 0, 0, None]
    stream.append("a", "b")
    stream.append("a", None)
    block = b"NATS/1.0\r\nNats-Msg-Id: x1\r\n\r\n"
    stream.change([CHANGE_SET_MESSAGE, 5, b"v", block, "x1", None, "c"])
    assert head() == [TIME + 1, TIME + 3, 3, "x1"]
    stream.change([CHANGE_DELETE_MESSAGES, [1, 2, 5]])
    assert head() == [TIME + 2, TIME + 3, 1, "x1"]
    stream.change([CHANGE_TRIM, 5])
    assert head() == [0, TIME + 3, 0, "x1"]
    stream.reopen()
    assert head() == [0, TIME + 3, 0, "x1"]
    stream.append("d")
    assert head() == [TIME + 6, TIME + 6, 1, None]


def test_the_time_of_the_last_message_is_known_after_a_trim_in_parts(stream: Stream) -> None:
    stream.append("a", "b", "c")
    assert not stream.file.trim_some(3)
    stream.change([CHANGE_TRIM, 3])
    assert stream.ask(frames.HEAD)[7:10] == [0, TIME + 1, 0]
    stream.append("a")
    assert stream.ask(frames.HEAD)[7:10] == [TIME + 3, TIME + 3, 1]


def test_the_time_of_messages_selects_where_reading_begins(stream: Stream) -> None:
    for _ in range(5):
        stream.append("a", "b")
    for start in range(TIME, TIME + 8):
        page, _ = stream.ask(frames.GET_BY_SUBJECT, ["b"], None, start)
        wanted = [seq for seq in stream.matching(["b"]) if stream.messages[seq][1] >= start]
        assert [row[0] for row in page] == wanted
