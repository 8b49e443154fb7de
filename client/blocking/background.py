"""The background: one event loop on one thread of its own, which serves every blocking client of
a process.

A blocking call hands work to it and waits. It is made on first use. A child of `os.fork` has none
of its parent's threads, so it makes a background of its own; clients that were made before the
fork raise ForkedError there. Clients that are still open when the process exits are closed,
within _EXIT_SECONDS.

Work is posted through one queue, and the loop is woken only once until it has looked: many threads
that post at the same time wake it once, and their operations travel in one frame.

If the calling thread is interrupted, by Ctrl-C or by an exception of another signal
handler, the call cancels its work and waits for its end; a second interrupt does not wait.
A call on the background's own thread, where callbacks run, would wait for itself, so it
raises BackgroundThreadError.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from holdfast.protocol.errors import BackgroundThreadError, ConnectionFailedError, ForkedError
from holdfast.protocol.limits import MAX_POSTED_CALLS

logger = logging.getLogger("holdfast.client")

T = TypeVar("T")
A = TypeVar("A")

#: How long the exit of a process waits for its clients to be closed.
_EXIT_SECONDS: Final = 2.0
#: A signal that arrives right before the main thread goes to sleep does not wake it: CPython checks
#: for signals before and after a wait, and the kernel interrupts only the wait. So the main thread
#: wakes up this often.
_SIGNAL_SECONDS: Final = 0.5


class Background:
    """The loop of this process, on its thread. Call `background` to get it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process_id = os.getpid()
        self._forked = False
        self._ending = False
        self._posted: deque[Callable[[], object]] = deque()
        self._woken = False
        #: The close function of each open client, by the client's `id()`.
        self._open: dict[int, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._thread = threading.Thread(target=self._serve, name="holdfast.background", daemon=True)
        self._thread.start()
        self._thread_id = self._thread.ident

    @property
    def forked(self) -> bool:
        """Whether it belongs to the parent of this process, and so cannot be used here."""
        return self._forked

    @property
    def full(self) -> bool:
        """Whether so much is posted that even callers who do not await an answer must wait."""
        return len(self._posted) >= MAX_POSTED_CALLS

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and return what it returns or raise what it raises.

        Raises BackgroundThreadError and ForkedError, and ConnectionFailedError at the exit of
        the process.
        """
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        return _Call(self, work).wait()

    def run_asking(
        self, work: Callable[[Callable[[Callable[[], A]], Awaitable[A]]], Coroutine[Any, Any, T]]
    ) -> T:
        """Run the coroutine that `work` returns, as `run` does. `work` gets a function `ask`: with
        `await ask(f)` the coroutine has the calling thread call `f`.
        """
        self.check()
        call: _Call[T] = _Call(self)
        call.work = work(call.ask)
        return call.wait()

    def do(self, function: Callable[[], T]) -> T:
        """Call a function that does not wait, on the loop. On the loop's own thread, call it at
        once. Raises what `run` raises, except BackgroundThreadError."""
        if self.is_current:
            return function()
        self.check()
        results: list[T] = []
        errors: list[BaseException] = []
        ended = threading.Lock()
        ended.acquire()

        def call() -> None:
            try:
                results.append(function())
            except BaseException as error:  # noqa: BLE001 (the caller's)
                errors.append(error)
            finally:
                ended.release()

        self.post(call)
        wait_for(ended)
        if errors:
            raise errors.pop()
        return results[0]

    def post(self, function: Callable[[], object]) -> None:
        """Schedule a function, which must not raise, on the loop, in the order of these calls."""
        self._posted.append(function)
        if not self._woken:
            try:
                self._woken = True
                self._loop.call_soon_threadsafe(self._take_posted)
            except RuntimeError as error:
                raise _exiting() from error
            except BaseException:
                # Interrupted half way: no other thread would wake the loop any more.
                self._loop.call_soon_threadsafe(self._take_posted)
                raise

    def check(self) -> None:
        """Raise an error if a blocking call cannot be made here and now."""
        if self._forked:
            raise ForkedError(made_in=self._process_id, process_id=os.getpid())
        if self.is_current:
            raise BackgroundThreadError(
                reason="this thread runs the event loop, and callbacks on it must not block"
            )
        if self._ending:
            raise _exiting()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.get_ident() == self._thread_id

    def opened(self, client: object, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Note that a client is open: it is closed at the exit. `close` refers to the client, so
        its `id()` stays unique."""
        self._open[id(client)] = close

    def closed(self, client: object) -> None:
        """Note that a client is closed. Idempotent."""
        self._open.pop(id(client), None)

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work; on the loop only."""
        return self._loop.create_task(work, name="holdfast.blocking")

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future; on the loop only."""
        return self._loop.create_future()

    def forget(self) -> None:
        """Refuse further calls: this process is a child of the one that made it."""
        self._forked = True

    def end(self) -> None:
        """Close the open clients within _EXIT_SECONDS, and end the thread."""
        self._ending = True
        self.post(lambda: self.create_task(self._end()))
        self._thread.join(2 * _EXIT_SECONDS)

    def _serve(self) -> None:
        while True:
            try:
                self._loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt) as error:
                # An application's callback raised it; the other clients continue.
                logger.error("client.callback_failed", exc_info=error)
        self._loop.close()

    def _take_posted(self) -> None:
        # In this order: a thread that posts after this line wakes the loop again.
        self._woken = False
        posted = self._posted
        for _ in range(len(posted)):
            posted.popleft()()

    async def _end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                for close in list(self._open.values()):
                    await close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_EXIT_SECONDS)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()


