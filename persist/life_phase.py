"""The phase of an incarnation: it runs, is drained, or stops."""

from __future__ import annotations

import asyncio
import logging
from math import inf

from holdfast.protocol.control import ServerPhase
from holdfast.protocol.work.roles import ALL_ROLES, Role, Roles

logger = logging.getLogger("holdfast.persist")


class LifePhase:
    """The phase of one incarnation, as set by the coordinator, the process and the
    incarnation itself."""

    def __init__(self, server: str, roles: Roles = ALL_ROLES) -> None:
        self.server = server
        #: False: this server is not there to own stores.
        self.owns_stores = Role.PERSIST in roles
        self._draining = False
        #: Set whenever the coordinator changes its mind about draining.
        self.changed = asyncio.Event()
        #: Set when this life is to end cleanly.
        self.stopping = asyncio.Event()
        #: After a clean end the next life begins; see `leaving.py`.
        self.lives_again = False
        #: The coordinator was told that this server owns nothing, and may not have heard it. Until
        #: it has, nothing may be opened.
        self.vacating = False
        #: The time on the loop's clock from which this life no longer waits for the coordinator.
        self.give_up_at = inf

    @property
    def now(self) -> ServerPhase:
        if self.stopping.is_set():
            return ServerPhase.STOPPING
        return ServerPhase.DRAINING if self._draining else ServerPhase.RUNNING

    @property
    def opens_nothing(self) -> bool:
        """True if no store may be opened, not even for maintenance."""
        return self.now is not ServerPhase.RUNNING or self.vacating

    @property
    def gives_up(self) -> bool:
        """True if this life no longer waits for the coordinator."""
        return asyncio.get_running_loop().time() > self.give_up_at

    def set_draining(self, draining: bool) -> None:
        """Note whether the coordinator wants this server to have no stores."""
        if draining != self._draining:
            logger.info("server.draining server=%s draining=%s", self.server, draining)
            self._draining = draining
            self.changed.set()

    def stop(self, *, lives_again: bool = False) -> None:
        """End this life. With `lives_again`, another one follows."""
        self.lives_again = lives_again
        self.stopping.set()
