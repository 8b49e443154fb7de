"""The writer and the follower of the demo: processes of their own, as in an application.

`python -m holdfast.cli.demo.worker TASK`, where TASK is a WorkerTask as JSON. A worker reports its
progress in JSON lines on stdout, reads `go` and `finish` on stdin, and ends with a result file.

A writer works through its steps in the order of the history, many at once, but those of one file
one after the other. It stops at GATE_RATIO until it reads `go`, so that the kill comes in the
middle, however fast the writing is. A follower follows each stream and the kv from the start, and
compares what it receives with the plan.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.cli.advice import explain, first_error
from holdfast.cli.demo.git_history import BlobReader
from holdfast.cli.demo.plan import DELETED, DemoPlan, DemoStep, PlannedFile, blob_id
from holdfast.client import Client, connect
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import pack
from holdfast.protocol.messages import Change, ChangeKind

#: How many steps a writer works on at once: enough to fill commits, few enough to bound its memory.
_CONCURRENT_STEPS: Final = 64
#: The part of its steps that a writer does before it waits for `go`.
GATE_RATIO: Final = 0.6
_REPORT_SECONDS: Final = 0.01
#: How long a follower waits for changes that do not come.
_FOLLOW_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The task of one worker. `number` is the number of the writer."""

    role: str
    plan: str
    result: str
    nats: str
    prefix: str
    number: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class _Report:
    """Reports the progress, at most every _REPORT_SECONDS."""

    def __init__(self) -> None:
        self.count = 0
        self._said_at = 0.0

    def add(self) -> None:
        self.count += 1
        now = time.monotonic()
        if now - self._said_at >= _REPORT_SECONDS:
            self._said_at = now
            self.say()

    def say(self) -> None:
        _say(count=self.count)


class _Writer:
    def __init__(self, task: WorkerTask, plan: DemoPlan, client: Client, blobs: BlobReader) -> None:
        self._plan = plan
        self._blobs = blobs
        self._latest = client.kv(plan.kv)
        self._streams = [client.stream(file.stream) for file in plan.files]
        self._steps = [step for step in plan.steps if plan.writers[step.file] == task.number]
        self._turn_of_file: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._room = asyncio.Semaphore(_CONCURRENT_STEPS)
        self._report = _Report()
        self._done_count = 0
        self._step_done = asyncio.Event()
        #: For each append: the file, when it was sent and when it was acked, in monotonic seconds,
        #: a clock that all processes of a machine share.
        self.acks: list[tuple[int, float, float]] = []

    async def run(self, go: asyncio.Event) -> None:
        gate = math.ceil(len(self._steps) * GATE_RATIO)
        async with asyncio.TaskGroup() as tasks:
            for number, step in enumerate(self._steps):
                if number == gate:
                    tasks.create_task(self._say_when_done(gate))
                    await go.wait()
                await self._room.acquire()
                tasks.create_task(self._do(step))
        self._report.say()

    async def _say_when_done(self, step_count: int) -> None:
        """Report that nothing more comes before `go`. Otherwise the kill would wait for ever if too
        few messages are acknowledged before the gate."""
        while self._done_count < step_count:
            self._step_done.clear()
            await self._step_done.wait()
        self._report.say()
        _say(waits=True)

    async def _do(self, step: DemoStep) -> None:
        try:
            # Tasks start in the order of their creation, and a lock is acquired in the order of the
            # requests. So a file's versions are written in order.
            async with self._turn_of_file[step.file]:
                await self._write(step)
        finally:
            self._room.release()
        self._done_count += 1
        self._step_done.set()

    async def _write(self, step: DemoStep) -> None:
        file = self._plan.files[step.file]
        if step.seq == 0:
            await self._latest.delete(file.path)
            return
        message = file.messages[step.seq - 1]
        is_deletion = message.headers["status"] == DELETED
        value = b"" if is_deletion else await self._blobs.read(message.blob)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._append(step, value, message.headers))
            if is_deletion:
                both.create_task(self._latest.delete(file.path))
            else:
                headers = {"commit": message.headers["commit"]}
                both.create_task(self._latest.set(file.path, value, headers=headers))
        self._report.add()

    async def _append(self, step: DemoStep, value: bytes, headers: dict[str, str]) -> None:
        sent_at = time.monotonic()
        await self._streams[step.file].append(value, headers=headers)
        self.acks.append((step.file, sent_at, time.monotonic()))


