"""What `get_all` gives of a stream, whatever is combined, is what a list of its messages would
give.

Through the client, the server's pages and the file: with messages deleted, replaced and archived.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.client.handles.stream import Stream
from holdfast.client.values.codec import RAW
from holdfast.client.values.values import Values
from holdfast.client.wire.link import Link
from holdfast.persist.operations import reads
from holdfast.persist.operations.read_rows import UNHURRIED, ArchiveNeededError
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_ARCHIVE, CHANGE_DELETE_MESSAGES, CHANGE_SET_MESSAGE
from holdfast.protocol.names import StoreId, StoreKind, StoreName
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.stores import store_of

STREAM = StoreId("acme", StoreKind.STREAM, "a")
#: Messages of the stream, `time` of each is 1000 + 10 * seq.
LAST_SEQ = 14


class Owner:
    """A stand-in for the link and the owner behind it: each read is executed on the file."""

    unwrap = staticmethod(Link.unwrap)

    def __init__(self, file: StoreFile) -> None:
        self.store = store_of(STREAM, file=file)
        self.page_count = 0
        self.bounds = UNHURRIED

    def submit(self, key: Any, packed: bytes, *_: Any) -> asyncio.Future[Any]:
        self.page_count += 1
        operation = frames.unpack(packed)
        try:
            [result] = reads.execute(self.store, "s1", [operation], bounds=self.bounds)
        except ArchiveNeededError as needed:
            bodies: Bodies = {
                (each.seq, each.revision): (b"%d" % each.seq, None) for each in needed.messages
            }
            [result] = reads.execute(self.store, "s1", [operation], bodies, bounds=self.bounds)
        assert not any(isinstance(row[3], ArchivedMessage) for row in result[0])
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_result((frames.unpack(frames.pack(result)), 0, 2))
        return answer


@contextmanager
def stream_of(deleted: set[int], archived_to: set[int]) -> Iterator[Owner]:
    """A stream whose archive has a block up to each of `archived_to`."""
    with tempfile.TemporaryDirectory() as folder:
        file = StoreFile.create(Path(folder) / "s.db", STREAM, time=1)
        try:
            for seq in range(1, LAST_SEQ + 1):
                change = [CHANGE_SET_MESSAGE, seq, b"%d" % seq]
                file.apply([AppliedBatch(file.meta.revision, 1000 + 10 * seq, [change])])
            changes = [[CHANGE_ARCHIVE, end_seq, ""] for end_seq in sorted(archived_to)]
            if deleted:
                changes.append([CHANGE_DELETE_MESSAGES, sorted(deleted)])
            file.apply([AppliedBatch(file.meta.revision, 2000, changes)])
            yield Owner(file)
        finally:
            file.abandon()


def expected(there: list[int], wanted: dict[str, int]) -> list[int]:
    """What a list would give: the range, of that the last, of those the first."""
    found = [
        seq
        for seq in there
        if wanted.get("start_seq", 1) <= seq <= wanted.get("end_seq", LAST_SEQ)
        and 1000 + 10 * seq >= wanted.get("start_time", 0)
    ]
    if "last" in wanted:
        found = found[max(0, len(found) - wanted["last"]) :]
    return found[: wanted.get("limit")]


async def seqs(owner: Any, wanted: dict[str, int]) -> list[int]:
    follower: Any = None
    stream = Stream(owner, follower, StoreName("a"), Values(owner, "a", RAW))
    found = [message async for message in stream.get_all(**wanted)]
    assert all(message.value == b"%d" % message.seq for message in found)
    return [message.seq for message in found]


number = st.integers(-3, LAST_SEQ + 3)
combinations = st.fixed_dictionaries(
    {},
    optional={
        "start_seq": number,
        "end_seq": number,
        "start_time": st.integers(990, 1010 + 10 * LAST_SEQ),
        "last": st.integers(0, LAST_SEQ + 3) | st.just(10**12),
        "limit": st.integers(0, LAST_SEQ + 3),
    },
)


@settings(max_examples=examples(100), deadline=None)
@example(deleted=set(), archived_to=set(), page_rows=100, wanted=[{"end_seq": 10, "last": 3}])
@given(
    deleted=st.sets(st.integers(1, LAST_SEQ)),
    archived_to=st.sets(st.integers(1, LAST_SEQ), max_size=4),
    page_rows=st.integers(1, 5) | st.just(100),
    wanted=st.lists(combinations, min_size=1, max_size=8),
)
def test_every_combination_gives_what_a_list_would(
    deleted: set[int], archived_to: set[int], page_rows: int, wanted: list[dict[str, int]]
) -> None:
    there = [seq for seq in range(1, LAST_SEQ + 1) if seq not in deleted]
    with stream_of(deleted, archived_to) as owner:
        owner.bounds = UNHURRIED._replace(page_rows=page_rows)
        for each in wanted:
            assert asyncio.run(seqs(owner, each)) == expected(there, each), each


def test_older_messages_are_loaded_page_by_page_backwards() -> None:
    with stream_of({7}, {5}) as owner:
        shown: list[int] = []
        end_seq = LAST_SEQ
        while older := asyncio.run(seqs(owner, {"end_seq": end_seq, "last": 4})):
            shown = older + shown
            end_seq = older[0] - 1
        assert shown == [seq for seq in range(1, LAST_SEQ + 1) if seq != 7]


@pytest.mark.parametrize("wanted", [{"end_seq": 0}, {"end_seq": -86}, {"last": 0}, {"limit": 0}])
def test_an_empty_range_asks_nobody(wanted: dict[str, int]) -> None:
    with stream_of(set(), set()) as owner:
        assert asyncio.run(seqs(owner, wanted)) == []
        assert owner.page_count == 0
