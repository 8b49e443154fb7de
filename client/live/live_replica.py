"""What every live replica does: follow its store, send what is written, call the application.

Two tasks of one group run until `aclose`, the end of the client, or an error that no retry can help
(`error`). One takes the changes of the store; the other sends what is unsaved, one flight at a
time. All state is in a pure core (`live_entries.py`, `live_messages.py`). Reads and writes of the
application touch only that core, so they need no await and work as well during an outage.

Callbacks run in the event loop, right after the change, in the order of the changes. They may
read and write the replica. What they raise goes to the loop's exception handler and affects
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from holdfast.client.following.subscription import Subscription
from holdfast.client.live.live_notices import Notices, Rejection
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import check_callable
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    OperationTimeoutError,
    RateLimitedError,
    StaleWriteError,
    StorageError,
    UnavailableError,
    error_from_wire,
)
from holdfast.protocol.limits import MAX_OPERATION_TIMEOUT_SECONDS
from holdfast.protocol.messages import Change, ChangeKind

logger = logging.getLogger("holdfast.client")

C = TypeVar("C")
V = TypeVar("V")

#: How long a flight is retried under its own number, which makes a retry exactly-once: the longest
#: timeout of an operation. After that the core deals with an unanswered flight.
FLIGHT_SECONDS: Final = MAX_OPERATION_TIMEOUT_SECONDS
FLIGHT_WRITES: Final = 512
FLIGHT_BYTES: Final = 256 * 1024
#: Errors that pass: the write stays unsaved and is tried again, and following resumes.
OUTAGES: Final = (UnavailableError, StorageError, StaleWriteError)
#: The pauses between two tries.
_PAUSE_SECONDS: Final = 0.2
_MAX_PAUSE_SECONDS: Final = 5.0
_FOLLOW_PAUSE_SECONDS: Final = 1.0
#: How many rejections are kept for the next `save`.
_MAX_REJECTIONS: Final = 100


class Core(Protocol[C]):
    """What the shell needs from a replica's state."""

    notices: Notices[C]
    last_write: int

    @property
    def first_unsaved(self) -> int: ...

    def changed(self, change: Change) -> None: ...


