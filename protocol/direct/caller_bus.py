"""A client's bus that sends frames of operations directly to the persist servers of its host.

The first frame to a server goes over NATS, and so does each later one until the server has welcomed
a pipe to it. Then frames go through the pipe, and their replies come back through it. Everything
else is NATS's: changes, questions to the coordinator, servers of other hosts.

- A pipe that ends is what `no responders` is over NATS: each frame that it took lately is answered
  so. The client then asks the coordinator to look at the server, and sends again, over NATS. What
  the server had answered meanwhile comes over NATS, to the same inbox.
- Frames may overtake those that are still on their way over NATS when a pipe begins. The server
  refuses such a group until its predecessors are there, as after a frame was lost, and the client
  sends it again.
- While there are pipes NATS may be away, and the other way round: a client needs both only for what
  goes over both.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast.protocol.bus.bus import Bus, BusCallback, BusMessage, BusSubscription
from holdfast.protocol.direct.bus_around import BusAround
from holdfast.protocol.direct.messages import (
    Hello,
    decode_numbered,
    decode_welcome,
    encode_hello,
    encode_number,
    number_of,
)
from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.errors import HoldfastError, MalformedFrameError
from holdfast.protocol.limits import (
    DIRECT_HELLO_SECONDS,
    DIRECT_REFUSED_SECONDS,
    DIRECT_RETRY_SECONDS,
    MAX_DIRECT_SERVERS,
)
from holdfast.protocol.subjects import Subjects

logger = logging.getLogger("holdfast.bus")

#: Returns a pipe to a server, not started, or None if it does not listen on this host.
Dial = Callable[[str], Awaitable[DirectPipe | None]]

#: Frames that are told to have no responders when their pipe ends. One that is unanswered is enough
#: for the client to take all for lost; if only older ones are, it hears of the end by a ping.
_LATE_FRAMES: Final = 64


class _Line:
    """A pipe that a server has welcomed."""

    __slots__ = ("inbox", "numbers", "pipe")

    def __init__(self, pipe: DirectPipe, inbox: str) -> None:
        self.pipe = pipe
        self.inbox = inbox
        #: Of the frames that were sent last.
        self.numbers: deque[int] = deque(maxlen=_LATE_FRAMES)


class CallerBus(BusAround):
    """The bus of one client."""

    def __init__(
        self, bus: Bus, subjects: Subjects, dial: Dial, token: Callable[[], str] = lambda: ""
    ) -> None:
        """`token` returns the text of the client's token, or ""."""
        super().__init__(bus)
        self._subjects = subjects
        self._dial = dial
        self._token = token
        self._loop = asyncio.get_running_loop()
        #: By the subject of frames.
        self._lines: dict[str, _Line] = {}
        #: When to try again, by the subject of frames.
        self._try_at: dict[str, float] = {}
        #: Attempts that are under way, by the subject of frames.
        self._dialling: dict[str, asyncio.Task[None]] = {}
        #: Who takes replies, by the inbox.
        self._takers: dict[str, BusCallback] = {}
        self._is_closed = False

    @property
    def direct_subjects(self) -> frozenset[str]:
        """The subjects whose frames go directly."""
        return frozenset(self._lines)

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        if not self._send(subject, payload, reply):
            await self._bus.publish(subject, payload, reply)

    def publish_soon(self, subject: str, payload: bytes, reply: str = "") -> bool:
        return self._send(subject, payload, reply) or self._bus.publish_soon(
            subject, payload, reply
        )

    def _send(self, subject: str, payload: bytes, reply: str) -> bool:
        """Send directly, or return False."""
        line = self._lines.get(subject)
        if line is None:
            if reply:
                self._consider(subject, reply)
            return False
        inbox, _, text = reply.rpartition(".")
        number = number_of(text)
        if (
            inbox == line.inbox
            and number >= 0
            and len(payload) <= self._bus.max_payload_bytes
            and line.pipe.send(encode_number(number), payload)
        ):
            line.numbers.append(number)
            return True
        return False

    async def subscribe(self, subject: str, callback: BusCallback) -> BusSubscription:
        subscription = await self._bus.subscribe(subject, callback)
        inbox, _, last = subject.rpartition(".")
        if last != "*":
            return subscription
        self._takers[inbox] = callback
        return _InboxSubscription(self, inbox, subscription)

    async def close(self) -> None:
        self._is_closed = True
        for task in self._dialling.values():
            task.cancel()
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.pipe.close()
        await self._bus.close()

    def forget(self, inbox: str) -> None:
        """Call nobody with the replies to an inbox."""
        self._takers.pop(inbox, None)
        for subject, line in list(self._lines.items()):
            if line.inbox == inbox:
                del self._lines[subject]
                line.pipe.close()

    def _consider(self, subject: str, reply: str) -> None:
        """Begin a pipe if there may be one."""
        now = self._loop.time()
        if (
            now < self._try_at.get(subject, 0.0) or subject in self._dialling or self._is_closed
        ):
            return
        server = self._subjects.server_of(subject)
        inbox = reply.rpartition(".")[0]
        if not server or inbox not in self._takers:
            return
        if len(self._try_at) >= MAX_DIRECT_SERVERS:
            self._try_at = {each: at for each, at in self._try_at.items() if at > now}
            if len(self._try_at) >= MAX_DIRECT_SERVERS:
                return
        self._try_at[subject] = now + DIRECT_RETRY_SECONDS
        task = self._loop.create_task(self._begin(server, Hello(subject, inbox, self._token())))
        self._dialling[subject] = task
        task.add_done_callback(lambda _: self._dialling.pop(subject, None))

    async def _begin(self, server: str, hello: Hello) -> None:
        """Say hello to a server, and use the pipe once it is welcome."""
        pipe = await self._dial(server)
        if pipe is None:
            return
        early: list[bytes] = []
        try:
            async with asyncio.timeout(DIRECT_HELLO_SECONDS):
                refusal = decode_welcome(await _welcome(pipe, encode_hello(hello), early))
        except (HoldfastError, OSError) as error:
            refusal = str(error) or type(error).__name__
        except BaseException:
            pipe.close()
            raise
        else:
            if refusal:
                # It will hardly change its mind at once.
                self._try_at[hello.subject] = self._loop.time() + DIRECT_REFUSED_SECONDS
        if refusal:
            logger.info("direct.refused server=%s reason=%s", server, refusal)
        taker = self._takers.get(hello.inbox)
        if refusal or taker is None or self._is_closed:
            pipe.close()
            return
        self._use(server, hello, pipe, taker, early)

    def _use(
        self,
        server: str,
        hello: Hello,
        pipe: DirectPipe,
        taker: BusCallback,
        early: Sequence[bytes],
    ) -> None:
        line = _Line(pipe, hello.inbox)
        start = f"{hello.inbox}."

        def take(message: bytes) -> None:
            try:
                number, payload = decode_numbered(message)
            except MalformedFrameError as error:
                logger.info("direct.refused server=%s reason=%s", server, error)
                pipe.close()
                lost()
                return
            taker(BusMessage(f"{start}{number}", payload, ""))

        def lost() -> None:
            if self._lines.get(hello.subject) is line:
                del self._lines[hello.subject]
            logger.info("direct.ended server=%s", server)
            # Not now: the client may be about to send.
            self._loop.call_soon(self._tell_lost, line)

        self._lines[hello.subject] = line
        logger.info("direct.begun server=%s", server)
        pipe.change(take, lost)
        for message in early:
            take(message)
        if pipe.ended:
            lost()

    def _tell_lost(self, line: _Line) -> None:
        """Answer the frames that a pipe took before it ended, unless their client has gone."""
        for number in line.numbers:
            taker = self._takers.get(line.inbox)
            if taker is not None and not self._is_closed:
                taker(BusMessage(f"{line.inbox}.{number}", b"", "", no_responders=True))


class _InboxSubscription(BusSubscription):
    def __init__(self, bus: CallerBus, inbox: str, subscription: BusSubscription) -> None:
        self._bus = bus
        self._inbox = inbox
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        self._bus.forget(self._inbox)
        await self._subscription.unsubscribe()


async def _welcome(pipe: DirectPipe, hello: bytes, early: list[bytes]) -> bytes:
    """Return what a server says first. What it says before anybody takes it is added to `early`:
    replies to frames that came over NATS may follow at once."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(message: bytes) -> None:
        if answer.done():
            early.append(message)
        else:
            answer.set_result(message)

    def ended() -> None:
        if not answer.done():
            answer.set_exception(MalformedFrameError(reason="the server ended the connection"))

    pipe.start(take, ended)
    pipe.send(hello)
    return await answer