class _Follower:
    def __init__(self, plan: DemoPlan, client: Client) -> None:
        self._plan = plan
        self._client = client
        self._report = _Report()
        self._seqs: list[list[int]] = [[] for _ in plan.files]
        self._hash_like = next(
            (one.blob for file in plan.files for one in file.messages if one.blob), "0" * 40
        )
        self._latest: dict[str, str] = {}
        #: The last revision of the kv: later ones must be higher. None while its state arrives.
        self._latest_revision: int | None = None
        self._news = asyncio.Event()
        self.problems: list[str] = []

    async def run(self, finish: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            following = [
                tasks.create_task(self._follow_file(number, file))
                for number, file in enumerate(self._plan.files)
            ]
            following.append(tasks.create_task(self._follow_latest()))
            await finish.wait()
            await self._wait_for_the_rest()
            for task in following:
                task.cancel()
        self._report.say()
        self._judge()

    async def _follow_file(self, number: int, file: PlannedFile) -> None:
        seqs = self._seqs[number]
        revision = 0
        async with self._client.stream(file.stream).subscribe(start_seq=1) as changes:
            async for change in changes:
                message = change.message
                if change.kind is not ChangeKind.SET or message is None:
                    self.problems.append(f"{file.path}: told {change.kind}")
                    continue
                if change.revision <= revision:
                    self.problems.append(f"{file.path}: revision {change.revision} out of order")
                revision = change.revision
                seqs.append(message.seq)
                self._compare(file, message.seq, message.value, message.headers)
                self._report.add()
                self._news.set()

    def _compare(self, file: PlannedFile, seq: int, value: bytes, headers: Any) -> None:
        if not 1 <= seq <= len(file.messages):
            self.problems.append(f"{file.path}: told message {seq}, which nobody wrote")
            return
        planned = file.messages[seq - 1]
        same_value = (
            value == b"" if not planned.blob else (blob_id(value, planned.blob) == planned.blob)
        )
        if not same_value or dict(headers) != planned.headers:
            self.problems.append(f"{file.path}: message {seq} differs")

    async def _follow_latest(self) -> None:
        async with self._client.kv(self._plan.kv).watch() as changes:
            async for change in changes:
                self._apply_latest(change)
                self._news.set()

    def _apply_latest(self, change: Change) -> None:
        """Apply a change to the state. Once the state is complete, revisions must grow."""
        if change.kind is ChangeKind.RESET:
            self._latest.clear()
            self._latest_revision = None
            return
        if self._latest_revision is not None:
            if change.revision <= self._latest_revision and change.kind is not ChangeKind.READY:
                self.problems.append(f"kv: revision {change.revision} out of order")
            self._latest_revision = change.revision
        elif change.kind is ChangeKind.READY:
            self._latest_revision = change.revision
        if change.kind is ChangeKind.TRIM:
            self._latest.clear()
        if change.entry is not None:
            self._latest[change.entry.key] = blob_id(change.entry.value, self._hash_like)
        for key in change.keys:
            self._latest.pop(key, None)

    def _complete(self) -> bool:
        return self._latest == self._plan.latest() and all(
            len(seqs) >= len(file.messages)
            for seqs, file in zip(self._seqs, self._plan.files, strict=True)
        )

    async def _wait_for_the_rest(self) -> None:
        try:
            async with asyncio.timeout(_FOLLOW_SECONDS):
                while not self._complete():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            self.problems.append(f"not complete after {_FOLLOW_SECONDS:g} s")

    def _judge(self) -> None:
        for seqs, file in zip(self._seqs, self._plan.files, strict=True):
            if seqs != list(range(1, len(file.messages) + 1)):
                self.problems.append(
                    f"{file.path}: told {len(seqs)} changes, not 1 to {len(file.messages)} in order"
                )
        if self._latest != self._plan.latest():
            self.problems.append("kv: the state differs")

    @property
    def change_count(self) -> int:
        return sum(map(len, self._seqs))


async def _run(task: WorkerTask) -> bytes:
    """Do the task and return the content of its result file."""
    plan = DemoPlan.load(Path(task.plan))
    async with AsyncExitStack() as stack:
        signals = await _listen(stack)
        client = await stack.enter_async_context(connect(task.nats, prefix=task.prefix))
        if task.role == "writer":
            blobs = await stack.enter_async_context(BlobReader(Path(plan.repository)))
            writer = _Writer(task, plan, client, blobs)
            await writer.run(signals["go"])
            return pack(writer.acks)
        follower = _Follower(plan, client)
        await follower.run(signals["finish"])
        return pack([follower.change_count, follower.problems])


async def _listen(stack: AsyncExitStack) -> dict[str, asyncio.Event]:
    """Return an event for each word that stdin may contain."""
    words = {"go": asyncio.Event(), "finish": asyncio.Event()}

    class Words(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            for word in data.decode().split():
                words[word].set()

    transport, _ = await asyncio.get_running_loop().connect_read_pipe(Words, sys.stdin)
    stack.callback(transport.close)
    return words


def _say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> int:
    """Do the task in this process's first argument. Return the exit code."""
    try:
        task = WorkerTask(**json.loads(sys.argv[1]))
        Path(task.result).write_bytes(asyncio.run(_run(task)))
    except BaseExceptionGroup as group:
        error = first_error(group)
        if not isinstance(error, (HoldfastError, OSError)):
            raise
        _say(error=explain(error))
        return 1
    except (HoldfastError, OSError) as error:
        _say(error=explain(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
