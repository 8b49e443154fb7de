"""Cursors: the rules one by one, then random histories of writes, batches, failing ticks and new
owners against a dictionary."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_DELETE_CURSOR, CHANGE_SET_CURSOR
from holdfast.protocol.limits import (
    CURSOR_ROW_BYTES,
    KIB,
    MAX_CURSOR_CONFIG_BYTES,
    MAX_CURSOR_NAME_BYTES,
    MAX_CURSOR_ROW_BYTES,
    MAX_CURSOR_STATE_BYTES,
    MAX_DELETE_COUNT,
    PAGE_BYTES,
)
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.ticked_store import Bench

#: By name: config, state, and the data of each row by seq.
Model = dict[str, tuple[bytes, bytes, dict[int, bytes]]]


class Gateway(Bench):
    """A stream on a real file, and what a gateway records in it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, StoreKind.STREAM)

    def set(self, name: str, *more: Any) -> Any:
        """`more`: config, state, rows, removed."""
        return self.do(frames.SET_CURSOR, name, None, *more)

    def cursors(self, name: str | None = None) -> Model:
        """All that is recorded, as it comes from the wire, page by page."""
        found: Model = {}
        from_name = after_seq = None
        while True:
            page = self.read(frames.CURSORS, name, from_name, after_seq)
            assert len(frames.pack(page)) < PAGE_BYTES + 32 * KIB
            rows, from_name, after_seq = frames.unpack(frames.pack(page))
            assert rows or from_name is None
            for each, config, state, more in rows:
                if config is None:
                    found[each][2].update(dict(more))
                else:
                    assert each not in found
                    found[each] = (config, state, dict(more))
            if from_name is None:
                return found


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with closing(Gateway(tmp_path)) as gateway:
        yield gateway


def test_a_cursor_keeps_what_is_not_named_and_its_rows_are_set_then_removed(
    gateway: Gateway,
) -> None:
    assert gateway.cursors() == {}
    assert gateway.set("c", b"config") == [1]
    assert gateway.cursors() == {"c": (b"config", b"", {})}
    assert gateway.set("c", None, b"state", [[7, b"a"], [8, b"b"], [7, b"c"]]) == [2]
    assert gateway.cursors() == {"c": (b"config", b"state", {7: b"c", 8: b"b"})}
    assert gateway.set("c", b"", None, [[9, b"d"], [8, b""]], [9, 7, 7, 100]) == [3]
    assert gateway.cursors() == {"c": (b"", b"state", {8: b""})}
    assert gateway.set("other") == [4]
    assert gateway.cursors() == {"c": (b"", b"state", {8: b""}), "other": (b"", b"", {})}
    assert gateway.cursors("other") == {"other": (b"", b"", {})}
    assert gateway.cursors("none") == {}
    assert gateway.do(frames.DELETE_CURSOR, "c") == [1, 5]
    assert gateway.do(frames.DELETE_CURSOR, "c") == [0, 5]
    assert gateway.set("c") == [6]
    assert gateway.cursors("c") == {"c": (b"", b"", {})}


def test_what_changes_nothing_is_no_change_and_what_is_told_is_exact(gateway: Gateway) -> None:
    gateway.set("c", None, None, [[1, b"a"], [2, b"b"]], [2])
    gateway.set("c")
    gateway.set("c", None, None, [[5, b"e"]], [5, 6])
    first = [[CHANGE_SET_CURSOR, "c", None, None, [(1, b"a")], []]]
    assert gateway.broadcasts == [first, [], []]
    gateway.do(frames.DELETE_CURSOR, "c")
    assert gateway.broadcasts[3:] == [[[CHANGE_DELETE_CURSOR, "c"]]]


def test_a_cursor_is_no_message_and_leaves_nothing_in_the_change_log(gateway: Gateway) -> None:
    gateway.set("c", b"config", b"state", [[1, b"a"]])
    gateway.do(frames.APPEND, b"v")
    revision, first_seq, last_seq, count, size_bytes, *_ = gateway.read(frames.HEAD)
    assert (revision, first_seq, last_seq, count, size_bytes) == (2, 1, 1, 1, 1)
    found, revision, *_ = gateway.read(frames.CHANGES, 0, 0)
    assert [each[:1] for each in found] == [(2,)]
    assert revision == 2


