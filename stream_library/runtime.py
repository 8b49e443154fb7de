"""The thread of a library: the loop in which its server runs (`embedded_server.py`).

Any thread may ask for something to be run there. Once the loop is over, everybody is told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol.errors import HoldfastError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import keys_of
from holdfast.stream_library.embedded_server import EmbeddedServer
from holdfast.stream_library.errors import StreamClosedError
from holdfast.stream_library.requests import StreamRequests
from holdfast.stream_library.sole_use import SoleUse

logger = logging.getLogger("holdfast.stream_library")

_Result = TypeVar("_Result")


class _Asked(NamedTuple):
    """Work for the loop. Without an answer, nobody waits for its end."""

    work: Coroutine[Any, Any, Any]
    answer: Future[Any] | None

    def give_up(self, error: HoldfastError) -> None:
        """Answer with an error in place of the work."""
        self.work.close()
        if self.answer is not None and self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


class Runtime:
    """The thread, the loop and the server of one library."""

    def __init__(
        self,
        use: SoleUse,
        tenant: str,
        bucket: Bucket | None,
        policy: TierPolicy,
        masters: Mapping[str, MasterKey],
    ) -> None:
        """`masters` are the master keys of encrypted tenants, by id."""
        self._use = use
        self._tenant = tenant
        self._bucket = bucket
        self._policy = policy
        self._masters = masters
        self._thread = threading.Thread(target=self._run, name="holdfast-streams", daemon=True)
        self._started: Future[None] = Future()
        self._server: EmbeddedServer | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.tasks = SpawnedTasks()
        #: What other threads have asked for and the loop has not begun. Each has the lock to add
        #: to it, and the loop to close it: nothing is taken that nobody would begin.
        self._asked: deque[_Asked] = deque()
        self._lock = threading.Lock()
        self._takes_calls = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._on_end: Callable[[HoldfastError], None] = _nobody
        #: Why nothing can be asked any more, once that is so.
        self.ended: HoldfastError = StreamClosedError(stream="every stream of this library")

    def on_end(self, callback: Callable[[HoldfastError], None]) -> None:
        """Call `callback` in the loop when the server ends, with the error for what comes."""
        self._on_end = callback

    @property
    def requests(self) -> StreamRequests:
        assert self._server is not None
        return self._server.requests

    def start(self) -> None:
        """Start the server; return once it serves. Raises what keeps it from that."""
        self._thread.start()
        self._started.result()

    def call(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Run `work` in the loop, from any other thread. If the loop ends first, the error is
        `ended`. Raises `ended` if it is over."""
        answer: Future[_Result] = Future()
        if not self._ask(_Asked(work, answer)):
            raise self.ended
        return answer

    def spawn(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` in the loop, beside everything else, from any thread. Return False if the loop
        is over."""
        return self._ask(_Asked(work, None))

    def stop(self) -> None:
        """End the server cleanly, and the thread."""
        loop, server = self.loop, self._server
        if loop is not None and server is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(server.stop)
        self._thread.join()

    @property
    def is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 (whoever started it gets it)
            if not self._started.done():
                self._started.set_exception(error)
            else:
                # What waits has its answer.
                logger.error("library.ended folder=%s reason=%s", self._use.layout.root, error)

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._takes_calls = True
        try:
            await self._serve()
        finally:
            with self._lock:
                self._takes_calls = False
            for asked in self._asked:
                asked.give_up(self.ended)
            self._asked.clear()

    async def _serve(self) -> None:
        keys = keys_of(self._use.layout, None)
        server = self._server = EmbeddedServer(
            self._use, self._tenant, self._bucket, self._policy, keys=keys, masters=self._masters
        )
        serving = asyncio.ensure_future(server.run(self._ended))
        waiting = asyncio.ensure_future(server.ready.wait())
        await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if server.ready.is_set():
            self._started.set_result(None)
        await serving

    def _ask(self, asked: _Asked) -> bool:
        with self._lock:
            loop = self.loop
            if loop is not None and self._takes_calls:
                self._asked.append(asked)
                loop.call_soon_threadsafe(self._begin_next)
                return True
        asked.work.close()
        return False

    def _begin_next(self) -> None:
        if not self._asked:
            # The thread ends, and all have their answers.
            return
        asked = self._asked.popleft()
        if asked.answer is None:
            self.tasks.spawn(asked.work)
            return
        if not asked.answer.set_running_or_notify_cancel():
            asked.work.close()
            return
        task = asyncio.get_running_loop().create_task(asked.work)
        self._calls.add(task)
        task.add_done_callback(partial(self._answer, asked.answer))

    def _answer(self, answer: Future[Any], task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if task.cancelled():
            answer.set_exception(self.ended)
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def _ended(self, error: HoldfastError) -> None:
        self.ended = error
        self._on_end(error)
        self.tasks.cancel()


def _nobody(error: HoldfastError) -> None:
    return None
