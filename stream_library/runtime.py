"""The thread of a library: the loop in which its server runs (`embedded_server.py`).

Any thread may ask for something to be run there. Once the loop is over, everybody is told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol.errors import HoldfastError
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.stream_library.embedded_server import EmbeddedServer
from holdfast.stream_library.errors import StreamClosedError
from holdfast.stream_library.requests import StreamRequests
from holdfast.stream_library.sole_use import SoleUse

logger = logging.getLogger("holdfast.stream_library")

_Result = TypeVar("_Result")


class Runtime:
    """The thread, the loop and the server of one library."""

    def __init__(
        self, use: SoleUse, tenant: str, bucket: Bucket | None, policy: TierPolicy
    ) -> None:
        self._use = use
        self._tenant = tenant
        self._bucket = bucket
        self._policy = policy
        self._thread = threading.Thread(target=self._run, name="holdfast-streams", daemon=True)
        self._started: Future[None] = Future()
        self._server: EmbeddedServer | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.tasks = SpawnedTasks()
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
        loop = self.loop
        try:
            if loop is None:
                raise self.ended
            running = asyncio.run_coroutine_threadsafe(work, loop)
        except (RuntimeError, HoldfastError):
            work.close()
            raise self.ended from None

        def done(running: Future[_Result]) -> None:
            if running.cancelled():
                answer.set_exception(self.ended)
            elif (error := running.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(running.result())

        running.add_done_callback(done)
        return answer

    def spawn(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` in the loop, beside everything else, from any thread. Return False if the loop
        is over."""
        loop = self.loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self.tasks.spawn, work)
                return True
        except RuntimeError:
            # It was closed.
            pass
        work.close()
        return False

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
        server = self._server = EmbeddedServer(self._use, self._tenant, self._bucket, self._policy)
        serving = asyncio.ensure_future(server.run(self._ended))
        waiting = asyncio.ensure_future(server.ready.wait())
        await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if server.ready.is_set():
            self._started.set_result(None)
        await serving

    def _ended(self, error: HoldfastError) -> None:
        self.ended = error
        self._on_end(error)
        self.tasks.cancel()


def _nobody(error: HoldfastError) -> None:
    return None