def test_a_batch_records_a_cursor_with_its_messages_or_nothing_of_both(gateway: Gateway) -> None:
    gateway.do(frames.APPEND, b"job")
    gateway.set("c", None, None, [[1, b"pending"]])
    done = [[frames.DELETE_MESSAGES, [1]], [frames.SET_CURSOR, "c", None, None, b"s", None, [1]]]
    late = gateway.do(frames.BATCH, [*done, [frames.EXPECT, None, 7]])
    assert late[0] == "wrong_last_seq"
    assert gateway.cursors() == {"c": (b"", b"", {1: b"pending"})}
    assert gateway.rows() == {1: b"job"}
    assert gateway.do(frames.BATCH, done) == [[1, 3], [4]]
    assert gateway.cursors() == {"c": (b"", b"s", {})}
    assert gateway.rows() == {}
    gone = [[frames.DELETE_CURSOR, "c"], [frames.SET_CURSOR, "c", None, b"new"]]
    assert gateway.do(frames.BATCH, gone) == [[1, 5], [6]]
    assert gateway.cursors() == {"c": (b"new", b"", {})}


def test_limits_of_a_store_let_a_batch_with_a_cursor_in(gateway: Gateway) -> None:
    gateway.do(frames.CONFIGURE, {"max_messages": 1})
    batch = [[frames.SET_CURSOR, "c", None, b"config"], [frames.APPEND, b"v"]]
    assert gateway.do(frames.BATCH, batch) == [[2], [1, 3]]


