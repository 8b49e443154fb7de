"""Reads of a kv: page by page in the order of keys, or of named keys as they were at one moment.

Every argument is checked before anything is sent. Each page is requested while the caller handles
the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import (
    PACKED_HEAD,
    check_count,
    entry_from_wire,
    head_from_wire,
    listed,
)
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.changes import STATELESS_CHANGES, change_from_wire, number_of
from holdfast.protocol.errors import MalformedFrameError, OperationTimeoutError
from holdfast.protocol.frames import CHANGES, GET_ENTRIES, GET_ENTRIES_AT, GET_KEYS, pack
from holdfast.protocol.limits import PAGE_ROWS
from holdfast.protocol.messages import ChangeKind, Entry
from holdfast.protocol.names import check_key


class EntryReads:
    """The reads of one kv."""

    def __init__(self, link: Link, key: StoreKey) -> None:
        self._link = link
        self._key = key

    async def pages(
        self,
        prefix: str,
        after_key: str | None,
        limit: int | None,
        with_values: bool,
        timeout_seconds: float | None,
        revision: int | None = None,
    ) -> AsyncGenerator[list[list[Any]], None]:
        """Yield the rows of the keys that start with `prefix`, page by page: those above
        `after_key`, at most `limit`; as of `revision`, if it is given."""
        check_key(prefix)
        if after_key is not None:
            check_key(after_key)
        if limit is not None:
            check_count("limit", limit)
        if revision is not None:
            check_count("revision", revision)
        if limit == 0:
            return

        def fetch() -> asyncio.Future[Any]:
            operation: list[Any] = [GET_ENTRIES, prefix, after_key, limit, with_values]
            if revision is not None:
                operation = [GET_ENTRIES_AT, *operation[1:], revision]
            return self._link.submit(self._key, pack(operation), False, 0, timeout_seconds)

        page = fetch()
        while True:
            (rows, after_key), *_ = self._link.unwrap(await page)
            if limit is not None:
                limit -= len(rows)
                if limit <= 0:
                    after_key = None
            if after_key is not None:
                page = fetch()
            yield rows
            if after_key is None:
                return

    async def many(
        self, keys: Sequence[str], timeout_seconds: float | None
    ) -> list[Entry | None]:
        """Return the entry of each key, or None, all as of one moment."""
        keys = [check_key(key) for key in listed("keys", keys)]
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return []
        found: dict[str, Entry | None] = {}
        if len(wanted) <= PAGE_ROWS:
            await self._read(wanted, found, timeout_seconds)
        if len(found) < len(wanted):
            found = await self._many_pages(wanted, timeout_seconds)
        return [found[key] for key in keys]

    async def _many_pages(
        self, wanted: list[str], timeout_seconds: float | None
    ) -> dict[str, Entry | None]:
        """Return what does not fit in one answer: several pages, each of its own moment, and then
        every change since before the first."""
        timeout = self._link.timeout_seconds if timeout_seconds is None else timeout_seconds
        loop = asyncio.get_running_loop()
        deadline_at = loop.time() + timeout
        while True:
            wire = await self._ask(PACKED_HEAD, timeout_seconds)
            revision = head_from_wire(wire).revision
            found: dict[str, Entry | None] = {}
            while len(found) < len(wanted):
                await self._read(wanted[len(found) :][:PAGE_ROWS], found, timeout_seconds)
            if await self._brought_up(found, revision, timeout_seconds):
                return found
            # So much was deleted meanwhile that the owner has forgotten it.
            if loop.time() > deadline_at:
                reason = "the keys change faster than they are read"
                raise OperationTimeoutError(timeout_seconds=timeout, reason=reason)

    async def _read(
        self, keys: list[str], found: dict[str, Entry | None], timeout_seconds: float | None
    ) -> None:
        """Read the first of `keys`, as many as fit in one answer."""
        rows, next_index = await self._ask(pack([GET_KEYS, keys]), timeout_seconds)
        if len(rows) != (len(keys) if next_index is None else next_index) or not rows:
            raise MalformedFrameError(reason="a page of keys that does not advance")
        for key, row in zip(keys, rows, strict=False):
            found[key] = None if row is None else entry_from_wire(row)

    async def _brought_up(
        self, found: dict[str, Entry | None], revision: int, timeout_seconds: float | None
    ) -> bool:
        """Do to entries what happened since `revision`, so that all are of one moment. Return False
        if the owner does not know any more."""
        head_revision = -1
        while revision != head_revision:
            packed = pack([CHANGES, revision, None, None])
            wires, revision, _, head_revision, reset, *_ = await self._ask(packed, timeout_seconds)
            if reset:
                return False
            for changed_at, time, wire in wires:
                if number_of(wire) not in STATELESS_CHANGES:
                    _apply(found, wire, changed_at, time)
        return True

    async def _ask(self, packed: bytes, timeout_seconds: float | None) -> Any:
        answer = await self._link.call(self._key, packed, False, 0, timeout_seconds)
        return answer[0]


def _apply(found: dict[str, Entry | None], wire: Any, revision: int, time: int) -> None:
    """Do to entries what a change says, unless they are newer."""
    change = change_from_wire(wire, revision, time)
    if change.entry is not None:
        keys: Sequence[str] = (change.entry.key,)
    else:
        keys = list(found) if change.kind is ChangeKind.TRIM else change.keys
    for key in keys:
        if key in found:
            entry = found[key]
            if entry is None or entry.revision < revision:
                found[key] = change.entry
