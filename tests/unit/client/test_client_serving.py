"""A stream as a gateway handles it: operations packed, rows and changes read."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client.following.merge import Broadcast, Cursor, Merge
from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import (
    Appended,
    NewMessage,
    Packer,
    ServedMessage,
    ServedPage,
    ServingHead,
    appended,
    block_of,
    filled,
    head_of,
    stored_messages,
)
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.compression import compressed_always
from holdfast.protocol.errors import DeposedWriterError, MalformedFrameError, error_to_wire
from holdfast.protocol.frames import ChangeBatch, unpack
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import PAGE_BYTES
from holdfast.protocol.messages import (
    Ack,
    Change,
    ChangeKind,
    Durability,
    LargeValue,
    Message,
)

BLOCK = b"NATS/1.0\r\nuser: ada\r\n\r\n"


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (NewMessage("a.b", b"v"), [1, b"v", None, None, None, None, "a.b", 7]),
        (NewMessage("a.b", b"v", BLOCK), [1, b"v", BLOCK, None, None, None, "a.b", 7]),
        (
            NewMessage("a", b"", BLOCK, "id", 3, 1.5, {"rollup": "sub"}),
            [1, b"", BLOCK, "id", 3, 1.5, "a", 7, {"rollup": "sub"}],
        ),
    ],
)
def test_an_append_is_packed_as_its_operation_is(message: NewMessage, wire: list[Any]) -> None:
    packer = Packer(7)
    assert unpack(packer.append(*message)) == wire
    assert packer.append_operation(message) == wire


def test_every_write_names_the_serving_epoch() -> None:
    packer = Packer(4)
    assert packer.delete_operation([3]) == [frames.DELETE_MESSAGES, [3], 4]
    assert packer.purge_operation("a.*", 9, None) == [frames.PURGE, "a.*", 9, None, 4]
    assert packer.cursor_operation("c", state=b"s", rows=[(5, b"d")], removed=[1]) == [
        *(frames.SET_CURSOR, "c", 4, None, b"s", [(5, b"d")], [1])
    ]
    packer.serving_epoch = 5
    assert packer.delete_cursor_operation("c") == [frames.DELETE_CURSOR, "c", 5]


def test_an_append_is_answered_by_a_run_a_result_or_an_error() -> None:
    run = Ack(4, 9, 1000, Durability.SYNCED)
    assert ServingStream.appended(run) == Appended(4, 9, 1000)
    answer = ([3, 7, 500, True], 1000, Durability.SYNCED)
    assert ServingStream.appended(answer) == Appended(3, 7, 500, duplicate=True)
    assert appended([3, 7, None, False, "12"], 1000) == Appended(3, 7, 1000, total="12")
    refused = error_to_wire(DeposedWriterError(serving_epoch=1, actual=2))
    with pytest.raises(DeposedWriterError):
        ServingStream.appended((refused, 1000, Durability.SYNCED))


def test_rows_of_a_gateway_and_of_native_clients_are_one_page() -> None:
    written = [5, 8, 1000, b"v", BLOCK, "a.b"]
    assert stored_messages([written]) == [ServedMessage(5, "a.b", 1000, BLOCK, b"v")]
    bare = [6, 9, 1000, b"w", None, "a"]
    native = [7, 10, 1001, b"x", {"user": "ada"}]
    plain = [8, 11, 1001, b"y"]
    assert stored_messages([written, bare, native, plain]) == [
        ServedMessage(5, "a.b", 1000, BLOCK, b"v"),
        ServedMessage(6, "a", 1000, b"", b"w"),
        ServedMessage(7, "", 1001, BLOCK, b"x"),
        ServedMessage(8, "", 1001, b"", b"y"),
    ]
    assert stored_messages([[9, 12, 1001, b"z", None, None]]) == [
        ServedMessage(9, "", 1001, b"", b"z")
    ]
    assert stored_messages([]) == []


def test_a_large_value_stands_in_its_place_until_it_is_fetched() -> None:
    large = LargeValue(b"u" * 16, 2_000_000, b"s" * 32, 7)
    row = [5, 8, 1000, list(large), BLOCK, "a"]
    assert stored_messages([row]) == [(row, large)]
    assert filled(row, b"all of it") == ServedMessage(5, "a", 1000, BLOCK, b"all of it")


def test_what_a_native_client_compressed_is_decompressed() -> None:
    value = b"again and " * 1000
    stored, headers = compressed_always(value, {"user": "ada"})
    row = [5, 8, 1000, stored, headers, "a"]
    assert stored_messages([row]) == [ServedMessage(5, "a", 1000, BLOCK, value)]
    damaged = [5, 8, 1000, b"nothing of zstd", headers, "a"]
    [found] = stored_messages([damaged])
    assert isinstance(found, ServedMessage)
    assert found.value == b"nothing of zstd"
    assert HeaderBlock(found.headers)["hf-encoding"] == "zstd"


def test_headers_that_no_block_can_hold_become_one_all_the_same() -> None:
    block = block_of({"a:b": "one\r\ntwo"})
    assert block == b"NATS/1.0\r\na b: one  two\r\n\r\n"
    assert block_of(HeaderBlock(BLOCK)) == BLOCK
    assert block_of({}) == block_of(None) == b""


def test_a_head_may_be_of_an_owner_that_knows_no_subjects() -> None:
    old = [9, 1, 4, 4, 100, 2, "a"]
    assert head_of(old) == ServingHead(9, 1, 4, 4, 100, 2, "a")
    new = head_of([*old, 10, 20, 3, "id", "something of a later version"])
    assert (new.first_time_ms, new.last_time_ms, new.subject_count) == (10, 20, 3)
    assert new.last_msg_id == "id"
    with pytest.raises(MalformedFrameError):
        head_of([1, 2])


def test_all_that_a_merge_has_is_taken_at_once() -> None:
    merge = Merge(100)
    merge.start(Cursor(0, 0))
    merge.page([[], 0, 0, 0, False], Cursor(0, 0))
    changes = [[CHANGE_SET_MESSAGE, seq, b"v"] for seq in (1, 2, 3)]
    merge.broadcast(Broadcast(ChangeBatch(1, 0, 0, changes)))
    assert [change.revision for change in merge.take_all()] == [1, 2, 3]
    assert merge.taken == Cursor(3, 3)
    assert merge.take_all() == []
    # With something held for later, too; what was taken does not come again.
    merge.broadcast(Broadcast(ChangeBatch(1, 3, 0, [[CHANGE_SET_MESSAGE, 4, b"v"]])))
    merge.broadcast(Broadcast(ChangeBatch(1, 5, 0, [[CHANGE_SET_MESSAGE, 6, b"v"]])))
    assert [change.revision for change in merge.take_all()] == [4]
    merge.shed()
    assert merge.cursor == Cursor(4, 4)
    assert merge.behind


class Scripted(ServingStream):
    """Answers reads with what a test says, and notes what is asked."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[list[Any]] = []
        self._answers = list(answers)

    async def _read(self, operation: list[Any], timeout_seconds: float | None) -> Any:
        self.asked.append(operation)
        return self._answers.pop(0)


