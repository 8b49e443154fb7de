"""The link: drives one client's coalescer over the bus.

Frames leave at the end of the turn of the loop in which their operations came, without a task. If
the bus has no room, a task publishes what is left, and no more frames are made until it has: so
frames keep their order. One timer wakes the coalescer when it asks for it, and short tasks ask the
coordinator (`questions.py`). All tasks are in one task group, which `close` ends. Replies to all
frames come in on one subscription, `<inbox>.<frame number>`.

The hot path is `submit`: one future for each operation, no task, no timer.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, NoReturn, Protocol

from holdfast.client.wire.coalescer import Coalescer
from holdfast.client.wire.effects import SendFrame
from holdfast.client.wire.operations import check_timeout
from holdfast.client.wire.questions import Questions
from holdfast.client.wire.router import Router
from holdfast.client.wire.store_queue import StoreKey
from holdfast.client.wire.waiting import Waiter
from holdfast.client.wire.waiting_callers import WaitingCallers
from holdfast.protocol.access.own_token import OwnToken
from holdfast.protocol.bus.bus import Bus, BusMessage, BusSubscription
from holdfast.protocol.compression import ZSTD
from holdfast.protocol.compression import is_available as compression_is_available
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    MalformedFrameError,
    NotAllowedError,
    OtherLoopError,
    TooLargeError,
    error_from_wire,
)
from holdfast.protocol.limits import MAX_NAME_BYTES
from holdfast.protocol.messages import Ack, Durability
from holdfast.protocol.subjects import Subjects
from holdfast.protocol.work.zones import NOWHERE, inbox_in

logger = logging.getLogger("holdfast.client")

#: What a frame and a group add to the one operation in them, at most.
_OPERATION_OVERHEAD_BYTES: Final = MAX_NAME_BYTES + 128

#: Longer than any frame's number.
_NUMBER_DIGITS: Final = 20
#: After this many answers, further replies wait until the frames that the answered callers fill are
#: with the socket. So client and server work at the same time. If all answers of 1,000 callers were
#: taken at once, each side would wait for the other, and a third of two cores would be idle.
_TURN_ANSWERS: Final = 256

Answer = tuple[Any, int, Durability]
"""`(result, time, durability)`: the result of one operation, and what its whole group shares."""

Gather = Callable[[], bool | None]
"""Submits what has gathered for the next frames. Returns True if it has more, for frames after
these: then it is called again once these are with the socket."""


class LinkListener(Protocol):
    """Receives the events of a link."""

    def owner_changed(self, key: StoreKey) -> None:
        """The owner of a store has changed, or is unknown now."""

    def reconnected(self) -> None:
        """The bus is back, or the link has failed, so those that wait for the bus must check."""


class Link:
    """One client's traffic with every server and the coordinator."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        tenant: str,
        timeout_seconds: float,
        entropy: random.Random | None = None,
        *,
        compression: bool = True,
        token: OwnToken | None = None,
        zone: str = NOWHERE,
    ) -> None:
        """With `compression` False, no value is compressed. `subjects` end in the id of `token`.
        `entropy` makes the ids of writers, which must be unique for ever, and the jitter of
        backoffs. By default the operating system does.
        """
        self.bus = bus
        self.subjects = subjects
        self.tenant = tenant
        self.timeout_seconds = timeout_seconds
        self._token = token
        self._zone = zone
        self.router = Router(bus, subjects, tenant, zone)
        #: The largest packed operation that fits in a frame.
        self.operation_limit_bytes = 0
        #: What transactions that failed lately had read, by store. See `transaction.py`.
        self.contended: dict[StoreKey, tuple[Any, ...]] = {}
        self._loop = asyncio.get_running_loop()
        self.entropy = entropy or random.SystemRandom()
        self._may_compress = compression and compression_is_available()
        self._coalescer = Coalescer(
            self.entropy.randbytes(12),
            bus.max_payload_bytes,
            lambda: self.entropy.uniform(0.5, 1.5),
        )
        self.operation_limit_bytes = self._coalescer.frame_limit_bytes - _OPERATION_OVERHEAD_BYTES
        self._wake = asyncio.Event()
        #: Whether `_turn` will be called.
        self._awake = False
        #: Frames that the bus had no room for: `(subject, payload, reply)`.
        self._unsent: deque[tuple[str, bytes, str]] = deque()
        #: Called before the next frames are made.
        self._gathering: list[Gather] = []
        #: The time of the first event of this turn. Reading the clock for each operation would cost
        #: as much as packing it.
        self._now = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        #: Operations answered since the last frames left, and replies that wait for the next ones.
        self._answered_count = 0
        self._late_replies: deque[BusMessage] = deque()
        self._callers = WaitingCallers(self._coalescer)
        #: The line in which callers wait; checked for each operation.
        self._line = self._callers.line
        self._tasks: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[None] | None = None
        self._replies: BusSubscription | None = None
        self._inbox = ""
        self._closed_by: HoldfastError | None = None
        #: Subjects that NATS does not let this connection subscribe to.
        self._deaf_to: dict[str, NotAllowedError] = {}
        self._listener: LinkListener | None = None
        self._questions = Questions(
            self.router, self._coalescer, self._loop.time, self._tell_owner, self._after_event
        )

    async def open(self, listener: LinkListener) -> None:
        """Start, and tell `listener` of events."""
        self._listener = listener
        self._inbox = inbox_in(self.bus.new_inbox(self.tenant), self._zone) + "."
        self._replies = await self.bus.subscribe(self._inbox + "*", self._on_reply)
        self.bus.on_reconnect(self._on_reconnect)
        self.bus.on_refused(self._on_refused)
        started = asyncio.Event()
        self._main = self._loop.create_task(self._run(started), name="holdfast.link")
        await started.wait()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled or copied: connect in each process")

    @property
    def closed(self) -> bool:
        """True if the link was closed, or has failed for good."""
        return self._closed_by is not None

    def check_open(self) -> None:
        """Raise ConnectionFailedError if the link was closed or has failed."""
        if self._closed_by is not None:
            raise error_from_wire(self._closed_by.code, self._closed_by.fields)

    def check_loop(self) -> None:
        """Raise OtherLoopError unless this is a task or callback of the loop of this link."""
        try:
            is_own = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_own = False
        if not is_own:
            raise OtherLoopError

    async def close(self) -> None:
        """End every task, and fail what waits with ConnectionFailedError. Idempotent."""
        self._fail(ConnectionFailedError(url="", reason="the client"))
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait([self._main])
        if self._replies is not None:
            replies, self._replies = self._replies, None
            await replies.unsubscribe()

    async def flush(self) -> None:
        """Return once NATS has everything that was sent, subscriptions too. Raises
        ConnectionFailedError, also if that takes longer than the client's timeout."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                await self.bus.flush()
        except TimeoutError:
            reason = f"no answer within {self.timeout_seconds:g} s"
            raise ConnectionFailedError(url="NATS", reason=reason) from None

    async def confirm_listening(self, subject: str) -> None:
        """Return once NATS has the subscription of `subject`, and everything that was sent. Raises
        NotAllowedError, and what `flush` raises."""
        await self.flush()
        # NATS sends refusals before it answers the flush.
        refusal = self._deaf_to.get(subject)
        if refusal is not None:
            raise NotAllowedError(**refusal.fields)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the link's task group. If it raises, the client fails."""
        assert self._tasks is not None
        if self._closed_by is not None:
            work.close()
            return
        self._tasks.create_task(work)

    async def call(
        self,
        key: StoreKey,
        packed: bytes,
        is_write: bool,
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Return the answer to an operation. Raises the server's error, OperationTimeoutError, or
        the error that prevented sending it."""
        if self.full:
            await self.wait_for_room(timeout_seconds)
        return self.unwrap(await self.submit(key, packed, is_write, durability, timeout_seconds))

    def submit(
        self,
        key: StoreKey,
        packed: bytes,
        is_write: bool,
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> asyncio.Future[Any]:
        """Start an operation; `unwrap` the result of the future. The future may be dropped."""
        future: asyncio.Future[Any] = asyncio.Future(loop=self._loop)
        self.submit_for(future, key, packed, is_write, durability, timeout_seconds)
        return future

    def submit_for(
        self,
        waiter: Waiter,
        key: StoreKey,
        packed: bytes,
        is_write: bool,
        durability: int = 0,
        timeout_seconds: float | None = None,
    ) -> None:
        """Start an operation, and give its answer to `waiter`. Raises InvalidArgumentError,
        TooLargeError, and what `check_open` raises.
        """
        if timeout_seconds is not None:
            check_timeout(timeout_seconds)
        if len(packed) > self.operation_limit_bytes:
            raise TooLargeError(
                what="an operation", size=len(packed), limit=self.operation_limit_bytes
            )
        if self._closed_by is not None:
            self.check_open()
        timeout = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        if not self._awake:
            self._rouse()
        deadline_at = self._now + timeout
        self._coalescer.submit(key, (packed, waiter, deadline_at, durability, timeout), is_write)
        if deadline_at < self._timer_at:
            self._arm(deadline_at)

    def owner_of(self, key: StoreKey) -> str:
        """Return the server that owns a store, or "" if that is not known."""
        owner = self._coalescer.owner_of(key)
        return "" if owner is None else owner.server

    def writes_of(self, key: StoreKey) -> tuple[int, int]:
        """Return two numbers of writes of a store: all below the first are answered or given up,
        and all that were sent so far are below the second. A first one that is as large as an
        earlier second one says that all writes that were sent then are settled."""
        return self._coalescer.writes_of(key)

    def before_sending(self, gather: Gather) -> None:
        """Call `gather` just before the next frames are made, or soon if no more are. It may submit
        operations, and must not raise."""
        if self._closed_by is not None:
            self._loop.call_soon(_gather_all, gather)
            return
        self._gathering.append(gather)
        if not self._awake:
            self._rouse()

    def send_now(self) -> None:
        """Make the frames of what was submitted in this turn of the loop, without waiting for its
        end."""
        if self._awake:
            self._guard(self._send)

    @staticmethod
    def unwrap(answer: Answer | Ack) -> Answer:
        """Return the answer in the result of a future of `submit`, or raise the error in it."""
        if isinstance(answer, Ack):
            raise MalformedFrameError(reason="an ack answers an operation that needs a result")
        result = answer[0]
        if answer[2] is None:
            raise result
        # A pair that starts with text is an error. An entry starts with text too, but is longer.
        if type(result) is list and len(result) == 2 and type(result[0]) is str:
            raise error_from_wire(result[0], result[1])
        return answer

    @property
    def compresses(self) -> bool:
        """True if values may be compressed: this process and, by the coordinator, readers can."""
        return self._may_compress and ZSTD in self.router.encodings

    @property
    def full(self) -> bool:
        """True if so many operations wait for answers that callers must wait for room. Any thread
        may ask."""
        return bool(self._line) or self._coalescer.full

    async def wait_for_room(self, timeout_seconds: float | None) -> None:
        """Return when it is this caller's turn. Raises OperationTimeoutError, InvalidArgumentError.
        """
        if timeout_seconds is not None:
            check_timeout(timeout_seconds)
        timeout = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        await self._callers.wait(timeout)

    def _break(self, error: Exception) -> None:
        """Fail for good and log it, because of a bug. Otherwise callers would only time out."""
        if self._closed_by is None:
            logger.error("client.failed", exc_info=error)
            cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            self._fail(ConnectionFailedError(url="NATS", reason=f"the client failed: {cause!r}"))
            self._wake.set()
            self._tell_reconnected()

    def _fail(self, error: HoldfastError) -> None:
        if self._closed_by is None:
            self._closed_by = error
        gathering, self._gathering = self._gathering, []
        for gather in gathering:
            # What they submit is refused, so that they can tell.
            self._loop.call_soon(_gather_all, gather)
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = float("-inf")
        self._coalescer.fail_all(self._closed_by)
        self._callers.admit_all()

    # Events of the bus and the clock

    def _on_reply(self, message: BusMessage) -> None:
        if self._answered_count >= _TURN_ANSWERS:
            self._late_replies.append(message)
        else:
            self._guard(self._take_reply, message)

    def _on_reconnect(self) -> None:
        token = self._token
        if token is not None:
            try:
                token.reconnected()
            except Exception as error:  # noqa: BLE001 (what an application's callable raises)
                logger.warning("client.token_not_renewed reason=%s", error)
            if token.id != self.subjects.grant:
                self.spawn(self._take_renewed_token())
                return
        self._guard(self._send_again)

    async def _take_renewed_token(self) -> None:
        """Ask with the renewed token, and listen where its holder may."""
        assert self._token is not None
        self.subjects = self.router.subjects = replace(self.subjects, grant=self._token.id)
        before = self._replies
        self._inbox = inbox_in(self.bus.new_inbox(self.tenant), self._zone) + "."
        self._replies = await self.bus.subscribe(self._inbox + "*", self._on_reply)
        if before is not None:
            await before.unsubscribe()
        self._guard(self._send_again)

    def _on_refused(self, error: NotAllowedError) -> None:
        self._guard(self._take_refusal, error)

    def _on_timer(self) -> None:
        self._guard(self._let_time_pass)

    def _guard(self, handle: Callable[..., None], *arguments: object) -> None:
        """Handle an event. The bus or the loop would only log what the handler raises."""
        if self._closed_by is not None:
            return
        try:
            handle(*arguments)
        except Exception as error:  # noqa: BLE001 (the client fails with it)
            self._break(error)

    def _take_reply(self, message: BusMessage) -> None:
        number = message.subject[len(self._inbox) :]
        now = self._loop.time()
        before_count = self._coalescer.pending_count
        try:
            if not number.isdecimal() or len(number) > _NUMBER_DIGITS:
                raise MalformedFrameError(reason=f"{number!r} is not the number of a frame")
            if message.no_responders:
                self._coalescer.no_responders(int(number), now)
            else:
                self._coalescer.reply(int(number), message.payload, now)
        except MalformedFrameError as error:
            # This counts as lost: the frame is sent again.
            logger.warning("client.reply_malformed frame=%s reason=%s", number, error)
        self._answered_count += before_count - self._coalescer.pending_count
        self._after_event()

    def _take_refusal(self, error: NotAllowedError) -> None:
        subject = str(error.subject)
        to_server = replace(self.subjects, grant="").server(self.tenant, "")
        if self._is_of_former_token(subject):
            return
        if subject == f"{self._inbox}*":
            # The client would never get an answer.
            self._fail(error)
            self._wake.set()
            self._tell_reconnected()
        elif subject.startswith(to_server):
            server = subject.removeprefix(to_server).partition(".")[0]
            self._coalescer.refused(server, error, self._loop.time())
        else:
            # Questions to the coordinator are requests of the bus, which the refusal ends.
            self._deaf_to[subject] = error
        self._after_event()

    def _is_of_former_token(self, subject: str) -> bool:
        """Tell whether NATS has refused what only the holder of a former token may do. It was on
        its way when the token was renewed, and is done again with the new one."""
        if self._token is None:
            return False
        of_grant = self.subjects.grant_of(subject) or subject.startswith(f"{self._inbox}")
        return bool(of_grant) and self._token.id not in subject.split(".")

    def _send_again(self) -> None:
        # Permissions may have changed. NATS refuses again what is still forbidden.
        self._deaf_to.clear()
        self._coalescer.reconnected()
        self._after_event()
        self._tell_reconnected()

    def _tell_reconnected(self) -> None:
        if self._listener is not None:
            self._listener.reconnected()

    def _tell_owner(self, key: StoreKey) -> None:
        if self._listener is not None:
            self._listener.owner_changed(key)

    def _let_time_pass(self) -> None:
        self._timer_at = float("inf")
        self._coalescer.tick(self._loop.time())
        self._after_event()

    def _after_event(self) -> None:
        if self._line:
            self._callers.admit()
        at = self._coalescer.wake_at
        if at < self._timer_at:
            self._arm(at)
        self._rouse()

    def _rouse(self) -> None:
        """Carry out the coalescer's effects in the next turn of the loop. Raises OtherLoopError."""
        self._now = self._loop.time()
        if not self._awake:
            # Once in a turn: for each operation it would cost too much.
            self.check_loop()
            self._awake = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._awake = False
        self._guard(self._send)

    def _take_late_replies(self) -> None:
        self._answered_count = 0
        while self._late_replies and self._answered_count < _TURN_ANSWERS:
            self._guard(self._take_reply, self._late_replies.popleft())

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    # Effects

    async def _run(self, started: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                started.set()
                await self._publish()
        except ExceptionGroup as errors:
            self._break(errors)

    async def _publish(self) -> None:
        """Publish what the bus had no room for, until the link is closed."""
        while self._closed_by is None:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent and self._closed_by is None:
                await self.bus.publish(*self._unsent[0])
                self._unsent.popleft()
            self._send()

    def _send(self) -> None:
        """Carry out the coalescer's effects, unless frames wait for room."""
        if self._unsent or self._closed_by is not None:
            return
        more = True
        while more and not self._unsent:
            more = self._gather()
            self._send_frames()
        if self._answered_count:
            self._loop.call_soon(self._take_late_replies)
        at = self._coalescer.wake_at
        if at < self._timer_at:
            self._arm(at)

    def _gather(self) -> bool:
        """Let those who gather submit what leaves with the next frames. Return whether somebody has
        more, for frames after these."""
        if not self._gathering:
            return False
        # What is submitted now leaves with these frames, and needs no turn of its own.
        awake, self._awake = self._awake, True
        gathering, self._gathering = self._gathering, []
        more = [gather for gather in gathering if gather()]
        self._awake = awake
        if more:
            self._gathering[:0] = more
        elif self._gathering and not awake:
            # One of them gathers again, for the frames after these.
            self._rouse()
        return bool(more)

    def _send_frames(self) -> None:
        for effect in self._coalescer.turn(self._loop.time()):
            if isinstance(effect, SendFrame):
                subject = self.subjects.server(self.tenant, effect.server)
                frame = subject, effect.payload, f"{self._inbox}{effect.number}"
                if self._unsent or not self.bus.publish_soon(*frame):
                    self._unsent.append(frame)
                    self._wake.set()
            else:
                self.spawn(self._questions.ask(effect))
        # All that waits is in these frames, so there is nothing to gather.
        self.bus.send_now()


def _gather_all(gather: Gather) -> None:
    """Call it without frames: the link is closed."""
    while gather():
        pass
