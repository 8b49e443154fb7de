"""The grant desk: drives the grant book of one server.

It reads tokens and revocations in threads, from a source that blocks, and hands requests that
waited back to the server: to be looked at again, or to be refused. A thread that hangs blocks its
own load only; what waits for it is refused after GRANT_WAIT_SECONDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Generic, Protocol, TypeVar

from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.errors import HoldfastError, InvalidTokenError, NotAllowedError
from holdfast.protocol.serving.grant_book import Claim, GrantBook, Settled
from holdfast.protocol.serving.mishaps import Mishaps

logger = logging.getLogger("holdfast.access")

T = TypeVar("T")
_Result = TypeVar("_Result")

#: How often the desk looks for what has waited too long, and whether the revocations are due.
_LOOK_SECONDS: Final = 0.5


class TokenSource(Protocol):
    """Where a server reads tokens. All methods block."""

    def token(self, token_id: str) -> Token | None:
        """Return a registered token that its issuer signed; None if there is none.

        Raises InvalidTokenError, and another HoldfastError if it cannot be read.
        """

    def revoked(self) -> Collection[str]:
        """Return the ids of all revoked tokens: the same object again if nothing has changed.

        Raises a HoldfastError if they cannot be read.
        """


class ReadElsewhere(Protocol):
    """Runs a blocking function elsewhere, as `asyncio.to_thread` or a simulator does."""

    def __call__(
        self, function: Callable[..., _Result], /, *arguments: Any
    ) -> Awaitable[_Result]: ...


class GrantDesk(Generic[T]):
    """Looks at the grants of requests of type T. `run` it in a task."""

    def __init__(
        self,
        source: TokenSource,
        run_in_thread: ReadElsewhere,
        wall_seconds: Callable[[], float],
        serve: Callable[[T], None],
        refuse: Callable[[T, HoldfastError], None],
    ) -> None:
        """`serve` looks at a request again that has waited, `refuse` answers one with an error."""
        self.book: GrantBook[T] = GrantBook()
        self._source = source
        self._run_in_thread = run_in_thread
        self._wall_seconds = wall_seconds
        self._serve = serve
        self._refuse = refuse
        self._wake = asyncio.Event()
        self._readable = True
        self._mishaps = Mishaps(logger)

    def look(self, claim: Claim) -> TokenGrant | NotAllowedError | None:
        """Return the grant of a request, why it is refused, or None: then it has to `wait`."""
        return self.book.look(claim, asyncio.get_running_loop().time(), self._wall_seconds())

    def wait(self, claim: Claim, item: T, size_bytes: int) -> None:
        """Let a request wait for its grant, or refuse it if there is no room."""
        error = self.book.wait(claim, item, size_bytes, asyncio.get_running_loop().time())
        if error is not None:
            self._refuse(item, error)
        self._wake.set()

    async def run(self) -> None:
        """Read what is wanted until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                work = self.book.work(loop.time())
                for token_id in work.load:
                    tasks.create_task(self._load(token_id))
                if work.read_revocations:
                    tasks.create_task(self._read_revocations())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._wake.wait()
                self._wake.clear()
                self._settle(self.book.expire(loop.time()))

    async def _load(self, token_id: str) -> None:
        loop = asyncio.get_running_loop()
        token: Token | None = None
        reason = "no such token is registered"
        try:
            token = await self._run_in_thread(self._source.token, token_id)
        except InvalidTokenError as error:
            reason = str(error)
        except HoldfastError as error:
            self._unreadable(error)
            self._settle(self.book.load_failed(token_id, str(error)))
            return
        except Exception as error:  # noqa: BLE001 (it is the answer of what waits)
            self._mishaps.note("access.load_failed", token_id, error)
            self._settle(self.book.load_failed(token_id, type(error).__name__))
            return
        self._settle(self.book.loaded(token_id, token, reason, loop.time()))

    async def _read_revocations(self) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            revoked = await self._run_in_thread(self._source.revoked)
        except HoldfastError as error:
            self._unreadable(error)
            self._settle(self.book.revocations_unread(str(error), loop.time()))
            return
        except Exception as error:  # noqa: BLE001 (it is the answer of what waits)
            self._mishaps.note("access.load_failed", "revocations", error)
            self._settle(self.book.revocations_unread(type(error).__name__, loop.time()))
            return
        if not self._readable:
            self._readable = True
            logger.info("access.registry_readable")
        self._settle(self.book.revocations_read(revoked, began_at, loop.time()))

    def _settle(self, settled: list[Settled[T]]) -> None:
        for item, error in settled:
            if error is None:
                self._serve(item)
            else:
                self._refuse(item, error)
        if settled:
            self._wake.set()

    def _unreadable(self, error: HoldfastError) -> None:
        if self._readable:
            self._readable = False
            logger.warning("access.registry_unreadable reason=%s", error)