def test_a_gateway_that_was_replaced_records_nothing(gateway: Gateway) -> None:
    gateway.do(frames.CONFIGURE, {"serving_epoch": 2})
    assert gateway.do(frames.SET_CURSOR, "c", 2, b"mine") == [2]
    for operation in (
        [frames.SET_CURSOR, "c", 1, b"late"],
        [frames.DELETE_CURSOR, "c", 1],
        [frames.BATCH, [[frames.DELETE_CURSOR, "c", 3]]],
    ):
        code, fields = gateway.do(*operation)
        assert (code, fields["actual"]) == ("deposed_writer", 2)
    assert gateway.do(frames.SET_CURSOR, "c", 2, None, b"and still mine") == [3]
    assert gateway.cursors() == {"c": (b"mine", b"and still mine", {})}


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ([frames.SET_CURSOR], "invalid_name"),
        ([frames.SET_CURSOR, ""], "invalid_name"),
        ([frames.SET_CURSOR, b"c"], "invalid_name"),
        ([frames.SET_CURSOR, "é" * (MAX_CURSOR_NAME_BYTES // 2) + "x"], "invalid_name"),
        ([frames.SET_CURSOR, "c", "1"], "invalid_argument"),
        ([frames.SET_CURSOR, "c", None, "text"], "invalid_argument"),
        ([frames.SET_CURSOR, "c", None, bytes(MAX_CURSOR_CONFIG_BYTES + 1)], "too_large"),
        ([frames.SET_CURSOR, "c", None, None, bytes(MAX_CURSOR_STATE_BYTES + 1)], "too_large"),
        ([frames.SET_CURSOR, "c", None, None, None, {}], "invalid_argument"),
        ([frames.SET_CURSOR, "c", None, None, None, [[1]]], "invalid_argument"),
        ([frames.SET_CURSOR, "c", None, None, None, [[0, b""]]], "invalid_argument"),
        ([frames.SET_CURSOR, "c", None, None, None, [[True, b""]]], "invalid_argument"),
        ([frames.SET_CURSOR, "c", None, None, None, [[1 << 63, b""]]], "invalid_argument"),
        ([frames.SET_CURSOR, "c", None, None, None, [[1, "a"]]], "invalid_argument"),
        (
            [frames.SET_CURSOR, "c", None, None, None, [[1, bytes(MAX_CURSOR_ROW_BYTES + 1)]]],
            "too_large",
        ),
        (
            [frames.SET_CURSOR, "c", None, None, None,
             [[seq, bytes(MAX_CURSOR_ROW_BYTES)] for seq in range(1, 500)]],
            "too_large",
        ),
        (
            [frames.SET_CURSOR, "c", None, None, None,
             [[seq, b""] for seq in range(1, MAX_DELETE_COUNT + 2)]],
            "too_large",
        ),
        ([frames.SET_CURSOR, "c", None, None, None, None, [[1]]], "invalid_argument"),
        ([frames.SET_CURSOR, "c", None, None, None, None, 1], "invalid_argument"),
        ([frames.DELETE_CURSOR], "invalid_name"),
        ([frames.DELETE_CURSOR, "c", b""], "invalid_argument"),
        ([frames.CURSORS, 1], "invalid_name"),
        ([frames.CURSORS, None, ""], "invalid_name"),
        ([frames.CURSORS, None, "c", "1"], "invalid_argument"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused_and_change_nothing(
    gateway: Gateway, operation: list[Any], code: str
) -> None:
    gateway.set("there", b"config", None, [[1, b"a"]])
    run = gateway.read if operation[0] >= frames.FIRST_READ else gateway.do
    assert run(*operation)[0] == code
    assert gateway.cursors() == {"there": (b"config", b"", {1: b"a"})}
    assert gateway.store.revision == 1


def test_the_limits_of_cursors_hold_and_leave_room_to_shrink(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "holdfast.persist.operations.cursors."
    monkeypatch.setattr(where + "MAX_CURSORS", 2)
    monkeypatch.setattr(where + "MAX_CURSOR_ROWS", 3)
    monkeypatch.setattr(where + "MAX_CURSORS_BYTES", 20 + 4 * CURSOR_ROW_BYTES)
    gateway.set("a", None, None, [[1, b"x"], [2, b"x"], [3, b"x"]])
    code, fields = gateway.set("a", None, None, [[4, b"x"]])
    assert (code, fields["what"], fields["value"]) == ("limit_exceeded", "cursor_rows", 4)
    assert gateway.set("a", None, None, [[4, b"x"]], [1]) == [2], "as many as before"
    gateway.set("b")
    assert gateway.set("c")[1]["what"] == "cursors"
    assert gateway.set("b", bytes(64 + 20))[1]["what"] == "cursors_bytes"
    assert gateway.set("b", None, None, [[1, b"x"]]) == [4]
    assert gateway.set("b", None, None, [[2, b"x"]])[1]["what"] == "cursors_bytes"
    gateway.reopen()
    assert gateway.set("b", None, None, [[2, b"x"]])[1]["what"] == "cursors_bytes"
    assert gateway.set("b", None, None, None, [1]) == [5]
    assert gateway.do(frames.DELETE_CURSOR, "a") == [1, 6]
    assert gateway.set("c", bytes(80)) == [7]


def test_a_cursor_of_any_size_is_read_in_pages_that_fit_into_a_frame(gateway: Gateway) -> None:
    config = bytes(MAX_CURSOR_CONFIG_BYTES)
    state = bytes(MAX_CURSOR_STATE_BYTES)
    wanted: Model = {}
    for name in ("one", "two", "three"):
        gateway.set(name, config, state)
        wanted[name] = (config, state, {})
        for first in range(1, 9001, 3000):
            rows = {seq: b"%040d" % seq for seq in range(first, first + 3000)}
            gateway.set(name, None, None, [list(row) for row in rows.items()])
            wanted[name][2].update(rows)
    assert gateway.cursors() == wanted
    assert gateway.cursors("two") == {"two": wanted["two"]}


def test_a_snapshot_and_a_new_owner_have_the_cursors(gateway: Gateway, tmp_path: Path) -> None:
    gateway.set("c", b"config", b"state", [[1, b"a"], [2, b"b"]])
    gateway.materialise()
    gateway.set("c", None, b"later", None, [1])
    wanted = {"c": (b"config", b"later", {2: b"b"})}
    gateway.fail_over()
    assert gateway.cursors() == wanted
    assert gateway.store.file is not None
    snapshot = tmp_path / "copy"
    gateway.store.file.copy_to(snapshot)
    with closing(StoreFile.open(snapshot, gateway.id)) as copied:
        [found] = copied.cursor_page(max_rows=10, max_bytes=1000).cursors
    assert found == ("c", b"config", b"later", [(2, b"b")])


NAMES = st.sampled_from(["a", "b", "b\x00", "ü"])
TEXTS = st.none() | st.binary(max_size=3)
ROWS = st.none() | st.dictionaries(st.integers(1, 6), st.binary(max_size=3), max_size=4).map(
    lambda rows: [list(row) for row in rows.items()]
)
SEQS = st.none() | st.lists(st.integers(1, 7), max_size=4)
SETS = st.tuples(st.just(frames.SET_CURSOR), NAMES, st.none(), TEXTS, TEXTS, ROWS, SEQS)
DELETES = st.tuples(st.just(frames.DELETE_CURSOR), NAMES)


def change(model: Model, operation: tuple[Any, ...]) -> None:
    """Do to the model what the owner should do."""
    name = operation[1]
    if operation[0] == frames.DELETE_CURSOR:
        model.pop(name, None)
        return
    config, state, rows = model.get(name, (b"", b"", {}))
    _, _, _, new_config, new_state, new_rows, removed = operation
    rows = {**rows, **dict(new_rows or [])}
    for seq in removed or ():
        rows.pop(seq, None)
    model[name] = (
        config if new_config is None else new_config,
        state if new_state is None else new_state,
        rows,
    )


class Recording(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.gateway = Gateway(self.directory)
        self.model: Model = {}
        self.committed: Model = {}

    @initialize()
    def begin(self) -> None:
        self.gateway.execute([frames.APPEND, b"v"])

    def teardown(self) -> None:
        self.gateway.close()
        shutil.rmtree(self.directory)

    @rule(operation=SETS | SETS | DELETES)
    def write(self, operation: tuple[Any, ...]) -> None:
        [result] = self.gateway.execute(list(operation))
        assert type(result[0]) is int, result
        change(self.model, operation)

    @rule(operations=st.lists(SETS | DELETES, min_size=1, max_size=3), fails=st.booleans())
    def batch(self, operations: list[tuple[Any, ...]], fails: bool) -> None:
        last = [[frames.EXPECT, None, 99]] if fails else []
        [result] = self.gateway.execute([frames.BATCH, [*map(list, operations), *last]])
        assert (result[0] == "wrong_last_seq") == fails
        for operation in [] if fails else operations:
            change(self.model, operation)

    @precondition(lambda self: self.gateway.store.mark is not None)
    @rule()
    def commit(self) -> None:
        self.gateway.commit()
        self.committed = copy.deepcopy(self.model)

    @precondition(lambda self: self.gateway.store.mark is not None)
    @rule()
    def fail(self) -> None:
        self.gateway.store.fail_tick()
        self.model = copy.deepcopy(self.committed)

    @rule()
    def materialise(self) -> None:
        self.gateway.materialise()

    @rule(size=st.integers(1, 9))
    def read(self, size: int) -> None:
        if self.gateway.store.mark is not None:
            self.commit()
        assert self.gateway.cursors() == self.model
        file = self.gateway.store.file
        if file is None:
            return
        found: Model = {}
        from_name = after_seq = None
        while True:
            page = file.cursor_page(None, from_name, after_seq, max_rows=size, max_bytes=60)
            for name, config, state, rows in page.cursors:
                if config is None or state is None:
                    found[name][2].update(rows)
                else:
                    found[name] = (config, state, dict(rows))
            assert sum(1 + len(rows) for *_, rows in page.cursors) <= size + (after_seq is not None)
            if page.next_name is None:
                break
            assert (from_name, after_seq) != (page.next_name, page.next_after_seq)
            from_name, after_seq = page.next_name, page.next_after_seq
        assert found == self.model

    @rule()
    def fail_over(self) -> None:
        if self.gateway.store.mark is not None:
            self.fail()
        self.gateway.fail_over()
        self.check_sizes()

    @rule()
    def check_sizes(self) -> None:
        cursors = self.gateway.store.cursors
        assert len(cursors) == len(self.model)
        size_bytes = 0
        for name, (config, state, rows) in self.model.items():
            assert cursors.rows(name) == {seq: len(data) for seq, data in rows.items()}
            size_bytes += len(name.encode()) + len(config) + len(state)
            size_bytes += sum(CURSOR_ROW_BYTES + len(data) for data in rows.values())
        assert cursors.size_bytes == size_bytes


TestRecording = Recording.TestCase
TestRecording.settings = settings(max_examples=examples(300), stateful_step_count=30, deadline=None)
