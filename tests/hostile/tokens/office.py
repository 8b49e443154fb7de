"""The tenant whose stores the holders of tokens are after.

Each holder has stores of its own, `<holder>.*`, and nobody but the owner has any right on
`private.*`. Every value, header and setting of a store has a mark that nobody can guess, and so has
the name of one store: whoever gets to see a mark has seen what it marks. The owner goes on writing
while it is attacked.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from holdfast.client import Client
from holdfast.protocol.errors import ValueUnreadableError
from holdfast.protocol.messages import Head, Message

OFFICE: Final = "office"
#: Stores on which no holder has any right.
PRIVATE: Final = "private"
_MESSAGES: Final = 60
_ENTRIES: Final = 40
_LIVE_SECONDS: Final = 0.05


class Mark(NamedTuple):
    """What was seen of whose stores: `value`, `name` or `setting`."""

    what: str
    stores: str


class Marks:
    """The marks of one run. No attack knows `secret`."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._pattern = re.compile(rb"(value|name|setting)-of-([a-z-]+)-" + secret.encode())

    def value(self, stores: str) -> str:
        """The mark of all values in the stores of a holder."""
        return f"value-of-{stores}-{self._secret}"

    def name(self, stores: str) -> str:
        """The mark of a store's name."""
        return f"name-of-{stores}-{self._secret}"

    def setting(self, stores: str) -> str:
        """The mark of a store's configuration."""
        return f"setting-of-{stores}-{self._secret}"

    def found(self, data: bytes) -> list[Mark]:
        """Return the marks in `data`."""
        return [Mark(*(each.decode() for each in pair)) for pair in self._pattern.findall(data)]


class Office:
    """The owner of all of it, through a client with all rights."""

    def __init__(self, client: Client, marks: Marks, kept: Iterable[str]) -> None:
        """`kept` are the holders whose own stores stay as they are."""
        self._client = client
        self._marks = marks
        self._kept = [PRIVATE, *kept]
        self._before: dict[str, Any] = {}
        self._acked: dict[str, list[bytes]] = {}

    async def fill(self, holders: Iterable[str]) -> None:
        """Write the stores of each holder, and the private ones."""
        async with asyncio.TaskGroup() as tasks:
            for stores in (PRIVATE, *holders):
                tasks.create_task(self._fill(stores))
        self._before = await self._seen()

    async def _fill(self, stores: str) -> None:
        client, value = self._client, self._marks.value(stores)
        notes, keys = client.stream(f"{stores}.notes"), client.kv(f"{stores}.keys")
        messages = [(f"{number} {value}".encode(), {"mark": value}) for number in range(_MESSAGES)]
        await notes.append_many(messages)
        await keys.set_many({f"{number}-{value}": value.encode() for number in range(_ENTRIES)})
        await client.stream(f"{stores}.{self._marks.name(stores)}").append(value.encode())
        await notes.configure(description=self._marks.setting(stores))
        async with notes.consumer("work", ack_wait_seconds=3600.0) as work:
            await work.fetch(5)
        if stores in self._kept:
            self._acked[stores] = []

    async def go_on(self, client: Client, finish: asyncio.Event) -> None:
        """Append to the stores that are kept until `finish`, and remember what was acked."""
        self._client = client
        numbers = 0
        while not finish.is_set():
            for stores, acked in self._acked.items():
                numbers += 1
                text = f"{numbers} {self._marks.value(stores)}".encode()
                await self._client.stream(f"{stores}.live").append(text)
                acked.append(text)
            await asyncio.sleep(_LIVE_SECONDS)

    async def wrong(self, client: Client) -> list[str]:
        """Return what is not as it was, as a fresh client reads it."""
        self._client = client
        found = []
        after = await self._seen()
        for name in sorted(self._before.keys() | after.keys()):
            if self._before.get(name) != after.get(name):
                difference = _difference(self._before, after, name)
                found.append(f"changed without a right: {name} {difference}")
        for stores, acked in self._acked.items():
            head, messages, *_ = await self._contents(1, f"{stores}.live")
            if [_value(each) for each in messages] != acked:
                found.append(
                    f"changed without a right: {stores}.live: {head}, and {len(acked)} were acked"
                )
        return found

    async def _seen(self) -> dict[str, Any]:
        """Return all there is in the stores that are kept, and the names of all stores of those
        that nobody may have made."""
        seen: dict[str, Any] = {}
        async for info in self._client.stores():
            stores, _, rest = info.name.partition(".")
            if stores in self._kept and rest != "live":
                word = "stream" if info.kind == 1 else "kv"
                seen[f"{word} {info.name}"] = await self._contents(info.kind, info.name)
        return seen

    async def _contents(self, kind: int, name: str) -> list[Any]:
        if kind == 1:
            stream = self._client.stream(name)
            return [
                _extent(await stream.head()),
                [each async for each in stream.get_all()],
                await stream.config(),
                await stream.consumers(),
            ]
        kv = self._client.kv(name)
        entries = [each async for each in kv.get_all()]
        return [_extent(await kv.head()), entries, await kv.config()]


def _extent(head: Head) -> Head:
    """Return a head without what changes with each owner."""
    return replace(head, epoch=0, server="")


def _value(message: Message) -> bytes | None:
    """Return the value of a message; None if it cannot be read, as attackers write some."""
    try:
        return message.value
    except ValueUnreadableError:
        return None


def _difference(before: dict[str, Any], after: dict[str, Any], name: str) -> str:
    if name not in before:
        return "was made"
    if name not in after:
        return "is gone"
    for old, new in zip_longest(before[name], after[name]):
        if old != new:
            return f"was {old!r:.300}, is {new!r:.300}"
    raise AssertionError(name)
