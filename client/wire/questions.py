"""What the coalescer wants to know of the coordinator, asked in short tasks of the link."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.client.wire.coalescer import Coalescer
from holdfast.client.wire.effects import Resolve, Suspect
from holdfast.client.wire.router import Router
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.client")


class Questions:
    """Asks the coordinator, and gives the answers to the coalescer."""

    def __init__(
        self,
        router: Router,
        coalescer: Coalescer,
        clock: Callable[[], float],
        owner_changed: Callable[[StoreKey], None],
        answered: Callable[[], None],
    ) -> None:
        """`owner_changed` is called for each store whose owner is another now, and `answered` once
        the coalescer has an answer."""
        self._router = router
        self._coalescer = coalescer
        self._clock = clock
        self._owner_changed = owner_changed
        self._answered = answered

    def ask(self, question: Resolve | Suspect) -> Coroutine[Any, Any, None]:
        """Return the work of asking."""
        if isinstance(question, Resolve):
            return self._resolve(question.stores)
        return self._suspect(question.server, question.incarnation)

    async def _resolve(self, stores: list[StoreKey]) -> None:
        answers = await self._router.resolve(stores)
        now = self._clock()
        for key, answer in zip(stores, answers, strict=True):
            if isinstance(answer, Owner):
                before = self._coalescer.owner_of(key)
                self._coalescer.resolved(key, answer)
                if before != answer:
                    self._owner_changed(key)
            else:
                self._coalescer.resolve_failed(key, answer, now)
        self._answered()

    async def _suspect(self, server: str, incarnation: str) -> None:
        try:
            alive = await self._router.suspect(server, incarnation)
            logger.info("client.suspected server=%s alive=%s", server, alive)
        except HoldfastError as error:
            # The stores are resolved again anyway, and callers get the errors of that.
            logger.info("client.suspect_failed server=%s reason=%s", server, error)
        self._coalescer.suspect_answered(server)
        self._answered()
