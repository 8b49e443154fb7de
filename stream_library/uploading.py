"""What the bucket has of the streams: it is asked for, and the room for appends follows.

A *mark* is a write that changes nothing, at level `stored`: its answer comes when the bucket can
tell the stream up to it. It also makes the server put all further changes of the stream into its
log in the bucket, of any level (`persist/bucket_log/stored.py`). So one mark at a time is under way
for each stream that has bytes which the bucket lacks; the server puts many streams into one object,
a few times a second.

Runs in the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Final

from holdfast.protocol import frames
from holdfast.protocol.errors import HoldfastError, UnavailableError
from holdfast.protocol.messages import Durability
from holdfast.protocol.serving.trouble import Trouble
from holdfast.stream_library.errors import StreamClosedError, TakenOverError
from holdfast.stream_library.requests import StreamRequests
from holdfast.stream_library.room import AppendRoom
from holdfast.stream_library.stream_log import StreamLog

logger = logging.getLogger("holdfast.stream_library")

#: Between two tries of a mark that the server cannot take now.
_RETRY_SECONDS: Final = 0.1


class Uploading:
    """The upload of one stream. `run` it in a task."""

    def __init__(
        self, log: StreamLog, requests: StreamRequests, room: AppendRoom, found_bytes: int
    ) -> None:
        """`found_bytes` are counted already: the bucket may lack them."""
        self._log = log
        self._requests = requests
        self._room = room
        self._found_bytes = found_bytes
        self._writer = secrets.token_bytes(12)
        self._counter = 0
        self._wanted = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._failing = Trouble(logger, "stream.upload_failed")
        #: The bucket has all records below this offset.
        self.offset = log.start_offset

    def want(self) -> None:
        """Note that there may be something to upload."""
        self._caught_up.clear()
        self._wanted.set()

    async def caught_up(self) -> None:
        """Return once the bucket has everything that is acknowledged."""
        await self._caught_up.wait()

    def forget(self) -> None:
        """The stream is destroyed: nothing of it will be uploaded."""
        self._room.uploaded(self._found_bytes + self._log.written_bytes)
        self._found_bytes = self._log.written_bytes = 0

    async def run(self) -> None:
        """Set marks until cancelled, or until the library ends."""
        with contextlib.suppress(StreamClosedError, TakenOverError):
            await self._run()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while True:
                size_bytes = self._found_bytes + self._log.written_bytes
                confirmed = self._log.confirm_offset
                if not size_bytes and self.offset >= confirmed:
                    break
                # From here on they are this mark's.
                self._found_bytes, self._log.written_bytes = size_bytes, 0
                await self._mark(confirmed)
                self._room.uploaded(self._found_bytes)
                self._found_bytes = 0
                self.offset = confirmed
            self._caught_up.set()

    async def _mark(self, confirmed: int) -> None:
        self._counter += 1
        while True:
            # It holds, and if it did not, that would change nothing either.
            operation = [frames.EXPECT, None, confirmed - 1]
            try:
                await self._requests.write(
                    self._log.name, self._writer, self._counter, Durability.STORED, [operation]
                )
            except (StreamClosedError, TakenOverError):
                raise
            except HoldfastError as error:
                # Until it succeeds, what the bucket lacks is on disk, and counts.
                if not isinstance(error, UnavailableError):
                    self._failing.note("stream=%s reason=%s", self._log.name, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._failing.over()
                return
