"""Leases: sole use of a store's file for a while. All of them are taken and ended here.

    lend(store)         a thread reads or syncs the file of an open store; appends go on
    hold(store)         the store is being handed over, set aside or replaced; everything waits
    of_closed(store)    a job uses the file of a store that is not open; opening it waits

A lease is a context manager. When it ends, the file goes back to the loop, and the operations that
waited for it resume. If the holder has closed the store, the holder decides what happens to those
operations (`FileLease.leave`). A store has at most one lease at a time.
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
    """Keeps the operations that wait for the files of open stores."""

    def unhold(self, store: StoreId) -> None: ...
    def turn_away(self, store: StoreId, error: HoldfastError) -> None: ...


class FileLease:
    """Sole use of the file of one open store."""

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
        """Give the file back and resume what waited for it. Does nothing the second time, or if the
        holder has closed the store."""
        if self._has_ended:
            return
        if self.store.state is not OpenState.CLOSED:
            self.store.enter(OpenState.SERVING)
        elif self._is_exclusive:
            # This incarnation never serves the store again: operations that resumed
            # would find it closed.
            return
        self._has_ended = True
        self._leases.unhold(self.store.id)

    def leave(self, refusal: HoldfastError | None) -> None:
        """End the lease of a store that is no longer open here. Operations that waited for it are
        refused with `refusal`, or ask for the store again if that is None."""
        self._has_ended = True
        self._leases.close(self.store)
        if refusal is None:
            self._leases.unhold(self.store.id)
        else:
            self._leases.turn_away(self.store.id, refusal)


class Leases:
    """The leases of one incarnation."""

    def __init__(self, close: Callable[[Store], None], in_use: Callable[[StoreId], bool]) -> None:
        """`close` removes a store from the open ones. `in_use` tells if a store
        is open or wanted."""
        self.close = close
        self._in_use = in_use
        self._waiters: Waiters | None = None
        #: The stores that are not open but whose file is leased. Each event is set
        #: when the lease ends.
        self._of_closed: dict[StoreId, asyncio.Event] = {}

    def attach(self, waiters: Waiters) -> None:
        """Tell `waiters` from now on which files are free again."""
        self._waiters = waiters

    def lend(self, store: Store) -> FileLease:
        """Lease the file of an open store. Appends go on. Raises IllegalTransitionError
        if it is leased."""
        store.enter(OpenState.LENT)
        return FileLease(self, store, is_exclusive=False)

    def hold(self, store: Store) -> FileLease:
        """Lease an open store. Everything that arrives for it waits. Raises IllegalTransitionError
        if its file is leased."""
        if store.state is not OpenState.SERVING:
            raise IllegalTransitionError(store.state, OpenState.HELD)
        store.enter(OpenState.HELD)
        return FileLease(self, store, is_exclusive=True)

    @contextmanager
    def of_closed(self, store: StoreId) -> Iterator[bool]:
        """Keep a store that is not open from being opened. Yields False if the store is in use."""
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
        """Return once the file of a store that is not open is leased to nobody."""
        while (ended := self._of_closed.get(store)) is not None:
            await ended.wait()

    def unhold(self, store: StoreId) -> None:
        """Resume the operations that wait for the file of a store."""
        if self._waiters is not None:
            self._waiters.unhold(store)

    def turn_away(self, store: StoreId, error: HoldfastError) -> None:
        """Refuse the operations that wait for the file of a store."""
        if self._waiters is not None:
            self._waiters.turn_away(store, error)
