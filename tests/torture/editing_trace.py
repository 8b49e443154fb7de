"""Real editing traces, typed into a stream during faults: the document comes out byte for byte.

A trace has a start, transactions of patches `[position, deleted, inserted]` in characters, and the
end that they lead to.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.client import Client
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.frames import pack, unpack

Patch = Sequence[Any]

FOLDER: Final = Path(__file__).resolve().parents[3] / "shared" / "data" / "editing-traces"
#: Nobody types this fast; a machine of two cores takes it beside everything else.
MAX_TRANSACTIONS_PER_SECOND: Final = 300.0
#: A typist whose keystrokes wait goes on typing, up to here.
_IN_FLIGHT: Final = 64
#: Far above any pause: the order of keystrokes allows none to be given up.
_TIMEOUT_SECONDS: Final = 240.0


@dataclass(frozen=True, slots=True)
class EditingTrace:
    """One document's life."""

    name: str
    start: str
    transactions: Sequence[Sequence[Patch]]
    end: str

    @classmethod
    def load(cls, path: Path) -> EditingTrace:
        """Read `<name>.json.gz`."""
        with gzip.open(path) as file:
            content = json.load(file)
        transactions = [one["patches"] for one in content["txns"]]
        name = path.name.partition(".")[0].partition("_")[0]
        return cls(name, content["startContent"], transactions, content["endContent"])

    @property
    def stream(self) -> str:
        return f"torture.trace.{self.name}"

    def document_after(self, transaction_count: int) -> str:
        """Return the document as it is after so many transactions."""
        if transaction_count == len(self.transactions):
            return self.end
        return replay(self.start, self.transactions[:transaction_count])


def traces() -> list[Path]:
    """Return the traces that are there, the smallest first."""
    return sorted(FOLDER.glob("*.json.gz"), key=lambda path: path.stat().st_size)


def replay(document: str, transactions: Iterable[Iterable[Patch]]) -> str:
    """Return the document after the transactions."""
    for patches in transactions:
        for position, deleted, inserted in patches:
            document = document[:position] + inserted + document[position + deleted :]
    return document


@dataclass(slots=True)
class Typed:
    """What a typist did, and what went wrong: a fault must cost a pause, not a keystroke."""

    transactions: int = 0
    problems: list[str] = field(default_factory=list)


async def type_trace(
    client: Client, trace: EditingTrace, seconds: float, finish: asyncio.Event
) -> Typed:
    """Append the transactions in order, spread over `seconds`, until `finish` or a problem."""
    stream = client.stream(trace.stream)
    room = asyncio.Semaphore(_IN_FLIGHT)
    per_second = min(len(trace.transactions) / seconds, MAX_TRANSACTIONS_PER_SECOND)
    began_at = time.monotonic()
    typed = Typed()

    async def append(number: int, patches: Sequence[Patch]) -> None:
        try:
            ack = await stream.append(pack(patches), timeout_seconds=_TIMEOUT_SECONDS)
        except HoldfastError as error:
            typed.problems.append(f"transaction {number}: {error}")
        else:
            if ack.seq != number:
                typed.problems.append(f"transaction {number} became message {ack.seq}")
        finally:
            room.release()

    async with asyncio.TaskGroup() as tasks:
        for number, patches in enumerate(trace.transactions, 1):
            await asyncio.sleep(began_at + number / per_second - time.monotonic())
            if finish.is_set() or typed.problems:
                break
            await room.acquire()
            tasks.create_task(append(number, patches))
            typed.transactions = number
    return typed


async def read_document(client: Client, trace: EditingTrace) -> tuple[int, str]:
    """Return how many transactions the stream has, and the document that they make."""
    transactions = [
        unpack(message.value) async for message in client.stream(trace.stream).get_all()
    ]
    return len(transactions), replay(trace.start, transactions)
