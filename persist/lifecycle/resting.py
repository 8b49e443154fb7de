"""Resting: files of open stores that nobody uses give back their connection of SQLite.

A connection takes some 110 kB: a WAL index of 32 kB, pages, prepared statements. Without one, an
open store takes 20 kB and still accepts writes; making a connection again takes the next read of
the file, or the next change that it must hold, 0.4 ms. So the files that were used last keep
theirs. `StoreFile.rest` says why that is safe.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import StorageError
from holdfast.protocol.limits import MAX_AWAKE_FILES
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")

#: A file that was used more recently keeps its connection.
_UNUSED_SECONDS: Final = 1.0
#: How many files one thread lets rest while their stores wait, and how many a pass does.
_AT_ONCE: Final = 32
_PASS_FILES: Final = 1024


class FileRest:
    """The resting files of one incarnation."""

    def __init__(
        self, life: Incarnation, open_stores: OpenStores, max_awake: int = MAX_AWAKE_FILES
    ) -> None:
        """`max_awake` files keep their connection, and those that are in use."""
        self._life = life
        self._open_stores = open_stores
        self._max_awake = max_awake
        self._failing = Trouble(logger, "store.rest_failed", logging.ERROR)

    async def run_pass(self, now: float) -> None:
        """Let unused files rest while too many have a connection."""
        await self._let_rest(self._max_awake, last_use=now - _UNUSED_SECONDS)
        # Descriptors are counted for three times as many at most (`capacity.py`), so then those
        # rest, too, that were used just now.
        await self._let_rest(2 * self._max_awake + _AT_ONCE, last_use=now)

    async def _let_rest(self, max_awake: int, *, last_use: float) -> None:
        upkeep = self._open_stores.upkeep
        left = min(_PASS_FILES, upkeep.awake_count - max_awake)
        while left > 0:
            some = upkeep.unused_awake(min(left, _AT_ONCE), last_use=last_use)
            if not some:
                return
            await self._rest(some)
            left -= len(some)

    async def _rest(self, stores: Sequence[Store]) -> None:
        """Let files rest, in a thread: on a network file system, closing one writes its WAL."""
        with contextlib.ExitStack() as leased:
            for store in stores:
                leased.enter_context(self._open_stores.leases.lend(store))
            outcomes: list[StorageError | None] = await self._life.run_in_thread(
                lambda: [self._outcome(store) for store in stores]
            )
            for store, error in zip(stores, outcomes, strict=True):
                if error is not None:
                    # The log has all of it. What needs the file next finds out what is wrong.
                    self._failing.note("store=%s reason=%s", store.id, error, of=store.id)
                    continue
                self._failing.over(store.id)
                if store.file is not None and not store.file.is_awake:
                    self._open_stores.upkeep.rests(store)

    def _outcome(self, store: Store) -> StorageError | None:
        """Let a file rest; return the error. For a thread."""
        assert store.file is not None
        try:
            store.file.rest(self._life.disk)
        except StorageError as error:
            return error
        return None
