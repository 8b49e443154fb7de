"""The folder in which the persist servers of a host listen for direct connections: one socket for
each, with the server's name.

Whoever can open a socket there can be a client of a cluster that asks for no tokens. So the folder
and the sockets are for one user: servers make them so, and both sides refuse another user's. The
kernel tells each side who the other is, where it can.

A client in the process of a server, such as a gateway, needs no socket to reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from holdfast.protocol.bus.login import StrPath
from holdfast.protocol.direct.door_bus import Door
from holdfast.protocol.direct.memory_pipe import MemoryDoor, MemoryPipe
from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.direct.socket_pipe import SocketPipe
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MAX_DIRECT_CLIENTS

logger = logging.getLogger("holdfast.bus")

#: What the address of a socket may be long, with a margin: 108 bytes on Linux, 104 on macOS.
_ADDRESS_BYTES: Final = 100
#: `struct ucred` of SO_PEERCRED: pid, uid, gid.
_PEER: Final = struct.Struct("3i")
#: The open doors of servers in this process that its clients use as well, by the paths of their
#: sockets.
_DOORS_HERE: Final[dict[Path, MemoryDoor]] = {}
#: How long nobody is let in after the process had no descriptors left.
_PAUSE_SECONDS: Final = 1.0


class SocketDoor(Door):
    """The socket of one server."""

    def __init__(
        self,
        folder: Path,
        server: str,
        max_message_bytes: Callable[[], int],
        *,
        in_process: bool = False,
    ) -> None:
        """With `in_process`, clients in the event loop that opens it come in without the socket.
        Raises InvalidArgumentError if the folder cannot be used."""
        make_private(folder)
        #: Where clients of this process come in.
        self._here = MemoryDoor() if in_process else None
        self._folder = folder
        self._name = _name(server)
        self._max_message_bytes = max_message_bytes
        self._listening: socket.socket | None = None
        self._inode = 0
        self._resuming: asyncio.TimerHandle | None = None

    def open(self, enter: Callable[[DirectPipe], None]) -> None:
        self.close()
        if self._here is not None:
            self._here.open(enter)
            _DOORS_HERE[self._folder / self._name] = self._here
        listening = _new_socket()
        try:
            with _address(self._folder, self._name) as address:
                # Of a former life of the server, which has the name alone.
                Path(address).unlink(missing_ok=True)
                listening.bind(address)
                Path(address).chmod(0o600)
                # Nobody is let in before this.
                listening.listen(MAX_DIRECT_CLIENTS)
                self._inode = Path(address).stat().st_ino
        except OSError:
            listening.close()
            raise
        self._listening = listening
        self._listen(enter)

    def close(self) -> None:
        if self._here is not None:
            self._here.close()
            if _DOORS_HERE.get(self._folder / self._name) is self._here:
                del _DOORS_HERE[self._folder / self._name]
        listening, self._listening = self._listening, None
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        if listening is None:
            return
        asyncio.get_running_loop().remove_reader(listening.fileno())
        listening.close()
        with contextlib.suppress(OSError), _address(self._folder, self._name) as address:
            # The next life of the server may listen already.
            if Path(address).stat().st_ino == self._inode:
                Path(address).unlink()

    def _listen(self, enter: Callable[[DirectPipe], None]) -> None:
        self._resuming = None
        if self._listening is not None:
            loop = asyncio.get_running_loop()
            loop.add_reader(self._listening.fileno(), self._accept, enter)

    def _accept(self, enter: Callable[[DirectPipe], None]) -> None:
        listening = self._listening
        if listening is None:
            return
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:
            # Without a pause the loop would try again and again.
            logger.warning("direct.not_accepted reason=%s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening.fileno())
            self._resuming = loop.call_later(_PAUSE_SECONDS, self._listen, enter)
            return
        connection.setblocking(False)
        if not _is_trusted(_peer_of(connection)):
            logger.warning("direct.foreign_user uid=%s", _peer_of(connection))
            connection.close()
            return
        enter(SocketPipe(connection, self._max_message_bytes()))


def dial(folder: Path, server: str, max_message_bytes: int) -> DirectPipe | None:
    """Return a pipe to a server that listens in a folder; None if none does, or if it is not one to
    be trusted. It waits for nothing but the file system."""
    here = _DOORS_HERE.get(folder / _name(server))
    if here is not None:
        mine, its = MemoryPipe.pair()
        return mine if here.enter(its) else None
    try:
        return SocketPipe(_connected(folder, server), max_message_bytes)
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        return None
    except OSError as error:
        logger.warning("direct.not_dialled server=%s reason=%s", server, error)
        return None


def check_folder(folder: StrPath, argument: str) -> Path:
    """Return a folder of direct connections. Raises InvalidArgumentError, also on a system without
    them."""
    if not isinstance(folder, str | os.PathLike) or not (path := os.fspath(folder)) or "\0" in path:
        reason = f"{folder!r:.80} is not the path of a folder"
        raise InvalidArgumentError(argument=argument, reason=reason)
    if not (hasattr(socket, "AF_UNIX") and hasattr(os, "geteuid")):
        raise InvalidArgumentError(argument=argument, reason="this system has no such sockets")
    return Path(path)


def make_private(folder: Path) -> None:
    """Make the folder, for this user alone. Raises InvalidArgumentError if it is another's."""
    check_folder(folder, "--direct")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(folder.stat()):
            raise PermissionError(errno.EACCES, "other users may write there")
        if len(os.fsencode(folder / "x")) > _ADDRESS_BYTES and sys.platform != "linux":
            raise OSError(errno.ENAMETOOLONG, "the path is too long for a socket")
    except OSError as error:
        raise InvalidArgumentError(argument="--direct", reason=f"{folder}: {error}") from error


def _connected(folder: Path, server: str) -> socket.socket:
    """Return a socket that is connected to a server. Raises OSError."""
    connection = _new_socket()
    try:
        if not _is_private(folder.stat()):
            raise PermissionError(errno.EACCES, "other users may write there", str(folder))
        with _address(folder, _name(server)) as address:
            # Never waits: it connects at once, or there is no room.
            connection.connect(address)
        if not _is_trusted(_peer_of(connection)):
            raise PermissionError(errno.EACCES, "another user listens", str(folder))
    except OSError:
        connection.close()
        raise
    return connection


def _new_socket() -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.setblocking(False)
    return found


def _name(server: str) -> str:
    return f"{server}.sock"


def _is_private(status: os.stat_result) -> bool:
    """Tell whether only this user, or root, can put sockets into a folder."""
    others = stat.S_IWGRP | stat.S_IWOTH
    return (
        stat.S_ISDIR(status.st_mode) and _is_trusted(status.st_uid) and not status.st_mode & others
    )


def _is_trusted(user: int | None) -> bool:
    """Tell whether a user is this one or root. Where the kernel does not tell, the folder does."""
    return user in (None, 0, os.geteuid())


def _peer_of(connection: socket.socket) -> int | None:
    """Return the user at the other end; None if the kernel does not tell."""
    if sys.platform != "linux":
        return None
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    user: int = _PEER.unpack(peer)[1]
    return user


@contextlib.contextmanager
def _address(folder: Path, name: str) -> Iterator[str]:
    """Yield an address of a socket in a folder, whose path may be longer than one may be."""
    path = os.fspath(folder / name)
    if len(os.fsencode(path)) <= _ADDRESS_BYTES or sys.platform != "linux":
        yield path
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