async def test_an_empty_page_is_the_end_only_if_no_other_follows() -> None:
    row = [7, 9, 1000, b"v", None, "rare"]
    stream = Scripted([[], 5], [[row], 8], [[], None])
    page = await stream.by_subject(["rare"], start_time_ms=3, limit=1)
    assert ([each.seq for each in page.messages], page.next_seq) == ([7], 8)
    assert [operation[2] for operation in stream.asked] == [None, 5]
    assert await stream.by_subject(["rare"], start_seq=8) == ServedPage([], None)
    stream = Scripted([[], 4], [[row], None])
    assert [each.seq for each in (await stream.lasts([">"])).messages] == [7]
    assert [operation[3] for operation in stream.asked] == [None, 4]


async def test_messages_by_their_seqs_come_in_pages() -> None:
    rows = {seq: [seq, seq, 1000, b"v", None, "a"] for seq in (9, 3, 4)}
    stream = Scripted([[rows[9]], 2], [[rows[3], rows[4]], None])
    messages, count = await stream.get_many([7, 9, 3, 4])
    assert ([each.seq for each in messages], count) == ([9], 2)
    messages, count = await stream.get_many([3, 4])
    assert ([each.seq for each in messages], count) == ([3, 4], 2)
    assert [operation[1] for operation in stream.asked] == [[7, 9, 3, 4], [3, 4]]


async def test_a_page_by_seqs_ends_where_large_values_have_enough_bytes() -> None:
    """The owner counts what their rows take."""
    stream = Fetching([[[seq, seq, 1000, _large(seq), None, "a"] for seq in (9, 3, 5)], None])
    messages, count = await stream.get_many([7, 9, 3, 6, 5])
    # The next one to ask for is one that exists: 6 was looked for, too.
    assert ([each.seq for each in messages], count) == ([9, 3], 4)


async def test_changes_are_given_out_while_large_values_have_few_bytes() -> None:
    stream = Fetching()
    changes = []
    for seq in range(1, 8):
        large = LargeValue(*_large(seq)) if seq % 2 else None
        message = Message(seq, b"", {}, 1000, seq, large)
        changes.append(Change(ChangeKind.SET, seq, 1000, message))
    found: list[list[int]] = []
    while changes:
        given, count = await stream._changes(changes)
        found.append([each.seq for each in given if isinstance(each, ServedMessage)])
        changes = changes[count:]
    assert found == [[1, 2, 3], [4, 5, 6, 7]]


def _large(seq: int) -> list[Any]:
    return list(LargeValue(bytes([seq]) * 16, PAGE_BYTES * 2 // 3, bytes(32), 0))


class Fetching(Scripted):
    """Has large values at hand."""

    async def _whole(self, found: Any) -> ServedMessage | None:
        if isinstance(found, ServedMessage):
            return found
        row, large = found
        return filled(row, bytes(large.size_bytes))
