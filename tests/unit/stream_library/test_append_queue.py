"""Which appends go together."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from holdfast.protocol import frames
from holdfast.protocol.limits import MAX_FRAME_OPERATIONS
from holdfast.stream_library.append_queue import (
    Waiting,
    WaitingAppend,
    WaitingTrim,
    next_group,
    operations_of,
)
from holdfast.stream_library.records import MAX_BATCH_BYTES, NewRecord, checked_batch


def append(*records: NewRecord) -> WaitingAppend:
    return WaitingAppend(checked_batch(records), Future())


def test_appends_go_together_up_to_a_trim() -> None:
    queue: deque[Waiting] = deque(
        [append(b"1"), append(b"2", b"3"), WaitingTrim(2, Future()), append(b"4")]
    )
    first = next_group(queue)
    assert operations_of(first, has_limits=False) == [
        [frames.APPEND, b"1"],
        [frames.APPEND, b"2"],
        [frames.APPEND, b"3"],
    ]
    assert operations_of(next_group(queue), has_limits=False) == [[frames.TRIM, 1]]
    assert operations_of(next_group(queue), has_limits=False) == [[frames.APPEND, b"4"]]
    assert not queue


def test_a_group_that_might_be_refused_in_part_is_one_operation() -> None:
    plain: list[Waiting] = [append(b"1", b"2")]
    appends = [[frames.APPEND, b"1"], [frames.APPEND, b"2"]]
    assert operations_of(plain, has_limits=True) == [[frames.BATCH, appends]]
    with_headers: list[Waiting] = [append((b"1", {"a": "b"}), b"2")]
    [[number, members]] = operations_of(with_headers, has_limits=False)
    assert (number, len(members)) == (frames.BATCH, 2)
    alone: list[Waiting] = [append((b"1", {"a": "b"}))]
    assert operations_of(alone, has_limits=True) == [[frames.APPEND, b"1", {"a": "b"}]]


def test_a_group_fits_into_a_frame() -> None:
    many = MAX_FRAME_OPERATIONS // 2 + 1
    queue: deque[Waiting] = deque([append(*[b""] * many), append(*[b""] * many)])
    assert len(next_group(queue)) == 1
    large = b"x" * (MAX_BATCH_BYTES // 5)
    queue = deque([append(large, large, large), append(large, large)])
    assert len(next_group(queue)) == 1
    assert len(next_group(queue)) == 1
