"""What ended incarnations have left behind: stores whose last change no snapshot has.

A server that dies takes its list of what to snapshot with it, and one that ends or is drained may
not snapshot what it has released. So the server that has claimed this work looks at all files once,
and takes those for which no owner is responsible (`tending.py`). A file that its dead owner left
open is opened by its new owner, and then compared with its manifest like any other
(`lag_keeping.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.peers.owners import Owners
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.tier import cooling
from holdfast.persist.tier.claims import Claimed
from holdfast.persist.tier.cooling import Resting, is_behind, take_slice
from holdfast.persist.tier.publishing import Publisher
from holdfast.persist.tier.tending import SharedTending
from holdfast.protocol.errors import HoldfastError, StorageError, UnavailableError
from holdfast.protocol.names import StoreId
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")

#: How many stores one request to the coordinator names.
_GROUP_STORES: Final = 64


class LeftBehind:
    """Looks for what others have left behind, for one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        publisher: Publisher,
        tending: SharedTending,
        owners: Owners,
        run_in_thread: RunInThread,
    ) -> None:
        self._layout = life.layout
        self._clock_ms = life.clock_ms
        self._publisher = publisher
        self._tending = tending
        self._owners = owners
        self._run_in_thread = run_in_thread
        self._refused = Trouble(logger, "store.left_behind")

    async def find(self, claim: Claimed) -> list[StoreId]:
        """Have the stores opened that were left open, and return those with closed files that have
        no other owner. Raises StorageError, UnavailableError, ClaimLostError; for a store that
        cannot be opened only once all others are."""
        files = cooling.resting_files(self._layout, with_open=True)
        closed: list[StoreId] = []
        failures: list[HoldfastError] = []
        while True:
            found: list[Resting] = await self._run_in_thread(
                partial(take_slice, files, self._clock_ms())
            )
            if not found:
                if failures:
                    raise failures[0]
                return closed
            newest = await self._publisher.newest([each.store for each in found])
            left = {
                each.store: each.is_closed
                for each in found
                if is_behind(newest.get(each.store), each.changed)
            }
            names = list(left)
            for start in range(0, len(names), _GROUP_STORES):
                group = names[start : start + _GROUP_STORES]
                mine = [each.store for each in await self._tending.tended_by(group, claim)]
                claim.check()
                closed += [store for store in mine if left[store]]
                failures += await self._open([store for store in mine if not left[store]])

    async def _open(self, stores: Sequence[StoreId]) -> list[HoldfastError]:
        """Have the stores opened, and return what forbids to say that nothing is left of them."""
        failures: list[HoldfastError] = []

        def refused(store: StoreId, error: HoldfastError) -> None:
            self._refused.note("store=%s reason=%s", store, error, of=store)
            if isinstance(error, StorageError | UnavailableError):
                failures.append(error)

        for taken in (await self._owners.take_over_each(stores, refused)).values():
            for store in taken:
                self._refused.over(store)
        return failures
