"""Keeps the keys of a server current: reads the registry, before it serves and every few seconds.

If the registry cannot be read later, the last that was known holds.
"""

from __future__ import annotations

import asyncio
import logging

from holdfast.persist.encryption.key_book import KeyBook
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.protocol.errors import StorageError
from holdfast.protocol.serving.trouble import Trouble
from holdfast.shared_fs.encryption.registry import KEY_LOOK_SECONDS, ReadsKeys

logger = logging.getLogger("holdfast.persist")


class KeyKeeping:
    """The reader of the registry of one incarnation. `run` it in a task."""

    def __init__(
        self,
        registry: ReadsKeys,
        book: KeyBook,
        open_stores: OpenStores,
        run_in_thread: RunInThread,
    ) -> None:
        self._registry = registry
        self._book = book
        self._open_stores = open_stores
        self._run_in_thread = run_in_thread
        self._unreadable = Trouble(logger, "encryption.unreadable")
        #: One look after the other, so that none applies what was there before another one.
        self._looking = asyncio.Lock()

    async def begin(self) -> None:
        """Read the registry now. Raises StorageError: a server that does not know whose values are
        encrypted must not serve."""
        async with self._looking:
            known = self._book.known
            found = await self._run_in_thread(lambda: self._registry.read(known))
            if found is not known:
                self._book.change(found, self._open_stores.stores())
                logger.info("encryption.changed tenants=%d", len(found.tenants))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(KEY_LOOK_SECONDS)
            try:
                await self.begin()
            except StorageError as error:
                self._unreadable.note("reason=%s", error)
            else:
                self._unreadable.over()
