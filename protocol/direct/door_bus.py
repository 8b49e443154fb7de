"""A server's bus that also takes frames of operations from clients of its host directly.

While the server subscribes to its frames, a door is open: pipes come in, and each begins with a
hello. A frame of a pipe reaches the same callback as over NATS, as a message with the subject and
the inbox of the hello; what the server publishes to that inbox goes back through the pipe, or over
NATS once the pipe has ended. So everything that holds for frames holds for these: grants, the gate,
bounds, retries.

Over NATS, only the holder of a token can publish on a subject that names it. Here the hello has to
show the token, and `knows` verifies it. In an open cluster there are no tokens; whoever may open a
pipe is trusted as whoever may connect to NATS is.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.protocol.bus.bus import (
    Bus,
    BusCallback,
    BusMessage,
    BusSubscription,
    is_subject,
)
from holdfast.protocol.direct.bus_around import BusAround
from holdfast.protocol.direct.messages import (
    Hello,
    decode_hello,
    decode_numbered,
    encode_number,
    encode_welcome,
    number_of,
)
from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.errors import HoldfastError, MalformedFrameError
from holdfast.protocol.limits import DIRECT_HELLO_SECONDS, MAX_DIRECT_CLIENTS
from holdfast.protocol.subjects import Subjects, granted

logger = logging.getLogger("holdfast.bus")

#: Tells whether the client of a hello holds the token that its subject names. Raises a
#: HoldfastError if that cannot be found out.
Knows = Callable[[Hello], Awaitable[bool]]


class Door(ABC):
    """Where pipes come in."""

    @abstractmethod
    def open(self, enter: Callable[[DirectPipe], None]) -> None:
        """Call `enter` with each pipe that comes, not started. Raises OSError."""

    @abstractmethod
    def close(self) -> None:
        """Let no more in. Idempotent."""


class DoorBus(BusAround):
    """The bus of one persist server."""

    def __init__(
        self, bus: Bus, subjects: Subjects, server: str, door: Door, knows: Knows | None = None
    ) -> None:
        """Without `knows` no token is asked for."""
        super().__init__(bus)
        self._subjects = subjects
        self._server = server
        self._door = door
        self._knows = knows
        self._loop = asyncio.get_running_loop()
        self._patterns: Final = frozenset(granted(subjects.server_pattern(server)))
        #: The callbacks of frames, by pattern: all are the same while the door is open.
        self._taking: dict[str, BusCallback] = {}
        #: Welcome pipes, by inbox.
        self._lines: dict[str, DirectPipe] = {}
        #: All pipes, also those without a hello yet.
        self._pipes: set[DirectPipe] = set()
        self._greeting: set[asyncio.Task[None]] = set()
        #: Something that was published in this turn of the loop has left the process, or should.
        self._is_awaited = False

    @property
    def line_count(self) -> int:
        """How many clients send directly."""
        return len(self._lines)

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        if not self._send(subject, payload, reply):
            self._is_awaited = True
            await self._bus.publish(subject, payload, reply)

    def publish_soon(self, subject: str, payload: bytes, reply: str = "") -> bool:
        if self._send(subject, payload, reply):
            return True
        self._is_awaited = True
        return self._bus.publish_soon(subject, payload, reply)

    def send_now(self) -> None:
        # If all answers are for this process, what waits are broadcasts. They leave when the turn
        # ends, with what their receiver answers: nats-server wakes once for both.
        if self._is_awaited:
            self._is_awaited = False
            super().send_now()

    def _send(self, subject: str, payload: bytes, reply: str) -> bool:
        """Send directly, or return False."""
        if not self._lines or reply:
            return False
        inbox, _, text = subject.rpartition(".")
        pipe = self._lines.get(inbox)
        if pipe is None or len(payload) > self._bus.max_payload_bytes:
            return False
        number = number_of(text)
        if number < 0 or not pipe.send(encode_number(number), payload):
            return False
        self._is_awaited |= not pipe.is_here
        return True

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        subscription = await self._bus.subscribe(subject, callback)
        if subject not in self._patterns:
            return subscription
        self._taking[subject] = callback
        if len(self._taking) == len(self._patterns):
            self._open()
        return _FramesSubscription(self, subject, callback, subscription)

    async def close(self) -> None:
        self._shut()
        await self._bus.close()

    def take_no_more(self, pattern: str, callback: BusCallback) -> None:
        """End what the subscription of a pattern began."""
        if self._taking.get(pattern) is callback:
            del self._taking[pattern]
            self._shut()

    def _open(self) -> None:
        try:
            self._door.open(self._enter)
        except OSError as error:
            # NATS is enough.
            logger.warning("direct.door_closed reason=%s", error)

    def _shut(self) -> None:
        """End all pipes: what they had answered otherwise goes over NATS."""
        self._door.close()
        for task in self._greeting:
            task.cancel()
        self._lines.clear()
        pipes, self._pipes = self._pipes, set()
        for pipe in pipes:
            pipe.close()

    def _enter(self, pipe: DirectPipe) -> None:
        if len(self._pipes) >= MAX_DIRECT_CLIENTS:
            pipe.send(encode_welcome(f"{MAX_DIRECT_CLIENTS} clients are here already"))
        if len(self._pipes) >= MAX_DIRECT_CLIENTS or len(self._taking) < len(self._patterns):
            pipe.close()
            return
        self._pipes.add(pipe)
        task = self._loop.create_task(self._greet(pipe))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, pipe: DirectPipe) -> None:
        """Wait for the hello of a pipe, and have it take frames if it is welcome."""
        hello = None
        try:
            async with asyncio.timeout(DIRECT_HELLO_SECONDS):
                hello = decode_hello(await _first(pipe))
                refusal = await self._why_not(hello)
        except (HoldfastError, OSError) as error:
            refusal = str(error) or type(error).__name__
        except BaseException:
            self._drop(pipe)
            raise
        if hello is None or refusal or pipe.ended:
            logger.info("direct.client_refused reason=%s", refusal)
            pipe.send(encode_welcome(refusal or "no hello"))
            self._drop(pipe)
            return
        self._welcome(pipe, hello)

    async def _why_not(self, hello: Hello) -> str:
        """Return why the client of a hello may not send frames, or ""."""
        subjects = self._subjects
        if not is_subject(hello.subject) or subjects.server_of(hello.subject) != self._server:
            return f"this is server {self._server}"
        if not subjects.may_answer(hello.subject, f"{hello.inbox}.1"):
            return "this inbox may not be answered"
        if self._knows is not None and not await self._knows(hello):
            return "the token is not the one that the subject names"
        return "somebody has this inbox" if hello.inbox in self._lines else ""

    def _welcome(self, pipe: DirectPipe, hello: Hello) -> None:
        subject, inbox = hello.subject, hello.inbox
        start = f"{inbox}."
        take_frame = next(iter(self._taking.values()))

        def take(message: bytes) -> None:
            try:
                number, payload = decode_numbered(message)
            except MalformedFrameError as error:
                logger.info("direct.client_refused reason=%s", error)
                ended()
                pipe.close()
                return
            take_frame(BusMessage(subject, payload, f"{start}{number}"))

        def ended() -> None:
            if self._lines.get(inbox) is pipe:
                del self._lines[inbox]
            self._pipes.discard(pipe)

        self._lines[inbox] = pipe
        pipe.change(take, ended)
        pipe.send(encode_welcome())
        if pipe.ended:
            ended()

    def _drop(self, pipe: DirectPipe) -> None:
        self._pipes.discard(pipe)
        pipe.close()


class _FramesSubscription(BusSubscription):
    def __init__(
        self, bus: DoorBus, pattern: str, callback: BusCallback, subscription: BusSubscription
    ) -> None:
        self._bus = bus
        self._pattern = pattern
        self._callback = callback
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        self._bus.take_no_more(self._pattern, self._callback)
        await self._subscription.unsubscribe()


async def _first(pipe: DirectPipe) -> bytes:
    """Return the first message of a pipe. A client waits for an answer before it sends more."""
    hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(message: bytes) -> None:
        if hello.done():
            # It does not wait: what it sends would be lost.
            pipe.close()
        else:
            hello.set_result(message)

    def ended() -> None:
        if not hello.done():
            hello.set_exception(MalformedFrameError(reason="it ended before its hello"))

    pipe.start(take, ended)
    return await hello