class LiveReplica(ABC, Generic[C, V]):
    """A local copy of one store that follows the store and can be written at once."""

    def __init__(
        self,
        link: Link,
        name: str,
        core: Core[C],
        registry: dict[int, LiveReplica[Any, Any]],
    ) -> None:
        """`registry` holds the replica, by its `id()`, while it is open."""
        #: The name of the store.
        self.name = name
        #: The error that ended the replica; None while it follows its store.
        self.error: HoldfastError | None = None
        self._link = link
        self._core = core
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._main: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        self._closed = False
        self._work = asyncio.Event()
        self._progress_count = 0
        self._change_callbacks: dict[int, Callable[[Any], object]] = {}
        self._reject_callbacks: dict[int, Callable[[Rejection[V]], object]] = {}
        self._registered = 0
        self._telling = False
        self._savers: list[tuple[int, asyncio.Future[None]]] = []
        self._rejections: list[Rejection[bytes]] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def connected(self) -> bool:
        """False while the connection to NATS is lost, and after the replica has ended. What you
        read may be old then, and what you write stays unsaved.
        """
        has_ended = self._closed or self.error is not None
        return self._opened.is_set() and not has_ended and self._link.bus.connected

    async def open(self, timeout_seconds: float | None = None) -> Self:
        """Read the store. Return once the replica is complete. A replica can be opened once.

        Raises what any read raises; OperationTimeoutError if nothing arrived for `timeout_seconds`
        (the client's timeout by default).
        """
        self._check_open(opening=True)
        timeout = self._link.timeout_seconds if timeout_seconds is None else timeout_seconds
        if self._main is None:
            self._registry[id(self)] = self
            self._main = self._loop.create_task(self._run(), name="holdfast.live")
        try:
            while not self._opened.is_set():
                seen = self._progress_count
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._opened.wait()
                        break
                if seen == self._progress_count:
                    reason = f"{self.name} is not read yet"
                    raise OperationTimeoutError(timeout_seconds=timeout, reason=reason)
            if self.error is not None:
                raise self.error
            self._check_open(opening=True)
        except BaseException:
            await self._stop()
            raise
        return self

    async def save(self, timeout_seconds: float | None = None) -> None:
        """Return once every earlier write is confirmed: stored, with its durability.

        Raises the error of the first write that was rejected since the last `save`, with the
        others in its notes; OperationTimeoutError after `timeout_seconds` (the client's timeout
        by default), in which case the writes stay unsaved and are still tried; `error` if there
        is one.
        """
        target = self._core.last_write
        if self._core.first_unsaved <= target:
            self._check_open()
            timeout = self._link.timeout_seconds if timeout_seconds is None else timeout_seconds
            saved: asyncio.Future[None] = self._loop.create_future()
            self._savers.append((target, saved))
            try:
                async with asyncio.timeout(timeout):
                    await saved
            except TimeoutError:
                reason = f"{self.unsaved_count} writes of {self.name} are not confirmed"
                raise OperationTimeoutError(timeout_seconds=timeout, reason=reason) from None
            finally:
                if (target, saved) in self._savers:
                    self._savers.remove((target, saved))
            if self._core.first_unsaved <= target:
                self._check_open()
        rejections, self._rejections = self._rejections, []
        if rejections:
            error = rejections[0].error
            for other in rejections:
                error.add_note(f"rejected: a write of {other.key or self.name!r}: {other.error}")
            raise error

    async def aclose(self, *, save: bool = True, timeout_seconds: float | None = None) -> None:
        """Save, unless `save` is False, and end. Idempotent.

        Raises what `save` raises; the replica has ended all the same. Writes that are lost are also
        reported in the log (`client.unsaved`).
        """
        try:
            if save and not self._closed and self._main is not None:
                await self.save(timeout_seconds)
        finally:
            await self._stop()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Save and end. A cancelled task does not wait for that."""
        if exc is None:
            await self.aclose()
            return
        try:
            await self.aclose(save=isinstance(exc, Exception))
        except HoldfastError as error:
            exc.add_note(f"and while closing {self!r}: {error}")

    def on_reject(self, callback: Callable[[Rejection[V]], object]) -> Callable[[], None]:
        """Call `callback` with each Rejection, once the earlier state shows again. Return a
        function that ends this.
        """
        return self._register(self._reject_callbacks, callback)

    @property
    @abstractmethod
    def unsaved_count(self) -> int:
        """The number of local writes that are not confirmed."""

    @abstractmethod
    async def _subscription(self) -> Subscription[bytes]:
        """Return a new subscription to all that the replica holds, then READY,
        then live changes."""

    @abstractmethod
    async def _send_flight(self) -> HoldfastError | None:
        """Send one flight, or find out whether the last one was stored. Wait for `_work` if there
        is nothing to send. Return the error of an outage, if there was one; it is called again
        after a pause. Raises ProtocolError, which ends the replica."""

    @abstractmethod
    def _told(self, change: C) -> object:
        """Return a change as the application sees it."""

    @abstractmethod
    def _decoded(self, value: bytes) -> V:
        """Return a value as the application sees it."""

    def _register(self, callbacks: dict[int, Any], callback: Any) -> Callable[[], None]:
        check_callable("callback", callback)
        self._registered += 1
        number = self._registered
        callbacks[number] = callback
        return lambda: callbacks.pop(number, None) and None

    def _check_open(self, *, opening: bool = False) -> None:
        """Raise an error if nothing can be written."""
        if self.error is not None:
            raise error_from_wire(self.error.code, self.error.fields)
        if self._closed:
            raise ConnectionFailedError(url="", reason=repr(self))
        if not opening and not self._opened.is_set():
            advice = "`async with`, or `with`, around what uses it"
            raise ConnectionFailedError(url="", reason=f"{self!r} is not open", advice=advice)

    # The two tasks

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow())
                tasks.create_task(self._send())
        except ExceptionGroup as errors:
            self._fail(errors.exceptions[0])

    async def _follow(self) -> None:
        ended = False
        while not ended:
            try:
                async with await self._subscription() as changes:
                    async for change in changes:
                        self._take(change)
                        if change.kind is ChangeKind.RESET:
                            break  # subscribe again: older messages may have been loaded
                    else:
                        ended = True
            except OUTAGES:
                if not self._opened.is_set() or self._link.closed:
                    raise
                await asyncio.sleep(_FOLLOW_PAUSE_SECONDS)
                self._take(Change(ChangeKind.RESET, 0, 0))
        raise ConnectionFailedError(url="NATS", reason="the subscription has ended")

    async def _send(self) -> None:
        pause_seconds = _PAUSE_SECONDS
        while True:
            error = await self._send_flight()
            self._after()
            if error is None:
                pause_seconds = _PAUSE_SECONDS
                continue
            if self._link.closed:
                raise error
            if isinstance(error, RateLimitedError):
                await asyncio.sleep(error.retry_after_seconds)
            else:
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _MAX_PAUSE_SECONDS)

    def _take(self, change: Change) -> None:
        """Take the next change of the store."""
        self._core.changed(change)
        self._progress_count += 1
        if change.kind is ChangeKind.READY:
            self._opened.set()
        self._after()

    def _fail(self, cause: Exception) -> None:
        if isinstance(cause, HoldfastError):
            self.error = cause
        else:
            reason = f"{self!r} failed: {cause!r}"
            self.error = ConnectionFailedError(url="NATS", reason=reason)
        if self._opened.is_set() and not self._link.closed:
            self._report("a live replica has ended", cause)
        self._opened.set()
        self._after()

    async def _stop(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait([self._main])
        # A task that still waits in `open` must notice the close.
        self._opened.set()
        if self.unsaved_count:
            logger.warning("client.unsaved store=%s count=%d", self.name, self.unsaved_count)
        self._after()
        self._registry.pop(id(self), None)

    # Callbacks

    def _written(self) -> None:
        """Note that the application wrote something."""
        self._work.set()
        self._after()

    def _after(self) -> None:
        """Call the application with all notices, and wake the sender and savers."""
        if not self._telling:
            self._telling = True
            try:
                while notices := self._core.notices.take():
                    for notice in notices:
                        self._tell(notice)
            finally:
                self._telling = False
        if self.unsaved_count:
            self._work.set()
        if self._savers:
            ended = self._closed or self.error is not None
            first = self._core.first_unsaved
            for target, saved in self._savers:
                if (ended or target < first) and not saved.done():
                    saved.set_result(None)

    def _tell(self, notice: C | Rejection[bytes]) -> None:
        if not isinstance(notice, Rejection):
            if self._change_callbacks:
                self._call(self._change_callbacks, lambda: self._told(notice))
            return
        if len(self._rejections) < _MAX_REJECTIONS:
            self._rejections.append(notice)
        key, value, error = notice
        self._call(
            self._reject_callbacks,
            lambda: Rejection(key, None if value is None else self._decoded(value), error),
        )

    def _call(self, callbacks: dict[int, Callable[[Any], object]], told: Callable[[], Any]) -> None:
        for callback in list(callbacks.values()):
            try:
                callback(told())
            except Exception as error:  # noqa: BLE001 (an error of the application)
                self._report("a callback of a live replica failed", error)

    def _report(self, message: str, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": f"{message}: {self!r}", "exception": error, "task": self._main}
        )
