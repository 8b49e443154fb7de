"""Who has a store's file for a while: every lease on one is taken here, and ends here.

    lend(store)         a thread reads or syncs the file of an open store; the rest goes on
    hold(store)         the store is being handed over, set aside or replaced; everything waits
    of_closed(store)    the file of a store that is not open here is open; whoever opens it waits

A lease is a context manager. At its end the file goes back to the loop and what waited for it goes
on, unless the holder has closed the store: then the holder says what becomes of what waited
(`Lease.leave`). A store has one lease at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self

from holdfast.persist.store.states import IllegalTransitionError, OpenState
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import StoreId


class Waiters(Protocol):
    """Has what waits for the files of open stores."""

    def unhold(self, store: StoreId) -> None: ...
    def turn_away(self, store: StoreId, error: HoldfastError) -> None: ...


class Lease:
    """The file of one open store, in somebody's hands."""

    __slots__ = ("_has_ended", "_is_exclusive", "_leases", "store")

    def __init__(self, leases: Leases, store: Store, *, is_exclusive: bool) -> None:
        self.store = store
        self._leases = leases
        self._is_exclusive = is_exclusive
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Give the file back, and let what waited for it go on. Does nothing the second time, nor
        for a holder that has closed the store."""
        if self._has_ended:
            return
        if self.store.state is not OpenState.CLOSED:
            self.store.enter(OpenState.SERVING)
        elif self._is_exclusive:
            # Never served again by this incarnation: what waits must not find it empty.
            return
        self._has_ended = True
        self._leases.unhold(self.store.id)

    def leave(self, refusal: HoldfastError | None) -> None:
        """The store is open here no more. What waited for it is refused; without a refusal it asks
        for the store anew."""
        self._has_ended = True
        self._leases.close(self.store)
        if refusal is None:
            self._leases.unhold(self.store.id)
        else:
            self._leases.turn_away(self.store.id, refusal)


class Leases:
    """The leases of one incarnation."""

    def __init__(self, close: Callable[[Store], None], in_use: Callable[[StoreId], bool]) -> None:
        """`close` takes a store out of the open ones; `in_use` tells if one is open, or wanted."""
        self.close = close
        self._in_use = in_use
        self._waiters: Waiters | None = None
        #: The stores that are not open and whose file is; each event is set at the end of the
        #: lease.
        self._of_closed: dict[StoreId, asyncio.Event] = {}

    def attach(self, waiters: Waiters) -> None:
        """From now on `waiters` hear which files are back."""
        self._waiters = waiters

    def lend(self, store: Store) -> Lease:
        """Let somebody have the file of an open store that nobody has; appends go on."""
        store.enter(OpenState.LENT)
        return Lease(self, store, is_exclusive=False)

    def hold(self, store: Store) -> Lease:
        """Let somebody have an open store whose file nobody has; all that arrives for it waits."""
        if store.state is not OpenState.SERVING:
            raise IllegalTransitionError(store.state, OpenState.HELD)
        store.enter(OpenState.HELD)
        return Lease(self, store, is_exclusive=True)

    @contextmanager
    def of_closed(self, store: StoreId) -> Iterator[bool]:
        """Keep others from opening a store that is not open; gives False if somebody uses it."""
        if store in self._of_closed or self._in_use(store):
            yield False
            return
        ended = self._of_closed[store] = asyncio.Event()
        try:
            yield True
        finally:
            del self._of_closed[store]
            ended.set()

    def is_leased(self, store: StoreId) -> bool:
        """Tell if the file of a store that is not open is leased."""
        return store in self._of_closed

    async def free(self, store: StoreId) -> None:
        """Return once nobody has the file of a store that is not open."""
        while (ended := self._of_closed.get(store)) is not None:
            await ended.wait()

    def unhold(self, store: StoreId) -> None:
        """Let what waits for the file of a store go on."""
        if self._waiters is not None:
            self._waiters.unhold(store)

    def turn_away(self, store: StoreId, error: HoldfastError) -> None:
        """Refuse what waits for the file of a store."""
        if self._waiters is not None:
            self._waiters.turn_away(store, error)
