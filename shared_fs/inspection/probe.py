"""Measures what a file system does, on one mount or between two, for `probe_verdicts.judge`.

A process on each mount (`probe_peer.py`) does all the work in a folder of its own, which is removed
at the end, also after a failure or a cancellation. Everything is tried in both directions. This
process only starts them, asks, kills one that holds a lock, and compares.

A change counts as seen late if a look that *began after it was durable* showed the older state. All
processes are of one host and share its monotonic clock, so this needs no tolerance.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from holdfast.protocol.errors import InvalidArgumentError, StorageFailedError
from holdfast.shared_fs.disk.fence import PADDED_BYTES
from holdfast.shared_fs.inspection.probe_peer import Watched, Way
from holdfast.shared_fs.inspection.probe_verdicts import (
    LockTrial,
    Measured,
    Need,
    ProbedMount,
    Sights,
)

#: An answer that takes longer comes from a mount that hangs.
_ANSWER_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
#: A reader looks for a change this long after it was durable, in parts.
_PATIENCE_SECONDS: Final = 3.0
_WATCH_SECONDS: Final = 1.0
#: After so many stale sights of one kind the verdict is clear.
_ENOUGH_STALE: Final = 5
#: A kind of change is tried no longer than this, where each takes seconds.
_KIND_SECONDS: Final = 20.0
_FREED_SECONDS: Final = 15.0
_RACES: Final = 20
#: Rounds of what is not a fence, and of what is timed, for each so many rounds of fences.
_OTHER_ROUNDS: Final = 4
_TIMED_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.05


class Peer(Protocol):
    """One side."""

    async def ask(self, request: str, **arguments: Any) -> Any:
        """Return the answer to a request of `Workbench`. Raises StorageFailedError."""


class PeerProcess:
    """A process of its own that works in `folder`; use it with `async with`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = asyncio.Lock()
        self._silent = ""

    async def __aenter__(self) -> Self:
        # With a session of its own, Ctrl-C ends it only after this process has taken notice.
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "holdfast.shared_fs.inspection.probe_peer"),
            str(self._folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def ask(self, request: str, **arguments: Any) -> Any:
        async with self._turn:
            if self._silent:
                raise StorageFailedError(reason=self._silent)
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps([request, arguments]).encode() + b"\n")
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._process.stdin.drain()
                    line = await self._process.stdout.readline()
            except TimeoutError as error:
                self._silent = f"{self._folder.parent} hangs: no answer to {request}"
                raise StorageFailedError(reason=self._silent) from error
            if not line:
                self._silent = f"the process in {self._folder.parent} has ended"
                raise StorageFailedError(reason=self._silent)
        answer = json.loads(line)
        if "refused" in answer:
            raise StorageFailedError(reason=answer["refused"])
        return answer["answer"]

    async def kill(self) -> None:
        """End the process with SIGKILL, as a crash does. One that hangs in its mount ends when the
        mount answers."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()


@dataclass(frozen=True, slots=True)
class ProbedSide:
    """A peer, with what it said of its mount."""

    peer: Peer
    mount: ProbedMount


async def probe(
    folder: Path, other: Path | None, *, rounds: int, progress: Callable[[float], None]
) -> Measured:
    """Measure in `folder`, and against `other`, the same folder on a second mount.

    Raises InvalidArgumentError if `other` is another folder, StorageFailedError, OSError.
    """
    work = folder / f"probe.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    work.mkdir(mode=0o700)
    try:
        other_work = (other or folder) / work.name
        await _check_same(work, other_work)
        async with PeerProcess(work) as first, PeerProcess(other_work) as second:
            sides = (await _side(first, folder), await _side(second, other or folder))
            return await Prober(sides, (work, other_work), rounds, progress).run()
    finally:
        await _remove(work)


async def _check_same(work: Path, other_work: Path) -> None:
    """Wait until the second mount shows the new folder, which its cache may hide at first."""
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while not await asyncio.to_thread(other_work.is_dir):
        if time.monotonic() > give_up_at:
            raise InvalidArgumentError(
                argument="--with",
                reason=f"{other_work.parent} does not show what is created in {work.parent}",
            )
        await asyncio.sleep(_PAUSE_SECONDS)


async def _side(peer: Peer, folder: Path) -> ProbedSide:
    return ProbedSide(peer, ProbedMount(folder=str(folder), **await peer.ask("describe")))


async def _remove(work: Path) -> None:
    """Remove the folder; a cache may hide for a while what the other side created in it."""
    give_up_at = time.monotonic() + _END_SECONDS
    while await asyncio.to_thread(work.exists):
        try:
            await asyncio.to_thread(shutil.rmtree, work)
        except OSError as error:
            hidden = (errno.ENOTEMPTY, errno.ENOENT, errno.ESTALE)
            if error.errno not in hidden or time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)


class Prober:
    """The measurements, between two sides."""

    def __init__(
        self,
        sides: tuple[ProbedSide, ProbedSide],
        folders: tuple[Path, Path],
        rounds: int,
        progress: Callable[[float], None],
    ) -> None:
        self._sides = sides
        self._folders = folders
        self._rounds = rounds
        self._other_rounds = max(1, rounds // _OTHER_ROUNDS)
        self._progress = progress
        self.measured = Measured(mounts=tuple(side.mount for side in sides))

    async def run(self) -> Measured:
        steps: list[tuple[tuple[Need, ...], Callable[[], Awaitable[None]]]] = [
            ((Need.EXCLUSIVE_LOCK, Need.SEEN_LOCK), self.try_locks),
            ((Need.FREED_LOCK,), self.kill_holders),
            ((Need.SYNC, Need.WRITE), self.time_syncs),
            ((Need.EXCLUSIVE_CREATION,), self.create_exclusively),
            ((Need.TRUNCATION,), self.truncate),
            ((Need.LONG_NAMES, Need.LINKS), self.try_names),
            ((Need.FENCE, Need.CONTESTED_WRITE), self.overwrite),
            ((Need.LOG,), self.append),
            ((Need.CREATED, Need.REMOVED), self.create_and_remove),
            ((Need.REPLACED,), self.replace),
        ]
        for index, (needs, step) in enumerate(steps):
            self._progress(index / len(steps))
            try:
                await step()
            except StorageFailedError as error:
                self.measured.broken |= dict.fromkeys(needs, str(error.fields["reason"]))
        return self.measured

    def _directions(self) -> Iterator[tuple[int, ProbedSide, ProbedSide]]:
        first, second = self._sides
        yield 0, first, second
        yield 1, second, first

    async def try_locks(self) -> None:
        for index, one, other in self._directions():
            name = f"lock.{index}"
            a, b = one.peer, other.peer
            if not await a.ask("lock", name=name):
                raise StorageFailedError(reason="a new file is locked already")
            excluded = not await b.ask("lock", name=name)
            # Whoever holds a lock must not ask: closing the file would drop it.
            seen = not excluded or await b.ask("is_locked", name=name)
            await a.ask("unlock", name=name)
            if not excluded:
                await b.ask("unlock", name=name)
            seen_free = not await b.ask("is_locked", name=name)
            taken = await b.ask("lock", name=name)
            if taken:
                await b.ask("unlock", name=name)
            wins = 0
            for _ in range(_RACES):
                won = await _both(a.ask("lock", name=name), b.ask("lock", name=name))
                wins += all(won)
                for peer, has in zip((a, b), won, strict=True):
                    if has:
                        await peer.ask("unlock", name=name)
            self.measured.locks.append(LockTrial(excluded, seen, seen_free, taken, _RACES, wins))

    async def kill_holders(self) -> None:
        for index, _, other in self._directions():
            name = f"killed.{index}"
            async with PeerProcess(self._folders[index]) as holder:
                if not await holder.ask("lock", name=name):
                    raise StorageFailedError(reason="a new file is locked already")
                killed_at = time.monotonic()
                await holder.kill()
            freed_at = await other.peer.ask("take_freed", name=name, seconds=_FREED_SECONDS)
            if freed_at is not None:
                await other.peer.ask("unlock", name=name)
            self.measured.freed_ms.append(
                None if freed_at is None else (freed_at - killed_at) * 1000
            )

    async def time_syncs(self) -> None:
        limits = {"count": self._rounds, "seconds": _TIMED_SECONDS}
        for index, one, _ in self._directions():
            for request, times in (
                ("time_syncs", self.measured.sync_ms),
                ("time_writes", self.measured.write_ms),
            ):
                times += await one.peer.ask(request, name=f"{request}.{index}", **limits)

    async def create_exclusively(self) -> None:
        for index, one, other in self._directions():
            name = f"exclusive.{index}"
            created = await one.peer.ask("create_exclusively", name=name)
            refused = not await other.peer.ask("create_exclusively", name=name)
            self.measured.exclusive_creation.append(created and refused)

    async def truncate(self) -> None:
        for index, one, other in self._directions():
            name = f"truncated.{index}"
            await one.peer.ask("write", name=name, way=Way.REPLACE, number=1)
            before = await other.peer.ask("size", name=name, direct=other.mount.direct)
            await one.peer.ask("truncate", name=name, size_bytes=1)
            after = await other.peer.ask("size", name=name, direct=other.mount.direct)
            self.measured.truncation.append((before, after) == (PADDED_BYTES, 1))

    async def try_names(self) -> None:
        for index, one, _ in self._directions():
            self.measured.long_names.append(await _refusal(one.peer.ask("long_name")))
            name = f"linked.{index}"
            await one.peer.ask("write", name=name, way=Way.REPLACE, number=1)
            linking = one.peer.ask("link", source=name, target=f"{name}.too")
            self.measured.links.append(await _refusal(linking))

    async def overwrite(self) -> None:
        for index, one, other in self._directions():
            for direct in (False, True):
                if direct and not other.mount.takes_direct:
                    continue
                name = f"fence.{index}.{direct:d}"
                await one.peer.ask("write", name=name, way=Way.REPLACE, number=0)
                await self._see(one, other, Way.OVERWRITE, name, self._rounds, direct=direct)

    async def append(self) -> None:
        for index, one, other in self._directions():
            name = f"log.{index}"
            await one.peer.ask("write", name=name, way=Way.APPEND, number=1)
            await self._see(one, other, Way.APPEND, name, self._other_rounds, start=2)

    async def replace(self) -> None:
        for index, one, other in self._directions():
            name = f"state.{index}"
            await one.peer.ask("write", name=name, way=Way.REPLACE, number=0)
            await self._see(one, other, Way.REPLACE, name, self._other_rounds)

    async def create_and_remove(self) -> None:
        for index, one, other in self._directions():
            # The number of a round makes each a file of its own.
            name = f"file.{index}."
            count = await self._see(one, other, Way.CREATE, name, self._other_rounds)
            await self._see(one, other, Way.REMOVE, name, count)

    async def _see(
        self,
        writer: ProbedSide,
        reader: ProbedSide,
        way: Way,
        name: str,
        rounds: int,
        *,
        direct: bool | None = None,
        start: int = 1,
    ) -> int:
        """Let one side change a file while the other looks; keep the outcome and return the count
        of rounds."""
        used = reader.mount.direct
        direct = used if direct is None else direct
        late: list[float] = []
        took: list[float] = []
        count = never = handles = 0
        give_up_at = time.monotonic() + _KIND_SECONDS
        for number in range(start, start + rounds):
            each = f"{name}{number}" if way in (Way.CREATE, Way.REMOVE) else name
            change = {"name": each, "way": way, "number": number}
            look = {**change, "direct": direct}
            (began_at, durable_at), watched = await _watched_change(
                writer.peer, reader.peer, change, look
            )
            count += 1
            took.append((durable_at - began_at) * 1000)
            handles += watched.stale_handles
            never += not watched.seen
            if watched.seen and watched.stale_at > durable_at:
                late.append((watched.stale_at - durable_at) * 1000)
            if never + len(late) >= _ENOUGH_STALE or time.monotonic() > give_up_at:
                break
        self.measured.sights.append(
            Sights(way, direct, direct == used, count, tuple(late), never, handles, tuple(took))
        )
        return count


async def _watched_change(
    writer: Peer, reader: Peer, change: dict[str, Any], look: dict[str, Any]
) -> tuple[tuple[float, float], Watched]:
    """Change a file while the reader looks at it all the time; return when, and what it saw."""
    watch = {**look, "seconds": _WATCH_SECONDS}
    # What is cached before the change is what may be shown after it.
    await reader.ask("watch", **{**look, "seconds": 0})
    written, first = await _both(writer.ask("write", **change), reader.ask("watch", **watch))
    watched = Watched(*first)
    while not watched.seen and time.monotonic() < written[1] + _PATIENCE_SECONDS:
        again = Watched(*await reader.ask("watch", **watch))
        watched = Watched(
            again.seen,
            max(watched.stale_at, again.stale_at),
            watched.stale_handles + again.stale_handles,
        )
    return written, watched


async def _both(one: Awaitable[Any], other: Awaitable[Any]) -> tuple[Any, Any]:
    """Await both at once, and both also if one fails: a peer answers in order."""
    results = await asyncio.gather(one, other, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results[0], results[1]


async def _refusal(request: Awaitable[None]) -> str:
    """Return why a request was refused, or an empty text."""
    try:
        await request
    except StorageFailedError as error:
        return str(error.fields["reason"])
    return ""
