"""The verdict of the demo: reads everything back and compares it with git, byte for byte."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from holdfast.cli.demo.git_history import BlobReader
from holdfast.cli.demo.plan import DemoPlan, PlannedFile
from holdfast.client import Client
from holdfast.protocol.messages import Message

_CONCURRENT_FILES: Final = 16
_MAX_PROBLEMS: Final = 20


@dataclass(slots=True)
class DemoVerdict:
    """The result of the comparison. A file is identical if its stream has exactly its versions,
    with their contents and headers, as messages 1 to n."""

    files_identical: int = 0
    messages_read: int = 0
    lost: int = 0
    duplicated: int = 0
    kv_identical: bool = False
    #: The first differences, in words.
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)


async def verify(
    client: Client, blobs: BlobReader, plan: DemoPlan, on_file: Callable[[int], None]
) -> DemoVerdict:
    """Compare all that `client` reads with `plan` and git.

    `on_file` is called with the number of messages of each finished file.
    """
    verdict = DemoVerdict()
    room = asyncio.Semaphore(_CONCURRENT_FILES)

    async def check(file: PlannedFile) -> None:
        async with room:
            await _check_file(client, blobs, file, verdict)
            on_file(len(file.messages))

    async with asyncio.TaskGroup() as tasks:
        for file in plan.files:
            tasks.create_task(check(file))
        tasks.create_task(_check_latest(client, blobs, plan, verdict))
    return verdict


async def _check_file(
    client: Client, blobs: BlobReader, file: PlannedFile, verdict: DemoVerdict
) -> None:
    stored = [message async for message in client.stream(file.stream).get_all()]
    verdict.messages_read += len(stored)
    # A commit changes a file at most once, so its id tells a file's versions apart.
    written = Counter(one.headers["commit"] for one in file.messages)
    found = Counter(one.headers.get("commit", "") for one in stored)
    lost, duplicated = (written - found).total(), (found - written).total()
    verdict.lost += lost
    verdict.duplicated += duplicated
    if lost or duplicated:
        verdict.note(f"{file.path}: {lost} lost, {duplicated} too many")
        return
    for seq, message in enumerate(stored, 1):
        difference = await _difference(blobs, file, seq, message)
        if difference is not None:
            verdict.note(f"{file.path}: message {seq}: {difference}")
            return
    verdict.files_identical += 1


async def _difference(
    blobs: BlobReader, file: PlannedFile, seq: int, message: Message
) -> str | None:
    planned = file.messages[seq - 1]
    if message.seq != seq:
        return f"it has seq {message.seq}"
    if dict(message.headers) != planned.headers:
        return "its headers differ"
    content = await blobs.read(planned.blob) if planned.blob else b""
    return None if message.value == content else "its value differs"


async def _check_latest(
    client: Client, blobs: BlobReader, plan: DemoPlan, verdict: DemoVerdict
) -> None:
    expected = plan.latest()
    stored = {entry.key: entry.value async for entry in client.kv(plan.kv).get_all()}
    for path in expected.keys() ^ stored.keys():
        verdict.note(f"kv: {path} is {'missing' if path in expected else 'there though deleted'}")
    wrong = [
        path
        for path in expected.keys() & stored.keys()
        if stored[path] != await blobs.read(expected[path])
    ]
    for path in wrong:
        verdict.note(f"kv: the value of {path} differs")
    verdict.kv_identical = not wrong and expected.keys() == stored.keys()
