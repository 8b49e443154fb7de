"""Subjects in a store file: made with the first one, counted exactly, found by index."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol.changes import (
    CHANGE_ARCHIVE,
    CHANGE_CONFIGURE,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
    NEVER_EXPIRES,
)
from holdfast.protocol.errors import StoreDamagedError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.subject_filters import Filters, matches
from holdfast.shared_fs.inspection.inspection import FileState, inspect_store_file
from holdfast.shared_fs.store_file import schema, subject_schema
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.reading.going_rows import GoingOrder
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import new_store_image
from tests.support.effort import examples
from tests.support.present import present
from tests.support.small_store_files import STREAM, appends, in_memory_file, reopened, rows_of

BLOCK = HeaderBlock.of({"Nats-Msg-Id": "id-7", "a": "1"}).block
LARGEST = (1 << 63) - 1


def said(seq: int, subject: str | None, value: bytes = b"v", headers: Any = None) -> list[Any]:
    return [CHANGE_SET_MESSAGE, seq, value, headers, None, None, subject]


def applied(file: StoreFile, *changes: list[Any]) -> None:
    file.apply([AppliedBatch(file.meta.revision, 1000 + file.meta.revision, list(changes))])


def subjects_of(file: StoreFile) -> dict[str, int]:
    return {row.subject: row.message_count for row in present(file.subjects.matching(Filters()))}


def user_version(path: Path) -> int:
    connection = sqlite3.connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(version)


def test_a_file_without_subjects_knows_nothing_of_them(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 10)])
    tables = {row[0] for row in file._connection.execute("SELECT name FROM sqlite_schema")}
    assert not tables & {"subjects", "by_subject"}
    assert (subjects_of(file), file.subjects.total(), file.subjects.find("a")) == ({}, 0, None)
    file.close()
    assert user_version(path) == schema.FORMAT_VERSION


def test_the_first_subject_makes_the_tables_and_marks_the_file(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    file.apply([appends(1, 2)])
    plain = [CHANGE_SET_MESSAGE, 5, b"x"]
    applied(file, said(3, "a.b", b"one"), said(4, "a.c", b"two", BLOCK), plain)
    rows = [(row[0], *row[3:]) for row in rows_of(file)]
    assert rows[2:] == [(3, b"one", None, "a.b"), (4, b"two", BLOCK, "a.c"), (5, b"x", None, None)]
    assert file.meta.bytes == 5 + 5 + (33 + 3) + (33 + len(BLOCK) + 4 + 3) + 1
    assert file.meta.bytes == file.sum_messages(1, 9)[1] == sum(map(bytes_of(file), range(1, 6)))
    assert subjects_of(file) == {"a.b": 1, "a.c": 1}
    assert file.subjects.subject_of(3) == "a.b"
    assert file.subjects.subject_of(5) is file.subjects.subject_of(9) is None
    file.close()
    assert user_version(path) == schema.SUBJECTS_FORMAT
    with reopened(path) as again:
        assert [(row[0], *row[3:]) for row in rows_of(again)] == rows
        assert subjects_of(again) == {"a.b": 1, "a.c": 1}
        assert again.subjects.total() == 2


def bytes_of(file: StoreFile) -> Any:
    return lambda seq: file.message_bytes(seq) or 0


def test_a_header_block_alone_marks_the_file_too(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    applied(file, [CHANGE_SET_MESSAGE, 1, b"v", BLOCK])
    assert rows_of(file)[0][3:] == (b"v", BLOCK)
    assert not file.subjects.exists
    assert file.meta.bytes == file.sum_messages(1, 1)[1] == 1 + len(BLOCK)
    file.close()
    assert user_version(path) == schema.SUBJECTS_FORMAT


def test_a_file_that_counted_less_is_upgraded_once(path: Path) -> None:
    with closing(StoreFile.create(path, STREAM, time=1)) as file:
        applied(file, said(1, "a", b"one"), said(2, "b", b"two", BLOCK), said(3, None))
        applied(file, said(4, "a"), [CHANGE_DELETE_MESSAGES, [4]])
        size_bytes = file.meta.bytes
        file._connection.execute("UPDATE meta SET bytes = bytes - ?", (2 * 30,))
        file._connection.pragma("user_version", schema.FIRST_SUBJECTS_FORMAT)
    assert inspect_store_file(path, STREAM, deep=True).state is FileState.SOUND
    for _ in range(2):
        with reopened(path) as file:
            assert file.meta.bytes == file.sum_messages(1, 9)[1] == size_bytes
        assert user_version(path) == schema.SUBJECTS_FORMAT
        assert inspect_store_file(path, STREAM, deep=True).state is FileState.SOUND
    with reopened(path) as file:
        applied(file, [CHANGE_DELETE_MESSAGES, [1, 2, 3]])
        assert file.meta.bytes == 0


def test_an_upgrade_of_a_file_with_header_blocks_alone_marks_it(path: Path) -> None:
    with closing(StoreFile.create(path, STREAM, time=1)) as file:
        applied(file, [CHANGE_SET_MESSAGE, 1, b"v", BLOCK])
        size_bytes = file.meta.bytes
        file._connection.pragma("user_version", schema.FIRST_SUBJECTS_FORMAT)
    with reopened(path) as file:
        assert file.meta.bytes == size_bytes
    assert user_version(path) == schema.SUBJECTS_FORMAT


def test_what_is_taken_back_leaves_no_subject(file: StoreFile) -> None:
    with file.preview([AppliedBatch(0, 1000, [said(1, "a")])]):
        assert subjects_of(file) == {"a": 1}
    assert not file.subjects.exists
    with pytest.raises(StoreDamagedError):
        applied(file, said(1, "a"), [CHANGE_SET_MESSAGE, 2, b"v", None, None, None, 7])
    assert not file.subjects.exists
    applied(file, said(1, "a"))
    with file.preview([AppliedBatch(1, 1000, [said(2, "b")])]):
        assert file.subjects.total() == 2
    assert (subjects_of(file), file.subjects.total()) == ({"a": 1}, 1)


def test_a_new_file_written_whole_has_its_subjects(path: Path) -> None:
    batches = [AppliedBatch(0, 1000, [said(1, "a"), said(2, "b"), said(3, "a")])]
    image = new_store_image(STREAM, time=1, owner=(1, "s", "i"), batches=batches, outcomes=[])
    file = StoreFile.new(path, present(image))
    assert [row[5] for row in rows_of(file)] == ["a", "b", "a"]
    applied(file, said(4, "a"))
    assert subjects_of(file) == {"a": 3, "b": 1}
    file.close()
    # The next image does not know of it.
    image = new_store_image(
        STREAM, time=1, owner=(1, "s", "i"), batches=[appends(1, 1)], outcomes=[]
    )
    assert not present(image).has_subjects


def test_followers_that_catch_up_are_told_subjects_and_blocks(file: StoreFile) -> None:
    applied(file, said(1, "a", headers=BLOCK), said(2, "b"), [CHANGE_SET_MESSAGE, 3, b"v"])
    applied(file, said(1, "a", b"again"))
    found, complete = file.changes_after(0, 0, deletes_after=4, max_rows=9, max_bytes=9999)
    assert complete
    assert [change for _, _, change in found] == [
        said(2, "b"),
        [CHANGE_SET_MESSAGE, 3, b"v", None],
        said(1, "a", b"again"),
    ]


def test_the_last_msg_id_is_that_of_the_last_message(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    assert file.last_msg_id() is None
    applied(file, [CHANGE_SET_MESSAGE, 1, b"v", None, "id-1"])
    assert file.last_msg_id() == "id-1"
    applied(file, [CHANGE_SET_MESSAGE, 2, b"v", None, "id-2"], [CHANGE_DELETE_MESSAGES, [2]])
    assert file.last_msg_id() == "id-2"
    file.close()
    with reopened(path) as again:
        assert again.last_msg_id() == "id-2"
        applied(again, [CHANGE_SET_MESSAGE, 3, b"v"])
        assert again.last_msg_id() is None
        applied(again, said(4, "a", headers=BLOCK))
        assert again.last_msg_id() == "id-7"
    with reopened(path) as again:
        assert again.last_msg_id() == "id-7"


def test_the_first_seq_of_a_configuration_counts_until_there_is_a_message(file: StoreFile) -> None:
    applied(file, [CHANGE_CONFIGURE, {"first_seq": 100}])
    assert (file.meta.last_seq, file.first_seq()) == (99, 100)
    applied(file, said(100, "a"), [CHANGE_CONFIGURE, {"first_seq": 100, "max_messages": 5}])
    assert (file.meta.last_seq, file.first_seq(), file.meta.count) == (100, 100, 1)


def test_messages_that_never_expire_are_not_among_the_aging(file: StoreFile) -> None:
    never = [CHANGE_SET_MESSAGE, 1, b"v", None, None, NEVER_EXPIRES, "a"]
    applied(file, never, said(2, "a"), [CHANGE_SET_MESSAGE, 3, b"v", None, None, NEVER_EXPIRES])
    applied(file, said(2, "a", b"again"), said(4, "b"))
    assert [row.key for row in file.going(GoingOrder.TIME)] == [4]
    assert [row.key for row in file.going(GoingOrder.TIME_REPLACED)] == [2]
    assert [row.key for row in file.going(GoingOrder.EXPIRES)] == [1, 3]
    assert [row.size_bytes for row in file.going(GoingOrder.LIMITS)] == [32, 36, 1, 32]


def test_messages_with_subjects_or_blocks_are_not_archived(file: StoreFile) -> None:
    applied(file, *(said(seq, None) for seq in (1, 2)), said(3, "a"), said(4, None, headers=BLOCK))
    applied(file, *(said(seq, None) for seq in (5, 6)))
    [draft] = file.archivable("t", revision=99, time=9999, max_blocks=9)
    assert [message.seq for message in draft.messages] == [1, 2, 5, 6]
    applied(file, [CHANGE_ARCHIVE, 6, "t"])
    assert [row[5] for row in rows_of(file)] == [None, None, "a", None, None, None]
    assert file.meta.count == 6
    assert file.sum_messages(1, 9) == (6, file.meta.bytes)
    applied(file, [CHANGE_DELETE_MESSAGES, [2, 3, 5]], said(6, None, b"again"))
    assert file.sum_messages(1, 9) == (file.meta.count, file.meta.bytes)
    assert subjects_of(file) == {}


def test_large_trims_in_parts_count_subjects(
    file: StoreFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.shared_fs.store_file.store_changes.MAX_TRIMMED_ROWS", 3)
    applied(file, *(said(seq, f"s{seq % 3}") for seq in range(1, 11)))
    while file.trim_some(8):
        assert file.subjects.damage() == ""
    assert subjects_of(file) == {"s0": 1, "s1": 1}
    applied(file, [CHANGE_TRIM, 9])
    assert subjects_of(file) == {"s1": 1}


@pytest.mark.parametrize(
    ("statement", "plan"),
    [
        (subject_schema.SELECT_LAST_SEQ, "SEARCH messages USING COVERING INDEX by_subject"),
        (subject_schema.SELECT_SEQS, "SEARCH messages USING COVERING INDEX by_subject"),
        (subject_schema.COUNT_MESSAGES_UP_TO, "SEARCH messages USING COVERING INDEX by_subject"),
        (subject_schema.COUNT_UP_TO, "SEARCH messages USING INTEGER PRIMARY KEY (rowid<?)"),
        (subject_schema.COUNT_OF_MANY, "SEARCH messages USING INTEGER PRIMARY KEY (rowid=?)"),
        (subject_schema.SELECT_SUBJECTS, "SEARCH subjects USING INDEX sqlite_autoindex_subjects_1"),
        (schema.SUM_MESSAGES, "SEARCH messages USING INTEGER PRIMARY KEY"),
        (schema.SELECT_MESSAGES, "SEARCH messages USING INTEGER PRIMARY KEY"),
        (schema.SELECT_MESSAGES_BY_SEQ, "SEARCH messages USING INTEGER PRIMARY KEY"),
    ],
)
def test_questions_about_subjects_are_answered_by_an_index(
    file: StoreFile, statement: str, plan: str
) -> None:
    applied(file, said(1, "a"))
    explain = f"EXPLAIN QUERY PLAN {subject_schema.with_subjects(statement)}"
    rows: list[Any] = file._connection.execute(explain, (None,) * statement.count("?")).fetchall()
    assert rows[0][3].startswith(plan), rows


def test_verification_counts_the_messages_of_each_subject(path: Path) -> None:
    file = StoreFile.create(path, STREAM, time=1)
    applied(file, said(1, "a"), said(2, "b"))
    file.close()
    assert inspect_store_file(path, STREAM, deep=True).state is FileState.SOUND
    with reopened(path) as again:
        again._execute("UPDATE subjects SET count = 2 WHERE subject = 'a'")
    found = inspect_store_file(path, STREAM, deep=True)
    assert (found.state, found.reason) == (
        FileState.MISCOUNTED,
        "subject 'a' has 1 messages instead of 2",
    )
    with reopened(path) as again:
        again._execute("UPDATE subjects SET count = 1 WHERE subject = 'a'")
        again._execute("UPDATE messages SET subject = 77 WHERE seq = 2")
        again._execute("DELETE FROM subjects WHERE subject = 'b'")
    found = inspect_store_file(path, STREAM, deep=True)
    assert (found.state, found.reason) == (
        FileState.MISCOUNTED,
        "message 2 has an unknown subject",
    )


# A model
_SUBJECTS = st.sampled_from([None, "a", "a.b", "a.c", "b.b", "é", "a.b.c"])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _SUBJECTS, st.booleans()),
        st.tuples(st.just("replace"), st.integers(1, 30), st.just(0)),
        st.tuples(st.just("delete"), st.lists(st.integers(1, 30), min_size=1), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("apply"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(_STEPS)
@settings(max_examples=examples(60), deadline=None)
def test_a_file_counts_its_subjects_as_a_plain_model_does(steps: list[Any]) -> None:
    file = in_memory_file(STREAM)
    model: dict[int, tuple[str | None, bytes]] = {}
    waiting: list[Any] = []
    last_seq = 0
    for step, what, flag in [*steps, ("apply", 0, 0)]:
        if step == "append":
            last_seq += 1
            headers = BLOCK if flag else None
            model[last_seq] = (what, headers or b"")
            waiting.append(said(last_seq, what, headers=headers))
        elif step == "replace" and what in model:
            waiting.append(said(what, model[what][0]))
            model[what] = (model[what][0], b"")
        elif step == "delete" and (there := [seq for seq in dict.fromkeys(what) if seq in model]):
            waiting.append([CHANGE_DELETE_MESSAGES, there])
            for seq in there:
                del model[seq]
        elif step == "trim" and (end_seq := min(what, last_seq)):
            waiting.append([CHANGE_TRIM, end_seq])
            model = {seq: each for seq, each in model.items() if seq > end_seq}
        elif step == "apply" and waiting:
            applied(file, *waiting)
            waiting = []
            _check(file, model)
    file.abandon()


def _check(file: StoreFile, model: dict[int, tuple[str | None, bytes]]) -> None:
    counts: dict[str, int] = {}
    size_bytes = 0
    for subject, headers in model.values():
        size_bytes += 1 + len(headers)
        if subject is not None:
            counts[subject] = counts.get(subject, 0) + 1
            size_bytes += 30 + len(subject.encode()) + (4 if headers else 0)
    assert subjects_of(file) == counts
    assert file.subjects.total() == len(counts)
    assert file.subjects.damage() == ""
    assert (file.meta.count, file.meta.bytes) == (len(model), size_bytes)
    assert file.sum_messages(1, 99) == (len(model), size_bytes)
    for subject in counts:
        seqs = [seq for seq in sorted(model) if model[seq][0] == subject]
        row = present(file.subjects.find(subject))
        assert file.subjects.seqs(row.id, 0, LARGEST, 99) == seqs
        assert file.subjects.last_seq(row.id) == seqs[-1]
        assert file.subjects.count_up_to(row.id, 10) == sum(seq <= 10 for seq in seqs)
    for filters in (["a.*"], ["*.b", "é"], ["a.>"], ["a"], [">"], ["b.b", "a.c"]):
        found = present(file.subjects.matching(Filters(filters)))
        wanted = [each for each in sorted(counts) if any(matches(one, each) for one in filters)]
        assert [row.subject for row in found] == wanted


# Messages that come and go within one transaction
def kept_last(rounds: int, each: int, keys: int) -> list[AppliedBatch]:
    """Ticks that set keys in turns, each of which keeps its last value."""
    last: dict[str, int] = {}
    batches: list[AppliedBatch] = []
    revision = seq = 0
    for tick in range(rounds):
        made: list[list[Any]] = []
        gone: list[int] = []
        for _ in range(each):
            seq += 1
            subject = f"k.{seq % keys}"
            made.append(said(seq, subject, b"v%d" % seq, BLOCK if seq % 5 == 0 else None))
            if subject in last:
                gone.append(last[subject])
            last[subject] = seq
        if gone:
            made.append([CHANGE_DELETE_MESSAGES, sorted(gone), 2])
        batches.append(AppliedBatch(revision, 1000 + tick, made))
        revision += len(made)
    return batches


def apply_each(file: StoreFile, batches: list[AppliedBatch]) -> None:
    """Apply every change in a transaction of its own."""
    for batch in batches:
        for at, change in enumerate(batch.changes):
            file.apply([AppliedBatch(batch.previous_revision + at, batch.time, [change])])


def content(file: StoreFile) -> list[Any]:
    """Everything that a reader of the file can find; ids of subjects may differ."""
    found: list[Any] = [file.meta, rows_of(file), subjects_of(file)]
    for table in ("changes", "msg_ids"):
        found.append(list(file._connection.execute(f"SELECT * FROM {table} ORDER BY 1")))
    return found


@pytest.mark.parametrize("each", [1, 3, 4, 32])
@pytest.mark.parametrize("at_once", [2, 7, 40])
def test_what_comes_and_goes_at_once_leaves_what_it_leaves_in_steps(
    each: int, at_once: int
) -> None:
    batches = kept_last(40, each, 24)
    step_by_step, together = in_memory_file(STREAM), in_memory_file(STREAM)
    apply_each(step_by_step, batches)
    for start in range(0, len(batches), at_once):
        together.apply(batches[start : start + at_once])
        assert together.subjects.damage() == ""
    assert content(together) == content(step_by_step)
    assert together.sum_messages(1, LARGEST) == (together.meta.count, together.meta.bytes)


def test_what_comes_and_goes_is_not_written(path: Path) -> None:
    batches = kept_last(64, 16, 24)
    with closing(StoreFile.create(path, STREAM, time=1)) as file:
        before = file._connection.total_changes()
        file.apply(batches)
        # Messages that stay, their subjects twice, and a row for each of the deletions.
        assert file._connection.total_changes() - before < 24 + 2 * 24 + 64 + 8
        assert file.meta.count == 24


def test_a_message_that_others_refer_to_is_written_though_it_goes(path: Path) -> None:
    """A msg_id outlives its message, and the time of the last message is told after it is gone."""
    with_id = [CHANGE_SET_MESSAGE, 1, b"one", None, "id-1", None, "k"]
    again = [CHANGE_SET_MESSAGE, 2, b"other", None, None, None, "k"]
    changes = [
        [with_id, said(2, "k"), [CHANGE_DELETE_MESSAGES, [1], 2]],
        [again, said(3, "k"), [CHANGE_DELETE_MESSAGES, [2], 2]],
        [[CHANGE_DELETE_MESSAGES, [3]]],
    ]
    batches = []
    revision = 0
    for tick, made in enumerate(changes):
        batches.append(AppliedBatch(revision, 1000 + tick, made))
        revision += len(made)
    step_by_step, together = in_memory_file(STREAM), in_memory_file(STREAM)
    apply_each(step_by_step, batches)
    together.apply(batches)
    assert content(together) == content(step_by_step)
    assert together.subjects.removed_last_time(3) == 1001


@pytest.mark.parametrize("config", [{"max_messages_per_subject": 1}, {"chain": True}])
@pytest.mark.parametrize("configured_at", [0, 3, 7])
def test_what_comes_and_goes_around_a_configuration(
    config: dict[str, Any], configured_at: int
) -> None:
    """A new bucket is configured with its first puts. A chain is over all that came."""
    batches, revision = list[AppliedBatch](), 0
    for tick in range(10):
        made: list[list[Any]] = []
        if tick == configured_at:
            made.append([CHANGE_CONFIGURE, config])
        seqs = range(4 * tick + 1, 4 * tick + 5)
        made += [said(seq, f"k{seq % 4}") for seq in seqs]
        if tick:
            made.append([CHANGE_DELETE_MESSAGES, [seq - 4 for seq in seqs]])
        batches.append(AppliedBatch(revision, 1000 + tick, made))
        revision += len(made)
    step_by_step, together = in_memory_file(STREAM), in_memory_file(STREAM)
    apply_each(step_by_step, batches)
    together.apply(batches)
    assert content(together) == content(step_by_step)
    assert together.chain.state == step_by_step.chain.state
    assert together.chain.exists == ("chain" in config)
    step_by_step.abandon()
    together.abandon()


_BATCH = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(["a", "b", "c.d", None]), st.booleans()),
        st.tuples(st.just("plain"), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("replace"), st.integers(1, 30), st.booleans()),
        st.tuples(st.just("delete"), st.lists(st.integers(1, 30), max_size=6), st.booleans()),
        st.tuples(st.just("trim"), st.integers(1, 30), st.booleans()),
    ),
    max_size=8,
)


@given(st.lists(_BATCH, max_size=12), st.integers(1, 5))
@settings(max_examples=examples(200), deadline=None)
def test_any_ticks_leave_the_same_together_as_one_by_one(
    ticks: list[list[Any]], at_once: int
) -> None:
    batches, model = [], dict[int, str | None]()
    last_seq = revision = 0
    for number, steps in enumerate(ticks):
        made: list[list[Any]] = []
        for step, what, flag in steps:
            if step == "append":
                last_seq += 1
                model[last_seq] = what
                made.append(said(last_seq, what, headers=BLOCK if flag else None))
                if flag and what == "b":
                    made[-1][4] = f"id-{last_seq}"
            elif step == "plain":
                for _ in range(what):
                    last_seq += 1
                    model[last_seq] = None
                    made.append([CHANGE_SET_MESSAGE, last_seq, b"plain"])
            elif step == "replace" and what in model:
                made.append(said(what, model[what], b"again"))
            elif step == "delete" and (there := [s for s in dict.fromkeys(what) if s in model]):
                made.append([CHANGE_DELETE_MESSAGES, there, 2])
                for seq in there:
                    del model[seq]
            elif step == "trim" and (end_seq := min(what, last_seq)):
                made.append([CHANGE_TRIM, end_seq])
                model = {seq: each for seq, each in model.items() if seq > end_seq}
        if made:
            batches.append(AppliedBatch(revision, 1000 + number, made))
            revision += len(made)
    step_by_step, together = in_memory_file(STREAM), in_memory_file(STREAM)
    apply_each(step_by_step, batches)
    for start in range(0, len(batches), at_once):
        together.apply(batches[start : start + at_once])
    assert content(together) == content(step_by_step)
    assert together.subjects.damage() == ""
    assert together.subjects.removed_last_time(last_seq) == step_by_step.subjects.removed_last_time(
        last_seq
    )
    step_by_step.abandon()
    together.abandon()