class _Call(Generic[T]):
    """One blocking call: a coroutine on the loop, and a thread that waits for its end."""

    __slots__ = (
        "_background",
        "_error",
        "_has_ended",
        "_result",
        "_task",
        "_turn",
        "_wanted",
        "work",
    )

    def __init__(self, background: Background, work: Coroutine[Any, Any, T] | None = None) -> None:
        self.work = work
        self._background = background
        self._task: asyncio.Task[T] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self._has_ended = False
        #: The function that the caller is to call, and the future that gets its result.
        self._wanted: tuple[Callable[[], Any], asyncio.Future[Any]] | None = None
        #: Released when it is the caller's turn.
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> T:
        """Return the result of the work, or raise its error."""
        background = self._background
        try:
            background.post(self._start)
            wait_for(self._turn)
            while self._wanted is not None:
                (function, answer), self._wanted = self._wanted, None
                result = function()
                background.post(lambda a=answer, r=result: a.done() or a.set_result(r))  # type: ignore[misc]
                wait_for(self._turn)
        except BaseException:
            self._cancel()
            raise
        error, self._error = self._error, None
        if error is not None:
            if isinstance(error, asyncio.CancelledError):
                raise _exiting() from error
            try:
                raise error
            finally:
                del error
        return self._result  # type: ignore[return-value]

    async def ask(self, function: Callable[[], Any]) -> Any:
        """Have the calling thread call a function. If that raises, this coroutine is cancelled, and
        the blocking call raises the error.
        """
        answer = self._background.create_future()
        self._wanted = (function, answer)
        self._turn.release()
        return await answer

    def _start(self) -> None:
        assert self.work is not None
        self._task = self._background.create_task(self.work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = asyncio.CancelledError()
        else:
            self._error = task.exception()
            if self._error is None:
                self._result = task.result()
        self._wanted = None
        self._has_ended = True
        self._turn.release()

    def _cancel(self) -> None:
        """Cancel the work, and return once it has ended."""

        def cancel() -> None:
            if self._task is not None:
                self._task.cancel()
            else:
                assert self.work is not None
                self.work.close()
                self._has_ended = True
                self._turn.release()

        self._background.post(cancel)
        while not self._has_ended:
            wait_for(self._turn)


def background() -> Background:
    """Return the background of this process. The first call makes it."""
    global _current
    with _making:
        if _current is None:
            _current = Background()
        return _current


def wait_for(lock: threading.Lock) -> None:
    """Acquire a lock. An exception of a signal handler is raised within _SIGNAL_SECONDS."""
    if threading.get_ident() != threading.main_thread().ident:
        lock.acquire()
        return
    while not lock.acquire(timeout=_SIGNAL_SECONDS):
        pass


def _exiting() -> ConnectionFailedError:
    return ConnectionFailedError(url="NATS", reason="the process is exiting")


def _forget_in_child() -> None:
    global _current, _making
    _making = threading.Lock()
    if _current is not None:
        _current.forget()
        # Kept alive: collecting the loop would close sockets that the parent uses too.
        _of_parents.append(_current)
        _current = None


def _end_at_exit() -> None:
    if _current is not None:
        _current.end()


_current: Background | None = None
_making = threading.Lock()
_of_parents: list[Background] = []
os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_end_at_exit)
