"""Operations on a store: the rules that are easy to get wrong one by one, then random histories of
a store, its file and its log against a plain dict."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from support.effort import examples

from holdfast.persist.operations import operations, reads
from holdfast.persist.recovery.takeover import plan
from holdfast.persist.store.store import Store
from holdfast.protocol import frames
from holdfast.protocol.changes import (
    CHANGE_DELETE_ENTRIES,
    CHANGE_DELETE_MESSAGES,
    CHANGE_SET_ENTRY,
    CHANGE_SET_MESSAGE,
    CHANGE_TRIM,
)
from holdfast.protocol.compression import ENCODING_HEADER, compressed_always
from holdfast.protocol.errors import ERRORS_BY_CODE, ProtocolError, RequestError
from holdfast.protocol.limits import (
    DEDUPE_WINDOW_SECONDS,
    MAX_DELETE_COUNT,
    MAX_FRAME_OPERATIONS,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_MSG_ID_BYTES,
    MAX_VALUE_BYTES,
    MIN_PAYLOAD_BYTES,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.store_file.store_file import StoreFile

APPEND, SET, DELETE, TRIM = 1, 2, 3, 4
SET_ENTRY, DELETE_ENTRIES, CLEAR, BATCH = 5, 6, 7, 8
HUGE = 900_000
ODD_KEYS = [
    "",
    "k" * 1000,
    "a!@#$%^&*|()",
    '["x","y"]',
    "a\x00b",
    "🪸",
    "a\U0010ffff",
    "\U0010ffff",
]


class Bench:
    """One store on a real file, and ticks to write to it."""

    def __init__(self, directory: Path, kind: StoreKind) -> None:
        self.id = StoreId("acme", kind, "a.b")
        self.path = directory / f"store.{kind.word}.db"
        self.tick = 0
        self.time = 1000
        self.store = Store(self.id, 1, None, self.create)

    def create(self) -> StoreFile:
        return StoreFile.create(self.path, self.id, time=self.time)

    def execute(self, *wanted: list[Any]) -> list[Any]:
        """Execute in the running tick, or in a new one."""
        self.store.begin()
        self.store.time = max(self.store.time, self.time)
        # As they come from the wire.
        results = operations.execute(self.store, frames.unpack(frames.pack(wanted)))
        self.store.validate()
        if isinstance(results, frames.Run):
            acks = results.acks(self.store.time, Durability.SYNCED)
            return [[ack.seq or 0, ack.revision] for ack in acks]
        return results

    def commit(self) -> None:
        self.tick += 1
        self.store.finish_tick(self.tick, 1)
        self.store.validate()

    def do(self, *operation: Any) -> Any:
        """Execute one operation, commit it, bring it into the file, and return its result."""
        result = self.execute(list(operation))[0]
        self.commit()
        self.store.materialise(self.tick)
        self.store.validate()
        return result

    def read(self, *operation: Any) -> Any:
        return reads.execute(self.store, "s1", [list(operation)])[0]

    def reopen(self) -> None:
        assert self.store.file is not None
        self.store.file.close()
        self.store = Store(self.id, 1, StoreFile.open(self.path, self.id), self.create)

    def close(self) -> None:
        if self.store.file is not None:
            self.store.file.abandon()


@pytest.fixture
def stream(tmp_path: Path) -> Any:
    bench = Bench(tmp_path, StoreKind.STREAM)
    yield bench
    bench.close()


@pytest.fixture
def kv(tmp_path: Path) -> Any:
    bench = Bench(tmp_path, StoreKind.KV)
    yield bench
    bench.close()


def code(result: Any) -> str:
    assert type(result[0]) is str, result
    assert issubclass(ERRORS_BY_CODE[result[0]], RequestError | ProtocolError)
    return str(result[0])


# Streams
def test_seqs_are_dense_from_one_and_never_used_again(stream: Bench) -> None:
    assert [stream.do(APPEND, b"v")[0] for _ in range(3)] == [1, 2, 3]
    assert stream.do(DELETE, [3]) == [1, 4]
    assert stream.do(APPEND, b"v")[0] == 4
    assert stream.do(TRIM) == [3, 6]
    stream.reopen()
    assert stream.do(APPEND, b"v") == [5, 7]
    assert stream.read(frames.HEAD)[:5] == [7, 5, 5, 1, 1]


def test_a_trim_is_inclusive_and_an_empty_one_changes_nothing(stream: Bench) -> None:
    for _ in range(5):
        stream.do(APPEND, b"v")
    assert stream.do(TRIM, 0) == [0, 5]
    assert stream.do(TRIM, 3) == [3, 6]
    assert stream.do(TRIM, 3) == [0, 6]
    assert stream.read(frames.GET_MESSAGE, 3) is None
    assert stream.read(frames.GET_MESSAGE, 4)[0] == 4
    assert stream.do(TRIM, (1 << 63) - 1) == [2, 7]
    assert stream.do(TRIM) == [0, 7]
    assert stream.do(APPEND, b"")[0] == 6


def test_a_trim_of_an_empty_stream_changes_nothing(stream: Bench) -> None:
    assert stream.do(TRIM) == [0, 0]
    assert stream.do(TRIM, 10) == [0, 0]


def test_set_replaces_appends_at_the_end_and_fills_what_was_deleted(stream: Bench) -> None:
    assert stream.do(SET, 1, b"one") == [1, 1]
    assert stream.do(SET, 2, b"two") == [2, 2]
    assert stream.do(SET, 1, b"ONE") == [1, 3]
    assert stream.do(DELETE, [1]) == [1, 4]
    assert stream.do(SET, 1, b"again") == [1, 5]
    assert stream.do(TRIM, 2) == [2, 6]
    assert stream.do(SET, 2, b"back", {"h": "x"}) == [2, 7]
    row = stream.read(frames.GET_MESSAGE, 2)
    assert tuple(row[:2]) + tuple(row[3:]) == (2, 7, b"back", {"h": "x"})
    assert stream.read(frames.HEAD)[1:4] == [2, 2, 1]


@pytest.mark.parametrize("seq", [0, -1, 4, 1 << 62, -(1 << 63)])
def test_no_seq_outside_of_the_stream_can_be_set(stream: Bench, seq: int) -> None:
    stream.do(APPEND, b"v")
    stream.do(APPEND, b"v")
    assert code(stream.do(SET, seq, b"v")) == "invalid_seq"
    assert stream.store.revision == 2


def test_deleting_what_is_not_there_changes_nothing(stream: Bench, kv: Bench) -> None:
    stream.do(APPEND, b"v")
    assert stream.do(DELETE, [1, 1]) == [1, 2]
    assert stream.do(DELETE, [1]) == [0, 2]
    assert stream.do(DELETE, []) == [0, 2]
    assert stream.do(APPEND, b"v") == [2, 3]
    for seq in (0, -1):
        assert code(stream.do(DELETE, [2, seq])) == "invalid_seq"
    assert stream.do(DELETE, [2, 3, 99, (1 << 63) - 1]) == [1, 4], "beyond the end there is nothing"
    assert stream.do(DELETE, [3]) == [0, 4]
    assert stream.do(APPEND, b"v") == [3, 5]
    assert kv.do(DELETE_ENTRIES, ["k"]) == [0, 0]
    assert kv.do(CLEAR) == [0, 0]


def test_expected_last_seq_must_hold(stream: Bench) -> None:
    assert stream.do(APPEND, b"v", None, None, 0) == [1, 1]
    refused = stream.do(APPEND, b"v", None, None, 0)
    assert refused == ["wrong_last_seq", {"expected": 0, "actual": 1}]
    assert stream.do(APPEND, b"v", None, None, 1) == [2, 2]


def test_a_msg_id_is_stored_once_within_its_window(stream: Bench) -> None:
    assert stream.do(APPEND, b"first", None, "id") == [1, 1]
    first_time = stream.time
    stream.time += 50
    # Whatever else the repetition says.
    assert stream.do(APPEND, b"other", None, "id", 99) == [1, 1, first_time, True]
    stream.do(DELETE, [1])
    stream.reopen()
    assert stream.do(APPEND, b"other", None, "id") == [1, 1, first_time, True]
    stream.time = first_time + int(DEDUPE_WINDOW_SECONDS * 1000)
    assert stream.do(APPEND, b"new", None, "id") == [2, 3]
    assert stream.do(APPEND, b"new", None, "id")[3] is True


def test_a_msg_id_of_the_same_tick_or_batch_counts(stream: Bench) -> None:
    assert stream.execute([APPEND, b"v", None, "id"], [APPEND, b"v", None, "id"])[1][3]
    batch = [BATCH, [[APPEND, b"v", None, "new"], [APPEND, b"v", None, "new"]]]
    assert stream.execute(batch) == [[[2, 2], [2, 2, 1000, True]]]


def test_a_msg_id_of_a_batch_or_tick_that_failed_is_free(stream: Bench) -> None:
    failing = [BATCH, [[APPEND, b"v", None, "id"], [SET, 9, b"v"]]]
    assert code(stream.execute(failing)[0]) == "invalid_seq"
    assert stream.execute([APPEND, b"v", None, "id"]) == [[1, 1]]
    stream.store.fail_tick()
    assert stream.execute([APPEND, b"v", None, "id"]) == [[1, 1]]


# Kv
@pytest.mark.parametrize("key", ODD_KEYS)
@pytest.mark.parametrize("value", [b"", b"\x00", b"v"])
def test_any_key_holds_any_value(kv: Bench, key: str, value: bytes) -> None:
    assert kv.do(SET_ENTRY, key, value) == [0, 1]
    row = kv.read(frames.GET_ENTRY, key)
    assert (row[0], row[1], row[3]) == (key, 1, value)
    kv.reopen()
    assert kv.read(frames.GET_ENTRIES, key)[0][0][0] == key
    assert kv.store.bytes == len(key.encode()) + len(value)
    assert kv.do(DELETE_ENTRIES, [key]) == [1, 2]
    assert kv.read(frames.GET_ENTRY, key) is None


def test_a_value_of_900_kb_is_kept_whole(kv: Bench, stream: Bench) -> None:
    value = bytes(range(256)) * (HUGE // 256)
    kv.do(SET_ENTRY, "k", value)
    stream.do(APPEND, value)
    assert kv.read(frames.GET_ENTRY, "k")[3] == value
    assert stream.read(frames.GET_MESSAGE, 1)[3] == value


def test_overwriting_leaves_one_entry_with_a_new_revision(kv: Bench) -> None:
    for revision in range(1, 5):
        assert kv.do(SET_ENTRY, "k", b"v" * revision) == [0, revision]
    rows, after = kv.read(frames.GET_ENTRIES)
    assert [(row[0], row[1], row[3]) for row in rows] == [("k", 4, b"vvvv")]
    assert after is None
    assert kv.read(frames.HEAD)[:5] == [4, 1, 0, 1, 5]


def test_expected_revision_zero_creates_and_another_replaces_exactly_that(kv: Bench) -> None:
    assert kv.do(SET_ENTRY, "k", b"1", None, 0) == [0, 1]
    refused = kv.do(SET_ENTRY, "k", b"2", None, 0)
    assert refused == ["wrong_revision", {"key": "k", "expected": 0, "actual": 1}]
    assert kv.do(SET_ENTRY, "k", b"2", None, 1) == [0, 2]
    assert code(kv.do(SET_ENTRY, "k", b"3", None, 1)) == "wrong_revision"
    assert code(kv.do(DELETE_ENTRIES, ["k"], 1)) == "wrong_revision"
    assert kv.do(DELETE_ENTRIES, ["k"], 2) == [1, 3]
    assert code(kv.do(SET_ENTRY, "k", b"4", None, 2)) == "wrong_revision"
    assert kv.do(SET_ENTRY, "k", b"4", None, 0) == [0, 4]


def test_a_clear_forgets_keys_but_no_revision(kv: Bench) -> None:
    kv.do(SET_ENTRY, "a", b"")
    kv.do(SET_ENTRY, "b", b"")
    assert kv.do(CLEAR) == [2, 3]
    assert kv.do(SET_ENTRY, "a", b"", None, 0) == [0, 4]
    kv.reopen()
    assert kv.read(frames.HEAD)[:5] == [4, 1, 0, 1, 1]


def test_limits_of_one_message_leave_out_what_clients_add(stream: Bench, kv: Bench) -> None:
    packed, marked = compressed_always(b"x" * 500, {"by": "ada"})
    given_bytes = 500 + len(frames.pack({"by": "ada"}))
    for limit, accepted in ((given_bytes, True), (given_bytes - 1, False)):
        stream.do(frames.CONFIGURE, {"max_message_bytes": limit})
        result = stream.do(APPEND, packed, {**marked, "live": "w1"})
        assert (type(result[0]) is int) == accepted
    stream.do(frames.CONFIGURE, {"max_message_bytes": None})
    kv.do(frames.CONFIGURE, {"max_message_bytes": 501})
    assert kv.do(SET_ENTRY, "k", packed, {ENCODING_HEADER: "zstd"})[0] == 0
    assert code(kv.do(SET_ENTRY, "kk", packed, {ENCODING_HEADER: "zstd"})) == "limit_exceeded"
    # Names of ours are no way around a limit.
    kv.do(frames.CONFIGURE, {"max_message_bytes": 300})
    assert code(kv.do(SET_ENTRY, "k", b"", {"live": "x" * 400})) == "limit_exceeded"
    full = {"a": "x" * (MAX_HEADERS_BYTES - 1)}
    assert stream.do(APPEND, b"", {**full, "live": "w1"})[0] == 2
    assert code(stream.do(APPEND, b"", {**full, "b": "", "live": "w1"})) == "too_large"
    assert code(stream.do(APPEND, b"", {"live": "x" * MAX_HEADERS_BYTES})) == "too_large"


# Batches
def test_a_failing_member_leaves_nothing_of_its_batch(stream: Bench, kv: Bench) -> None:
    stream.do(APPEND, b"v")
    members = [[APPEND, b"a"], [SET, 1, b"b"], [DELETE, [2]], [SET, 99, b"v"]]
    assert code(stream.do(BATCH, members)) == "invalid_seq"
    assert stream.read(frames.HEAD)[:5] == [1, 1, 1, 1, 1]
    assert stream.do(APPEND, b"v") == [2, 2]
    kv.do(SET_ENTRY, "k", b"v")
    entries = [[SET_ENTRY, "new", b""], [DELETE_ENTRIES, ["k"]], [SET_ENTRY, "k", b"", None, 7]]
    assert code(kv.do(BATCH, entries)) == "wrong_revision"
    assert [row[0] for row in kv.read(frames.GET_ENTRIES)[0]] == ["k"]


def test_members_see_what_those_before_them_did(stream: Bench) -> None:
    members = [[APPEND, b"a"], [APPEND, b"b", None, None, 1], [DELETE, [1]], [SET, 1, b"c"]]
    assert stream.do(BATCH, members) == [[1, 1], [2, 2], [1, 3], [1, 4]]


@pytest.mark.parametrize(
    "members",
    [None, [], 5, {}, [[]], [5], [[BATCH, [[APPEND, b""]]]], [[TRIM, 1]], [[[1], b""]], [[True,
     b""]],
     [[1.0, b""]], [["1", b""]], [[SET_ENTRY, "k", b""]], [[frames.HEAD]], [[APPEND]], [[99]]],
)  # fmt: skip
def test_a_batch_of_anything_else_is_refused_whole(stream: Bench, members: Any) -> None:
    assert code(stream.do(BATCH, members))
    prefixed = [[APPEND, b""], *members] if type(members) is list and members else members
    assert code(stream.do(BATCH, prefixed))
    assert stream.store.revision == 0


# Arguments
WRONG: list[Any] = [
    *(True, False, 1.5, "text", b"bytes", [], [1], {}, {"a": 1}, {1: "a"}, {"a": b"b"}),
    *(1 << 63, (1 << 64) - 1, -(1 << 63), -1, 0, None, msgpack.ExtType(5, b"x")),
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize(
    ("operation", "right"),
    [
        ([APPEND, b"", None, None, None],
         [lambda w: type(w) is bytes, lambda w: w in (None, {}) and w is not False,
          lambda w: w is None or w == "text", lambda w: w is None or (type(w) is int and w == 0)]),
        ([SET, 1, b"", None],
         [lambda w: False, lambda w: type(w) is bytes, lambda w: w is None or w == {}]),
        ([DELETE, []], [lambda w: w in ([], [1])]),
        ([TRIM, None], [lambda w: w is None or (type(w) is int and 0 <= w < 1 << 63)]),
    ],
    ids=["append", "set", "delete", "trim"],
)  # fmt: skip
def test_a_wrong_argument_to_a_stream_is_a_typed_refusal(
    stream: Bench, operation: list[Any], right: list[Callable[[Any], bool]], wrong: Any
) -> None:
    for position, is_right in enumerate(right, start=1):
        tried = list(operation)
        tried[position] = wrong
        result = stream.execute(tried)[0]
        if is_right(wrong):
            assert type(result[0]) is int, tried
        else:
            assert code(result), tried
    stream.store.fail_tick()
    assert stream.store.revision == 0


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize(
    ("operation", "right"),
    [
        ([SET_ENTRY, "k", b"", None, None],
         [lambda w: type(w) is str, lambda w: type(w) is bytes, lambda w: w is None or w == {},
          lambda w: w is None or (type(w) is int and w == 0)]),
        ([DELETE_ENTRIES, ["k"], None],
         [lambda w: type(w) is list and not w, lambda w: w is None or (type(w) is int and w == 0)]),
    ],
    ids=["set", "delete"],
)  # fmt: skip
def test_a_wrong_argument_to_a_kv_is_a_typed_refusal(
    kv: Bench, operation: list[Any], right: list[Callable[[Any], bool]], wrong: Any
) -> None:
    for position, is_right in enumerate(right, start=1):
        tried = list(operation)
        tried[position] = wrong
        result = kv.execute(tried)[0]
        if is_right(wrong):
            assert type(result[0]) is int, tried
        else:
            assert code(result), tried
        kv.store.fail_tick()
        assert kv.store.revision == 0


@pytest.mark.parametrize("number", [0, -1, 5, 13, 31, 32, 99, 1 << 62])
def test_an_operation_that_a_stream_has_not_is_named(stream: Bench, number: int) -> None:
    assert code(stream.do(number, b"v")) == "unknown_operation"


@pytest.mark.parametrize("number", [1, 2, 3, 4, 13, 33])
def test_an_operation_that_a_kv_has_not_is_named(kv: Bench, number: int) -> None:
    assert code(kv.do(number, b"v")) == "unknown_operation"


def test_what_a_later_version_adds_to_an_operation_is_ignored(stream: Bench) -> None:
    assert stream.do(APPEND, b"v", None, None, None, None, "later") == [1, 1]
    assert stream.do(TRIM, 1, "later") == [1, 2]


@pytest.mark.parametrize(
    ("operation", "what"),
    [
        ([APPEND, bytes(MAX_VALUE_BYTES + 1)], "value"),
        ([APPEND, b"", {"h": "x" * MAX_HEADERS_BYTES}], "headers"),
        ([APPEND, b"", None, "i" * (MAX_MSG_ID_BYTES + 1)], "msg_id"),
        ([APPEND, b"", None, "é" * (MAX_MSG_ID_BYTES // 2 + 1)], "msg_id"),
        ([DELETE, [1] * (MAX_DELETE_COUNT + 1)], "seqs"),
    ],
)
def test_what_is_over_its_limit_is_refused_with_the_limit(
    stream: Bench, operation: list[Any], what: str
) -> None:
    result = stream.do(*operation)
    assert code(result) == "too_large"
    assert result[1]["what"] == what
    assert result[1]["size"] > result[1]["limit"]
    assert stream.store.revision == 0


def test_what_is_exactly_at_its_limit_is_taken(stream: Bench, kv: Bench) -> None:
    headers = {"h": "x" * (MAX_HEADERS_BYTES - 6)}
    assert stream.do(APPEND, bytes(MAX_VALUE_BYTES), headers, "i" * MAX_MSG_ID_BYTES) == [1, 1]
    assert kv.do(SET_ENTRY, "k" * MAX_KEY_BYTES, b"") == [0, 1]


def test_one_delete_names_no_more_bytes_of_keys_than_a_broadcast_can_carry(kv: Bench) -> None:
    keys = [f"{number:04000d}" for number in range(MAX_VALUE_BYTES // 4000 + 1)]
    assert code(kv.do(DELETE_ENTRIES, keys)) == "too_large"
    for start in (0, 200):
        kv.execute(*[[SET_ENTRY, key, b""] for key in keys[start : start + 200]])
    assert kv.execute([DELETE_ENTRIES, keys[:-1]])[0][0] == len(keys) - 1


def test_refusals_that_quote_large_keys_still_fit_in_one_reply(kv: Bench) -> None:
    wanted = [[SET_ENTRY, f"{number:04000d}", b"", None, 7] for number in range(250)]
    results = kv.execute(*wanted)
    assert {code(result) for result in results} == {"wrong_revision"}
    assert results[0][1]["actual"] == 0
    outcome = frames.encode_outcome(1, 1, 1, results)
    assert len(outcome) < MIN_PAYLOAD_BYTES - 4096
    many = kv.execute(*[[99]] * MAX_FRAME_OPERATIONS)
    assert len(frames.encode_outcome(1, 1, 1, many)) < MIN_PAYLOAD_BYTES - 4096


# Random histories
def headers_bytes(headers: dict[str, str] | None) -> int:
    return len(frames.pack(headers)) if headers else 0


class Refused(Exception):
    """The model refuses, with this code."""


@dataclass
class Model:
    """What a store should hold: rows are `(revision, time, value, headers)` by seq or key."""

    rows: dict[Any, tuple[int, int, bytes, dict[str, str] | None]] = field(default_factory=dict)
    revision: int = 0
    last_seq: int = 0
    msg_ids: dict[str, list[Any]] = field(default_factory=dict)

    def head(self) -> list[int]:
        size_bytes = sum(
            len(row[2]) + headers_bytes(row[3]) + (len(key.encode()) if type(key) is str else 0)
            for key, row in self.rows.items()
        )
        return [self.revision, self.last_seq, len(self.rows), size_bytes]

    def execute(self, operation: list[Any], time: int) -> list[Any]:
        kept = copy.copy(self)
        kept.rows, kept.msg_ids = dict(self.rows), dict(self.msg_ids)
        try:
            if operation[0] == BATCH:
                return [self._one(member, time) for member in operation[1]]
            return self._one(operation, time)
        except Refused as refused:
            self.__dict__.update(kept.__dict__)
            return [str(refused)]

    def _one(self, operation: list[Any], time: int) -> list[Any]:
        number, *arguments = operation
        if number == APPEND:
            value, headers, msg_id, expected = arguments
            if msg_id in self.msg_ids:
                return [*self.msg_ids[msg_id], True]
            if expected is not None and expected != self.last_seq:
                raise Refused("wrong_last_seq")
            self.last_seq += 1
            self._set(self.last_seq, value, headers, time)
            if msg_id is not None:
                self.msg_ids[msg_id] = [self.last_seq, self.revision, time]
            return [self.last_seq, self.revision]
        if number == SET:
            seq, value, headers = arguments
            if not 1 <= seq <= self.last_seq + 1:
                raise Refused("invalid_seq")
            self.last_seq = max(self.last_seq, seq)
            self._set(seq, value, headers, time)
            return [seq, self.revision]
        if number == DELETE:
            if not all(seq >= 1 for seq in arguments[0]):
                raise Refused("invalid_seq")
            return self._remove(set(arguments[0]))
        if number == frames.EXPECT:
            key, expected = arguments
            if key is None and expected != self.last_seq:
                raise Refused("wrong_last_seq")
            if key is not None:
                self._check_revision(key, expected)
            return [self.revision]
        if number == TRIM:
            end_seq = self.last_seq if arguments[0] is None else arguments[0]
            return self._remove({seq for seq in self.rows if seq <= end_seq})
        if number == SET_ENTRY:
            key, value, headers, expected = arguments
            self._check_revision(key, expected)
            self._set(key, value, headers, time)
            return [0, self.revision]
        if number == DELETE_ENTRIES:
            for key in arguments[0]:
                self._check_revision(key, arguments[1])
            return self._remove(set(arguments[0]))
        return self._remove(set(self.rows))

    def _check_revision(self, key: Any, expected: int | None) -> None:
        actual = self.rows[key][0] if key in self.rows else 0
        if expected is not None and expected != actual:
            raise Refused("wrong_revision")

    def _set(self, key: Any, value: bytes, headers: dict[str, str] | None, time: int) -> None:
        self.revision += 1
        self.rows[key] = (self.revision, time, value, headers or None)

    def _remove(self, keys: set[Any]) -> list[Any]:
        present = keys & self.rows.keys()
        for key in present:
            del self.rows[key]
        self.revision += bool(present)
        return [len(present), self.revision]


def follow(rows: dict[Any, Any], changes: list[Any]) -> None:
    """Apply changes as a follower does."""
    for revision, time, (number, *change) in changes:
        if number in (CHANGE_SET_MESSAGE, CHANGE_SET_ENTRY):
            headers = change[2] if len(change) > 2 else None
            rows[change[0]] = (revision, time, change[1], headers or None)
        elif number in (CHANGE_DELETE_MESSAGES, CHANGE_DELETE_ENTRIES):
            for key in change[0]:
                rows.pop(key, None)
        elif number == CHANGE_TRIM:
            for seq in [seq for seq in rows if seq <= change[0]]:
                del rows[seq]
        else:
            rows.clear()


SMALL_VALUES = st.binary(max_size=4) | st.just(bytes(300))
HEADERS = st.none() | st.dictionaries(st.sampled_from("ab"), st.text(max_size=3), max_size=2)
#: Mostly ones that are there: a history of refusals proves little.
SEQS = st.integers(1, 7) | st.integers(1, 7) | st.integers(-1, 14)
KEYS = st.sampled_from(["", "a", "ab", "a\x00", "b", "🪸", "a\U0010ffff"])
APPENDS = st.tuples(
    st.just(APPEND), SMALL_VALUES, HEADERS, st.none() | st.sampled_from("xyz"),
    st.sampled_from([None] * 9 + [0, 1, 2]),
)  # fmt: skip
CONDITIONS = st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6])
EXPECTED_REVISIONS = st.sampled_from([None] * 6 + [0, 0, 1, 2, 3])
STREAM_MEMBERS = (
    APPENDS
    | APPENDS
    | st.tuples(st.just(SET), SEQS, SMALL_VALUES, HEADERS)
    | st.tuples(st.just(DELETE), st.lists(SEQS | st.integers(1, 4), max_size=3))
    | st.tuples(st.just(frames.EXPECT), SEQS | st.none(), CONDITIONS)
).map(list)
KV_MEMBERS = (
    st.tuples(st.just(SET_ENTRY), KEYS, SMALL_VALUES, HEADERS, EXPECTED_REVISIONS)
    | st.tuples(st.just(SET_ENTRY), KEYS, SMALL_VALUES, HEADERS, EXPECTED_REVISIONS)
    | st.tuples(st.just(DELETE_ENTRIES), st.lists(KEYS, max_size=3), EXPECTED_REVISIONS)
    | st.tuples(st.just(frames.EXPECT), KEYS, CONDITIONS)
).map(list)
WRITES = {
    StoreKind.STREAM: STREAM_MEMBERS
    | STREAM_MEMBERS
    | st.tuples(st.just(TRIM), st.integers(0, 4) | st.none()).map(list)
    | st.lists(STREAM_MEMBERS, min_size=1, max_size=4).map(lambda members: [BATCH, members]),
    StoreKind.KV: KV_MEMBERS
    | KV_MEMBERS
    | st.just([CLEAR])
    | st.lists(KV_MEMBERS, min_size=1, max_size=4).map(lambda members: [BATCH, members]),
}


class StoreHistory(RuleBasedStateMachine):
    """One store through ticks that commit or fail, lagging files, crashes and new owners."""

    @initialize(kind=st.sampled_from(StoreKind))
    def begin(self, kind: StoreKind) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.bench = Bench(self.directory, kind)
        self.model = Model()
        self.committed = Model()
        #: The model after each committed tick, and the log of them all.
        self.after_tick: dict[int, Model] = {0: Model()}
        self.records: list[LogRecord] = []
        self.in_file = 0

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()
            shutil.rmtree(self.directory)

    @property
    def store(self) -> Store:
        return self.bench.store

    @rule(data=st.data(), passed=st.integers(0, 9))
    def write(self, data: st.DataObject, passed: int) -> None:
        self.bench.time += passed if self.store.mark is None else 0
        for operation in data.draw(st.lists(WRITES[self.store.kind], min_size=1, max_size=6)):
            expected = self.model.execute(operation, self.bench.time)
            result = self.bench.execute(operation)[0]
            assert (result[:1] if type(result[0]) is str else result) == expected
            self.counters_are_the_models()

    @precondition(lambda self: self.store.mark is not None)
    @rule()
    def commit(self) -> None:
        store = self.store
        assert store.mark is not None
        payload = frames.encode_changes(
            store.epoch, store.mark.revision, store.time, store.changes
        )
        payloads = [payload] if store.changes else []
        self.records.append(
            LogRecord(store.id, store.epoch, store.mark.revision, store.revision, payloads, [])
        )
        self.bench.commit()
        self.committed = copy.deepcopy(self.model)
        self.after_tick[self.bench.tick] = self.committed

    @precondition(lambda self: self.store.mark is not None)
    @rule()
    def fail(self) -> None:
        self.store.fail_tick()
        self.model = copy.deepcopy(self.committed)

    @rule(data=st.data())
    def materialise(self, data: st.DataObject) -> None:
        synced = st.integers(self.in_file, self.bench.tick)
        self.in_file = data.draw(synced | st.just(self.bench.tick), label="synced tick")
        self.store.materialise(self.in_file)
        self.check_file()

    @precondition(lambda self: self.store.file is not None)
    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        """A new owner: after a clean close, or from what a killed one left in file and log."""
        if self.store.mark is not None:
            self.fail()
        file = self.store.file
        assert file is not None
        if crash:
            file.abandon()
        else:
            self.store.materialise(self.bench.tick)
            file.close()
        file = StoreFile.open(self.bench.path, self.bench.id)
        found = plan(
            self.bench.id,
            self.records,
            file_epoch=file.meta.epoch,
            file_revision=file.meta.revision,
        )
        assert crash or not found.batches
        file.apply(found.batches, found.outcomes)
        epoch = self.store.epoch + 1
        file.take(epoch, "s", f"i{epoch}")
        self.bench.store = Store(self.bench.id, epoch, file, self.bench.create)
        self.in_file = self.bench.tick
        self.check_file()

    @precondition(lambda self: self.store.file is not None)
    @rule(data=st.data(), limit=st.integers(1, 5) | st.none())
    def follow_changes(self, data: st.DataObject, limit: int | None) -> None:
        """A follower at any earlier state, also at none, comes to the present one in any pages."""
        tick = data.draw(st.integers(0, self.in_file), label="follower's tick")
        seen = self.after_tick[tick]
        rows, revision, seq = dict(seen.rows), seen.revision, seen.last_seq
        state_revision = None
        for _ in range(1000):
            wanted = [frames.CHANGES, revision, seq, limit, state_revision]
            page, next_revision, next_seq, head, reset = self.bench.read(*wanted)
            assert not reset
            assert [change[0] for change in page] == sorted(change[0] for change in page)
            assert all(change[0] > revision for change in page)
            follow(rows, page)
            if seen.revision == 0 and state_revision is None:
                state_revision = head
            revision, seq = next_revision, next_seq
            if revision == head:
                break
        assert revision == self.after_tick[self.in_file].revision
        assert rows == self.after_tick[self.in_file].rows

    @precondition(lambda self: self.store.file is not None)
    @rule(data=st.data(), limit=st.integers(1, 4) | st.none())
    def read_in_pages(self, data: st.DataObject, limit: int | None) -> None:
        model = self.after_tick[self.in_file]
        found: list[Any] = []
        if self.store.kind is StoreKind.STREAM:
            start, end = data.draw(SEQS), data.draw(st.none() | SEQS)
            last = data.draw(st.none() | st.integers(0, 5))
            expected = [key for key in sorted(model.rows) if start <= key]
            if last is not None:
                # The last ones of the stream, not of the range.
                expected = [k for k in expected if k in sorted(model.rows)[-last:] and last]
            expected = [key for key in expected if end is None or key <= end]
            wanted = [frames.GET_MESSAGES, start, end, None, limit, last]
            while True:
                page, after = self.bench.read(*wanted)
                found += page
                if after is None:
                    break
                wanted = [frames.GET_MESSAGES, after, end, None, limit]
        else:
            prefix = data.draw(KEYS)
            expected = [k for k in sorted(model.rows, key=str.encode) if k.startswith(prefix)]
            after = None
            while True:
                page, after = self.bench.read(frames.GET_ENTRIES, prefix, after, limit)
                found += page
                if after is None:
                    break
        assert [row[0] for row in found] == expected
        for row in found:
            assert self.as_model(row) == model.rows[row[0]]

    @staticmethod
    def as_model(row: Any) -> tuple[Any, ...]:
        return row[1], row[2], row[3], row[4] or None

    def check_file(self) -> None:
        """The file holds exactly what the model held after the last tick that it has."""
        model = self.after_tick[self.in_file]
        file = self.store.file
        if file is None:
            assert model.revision == 0
            return
        meta = file.meta
        assert [meta.revision, meta.last_seq, meta.count, meta.bytes] == model.head()
        head = self.bench.read(frames.HEAD)
        assert [head[0], *head[2:5]] == model.head()
        keys: list[Any] = list(range(16)) if self.store.kind is StoreKind.STREAM else ["zz"]
        get = 32 if self.store.kind is StoreKind.STREAM else frames.GET_ENTRY
        if self.store.kind is StoreKind.STREAM:
            assert head[1] == min(model.rows, default=model.last_seq + 1)
        for key in {*keys, *model.rows}:
            row = self.bench.read(get, key)
            assert (self.as_model(row) if row else None) == model.rows.get(key)

    @invariant()
    def counters_are_the_models(self) -> None:
        if not hasattr(self, "bench"):
            return
        store = self.store
        store.validate()
        assert [store.revision, store.last_seq, store.count, store.bytes] == self.model.head()


TestStoreHistory = StoreHistory.TestCase
TestStoreHistory.settings = settings(
    deadline=None, max_examples=examples(80), stateful_step_count=40
)
