"""Takes stores out of service whose files turn out to be damaged while their owner has them open.

A change that cannot be applied would wait for ever, and the log with it: one flipped bit would in
the end stop every store of the server. So such a store is set aside, alone:

    hold it ──▶ wait until all that it accepted is synced ──▶ the storage mode takes the file out of
    service ──▶ close it, so that the log can go on; requests for the store are refused with the
    damage, or open it anew

On a shared file system the file goes to quarantine, together with the changes that it lacks. In a
bucket-only cluster the file is a cache, and the log in the bucket has everything: the file is
dropped, and the store is opened again. Invariant:

- Only damage sets a store aside. A disk that is full or failing may recover: until then the store
  keeps its pending changes in memory (`store.py`), and the log has them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.store.leases import FileLease
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.releasing import Releaser
from holdfast.protocol.errors import FencedError, StorageError, StoreDamagedError
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.persist")


class SettingAside:
    """Sets aside the damaged stores of one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        open_stores: OpenStores,
        releaser: Releaser,
        withdraw: Callable[[Store, StoreDamagedError], Awaitable[bool]],
    ) -> None:
        """`withdraw` is the method of `StorageMode`."""
        self._gate = life.gate
        self._open_stores = open_stores
        self._releaser = releaser
        self._withdraw = withdraw
        self._failing = Trouble(logger, "store.set_aside_failed", logging.ERROR)

    async def run_pass(self) -> None:
        """Set aside the stores that are known to be damaged. Raises FencedError."""
        for store, error in self._open_stores.upkeep.damaged():
            if store.state is OpenState.SERVING:
                with self._open_stores.leases.hold(store) as lease:
                    await self._set_aside(lease, error)

    async def _set_aside(self, lease: FileLease, error: StoreDamagedError) -> None:
        store = lease.store
        await self._releaser.settled(store.last_tick)
        try:
            self._gate.check()
            opens_anew = await self._withdraw(store, error)
        except FencedError:
            raise
        except StorageError as failed:
            # The log has everything. The next pass tries again.
            self._failing.note("store=%s reason=%s", store.id, failed, of=store.id)
            return
        self._failing.over(store.id)
        store.file = None
        lease.leave(None if opens_anew else error)
