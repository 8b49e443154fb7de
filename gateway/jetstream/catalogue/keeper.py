"""Keeps the mirror of the catalogue, and changes the catalogue.

A change is decided by the mirror, written in a transaction that expects the revision that was
decided by, and decided again if another gateway was faster. So two creations of one name, or with
overlapping subjects, never both succeed. Changes that wait while a transaction is under way are
decided one after the other, each by a draft with those before it, and written together.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.client import Client
from holdfast.gateway.jetstream.catalogue.catalogue import (
    CATALOGUE_KV,
    REVISION_KEY,
    Catalogue,
    key_of,
)
from holdfast.gateway.jetstream.catalogue.draft import CatalogueChange, CatalogueDraft
from holdfast.protocol.errors import (
    HoldfastError,
    MalformedFrameError,
    OperationTimeoutError,
    TooLargeError,
    WrongRevisionError,
)
from holdfast.protocol.limits import MAX_CATALOGUE_CHANGES
from holdfast.protocol.messages import Ack, ChangeKind

logger = logging.getLogger("holdfast.gateway")

#: How long a change waits for the mirror to catch up with another gateway's.
_CATCH_UP_SECONDS: Final = 5.0
#: A kv that cannot be read, as when it is damaged, is read again after so long.
_TRY_AGAIN_SECONDS: Final = 1.0


#: Decides about one stream by the catalogue: what is to be, None for no change; or raises.
Decide = Callable[[CatalogueDraft], CatalogueChange | None]


class CatalogueKeeper:
    """The catalogue of the tenant of `client`. `run` it in a task."""

    def __init__(self, client: Client, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._kv = client.kv(CATALOGUE_KV)
        self._loaded = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        #: Changes that are not decided yet, and whether there are any.
        self._asked: list[tuple[Decide, asyncio.Future[None]]] = []
        self._news = asyncio.Event()

    async def loaded(self) -> None:
        """Return once the mirror holds what the kv held when it began."""
        await self._loaded.wait()

    async def run(self) -> None:
        """Follow the kv and change it until cancelled, whatever happens to it."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._change_all())
            tasks.create_task(self._follow_always())

    async def _follow_always(self) -> None:
        while True:
            try:
                await self._follow()
            except HoldfastError as error:
                logger.warning("jetstream.catalogue_unreadable reason=%s", error)
            await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _follow(self) -> None:
        found: dict[str, tuple[bytes, int]] | None = {}
        async with self._kv.watch() as changes:
            async for change in changes:
                if change.kind is ChangeKind.RESET:
                    found = {}
                elif change.kind is ChangeKind.READY:
                    for error in self.catalogue.reset(found or {}):
                        logger.error("jetstream.entry_unreadable reason=%s", error)
                    found = None
                    self._loaded.set()
                elif change.entry is not None:
                    entry = change.entry
                    if found is None:
                        self._set(entry.key, entry.value, entry.revision)
                    else:
                        found[entry.key] = (entry.value, entry.revision)
                elif found is None:
                    for key in change.keys:
                        self.catalogue.deleted(key, change.revision)
                if found is None:
                    self._wake()

    async def caught_up(self) -> None:
        """Return once the mirror shows every change that was made before this call. Raises
        HoldfastError."""
        newest = await self._kv.get(REVISION_KEY)
        if newest is not None and newest.revision > self.catalogue.revision:
            await self._until(lambda: self.catalogue.revision >= newest.revision)

    async def change(self, decide: Decide) -> None:
        """Change one stream. `decide` is called again if another gateway was faster.

        Raises what `decide` and a transaction raise; OperationTimeoutError if the mirror does not
        catch up.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append((decide, done))
        self._news.set()
        await done

    async def _change_all(self) -> None:
        """Make the changes that are asked for, as many at a time as there are."""
        while True:
            await self._news.wait()
            part, self._asked = (
                self._asked[:MAX_CATALOGUE_CHANGES],
                self._asked[MAX_CATALOGUE_CHANGES:],
            )
            if not self._asked:
                self._news.clear()
            try:
                await self._change(part)
            except HoldfastError as error:
                for _, done in part:
                    if not done.done():
                        done.set_exception(type(error)(**error.fields))

    async def _change(self, asked: Sequence[tuple[Decide, asyncio.Future[None]]]) -> None:
        """Decide changes and write them together, again while other gateways are faster."""
        while True:
            seen = self.catalogue.revision
            draft = CatalogueDraft(self.catalogue)
            for decide, done in asked:
                if done.done():
                    continue
                try:
                    change = decide(draft)
                except Exception as error:  # noqa: BLE001 (the caller's)
                    done.set_exception(error)
                    continue
                if change is not None:
                    draft.add(change)
            try:
                if draft.changes:
                    await self._commit(draft, seen)
            except WrongRevisionError:
                await self._until(functools.partial(self._is_beyond, seen))
                continue
            except TooLargeError:
                if len(draft.changes) < 2:
                    raise
                for each in asked:
                    await self._change([each])
                return
            for _, done in asked:
                if not done.done():
                    done.set_result(None)
            return

    async def _commit(self, draft: CatalogueDraft, seen: int) -> None:
        transaction = self._kv.transaction()
        transaction.expect(REVISION_KEY, seen)
        for name, entry in draft.changes.values():
            if entry is None:
                transaction.delete(key_of(name))
            else:
                transaction.set(key_of(name), entry.to_bytes())
        # Last: whoever has seen it has seen the entries.
        transaction.set(REVISION_KEY, b"")
        *_, last = await transaction.commit()
        assert isinstance(last, Ack)
        for name, entry in draft.changes.values():
            self.catalogue.committed(name, entry, last.revision)

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Return once the mirror has changed so far."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while not reached():
                    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(future)
                    await future
                return
        raise OperationTimeoutError(
            timeout_seconds=_CATCH_UP_SECONDS, reason="the catalogue's changes do not arrive"
        )

    def _is_beyond(self, revision: int) -> bool:
        return self.catalogue.revision != revision

    def _set(self, key: str, value: bytes, revision: int) -> None:
        try:
            self.catalogue.set(key, value, revision)
        except MalformedFrameError as error:
            # Its stream stays as it was: not served differently because of a foreign hand.
            logger.error("jetstream.entry_unreadable reason=%s", error)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
