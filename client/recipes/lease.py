"""A lease: one of many processes holds a key for as long as it renews it.

The key is created only if it does not exist, with a ttl, and renewed three times within the ttl. If
the holder dies, the ttl removes the key, and whoever waits for that creates it next. Invariants:

- At most one holder has the key, because every write of it is conditional on the revision before.
- A holder gives up by its own monotonic clock before the owner's ttl can end: it counts from before
  a renewal was sent, the owner from when it was stored.
- `token` grows with each holder. Safety must not rest on clocks: a process that was paused may
  believe for a moment that it still holds the lease. So give the token along with what you do, and
  have the resource refuse a lower one than it has seen; or, for writes to the same kv, make them in
  a transaction with `t.expect(lease.key, lease.revision)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from types import TracebackType
from typing import Any, Final, Self

from holdfast.client.handles.kv import KV
from holdfast.client.wire.operations import check_patience
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    UnavailableError,
    WrongRevisionError,
)
from holdfast.protocol.limits import MAX_OPERATION_TIMEOUT_SECONDS
from holdfast.protocol.messages import Change, ChangeKind
from holdfast.protocol.names import check_key
from holdfast.protocol.store_config import ttl_ms

#: How often a lease is renewed within its ttl.
_RENEWALS: Final = 3
#: The pause before the next try, if an outage ended one at once.
_PAUSE_SECONDS: Final = 0.2
_ID_BYTES: Final = 8
#: A lease that ends before the answer to its first write would be acquired again and again.
_MIN_TTL_SECONDS: Final = 0.1


class LeaseLostError(UnavailableError):
    """The lease is held no longer: it could not be renewed in time, or its key was removed."""

    code = "lease_lost"
    template = "the lease {key!r} is lost: {reason}"


class Lease:
    """Holds a key of a kv while its `async with` runs. For one task; a lost lease can be acquired
    again.

    If the lease is lost, the body is cancelled and LeaseLostError is raised. `holder` is for
    people, and for `Election`: the key's value ends in it.
    """

    def __init__(
        self, kv: KV[bytes], key: str, *, holder: str = "", ttl_seconds: float = 10.0
    ) -> None:
        if not isinstance(kv, KV) or not kv._values.is_raw:
            raise InvalidArgumentError(argument="kv", reason="must be a kv with the codec raw")
        ttl_ms(ttl_seconds)
        if ttl_seconds < _MIN_TTL_SECONDS:
            reason = f"must be at least {_MIN_TTL_SECONDS:g}: a shorter lease ends before it begins"
            raise InvalidArgumentError(argument="ttl_seconds", reason=reason)
        check_key(holder)
        #: The key of the lease.
        self.key = check_key(key)
        #: A number that is greater than that of every earlier holder; 0 before the first time.
        self.token = 0
        #: The revision of the key; it grows with each renewal.
        self.revision = 0
        self._kv = kv
        self._holder = holder
        self._ttl_seconds = ttl_seconds
        self._value = b""
        self._ends_at = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._lost: LeaseLostError | None = None
        self._body: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled = False

    @property
    def held(self) -> bool:
        """Whether the lease is held, as far as this process can know."""
        return self._renewing is not None and self._lost is None and _now() < self._ends_at

    def check(self) -> None:
        """Raise LeaseLostError unless the lease is held."""
        if not self.held:
            raise self._lost or self._error("it is not acquired, or has ended")

    async def acquire(self, *, timeout_seconds: float | None = None) -> bool:
        """Wait for the lease and hold it. Return False if `timeout_seconds` pass first; None waits
        for ever. Outages are waited for. Raises errors that no retry can help, and
        ConnectionFailedError once the client has been closed.
        """
        check_patience("timeout_seconds", timeout_seconds)
        if self._renewing is not None:
            raise InvalidArgumentError(argument="lease", reason="it is acquired already")
        # One id for each time: a write whose answer was lost is known by it.
        self._value = f"{secrets.token_hex(_ID_BYTES)} {self._holder}".encode()
        try:
            async with asyncio.timeout(timeout_seconds):
                while not await self._try():
                    # It would look like an outage that never ends.
                    self._kv._link.check_open()
                    await self._until_free()
        except HoldfastError:
            raise  # before the next clause: one of them is a TimeoutError too
        except TimeoutError:
            return False
        self.token = self.revision
        self._lost = None
        self._stopping.clear()
        self._renewing = asyncio.get_running_loop().create_task(
            self._renew_until_lost(), name="holdfast.lease"
        )
        return True

    async def release(self) -> None:
        """Give the lease back, so that the next one gets it at once. Idempotent."""
        if self._renewing is None:
            return
        # A renewal that is under way is waited for: its revision is needed.
        self._stopping.set()
        await asyncio.wait([self._renewing])
        self._renewing = None
        if self._lost is None:
            # If this fails, the ttl does it.
            with contextlib.suppress(WrongRevisionError, UnavailableError):
                await self._kv.delete(
                    self.key, expected_revision=self.revision, timeout_seconds=self._left_seconds
                )

    async def __aenter__(self) -> Self:
        await self.acquire()
        self._body = asyncio.current_task()
        assert self._body is not None
        self._cancelling, self._cancelled = self._body.cancelling(), False
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        body, self._body = self._body, None
        if self._lost is None:
            await self.release()
            return
        self._renewing = None
        if self._cancelled:
            assert body is not None
            if body.uncancel() > self._cancelling:
                return  # somebody else cancels it too
        if exc_type is None or exc_type is asyncio.CancelledError:
            raise self._lost from exc

    async def _try(self) -> bool:
        """Create the key. Return False if somebody else has it."""
        sent_at = _now()
        try:
            ack = await self._kv.set(
                self.key, self._value, expected_revision=0, ttl_seconds=self._ttl_seconds
            )
        except WrongRevisionError:
            return await self._adopt()
        except UnavailableError:
            await asyncio.sleep(_PAUSE_SECONDS)
            return False
        self.revision, self._ends_at = ack.revision, sent_at + self._ttl_seconds
        return self._ends_at > _now()

    async def _adopt(self) -> bool:
        """Renew what an earlier try has created, whose answer was lost. Return False if there is no
        such key."""
        sent_at = _now()
        try:
            entry = await self._kv.get(self.key)
            if entry is None or entry.value != self._value:
                return False
            ack = await self._kv.set(
                self.key,
                self._value,
                expected_revision=entry.revision,
                ttl_seconds=self._ttl_seconds,
            )
        except (WrongRevisionError, UnavailableError):
            return False
        self.revision, self._ends_at = ack.revision, sent_at + self._ttl_seconds
        return self._ends_at > _now()

    async def _until_free(self) -> None:
        """Return when the key may have been removed, or nobody can tell."""
        is_held = False
        try:
            async with self._kv.watch(prefix=self.key, meta_only=True) as changes:
                async for change in changes:
                    if change.entry is not None:
                        is_held = is_held or change.entry.key == self.key
                    elif change.kind is ChangeKind.RESET:
                        is_held = False
                    elif not is_held or self._removes(change):
                        return
        except UnavailableError:
            await asyncio.sleep(_PAUSE_SECONDS)

    def _removes(self, change: Change[Any]) -> bool:
        return change.kind is ChangeKind.TRIM or self.key in change.keys

    async def _renew_until_lost(self) -> None:
        interval_seconds = self._ttl_seconds / _RENEWALS
        pause_seconds = interval_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._stopping.wait()
                    return
            sent_at = _now()
            if sent_at >= self._ends_at:
                self._lose(self._error("it could not be renewed in time"))
                return
            pause_seconds = interval_seconds
            try:
                ack = await self._kv.set(
                    self.key,
                    self._value,
                    expected_revision=self.revision,
                    ttl_seconds=self._ttl_seconds,
                    timeout_seconds=self._left_seconds,
                )
                self.revision, self._ends_at = ack.revision, sent_at + self._ttl_seconds
            except WrongRevisionError as error:
                # Perhaps an earlier renewal, whose answer was lost.
                if not await self._is_mine():
                    self._lose(self._error("somebody else has removed or set its key"), error)
                    return
                pause_seconds = 0
            except UnavailableError:
                pause_seconds = min(_PAUSE_SECONDS, interval_seconds)
            except HoldfastError as error:
                self._lose(self._error(str(error)), error)
                return

    async def _is_mine(self) -> bool:
        """Tell whether the key is still that of this holder, or nobody can tell yet."""
        try:
            entry = await self._kv.get(self.key, timeout_seconds=self._left_seconds)
        except UnavailableError:
            return True
        if entry is None or entry.value != self._value:
            return False
        self.revision = entry.revision
        return True

    def _lose(self, lost: LeaseLostError, cause: HoldfastError | None = None) -> None:
        lost.__cause__ = cause
        self._lost = lost
        if self._body is not None:
            self._cancelled = True
            self._body.cancel()

    def _error(self, reason: str) -> LeaseLostError:
        return LeaseLostError(key=self.key, reason=reason)

    @property
    def _left_seconds(self) -> float:
        return min(MAX_OPERATION_TIMEOUT_SECONDS, max(0.001, self._ends_at - _now()))


def _now() -> float:
    return asyncio.get_running_loop().time()
