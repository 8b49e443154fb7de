"""Operations on a store: the rules that are easy to get wrong, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest

from holdfast.protocol import frames
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
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from tests.support.tenant_keys import KEYS
from tests.support.ticked_store import Bench

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


@pytest.fixture(params=(None, KEYS), ids=("clear", "encrypted"))
def keys(request: pytest.FixtureRequest) -> TenantKeys | None:
    """Every operation does the same whether or not its values are encrypted."""
    found: TenantKeys | None = request.param
    return found


@pytest.fixture
def stream(tmp_path: Path, keys: TenantKeys | None) -> Iterator[Bench]:
    with closing(Bench(tmp_path, StoreKind.STREAM, keeps_up=True, keys=keys)) as bench:
        yield bench


@pytest.fixture
def kv(tmp_path: Path, keys: TenantKeys | None) -> Iterator[Bench]:
    with closing(Bench(tmp_path, StoreKind.KV, keeps_up=True, keys=keys)) as bench:
        yield bench


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
    assert stream.read(frames.HEAD)[:5] == [7, 5, 5, 1, 1 + stream.boxes(1)]


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
    assert kv.store.bytes == len(key.encode()) + len(value) + kv.boxes(1)
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
    assert kv.read(frames.HEAD)[:5] == [4, 1, 0, 1, 5 + kv.boxes(1)]


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
    assert kv.read(frames.HEAD)[:5] == [4, 1, 0, 1, 1 + kv.boxes(1)]


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
    assert stream.read(frames.HEAD)[:5] == [1, 1, 1, 1, 1 + stream.boxes(1)]
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
    only_right_arguments_are_taken(stream, operation, right, wrong)


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
    only_right_arguments_are_taken(kv, operation, right, wrong)


def only_right_arguments_are_taken(
    bench: Bench, operation: list[Any], right: list[Callable[[Any], bool]], wrong: Any
) -> None:
    """Each argument in turn is `wrong`: it is refused with a type, unless it `is_right` there."""
    for position, is_right in enumerate(right, start=1):
        tried = list(operation)
        tried[position] = wrong
        result = bench.execute(tried)[0]
        if is_right(wrong):
            assert type(result[0]) is int, tried
        else:
            assert code(result), tried
        bench.store.fail_tick()
        assert bench.store.revision == 0


@pytest.mark.parametrize("number", [0, -1, 5, 20, 31, 32, 99, 1 << 62])
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


def test_a_kv_takes_no_header_block(kv: Bench, stream: Bench) -> None:
    block = b"NATS/1.0\r\na: 1\r\n\r\n"
    assert code(kv.do(SET_ENTRY, "k", b"v", block)) == "invalid_argument"
    assert stream.do(APPEND, b"v", block)[0] == 1
