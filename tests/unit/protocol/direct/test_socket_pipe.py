"""Pipes over sockets, and the folder of the sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
import tracemalloc
from pathlib import Path

import pytest

from holdfast.client import connect
from holdfast.protocol.direct import place
from holdfast.protocol.direct.memory_pipe import MemoryPipe
from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.direct.place import SocketDoor, dial
from holdfast.protocol.direct.socket_pipe import SocketPipe, Splitter
from holdfast.protocol.errors import InvalidArgumentError
from tests.support.waiting import until

_LIMIT = 1 << 20


class _End:
    """What happens at one end of a pipe."""

    def __init__(self, pipe: DirectPipe) -> None:
        self.pipe = pipe
        self.messages: list[bytes] = []
        self.end_count = 0
        pipe.start(self.messages.append, self._ended)

    def _ended(self) -> None:
        self.end_count += 1


def _pair(max_unsent_bytes: int = 1 << 23) -> tuple[SocketPipe, SocketPipe]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    return SocketPipe(one, _LIMIT, max_unsent_bytes), SocketPipe(other, _LIMIT, max_unsent_bytes)


async def test_messages_of_all_sizes_arrive_in_order_both_ways() -> None:
    one, other = map(_End, _pair())
    chance = random.Random(1)
    sizes = [0, 1, _LIMIT, *(chance.choice((10, 1000, 300_000)) for _ in range(40))]
    messages = [chance.randbytes(size) for size in sizes]
    for start in range(0, len(messages), 5):
        for message in messages[start : start + 5]:
            assert one.pipe.send(message)
            assert other.pipe.send(message)
        done = start + 5
        await until(lambda done=done: len(other.messages) >= min(done, len(messages)))
        await until(lambda done=done: len(one.messages) >= min(done, len(messages)))
    assert one.messages == other.messages == messages
    one.pipe.close()
    await until(lambda: other.end_count == 1)
    assert one.end_count == 0
    assert not one.pipe.send(b"x")
    assert not other.pipe.send(b"x")


@pytest.mark.parametrize("size", [0, 10, 100_000, _LIMIT - 10])
async def test_a_message_in_parts_arrives_whole_also_behind_what_the_socket_has_not_taken(
    size: int,
) -> None:
    one, other = map(_End, _pair())
    chance = random.Random(size)
    messages = []
    for _ in range(6):
        parts = chance.randbytes(8), chance.randbytes(size), b"", b"z"
        assert one.pipe.send(*parts)
        messages.append(b"".join(parts))
    await until(lambda: len(other.messages) == len(messages))
    assert other.messages == messages
    one.pipe.close()
    await until(lambda: other.end_count == 1)


@pytest.mark.parametrize("most", [1, 3, 5000, 100_000])
def test_messages_are_found_in_pieces_of_any_size(most: int) -> None:
    sizes = random.Random(most)
    messages = [sizes.randbytes(size) for size in (0, 1, 30_000, 3, 0, 70_000, 5)]
    data = b"".join(len(message).to_bytes(4) + message for message in messages)
    splitter, found, at = Splitter(100_000), [], 0
    while at < len(data):
        end = at + sizes.randint(1, most)
        found += splitter.split(data[at:end])
        at = end
    assert found == messages


def test_who_sends_a_message_in_tiny_pieces_takes_no_more_memory_than_it_has() -> None:
    size_bytes = 256 * 1024
    splitter, piece = Splitter(size_bytes), bytearray(b"ab")
    tracemalloc.start()
    try:
        assert splitter.split(size_bytes.to_bytes(4)) == []
        for _ in range(size_bytes // 2 - 1):
            assert splitter.split(bytes(piece)) == []
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes < 2 * size_bytes
    assert splitter.split(bytes(piece)) == [b"ab" * (size_bytes // 2)]


async def test_whoever_takes_too_little_is_left() -> None:
    one, other = _pair(1 << 20)
    end = _End(one)
    sent = 0
    while end.pipe.send(bytes(100_000)):
        sent += 1
        assert sent < 100, "there is no bound"
    assert end.end_count == 1
    left = _End(other)
    await until(lambda: left.end_count == 1)


async def test_a_message_above_the_limit_ends_the_pipe() -> None:
    one, other = map(_End, _pair())
    one.pipe.send(bytes(_LIMIT + 1))
    await until(lambda: one.end_count == other.end_count == 1)
    assert other.messages == []


async def test_a_callback_that_raises_costs_one_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one, other = _pair()
    taken: list[bytes] = []

    def take(message: bytes) -> None:
        if message == b"2":
            raise RuntimeError("a bug")
        taken.append(message)

    other.start(take, lambda: None)
    for message in (b"1", b"2", b"3"):
        one.send(message)
    await until(lambda: taken == [b"1", b"3"])
    assert "direct.message_failed" in caplog.text
    one.close()
    other.close()


async def test_a_server_is_found_by_its_name_in_a_folder_with_a_path_of_any_length(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("long" * 30) / "direct"
    door = SocketDoor(folder, "s1", lambda: _LIMIT)
    entered: list[DirectPipe] = []
    assert dial(folder, "s1", _LIMIT) is None
    door.open(entered.append)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "s1.sock").stat().st_mode & 0o777 == 0o600
    mine = dial(folder, "s1", _LIMIT)
    assert mine is not None
    assert dial(folder, "s2", _LIMIT) is None
    await until(lambda: len(entered) == 1)
    one, other = _End(mine), _End(entered[0])
    one.pipe.send(b"hello")
    await until(lambda: other.messages == [b"hello"])
    door.close()
    assert dial(folder, "s1", _LIMIT) is None
    assert list(folder.iterdir()) == []
    one.pipe.close()
    await until(lambda: other.end_count == 1)


async def test_a_client_in_the_process_of_a_server_needs_no_socket(tmp_path: Path) -> None:
    folder = tmp_path / "direct"
    door = SocketDoor(folder, "s1", lambda: _LIMIT, in_process=True)
    assert dial(folder, "s1", _LIMIT) is None
    entered: list[DirectPipe] = []
    door.open(entered.append)
    mine = dial(folder, "s1", _LIMIT)
    assert isinstance(mine, MemoryPipe)
    one, other = _End(mine), _End(entered[0])
    one.pipe.send(b"a ", b"frame")
    await until(lambda: other.messages == [b"a frame"])
    # Others come by the socket, and see no other server here.
    assert (folder / "s1.sock").exists()
    assert dial(tmp_path / "other", "s1", _LIMIT) is None
    assert dial(folder, "s2", _LIMIT) is None
    door.close()
    assert dial(folder, "s1", _LIMIT) is None
    # As the next life of the server does.
    door.open(entered.append)
    again = dial(folder, "s1", _LIMIT)
    assert isinstance(again, MemoryPipe)
    again.close()
    one.pipe.close()
    await until(lambda: other.end_count == 1)
    door.close()


async def test_the_next_life_of_a_server_takes_the_place_of_one_that_was_killed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "direct"
    killed, following = (SocketDoor(folder, "s1", lambda: _LIMIT) for _ in range(2))
    killed.open(lambda pipe: None)
    entered: list[DirectPipe] = []
    following.open(entered.append)
    # It wakes once more.
    killed.close()
    pipe = dial(folder, "s1", _LIMIT)
    assert pipe is not None
    await until(lambda: len(entered) == 1)
    for each in (pipe, *entered):
        each.close()
    following.close()


async def test_a_folder_in_which_others_may_write_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "direct"
    door = SocketDoor(folder, "s1", lambda: _LIMIT)
    door.open(lambda pipe: pipe.close())
    folder.chmod(0o777)
    assert dial(folder, "s1", _LIMIT) is None
    with pytest.raises(InvalidArgumentError):
        SocketDoor(folder, "s2", lambda: _LIMIT)
    door.close()


async def test_another_user_is_neither_let_in_nor_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "direct"
    door = SocketDoor(folder, "s1", lambda: _LIMIT)
    entered: list[DirectPipe] = []
    door.open(entered.append)
    monkeypatch.setattr(place, "_peer_of", lambda connection: os.geteuid() + 1)
    assert dial(folder, "s1", _LIMIT) is None
    for _ in range(10):
        await asyncio.sleep(0)
    assert entered == []
    door.close()


async def test_a_process_without_descriptors_is_left_to_nats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    door = SocketDoor(tmp_path / "direct", "s1", lambda: _LIMIT)
    door.open(lambda pipe: None)
    monkeypatch.setattr(place, "_new_socket", none_left)
    assert dial(tmp_path / "direct", "s1", _LIMIT) is None
    door.close()


def test_a_system_without_such_sockets_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(InvalidArgumentError):
        connect(direct="/run/holdfast")
