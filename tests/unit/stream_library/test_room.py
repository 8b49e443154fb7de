"""How much may be on its way."""

from __future__ import annotations

import threading

import pytest

from holdfast.protocol.errors import BusyError
from holdfast.stream_library.room import AppendRoom


def test_an_append_of_any_size_fits_into_an_empty_queue() -> None:
    room = AppendRoom(None, max_queued_bytes=10)
    room.take(50, 0)
    with pytest.raises(BusyError, match="queue"):
        room.take(1, 0)
    room.written(50)
    room.take(10, 0)
    assert room.unuploaded_bytes == 0


def test_what_the_bucket_lacks_is_bounded_also_after_it_is_acknowledged() -> None:
    room = AppendRoom(100, max_queued_bytes=1000)
    room.take(60, 0)
    room.written(60)
    with pytest.raises(BusyError, match="bucket"):
        room.take(60, 0)
    room.take(40, 0)
    room.failed(40)
    assert room.unuploaded_bytes == 60
    room.uploaded(60)
    room.take(100, 0)


def test_what_is_found_is_counted_as_far_as_there_is_room() -> None:
    room = AppendRoom(100)
    assert room.found(70) == 70
    assert room.found(70) == 30
    with pytest.raises(BusyError):
        room.take(1, 0)
    room.uploaded(30)
    room.take(30, 0)
    assert AppendRoom(None).found(70) == 0


def test_whoever_waits_goes_on_when_there_is_room_and_at_the_end() -> None:
    room = AppendRoom(100)
    room.take(100, 0)
    done: list[str] = []

    def wait(name: str) -> None:
        room.take(100, None)
        done.append(name)

    first = threading.Thread(target=wait, args=["first"])
    first.start()
    room.written(100)
    room.uploaded(100)
    first.join()
    last = threading.Thread(target=wait, args=["last"])
    last.start()
    room.end()
    last.join()
    assert done == ["first", "last"]
