"""A file system in memory that knows what was synced, for hosts that can fail.

The model:

- Writes are seen by everyone at once, and survive the process that made them. Once another host has
  seen them they are on the file server, and survive the host too.
- A file's content is durable after a sync of the file, its name after a sync of its directory.
- A power cut, of some hosts or of everything, takes of each file what was written there since its
  last sync, as the seed says: all, none, all after a point, or any 512-byte sectors, with zeros or
  nothing where they lay. Of each directory it takes the changes of names after some point.

Every primitive operation is told to `observe` before it happens; what that raises happens instead:
an OSError is a failing disk, any other exception goes through to the caller. So crash points can be
enumerated, and faults injected, without a change here.

- A bit that flips does so in what everyone sees and on the disk, and those bytes are known as
  damaged, wherever they are copied.

Processes see it through a `HostDisk` (`simulated_disk.py`), which may show what others wrote late.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

SECTOR_BYTES: Final = 512


class Operation(NamedTuple):
    """A primitive operation about to happen. `kind` is one of create, write, truncate, sync,
    rename, remove, make_directory, remove_directory, sync_directory, set_changed, read, lock."""

    host: str
    process: str
    kind: str
    path: str
    size_bytes: int = 0


Observer = Callable[[Operation], None]

#: The host of writes that more than one host has seen.
FILE_SERVER: Final = ""


class Survival(StrEnum):
    """What of the unsynced writes to a file is on the disk after a power cut."""

    NONE = "none"
    ALL = "all"
    #: All up to some point.
    PREFIX = "prefix"
    #: Any sectors, whatever the order in which they were written.
    SECTORS = "sectors"
    #: All but some sectors of the last write.
    TORN = "torn"


class _Write(NamedTuple):
    """Bytes that went to `offset`; with `data` None, a truncation to `offset`."""

    host: str
    offset: int
    data: bytes | None


class Inode:
    """A file's content, as everyone sees it and as the disk has it."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._durable = bytearray()
        self._unsynced: list[_Write] = []
        #: When it was last written to, by the file server's clock.
        self.changed_ms = 0
        #: SQLite's locks, and the one lock of a lock file.
        self.lock_levels: dict[object, int] = {}
        self.locked_by: object | None = None

    @property
    def synced(self) -> bool:
        return not self._unsynced

    def write(self, host: str, offset: int, data: bytes) -> None:
        put(self.content, offset, data)
        self._unsynced.append(_Write(host, offset, data))

    def truncate(self, host: str, size_bytes: int) -> None:
        resize(self.content, size_bytes)
        self._unsynced.append(_Write(host, size_bytes, None))

    def see(self, host: str) -> None:
        """`host` looks at the content: what others wrote is on the file server."""
        if self._unsynced and self._unsynced[-1].host not in (host, FILE_SERVER):
            self._unsynced = [write._replace(host=FILE_SERVER) for write in self._unsynced]

    def sync(self) -> None:
        for write in self._unsynced:
            _apply(self._durable, write)
        self._unsynced.clear()

    def flip(self, offset: int, bits: int) -> None:
        """Change these bits of one byte, of which nobody hears."""
        for content in (self.content, self._durable):
            if offset < len(content):
                content[offset] ^= bits

    def cut(self, hosts: Collection[str], chance: random.Random, survival: Survival | None) -> None:
        """Forget what the seed says of the unsynced writes of `hosts`."""
        lost = [write for write in self._unsynced if write.host in hosts]
        if not lost:
            return
        kept = [write for write in self._unsynced if write.host not in hosts]
        for write in _survivors(lost, chance, survival):
            _apply(self._durable, write)
        if chance.random() < 0.3 and len(self._durable) < len(self.content):
            # The size reached the disk and the data did not.
            resize(self._durable, len(self.content))
        self._unsynced = kept
        self.content = bytearray(self._durable)
        for write in kept:
            _apply(self.content, write)


def _survivors(
    writes: list[_Write], chance: random.Random, survival: Survival | None
) -> Iterator[_Write]:
    """Yield what of `writes` reached the disk though nobody asked for it."""
    mode = survival or chance.choice(("none", "all", "prefix", "sectors"))
    if mode == "none":
        return
    if mode == "torn":
        yield from writes[:-1]
        writes, mode = writes[-1:], "sectors"
    pieces = [piece for write in writes for piece in _sectors(write)]
    count = chance.randrange(len(pieces) + 1) if mode == "prefix" else len(pieces)
    ratio = chance.uniform(0.1, 0.95) if mode == "sectors" else 1.0
    for piece in pieces[:count]:
        if ratio == 1.0 or chance.random() < ratio:
            yield piece
        elif piece.data is None:
            # What comes after a truncation was written to other blocks than those it freed: it is
            # not found under this name unless the truncation is.
            return


def _sectors(write: _Write) -> Iterator[_Write]:
    if write.data is None:
        yield write
        return
    start = 0
    while start < len(write.data):
        end = start + SECTOR_BYTES - (write.offset + start) % SECTOR_BYTES
        yield _Write(write.host, write.offset + start, write.data[start:end])
        start = end


def _apply(content: bytearray, write: _Write) -> None:
    if write.data is None:
        resize(content, write.offset)
    else:
        put(content, write.offset, write.data)


def put(content: bytearray, offset: int, data: bytes) -> None:
    """Write, as into a file."""
    if offset > len(content):
        resize(content, offset)
    content[offset : offset + len(data)] = data


