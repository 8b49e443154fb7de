"""A stream as a gateway serves it, on a real cluster whose servers are killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.client import (
    Client,
    DeposedWriterError,
    SubjectInfo,
    WrongLastMsgIdError,
    WrongLastSeqError,
    WrongRevisionError,
    connect,
)
from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import (
    NewMessage,
    Removed,
    ServedCursor,
    ServedMessage,
    Trimmed,
)
from holdfast.client.large_values.value_reader import ValueReader
from holdfast.protocol.limits import MAX_VALUE_BYTES
from holdfast.protocol.messages import Durability
from tests.support.holdfast_up import RunningUp, running_up
from tests.support.present import present

_tenants = itertools.count(1)

BLOCK = b"NATS/1.0\r\nuser: ada\r\nuser: bob\r\n\r\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    with running_up(tmp_path_factory.mktemp("up") / "data") as running:
        yield running


@pytest.fixture
def hf(runner: asyncio.Runner, cluster: RunningUp) -> Iterator[Client]:
    """A client of a tenant that no other test has."""

    async def begin() -> Client:
        return await connect(cluster.nats, tenant=f"t{next(_tenants)}")

    client = runner.run(begin())
    yield client
    runner.run(client.close())


async def begun(client: Client, epoch: int = 1) -> ServingStream:
    """Return a stream that is served from now on with this epoch."""
    stream = client.serving_stream("s")
    await stream.configure(serving_epoch=epoch)
    stream.serving_epoch = epoch
    return stream


async def test_who_begins_to_serve_learns_whether_anybody_ever_wrote_the_stream(
    hf: Client,
) -> None:
    first, second = hf.serving_stream("s"), hf.serving_stream("s")
    assert await first.begin_serving(1, max_messages=5) == 1
    assert await second.begin_serving(2) == 2
    with pytest.raises(DeposedWriterError):
        await first.begin_serving(2)
    assert (first.serving_epoch, second.serving_epoch) == (1, 2)
    config = await first.config()
    assert (config.max_messages, config.serving_epoch) == (5, 2)


async def test_a_stream_that_somebody_has_used_is_not_taken_as_a_new_one(hf: Client) -> None:
    stream = hf.serving_stream("s")
    assert await stream.begin_serving(5, only_unused=True, first_seq=9, max_messages=5) == 1
    with pytest.raises(WrongRevisionError):
        await stream.begin_serving(6, only_unused=True)
    # One that only a gateway has configured is taken by whoever knows its serving epoch.
    with pytest.raises(DeposedWriterError):
        await stream.begin_serving(6, only_unused=True, former_epoch=4)
    assert await stream.begin_serving(6, only_unused=True, former_epoch=5) == 2
    await stream.set_cursor("c")
    with pytest.raises(WrongRevisionError):
        await stream.begin_serving(7, only_unused=True, former_epoch=6)
    assert await stream.delete_cursor("c")
    assert await stream.begin_serving(7, only_unused=True, former_epoch=6) == 5
    assert (await stream.append("a", b"1")).seq == 9
    assert await stream.delete(9) == 1
    with pytest.raises(WrongRevisionError):
        await stream.begin_serving(8, only_unused=True, former_epoch=7)
    assert await stream.destroy()
    # What is there after a destruction is new.
    await stream.begin_serving(1, only_unused=True)
    assert (await stream.append("a", b"1")).seq == 1


async def test_what_a_gateway_writes_it_reads_byte_for_byte(hf: Client) -> None:
    stream = await begun(hf)
    first = await stream.append("a.x", b"1", BLOCK, msg_id="one")
    again = await stream.append("a.x", b"other", msg_id="one")
    assert (first.seq, first.duplicate, again) == (1, False, first._replace(duplicate=True))
    # Above what goes in one frame, and below the largest payload of NATS.
    large = b"large" * 202_000
    found = await stream.append_batch(
        [NewMessage("a.y", b"2"), NewMessage("b", b"3", b"", None, None, 3600.0)]
    )
    assert [each.seq for each in found] == [2, 3]
    assert (await stream.append("a.x", large, BLOCK)).seq == 4
    totals = [await stream.append("n", b"", options={"incr": by}) for by in ("+5", "-7", "100")]
    assert [each.total for each in totals] == ["5", "-2", "98"]
    page = await stream.by_subject(["a.*"])
    assert page.next_seq is None
    assert [each._replace(time_ms=0) for each in page.messages] == [
        ServedMessage(1, "a.x", 0, BLOCK, b"1"),
        ServedMessage(2, "a.y", 0, b"", b"2"),
        ServedMessage(4, "a.x", 0, BLOCK, large),
    ]
    assert present(await stream.get(4)).value == large
    assert await stream.get(99) is None
    found, count = await stream.get_many([7, 3, 99])
    assert ([each.seq for each in found], count) == ([7, 3], 3)
    assert present(await stream.last("a.x")).seq == await stream.last_seq("a.x") == 4
    assert (await stream.last_seq(">"), await stream.last_seq("none.*")) == (7, 0)
    assert [each.seq for each in (await stream.lasts([">"], up_to_seq=3)).messages] == [1, 2, 3]
    assert (await stream.count(["a.>"]), await stream.count([">"], 2, lasts=True)) == (
        *((3, 7), (4, 7)),
    )
    subjects, after = await stream.subjects("a.*")
    assert (subjects, after) == ([SubjectInfo("a.x", 2, 1, 4), SubjectInfo("a.y", 1, 2, 2)], None)
    head = await stream.head()
    assert (head.first_seq, head.last_seq, head.subject_count) == (1, 7, 4)
    assert head.first_time_ms == first.time_ms
    assert head.last_time_ms >= head.first_time_ms
    assert await stream.delete(2, 6, 99) == 2
    assert [seqs async for seqs in stream.gaps()] == [[2, 6]]
    assert await stream.purge("a.*", before_seq=4) == 1
    assert await stream.purge(keep=1) == 3


async def test_a_page_has_few_large_values(hf: Client) -> None:
    """The owner counts what their rows take."""
    stream = await begun(hf)
    values = [bytes([number]) * (MAX_VALUE_BYTES + 10) for number in range(5)]
    for number, value in enumerate(values):
        await stream.append(f"a.{number}", value)
        await stream.append(f"a.{number}.small", b"v")
    found: list[ServedMessage] = []
    next_seq: int | None = 1
    while next_seq is not None:
        page = await stream.by_subject(["a.>"], start_seq=next_seq)
        assert sum(len(each.value) for each in page.messages) < 2 * MAX_VALUE_BYTES
        found += page.messages
        next_seq = page.next_seq
    followed: list[Any] = []
    async with stream.follow(1) as changes, asyncio.timeout(60):
        while len(followed) < 10:
            given = await anext(changes)
            assert sum(len(each.value) for each in given) < 2 * MAX_VALUE_BYTES
            followed += given
    assert [each.value for each in followed] == [each.value for each in found]
    lasts: list[ServedMessage] = []
    after_seq: int | None = 0
    while after_seq is not None:
        page = await stream.lasts(["a.>"], after_seq=after_seq)
        assert sum(len(each.value) for each in page.messages) < 2 * MAX_VALUE_BYTES
        lasts += page.messages
        after_seq = page.next_seq
    some: list[ServedMessage] = []
    seqs = [10, 1, 3, 99, 2, 5, 7, 9]
    while seqs:
        messages, count = await stream.get_many(seqs)
        assert sum(len(each.value) for each in messages) < 2 * MAX_VALUE_BYTES
        some += messages
        seqs = seqs[count:]
    assert [each.seq for each in some] == [10, 1, 3, 2, 5, 7, 9]
    assert [each.seq for each in found] == [each.seq for each in lasts] == list(range(1, 11))
    assert [each.value for each in found[::2]] == [each.value for each in lasts[::2]] == values


async def test_a_deposed_gateway_changes_nothing(hf: Client) -> None:
    former = await begun(hf, 3)
    await former.append("a", b"1")
    await former.set_cursor("c", config=b"c")
    present_one = await begun(hf, 4)
    revision = (await present_one.head()).revision
    writes: list[Any] = [
        former.append("a", b"2"),
        former.append_batch([NewMessage("a", b"2")]),
        former.delete(1),
        former.purge(),
        former.set_cursor("c", state=b"s"),
        former.delete_cursor("c"),
        former.configure(max_messages=1),
        former.configure(serving_epoch=4),
    ]
    for write in writes:
        with pytest.raises(DeposedWriterError):
            await write
    assert (await former.head()).revision == revision
    assert (await present_one.append("a", b"2")).seq == 2


async def test_what_a_write_expects_is_checked_before_it(hf: Client) -> None:
    stream = await begun(hf)
    await stream.append("a", b"1", msg_id="one")
    await stream.append("b", b"2", options={"expected_last_msg_id": "one"})
    for options in ({"expected_last_msg_id": "one"}, {"expected_last_msg_id": "two"}):
        with pytest.raises(WrongLastMsgIdError):
            await stream.append("b", b"3", options=options)
    with pytest.raises(WrongLastSeqError):
        await stream.append("b", b"3", options={"expected_last_subject_seq": 1})
    # In a batch all is checked against the state before it.
    expected = {"expected_last_subject_seq": 2}
    batch = [NewMessage("b", b"%d" % seq, options=expected) for seq in (3, 4)]
    assert [each.seq for each in await stream.append_batch(batch)] == [3, 4]


async def test_a_batch_removes_a_message_and_notes_so_in_a_cursor(hf: Client) -> None:
    stream = await begun(hf)
    await stream.append("a", b"1")
    packer = stream.packer
    results = await stream.batch(
        [
            packer.delete_operation([1]),
            packer.cursor_operation("c", config=b"config", state=b"s", rows=[(1, b"d"), (9, b"e")]),
        ],
        durability=int(Durability.APPLIED),
    )
    assert results[0][0] == 1
    assert await stream.cursors() == [ServedCursor("c", b"config", b"s", [(1, b"d"), (9, b"e")])]
    await stream.set_cursor("c", state=b"t", rows=[(2, b"f")], removed=[1])
    await stream.set_cursor("b", config=b"", state=b"")
    assert await stream.cursors("c") == [ServedCursor("c", b"config", b"t", [(2, b"f"), (9, b"e")])]
    assert [each.name for each in await stream.cursors()] == ["b", "c"]
    assert await stream.delete_cursor("b")
    assert not await stream.delete_cursor("b")
    assert await stream.cursors("nobody") == []


async def test_appends_without_a_task_are_answered_in_order(hf: Client) -> None:
    stream = await begun(hf)

    class Waiter:
        """Takes the answer where it comes in."""

        def __init__(self, number: int) -> None:
            self.number = number

        def done(self) -> bool:
            return False

        def set_result(self, answer: Any) -> None:
            answers.append((self.number, stream.appended(answer).seq))
            if len(answers) == 500:
                ended.set_result(None)

    answers: list[tuple[int, int]] = []
    ended = asyncio.get_running_loop().create_future()
    for number in range(500):
        if stream.full:
            await stream.wait_for_room()
        stream.append_soon(Waiter(number), f"a.{number % 7}", b"v%d" % number, BLOCK)
    async with asyncio.timeout(30):
        await ended
    assert answers == [(number, number + 1) for number in range(500)]


async def test_a_follower_and_cursors_survive_the_owner(hf: Client, cluster: RunningUp) -> None:
    stream = await begun(hf)
    await stream.append("a", b"before")
    await stream.set_cursor("c", config=b"config", rows=[(1, b"d")])
    found: list[Any] = []
    async with stream.follow((await stream.head()).revision) as changes:
        for number in range(60):
            if number == 30:
                pid = present(cluster.pids()[(await stream.head()).server])
                os.kill(pid, signal.SIGKILL)
            await stream.append(f"a.{number}", b"%d" % number, BLOCK, timeout_seconds=60)
        await stream.delete(3, 4)
        await stream.purge(before_seq=11)
        async with asyncio.timeout(60):
            while not found or not isinstance(found[-1], Trimmed | Removed) or len(found) < 62:
                found += await anext(changes)
    assert [(each.seq, each.subject, each.headers, each.value) for each in found[:60]] == [
        (seq, f"a.{seq - 2}", BLOCK, b"%d" % (seq - 2)) for seq in range(2, 62)
    ]
    assert found[60] == Removed((3, 4))
    assert found[61] in (Trimmed(10), Removed((1, 2, *range(5, 11))))
    assert await stream.cursors() == [ServedCursor("c", b"config", b"", [(1, b"d")])]


async def test_a_large_value_that_is_replaced_while_it_is_fetched_is_not_missing(
    hf: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await begun(hf)
    old, new = b"o" * (MAX_VALUE_BYTES + 1), b"n" * (MAX_VALUE_BYTES + 1)
    read = ValueReader.read
    later: list[bytes] = []

    async def replaced_first(reader: ValueReader[Any]) -> bytes:
        if later:
            await hf.stream("s").set(1, later.pop())
        return await read(reader)

    await stream.append("a", old)
    monkeypatch.setattr(ValueReader, "read", replaced_first)
    later.append(new)
    found, _ = await stream.get_many([1])
    assert [each.value for each in found] == [new]
    later.append(old)
    assert [each.value for each in (await stream.by_subject(["a"])).messages] == [old]
    later.append(b"small")
    assert present(await stream.last("a")).value == b"small"
