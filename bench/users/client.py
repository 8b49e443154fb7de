"""One client process of the users benchmark: `python -m holdfast.bench.users.client TASK`.

TASK is a JSON object (`ClientTask`). The process and its parent communicate through files in a
folder: `<phase>.<client>` says that this client has finished a phase, `<phase>` that all have.
The phases:

        joined    every user has written to its stream and kv once, and follows the room
        (begin)   contains the monotonic time at which all clients begin
        sent      the time is over, and all operations are answered
        checked   followers have everything, and the stores were checked; with `ClientResult`

It offers its share of the load at a fixed rate, even if earlier operations are not answered, up to
MAX_OUTSTANDING. Latencies count from the moment when an operation was due.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from holdfast.bench.users.histogram import Histogram
from holdfast.bench.users.plan import (
    CURSOR_KEY,
    Action,
    Crowd,
    Deed,
    cursor_name,
    deed_of,
    document_name,
    edit_of,
    read_edits,
    room_name,
    said,
    said_at_ns,
)
from holdfast.client import Client, connect
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.messages import Change, ChangeKind
from holdfast.protocol.serving.garbage import CircleCollector

TENANT: Final = "users"
#: How many operations of one process may be unanswered. With more, the rate is not kept.
MAX_OUTSTANDING: Final = 5000
#: The timeout of every operation.
_TIMEOUT_SECONDS: Final = 60.0
#: How many users of one process join, and how many are checked, at the same time.
_JOINING: Final = 100
_CHECKING: Final = 16
_PACE_SECONDS: Final = 0.002
_POLL_SECONDS: Final = 0.02
_PHASE_SECONDS: Final = 600.0
_FOLLOW_SECONDS: Final = 60.0
_MAX_PROBLEMS: Final = 20


@dataclass(frozen=True, slots=True)
class ClientTask:
    """The task of a client process."""

    url: str
    folder: str
    client: int
    clients: int
    users: int
    room_users: int
    per_second: float
    seconds: float
    traces: str | None


@dataclass(slots=True)
class ClientResult:
    """The result of a client process, with histograms as JSON."""

    offered: int = 0
    sent: int = 0
    #: Answered before the time was over.
    answered_in_time: int = 0
    delivered: int = 0
    join_seconds: float = 0.0
    ack: list[tuple[int, int]] = field(default_factory=list)
    delivery: list[tuple[int, int]] = field(default_factory=list)
    #: The first differences, at most _MAX_PROBLEMS.
    problems: list[str] = field(default_factory=list)


class FollowingUser:
    """Follows a room for one user: each message must come once, in order. Records the latencies."""

    def __init__(self, user: int, room: int, latencies: Histogram) -> None:
        self.user = user
        self.room = room
        self.last_seq = 0
        self.count = 0
        self.checksum = 0
        self.problem = ""
        self._latencies = latencies

    async def follow(self, changes: AsyncIterator[Change]) -> None:
        """Follow until the changes end, or until one is wrong: then set `problem`."""
        async for change in changes:
            if change.kind is not ChangeKind.SET or change.message is None:
                self.problem = f"user {self.user} was told {change.kind} in room {self.room}"
                return
            seq, value = change.message.seq, change.message.value
            if seq != self.last_seq + 1:
                self.problem = (
                    f"user {self.user} saw {seq} after {self.last_seq} in room {self.room}"
                )
                return
            self._latencies.add((time.monotonic_ns() - said_at_ns(value)) / 1e9)
            self.last_seq = seq
            self.count += 1
            self.checksum = zlib.crc32(value, self.checksum)


async def run_client(task: ClientTask) -> None:
    """Join, act, check, and write the result. Raises what the client raises while joining."""
    edits = read_edits(None if task.traces is None else Path(task.traces))
    async with connect(
        task.url, tenant=TENANT, timeout_seconds=_TIMEOUT_SECONDS, name=f"users-{task.client}"
    ) as client:
        await _UsersClient(task, client, edits).run()


class _UsersClient:
    def __init__(self, task: ClientTask, client: Client, edits: Sequence[bytes]) -> None:
        self._task = task
        self._client = client
        self._edits = edits
        self._crowd = Crowd(task.users, task.room_users, task.client, task.clients)
        self._documents = {n: client.stream(document_name(n)) for n in self._crowd.members}
        self._cursors = {n: client.kv(cursor_name(n)) for n in self._crowd.members}
        self._rooms = {n: client.stream(room_name(n)) for n in self._crowd.rooms}
        self._acks, self._deliveries = Histogram(), Histogram()
        self._followers: list[FollowingUser] = []
        #: The acknowledged messages of each room: the checksum of each value, by seq.
        self._said: dict[int, dict[int, int]] = {room: {} for room in self._rooms}
        self._actions = 0
        self._in_time = 0
        self._problems: list[str] = []

    async def run(self) -> None:
        result = ClientResult()
        async with AsyncExitStack() as stack:
            began_at = time.monotonic()
            followers = await stack.enter_async_context(asyncio.TaskGroup())
            tasks = await self._join(followers, stack)
            result.join_seconds = time.monotonic() - began_at
            await self._meet("joined")
            begin_at = float(await self._await_phase("begin"))
            result.offered = await self._act(begin_at)
            await self._meet("sent")
            await self._check_followers()
            for task in tasks:
                task.cancel()
        await self._check_stores()
        result.sent, result.answered_in_time = self._actions, self._in_time
        result.delivered = sum(follower.count for follower in self._followers)
        result.ack, result.delivery = self._acks.to_json(), self._deliveries.to_json()
        result.problems = self._problems[:_MAX_PROBLEMS]
        self._write("checked", json.dumps(dataclasses.asdict(result)))

    # Before and after the load

    async def _join(
        self, followers: asyncio.TaskGroup, stack: AsyncExitStack
    ) -> list[asyncio.Task[None]]:
        tasks = []

        async def join(user: int) -> None:
            follower = FollowingUser(user, self._crowd.room_of(user), self._deliveries)
            subscription = self._rooms[follower.room].subscribe()
            await stack.enter_async_context(subscription)
            self._followers.append(follower)
            tasks.append(followers.create_task(follower.follow(subscription)))
            first = Action(user, -1, Deed.TYPE)
            await self._documents[user].append(edit_of(self._edits, first))
            await self._cursors[user].set(CURSOR_KEY, edit_of(self._edits, first))

        await _each(self._crowd.members, join, _JOINING)
        return tasks

    async def _check_followers(self) -> None:
        """Check that every follower saw exactly what its room holds, in order."""
        content: dict[int, tuple[int, int]] = {}

        async def read(room: int) -> None:
            checksum, seq, said_here = 0, 0, self._said[room]
            async for message in self._rooms[room].get_all():
                checksum, seq = zlib.crc32(message.value, checksum), message.seq
                if said_here.pop(seq, None) not in (None, zlib.crc32(message.value)):
                    self._problem(f"message {seq} of room {room} is not what was acknowledged")
            if said_here:
                self._problem(f"room {room} lacks acknowledged messages: {list(said_here)[:5]}")
            content[room] = (seq, checksum)

        await _each(self._rooms, read, _CHECKING)
        give_up_at = time.monotonic() + _FOLLOW_SECONDS
        for follower in self._followers:
            last_seq, checksum = content[follower.room]
            while follower.last_seq < last_seq and not follower.problem:
                if time.monotonic() > give_up_at:
                    follower.problem = (
                        f"user {follower.user} saw {follower.last_seq} of {last_seq} messages"
                    )
                await asyncio.sleep(_POLL_SECONDS)
            if follower.problem:
                self._problem(follower.problem)
            elif follower.checksum != checksum:
                self._problem(
                    f"user {follower.user} saw other values than room {follower.room} has"
                )

    async def _check_stores(self) -> None:
        """Check that every stream holds all acknowledged messages, in order, and every kv the
        last value."""

        async def check(user: int) -> None:
            mine = [Action(user, -1, Deed.TYPE)]
            mine += [Action(user, turn, deed_of(user, turn)) for turn in range(self._turns(user))]
            typed = [edit_of(self._edits, each) for each in mine if each.deed is Deed.TYPE]
            found = [message.value async for message in self._documents[user].get_all()]
            if found != typed:
                self._problem(f"user {user} typed {len(typed)} edits and finds {len(found)}")
            moves = [each for each in mine if each.deed is Deed.MOVE_CURSOR]
            last = edit_of(self._edits, moves[-1] if moves else mine[0])
            entry = await self._cursors[user].get(CURSOR_KEY)
            if entry is None or entry.value != last:
                self._problem(f"user {user} finds another cursor than the last one set")

        await _each(self._crowd.members, check, _CHECKING)

    def _turns(self, user: int) -> int:
        """Return how many actions of a user were sent. All of them were answered."""
        members = self._crowd.members
        turns, place = divmod(self._actions, len(members))
        return turns + (members.index(user) < place)

    # The load

    async def _act(self, begin_at: float) -> int:
        """Offer the load from `begin_at` on until all is answered. Return how many operations
        were due."""
        clock, seconds = time.monotonic, self._task.seconds
        interval_seconds = 1 / self._task.per_second
        due = int(seconds * self._task.per_second)
        end_at = begin_at + seconds
        outstanding = 0

        async def act(action: Action, due_at: float) -> None:
            nonlocal outstanding
            try:
                await self._do(action, due_at)
                now = clock()
                self._acks.add(now - due_at)
                self._in_time += now <= end_at
            except HoldfastError as error:
                self._problem(f"{action.deed.value} of user {action.user} failed: {error}")
            finally:
                outstanding -= 1

        await asyncio.sleep(begin_at - clock())
        async with asyncio.TaskGroup() as tasks:
            while self._actions < due and (now := clock()) < end_at:
                while self._actions < due and outstanding < MAX_OUTSTANDING:
                    due_at = begin_at + self._actions * interval_seconds
                    if due_at > now:
                        break
                    outstanding += 1
                    tasks.create_task(act(self._crowd.action(self._actions), due_at))
                    self._actions += 1
                await asyncio.sleep(_PACE_SECONDS)
        return due

    async def _do(self, action: Action, due_at: float) -> None:
        edit = edit_of(self._edits, action)
        if action.deed is Deed.TYPE:
            await self._documents[action.user].append(edit)
        elif action.deed is Deed.MOVE_CURSOR:
            await self._cursors[action.user].set(CURSOR_KEY, edit)
        else:
            room = self._crowd.room_of(action.user)
            value = said(int(due_at * 1e9), edit)
            ack = await self._rooms[room].append(value)
            assert ack.seq is not None
            self._said[room][ack.seq] = zlib.crc32(value)

    def _problem(self, text: str) -> None:
        self._problems.append(text)

    # Communication with the parent

    async def _meet(self, phase: str) -> None:
        self._write(phase, "")
        await self._await_phase(phase)

    def _write(self, phase: str, text: str) -> None:
        path = Path(self._task.folder) / f"{phase}.{self._task.client}"
        # Renamed, so that a reader of this name finds the whole content.
        draft = path.with_name(f"{path.name}.new")
        draft.write_text(text)
        draft.rename(path)

    async def _await_phase(self, phase: str) -> str:
        path = Path(self._task.folder) / phase
        async with asyncio.timeout(_PHASE_SECONDS):
            # Only other processes know, so it polls.
            while not path.exists():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
        return path.read_text()


async def _each(
    items: Iterable[int], work: Callable[[int], Awaitable[None]], parallel: int
) -> None:
    """Do `work` with each item, `parallel` at once."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(parallel):
            tasks.create_task(worker())


def main(arguments: Sequence[str]) -> int:
    fields: dict[str, Any] = json.loads(arguments[0])
    # The same as in a server: the records of a million operations are not garbage.
    CircleCollector().begin()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_client(ClientTask(**fields)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