def resize(content: bytearray, size_bytes: int) -> None:
    """Truncate, as a file."""
    if size_bytes < len(content):
        del content[size_bytes:]
    else:
        content.extend(bytes(size_bytes - len(content)))


class Directory:
    """Names, as everyone sees them and as the disk has them."""

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self._durable: dict[str, Node] = {}
        self._unsynced: list[tuple[str, dict[str, Node | None]]] = []

    def change(self, host: str, names: dict[str, Node | None]) -> None:
        """Put or remove (None) all of `names`, atomically."""
        self.see(host)
        _rename(self.entries, names)
        self._unsynced.append((host, names))

    def see(self, host: str) -> None:
        """`host` looks at the names: what others changed is on the file server."""
        if self._unsynced and self._unsynced[-1][0] not in (host, FILE_SERVER):
            self._unsynced = [(FILE_SERVER, names) for _, names in self._unsynced]

    def sync(self) -> None:
        self._durable = dict(self.entries)
        self._unsynced.clear()

    def cut(self, hosts: Collection[str], chance: random.Random, survival: Survival | None) -> None:
        lost = [names for host, names in self._unsynced if host in hosts]
        if lost:
            self._unsynced = [change for change in self._unsynced if change[0] not in hosts]
            for names in lost[: _surviving_count(lost, chance, survival)]:
                _rename(self._durable, names)
            self.entries = dict(self._durable)
            for _, names in self._unsynced:
                _rename(self.entries, names)
        for name in sorted(self.entries):
            self.entries[name].cut(hosts, chance, survival)


def _surviving_count(
    changes: list[dict[str, Node | None]], chance: random.Random, survival: Survival | None
) -> int:
    if survival is Survival.NONE:
        return 0
    if survival is Survival.ALL:
        return len(changes)
    return chance.randrange(len(changes) + 1)


Node = Inode | Directory


def _rename(entries: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _ignore(operation: Operation) -> None:
    """Observe nothing."""


class SimulatedFileSystem:
    """What all hosts share."""

    def __init__(
        self,
        chance: random.Random,
        observe: Observer = _ignore,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`now_ms` is the clock of the file server."""
        self.observe = observe
        self.now_ms = now_ms
        self._chance = chance
        self._root = Directory()
        #: What a bit has flipped in.
        self._damaged: set[bytes] = set()

    def flip_bit(self, path: Path, offset: int, size_bytes: int, chance: random.Random) -> bool:
        """Flip any bit of `size_bytes` of a file; return False, and flip none, if it is not synced.
        Raises FileNotFoundError."""
        inode = self.file(path, FILE_SERVER)
        if not inode.synced:
            return False
        inode.flip(offset + chance.randrange(size_bytes), 1 << chance.randrange(8))
        self._damaged.add(bytes(inode.content[offset : offset + size_bytes]))
        return True

    def is_damaged(self, content: bytes) -> bool:
        """Tell if a bit has flipped in just that."""
        return content in self._damaged

    def lose(self, folder: Path) -> None:
        """Nothing is left of a folder. The processes that used it must be dead already."""
        node = self.find(folder)
        if isinstance(node, Directory):
            node.change(FILE_SERVER, dict.fromkeys(node.entries))
            node.sync()

    def names(self, folder: Path, starts: tuple[str, ...]) -> list[str]:
        """Return the names in a folder that start so."""
        return sorted(
            name for name in self.directory(folder, FILE_SERVER).entries if name.startswith(starts)
        )

    def copies(self, folder: Path, names: Collection[str]) -> dict[str, bytes]:
        """Return the content of those of these files that are there, as a backup has it."""
        found = {name: self.find(folder / name) for name in names}
        return {
            name: bytes(each.content) for name, each in found.items() if isinstance(each, Inode)
        }

    def put_back(self, folder: Path, names: Collection[str], backup: dict[str, bytes]) -> None:
        """Replace these files by those of a backup. The processes that used them must be dead."""
        directory = self.find(folder)
        assert isinstance(directory, Directory)
        files: dict[str, Node | None] = dict.fromkeys(names)
        for name, content in backup.items():
            inode = files[name] = Inode()
            inode.write(FILE_SERVER, 0, content)
            inode.sync()
        directory.change(FILE_SERVER, files)
        directory.sync()

    def power_cut(
        self,
        hosts: Collection[str],
        *,
        file_server: bool = False,
        survival: Survival | None = None,
    ) -> None:
        """Lose what `hosts` had not synced, with `file_server` also what others have seen of it.
        The processes on them must be dead already. Without `survival` each file has its own."""
        cut_off = {*hosts, FILE_SERVER} if file_server else hosts
        self._root.cut(cut_off, self._chance, survival)

    def find(self, path: Path, host: str = FILE_SERVER) -> Node | None:
        """Return what lies at an absolute path; `host` looks at it, or nobody."""
        node: Node | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, Directory):
                return None
            node = node.entries.get(part)
            if node is not None and host != FILE_SERVER:
                node.see(host)
        return node

    def file(self, path: Path, host: str) -> Inode:
        """Return the file at a path. Raises FileNotFoundError."""
        node = self.find(path, host)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node

    def directory(self, path: Path, host: str) -> Directory:
        """Return the directory at a path. Raises FileNotFoundError."""
        node = self.find(path, host)
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return node
