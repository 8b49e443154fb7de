"""The coordinator's shell: NATS, the clock, the state file and the fences around the pure cores.

One loop takes everything that arrived since its last turn, lets `membership.py` see it, does all
of it in one transaction (`batch.py`) and only then replies. Kept:

- One coordinator at a time: the lock is held from before the state file is opened until after it
  is closed. A standby waits for it, and listens (`hearing.py`).
- Nothing is answered before what it says is durable.
- Requests that wait are bounded, tenants have their turns, and none can fill the queue alone;
  beyond its part the answer is `busy`. Whatever is malformed is refused
  by itself, and so is what raises an exception that nobody expected. A failing disk fails requests,
  and the service goes on.

What it does not do: judge who lives (`membership.py`), choose owners (`assignment.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from holdfast.coordinator.background_tasks import BackgroundTasks, RunBlocking
from holdfast.coordinator.batch import BatchOutcome, Fields, Record, RequestBatch, execute
from holdfast.coordinator.decisions.events import (
    AskToRegister,
    Connected,
    DrainChanged,
    Event,
    HeartbeatArrived,
    OwnMessageArrived,
    Probe,
    RecordDead,
    RecordLive,
    Registered,
    Released,
    Started,
    Suspected,
    TellToDrain,
    TimePassed,
    WriteFence,
)
from holdfast.coordinator.decisions.membership import (
    MAX_ENDED_REMEMBERED,
    Membership,
    Standing,
)
from holdfast.coordinator.decisions.standby_heartbeats import StandbyHeartbeats
from holdfast.coordinator.orders import Orders
from holdfast.coordinator.requests import (
    Drain,
    Register,
    ReleaseAll,
    Request,
    SuspectRequest,
    parse,
    store_count,
)
from holdfast.coordinator.state.lost_state import has_past, open_state
from holdfast.coordinator.state.state_file import StateFile
from holdfast.coordinator.survey import Survey
from holdfast.protocol.bus.bus import Bus, BusMessage
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import (
    AlreadyRunningError,
    BusyError,
    ConnectionFailedError,
    FencedError,
    HoldfastError,
    OtherClusterError,
    StorageError,
    TooLargeError,
    UnavailableError,
    internal_error,
)
from holdfast.protocol.frames import (
    cluster_of,
    decode_control,
    encode_control,
    encode_control_error,
)
from holdfast.protocol.limits import (
    CONTROL_TIMEOUT_SECONDS,
    MAX_ARRAY_LENGTH,
    MAX_INBOX_BYTES,
    PROBE_TIMEOUT_SECONDS,
)
from holdfast.protocol.serving.fair_queue import FairQueue, SharedRoom
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import DEFAULT_PREFIX, Subjects
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.cluster_id import bucket_cluster_id, make_cluster_id
from holdfast.shared_fs.bucket_log.fences import BucketFences, Fences, FileFences
from holdfast.shared_fs.disk.disk import Disk, LockFile
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.snapshots.collecting import Collected, Collector

logger = logging.getLogger("holdfast.coordinator")

#: Requests that wait, by their bytes or for the membership's judgement; a client has one in flight,
#: so this is a burst of as many clients.
MAX_WAITING_REQUESTS: Final = 16384
#: What a request takes besides its payload, at least: so many of them fill the inbox.
_REQUEST_BYTES: Final = MAX_INBOX_BYTES // MAX_WAITING_REQUESTS
#: Stores that a tenant may ask for before another tenant's turn: what a client asks for at once.
TENANT_TURN_STORES: Final = 1024
#: Refusals that wait to be sent; the ones beyond are dropped, and their askers time out.
MAX_WAITING_REFUSALS: Final = 16384
#: Stores of one transaction: at most some 0.3 s of work, far below a client's patience.
MAX_BATCH_STORES: Final = 8192
#: How finely silence is noticed, and how long a failed record waits for its next attempt.
TICK_SECONDS: Final = 0.1
#: Own messages in a row that do not come back on a connection that stands: 5 s of an active
#: coordinator's. Then it hears nothing, can judge nobody, and must make room for one that hears.
MAX_MISSING_OWN_MESSAGES: Final = 50
#: Of two clusters' coordinators that meet, the one that has been active for so much longer stays.
CLEAR_LEAD_SECONDS: Final = 5.0
#: Servers of other clusters of which the log tells.
MAX_STRANGERS: Final = 64
#: How often a standby tries the lock.
STANDBY_POLL_SECONDS: Final = 0.25
#: Between two passes of the collector: with a million stores one is a dollar in 200 days.
COLLECT_SECONDS: Final = 6 * 3600.0

_Key = tuple[str, str]


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Coordinator:
    """One coordinator. `run` it once."""

    def __init__(
        self,
        bus: Bus,
        layout: Layout,
        disk: Disk,
        *,
        prefix: str = DEFAULT_PREFIX,
        clock_ms: Callable[[], int] = _wall_clock_ms,
        standby: bool = False,
        replace_damaged_state: bool = False,
        run_blocking: RunBlocking = asyncio.to_thread,
        bucket: Bucket | None = None,
        fences: Fences | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """`bucket` has what the store files have not; one that lost its state looks there too.
        `fences` are by default those under `layout`. `new_id` tells this coordinator's messages to
        itself from any other's."""
        self._bus = bus
        self._layout = layout
        self._disk = disk
        self._subjects = Subjects(prefix)
        self._clock_ms = clock_ms
        self._standby = standby
        self._replace_damaged_state = replace_damaged_state
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._membership = Membership()
        self._inbox: FairQueue[BusMessage] = FairQueue(TENANT_TURN_STORES)
        self._inbox_room = SharedRoom(MAX_INBOX_BYTES)
        self._replies: deque[tuple[str, bytes]] = deque()
        self._records: list[Record] = []
        self._records_due_at = 0.0
        self._recorded = asyncio.Event()
        self._registering: dict[_Key, list[str]] = {}
        self._suspecting: dict[_Key, list[str]] = {}
        self._waiting_count = 0
        self._background_tasks = BackgroundTasks(run_blocking)
        self._bucket = bucket
        self._fences = fences or FileFences(disk, layout)
        self._term = 0
        self._had_past = False
        self._id = new_id()
        self._own_message_count = 0
        #: The id of this cluster, once the lock is held.
        self._cluster = ""
        self._active_since = 0.0
        #: Servers of other clusters that were heard, to tell of each once.
        self._strangers: set[str] = set()
        #: This is the active coordinator, and heartbeats go to the membership.
        self._active = False
        self._mishaps = Mishaps(logger)
        self._hearing: StandbyHeartbeats
        self._orders: Orders

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Serve until `stop`; set `ready` once requests are answered.

        Raises AlreadyRunningError (not as a standby, which waits), OtherClusterError, DeposedError,
        StoreDamagedError, NewerFormatError, StorageFailedError, ConnectionFailedError.
        """
        self._hearing = StandbyHeartbeats(self._now())
        self._bus.on_reconnect(self._on_connected)
        heartbeats = await self._bus.subscribe(self._subjects.heartbeat(), self._on_heartbeat)
        try:
            self._had_past = await self._background_tasks.blocking(
                has_past, self._layout, self._disk, self._fences
            )
            await self._background_tasks.blocking(
                self._disk.make_directory, self._layout.coordinator
            )
            lock = await self._take_lock()
            if lock is None:
                return
            try:
                self._cluster = await self._background_tasks.blocking(self._find_cluster)
                await self._refuse_another_cluster()
                state = await self._background_tasks.blocking(self._open_state)
                try:
                    await self._serve(state, ready)
                finally:
                    await self._background_tasks.blocking(state.close)
            finally:
                lock.release()
        finally:
            await heartbeats.unsubscribe()
        logger.info("coordinator.stopped term=%s", self._term)

    def stop(self) -> None:
        """Ask `run` to finish what it is answering, close the state file and return."""
        self._stopping.set()
        self._wake.set()

    async def _take_lock(self) -> LockFile | None:
        path = self._layout.coordinator / "lock"
        waiting = False
        while not self._stopping.is_set():
            try:
                return await self._background_tasks.blocking(self._disk.lock, path, "a coordinator")
            except AlreadyRunningError:
                if not self._standby:
                    raise
            if not waiting:
                logger.info("coordinator.standing_by lock=%s", path)
                # Whoever has the lock is a past by the time that it is free.
                waiting = self._had_past = True
            await self._prove_hearing()
            try:
                async with asyncio.timeout(STANDBY_POLL_SECONDS):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        return None

    def _find_cluster(self) -> str:
        if self._bucket is not None and isinstance(self._fences, BucketFences):
            return bucket_cluster_id(self._bucket)
        return make_cluster_id(self._disk, self._layout)

    async def _refuse_another_cluster(self) -> None:
        """Raise OtherClusterError if the coordinator of another cluster answers here: it was
        first."""
        payload = encode_control(cluster=self._cluster)
        try:
            answer = await self._bus.request(
                self._subjects.cluster("cluster"), payload, PROBE_TIMEOUT_SECONDS
            )
        except UnavailableError as error:
            logger.debug("coordinator.alone reason=%s", error)
            return
        found = cluster_of(answer)
        if found is not None and found != self._cluster:
            raise self._other_cluster("the coordinator that is running", found)

    def _other_cluster(self, who: str, found: str) -> OtherClusterError:
        who = f"{who} on prefix {self._subjects.prefix!r}"
        expected = f"{self._cluster} of {self._layout.root}"
        return OtherClusterError(who=who, found=found, expected=expected)

    def _open_state(self) -> StateFile:
        return open_state(
            self._layout,
            self._disk,
            self._fences,
            had_past=self._had_past,
            replace_damaged=self._replace_damaged_state,
            now_ms=self._clock_ms(),
        )

    async def _serve(self, state: StateFile, ready: asyncio.Event | None) -> None:
        self._term = state.term
        self._orders = Orders(
            bus=self._bus,
            subjects=self._subjects,
            fences=self._fences,
            background_tasks=self._background_tasks,
            term=state.term,
            check_term=state.check_term,
            fall_behind=state.fall_behind,
            cluster=self._cluster,
        )
        recorded = await self._background_tasks.blocking(_read, state)
        try:
            async with self._background_tasks:
                requests = await self._bus.subscribe(
                    self._subjects.coordinator_pattern(), self._on_request
                )
                await self._bus.flush()
                self._take_over(recorded)
                self._background_tasks.start("tick", self._tick())
                if recorded.files_pending or (recorded.manifests_pending and self._bucket):
                    survey = Survey(
                        self._layout, self._disk, self._bucket, self._background_tasks, self._record
                    )
                    self._background_tasks.start("survey", survey.run(recorded.files_pending))
                if self._bucket is not None:
                    self._background_tasks.start("collect", self._collect(self._bucket))
                logger.info("coordinator.started term=%s", self._term)
                if ready is not None:
                    ready.set()
                try:
                    await self._work(state)
                finally:
                    self._stopping.set()
                    await requests.unsubscribe()
                    self._background_tasks.cancel()
        except ExceptionGroup as group_error:
            if len(group_error.exceptions) == 1:
                raise group_error.exceptions[0] from None
            raise

    def _take_over(self, recorded: _Recorded) -> None:
        """Go on from what is recorded and what was heard. No await: a heartbeat falls into one of
        the two."""
        self._membership.restore(
            recorded.present, recorded.ended, self._hearing, self._now(), recorded.drains
        )
        self._active = True
        self._active_since = self._now()
        self._step(Started())

    # The write loop.

    async def _work(self, state: StateFile) -> None:
        while not self._stopping.is_set():
            await self._wake.wait()
            self._wake.clear()
            # Let all that came in with the same read of the socket be taken together.
            await asyncio.sleep(0)
            await self._one_batch(state)
            while self._inbox:
                await self._one_batch(state)

    async def _one_batch(self, state: StateFile) -> None:
        asked = self._take_requests()
        records = tuple(self._records) if self._records_due() else ()
        if asked or records:
            batch = RequestBatch(
                records=records,
                requests=[request for request, _ in asked],
                members=self._membership.members(self._now()),
                now_ms=self._clock_ms(),
            )
            outcome = await self._background_tasks.blocking(execute, state, batch)
            self._settle_records(records, outcome)
            for mishap in outcome.mishaps:
                self._mishaps.note("coordinator.request_failed", "a request", mishap)
            for (request, reply_to), reply in zip(asked, outcome.replies, strict=True):
                if isinstance(request, Register) and not isinstance(reply, HoldfastError):
                    self._background_tasks.start("register", self._register(request, reply_to))
                else:
                    if isinstance(request, Drain) and not isinstance(reply, HoldfastError):
                        self._step(DrainChanged(request.server, request.draining))
                    self._reply(reply_to, reply)
        self._settle_waiting()
        await self._send_replies()

    def _take_requests(self) -> list[tuple[Request, str]]:
        """Return what goes into the next transaction; tell the membership what it must know."""
        asked: list[tuple[Request, str]] = []
        stores = 0
        while self._inbox and stores < MAX_BATCH_STORES:
            tenant, messages, allowance = self._inbox.begin_turn()
            spent = 0
            while messages and spent < allowance:
                message = messages.popleft()
                self._inbox_room.give_back(tenant, _room_of(message))
                request = self._parse(tenant, message)
                if request is None:
                    spent += 1
                    continue
                spent += store_count(request)
                if isinstance(request, SuspectRequest):
                    self._suspect(request, message.reply)
                    continue
                if isinstance(request, ReleaseAll):
                    self._step(Released(request.server, request.incarnation))
                asked.append((request, message.reply))
            self._inbox.end_turn(spent)
            stores += spent
        return asked

    def _parse(self, tenant: str, message: BusMessage) -> Request | None:
        """Return what is asked; None if it was refused."""
        verb = message.subject.rpartition(".")[2]
        try:
            return parse(tenant, verb, message.payload, self._cluster)
        except HoldfastError as error:
            self._reply(message.reply, error)
        except Exception as error:  # noqa: BLE001 (it is this request's answer)
            self._mishaps.note("coordinator.request_failed", message.subject, error)
            self._reply(message.reply, internal_error(f"{verb:.40}", error))
        return None

    def _records_due(self) -> bool:
        return bool(self._records) and self._now() >= self._records_due_at

    def _settle_records(self, records: tuple[Record, ...], outcome: BatchOutcome) -> None:
        if outcome.failure is None:
            del self._records[: len(records)]
            self._recorded.set()
            return
        logger.error("coordinator.record_failed reason=%s", outcome.failure)
        self._records_due_at = self._now() + TICK_SECONDS
        for record in records:
            if isinstance(record, RecordLive):
                key = (record.server, record.incarnation)
                self._answer(self._registering, key, outcome.failure)

    # What waits for the membership to make up its mind.

    async def _register(self, request: Register, reply_to: str) -> None:
        """Let an incarnation in, unless its fence says that it has ended."""
        key = (request.server, request.incarnation)
        if self._membership.standing(*key) is Standing.UNKNOWN:
            try:
                fence_is_open = await self._background_tasks.blocking(self._fences.is_open, *key)
            except StorageError as error:
                self._reply(reply_to, error)
                return
            if not fence_is_open:
                logger.info("coordinator.fenced_refused server=%s incarnation=%s", *key)
                self._reply(reply_to, FencedError(server=key[0], incarnation=key[1]))
                return
        self._registering.setdefault(key, []).append(reply_to)
        self._waiting_count += 1
        self._step(Registered(*key))

    def _suspect(self, request: SuspectRequest, reply_to: str) -> None:
        self._suspecting.setdefault((request.server, request.incarnation), []).append(reply_to)
        self._waiting_count += 1
        self._step(Suspected(request.server, request.incarnation))

    def _settle_waiting(self) -> None:
        unrecorded = {
            (record.server, record.incarnation)
            for record in self._records
            if isinstance(record, RecordLive)
        }
        for key in tuple(self._registering):
            standing = self._membership.standing(*key)
            if standing is Standing.PRESENT and key not in unrecorded:
                answer = {"term": self._term, "time": self._clock_ms()}
                self._answer(self._registering, key, answer)
            elif standing is Standing.ENDED:
                error = FencedError(server=key[0], incarnation=key[1])
                self._answer(self._registering, key, error)
            elif standing is Standing.UNKNOWN:
                reason = f"another incarnation of {key[0]!r} is joining"
                self._answer(self._registering, key, UnavailableError(reason=reason))
        for key in tuple(self._suspecting):
            if not self._membership.in_doubt(*key):
                alive = self._membership.standing(*key) is Standing.PRESENT
                self._answer(self._suspecting, key, {"alive": alive})

    def _answer(
        self, waiting: dict[_Key, list[str]], key: _Key, reply: Fields | HoldfastError
    ) -> None:
        for reply_to in waiting.pop(key, []):
            self._waiting_count -= 1
            self._reply(reply_to, reply)

    # Events in, effects out.

    def _step(self, event: Event) -> None:
        for effect in self._membership.handle(event, self._now()):
            match effect:
                case Probe():
                    self._background_tasks.start("probe", self._probe(effect))
                case WriteFence():
                    self._background_tasks.start("fence", self._write_fence(effect))
                case AskToRegister(server):
                    name = f"ask {server}"
                    if not self._background_tasks.running(name):
                        self._background_tasks.start(name, self._orders.ask_to_register(server))
                case TellToDrain(server, incarnation, draining):
                    name = f"tell {server} {draining}"
                    if not self._background_tasks.running(name):
                        logger.info(
                            "coordinator.drain server=%s incarnation=%s draining=%s",
                            server,
                            incarnation,
                            draining,
                        )
                        self._background_tasks.start(name, self._orders.tell_to_drain(effect))
                case RecordLive(server, incarnation):
                    logger.info(
                        "coordinator.server_live server=%s incarnation=%s", server, incarnation
                    )
                    self._records.append(effect)
                case RecordDead(server, incarnation, reason, released):
                    logger.log(
                        logging.INFO if released else logging.WARNING,
                        "coordinator.server_dead server=%s incarnation=%s reason=%s",
                        server,
                        incarnation,
                        reason,
                    )
                    self._records.append(effect)
        if self._records or self._registering or self._suspecting:
            self._wake.set()

    async def _probe(self, order: Probe) -> None:
        self._step(await self._orders.probe(order))

    async def _write_fence(self, order: WriteFence) -> None:
        written = await self._orders.write_fence(order)
        if not isinstance(written, tuple):
            self._step(written)
            return
        failed, error = written
        self._step(failed)
        for key in tuple(self._registering):
            if key[0] == order.server:
                self._answer(self._registering, key, error)
        self._answer(self._suspecting, (order.server, order.incarnation), error)

    async def _collect(self, bucket: Bucket) -> None:
        """Let the bucket be rid of what nobody needs, now and then."""

        def run_pass() -> Collected:
            collector = Collector(bucket, clock_ms=self._clock_ms, give_up=self._stopping.is_set)
            return collector.run_pass()

        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            try:
                done: Collected = await self._background_tasks.blocking(run_pass)
            except StorageError as error:
                logger.warning("coordinator.collect_failed reason=%s", error)
                continue
            logger.info(
                "coordinator.collected removed=%d removed_bytes=%d slots=%d marked=%d strangers=%d",
                done.removed,
                done.removed_bytes,
                done.slots_removed,
                done.marked,
                done.strangers,
            )

    async def _record(self, record: Record) -> None:
        """Return once `record` is durable."""
        self._records.append(record)
        while record in self._records:
            self._recorded.clear()
            self._wake.set()
            await self._recorded.wait()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self._prove_hearing()
            self._step(TimePassed(hearing=self._bus.connected))

    async def _prove_hearing(self) -> None:
        """Send the next message to this coordinator itself. Raises ConnectionFailedError if so many
        have not come back that it hears nothing."""
        if not self._bus.connected:
            return
        missing = self._membership if self._active else self._hearing
        count = missing.missing_own_messages(self._own_message_count)
        if count >= MAX_MISSING_OWN_MESSAGES:
            logger.error("coordinator.deaf missing=%d", count)
            reason = (
                f"it is connected and delivers nothing: {count} messages of this coordinator to "
            )
            raise ConnectionFailedError(url="NATS", reason=reason + "itself did not come back")
        self._own_message_count += 1
        payload = encode_control(
            coordinator=self._id,
            number=self._own_message_count,
            sent_at=self._now(),
            cluster=self._cluster,
            active_seconds=self._now() - self._active_since if self._active else 0.0,
        )
        try:
            async with asyncio.timeout(TICK_SECONDS):
                await self._bus.publish(self._subjects.heartbeat(), payload)
        except TimeoutError:
            logger.debug("coordinator.own_message_waits")

    # The bus.

    def _on_connected(self) -> None:
        if not self._active:
            self._hearing.connected(self._now(), self._own_message_count)
        elif not self._stopping.is_set():
            self._step(Connected(self._own_message_count))

    def _on_heartbeat(self, message: BusMessage) -> None:
        try:
            fields = decode_control(message.payload, max_length=MAX_ARRAY_LENGTH)
            if "coordinator" in fields:
                self._on_coordinator(fields)
                return
            heartbeat = Heartbeat.from_wire(fields)
        except (HoldfastError, KeyError, TypeError, ValueError, OverflowError) as error:
            logger.debug("coordinator.heartbeat_malformed reason=%s", error)
            return
        if self._is_stranger(heartbeat):
            return
        if not self._active:
            self._hearing.heartbeat(heartbeat, self._now())
        elif not self._stopping.is_set():
            self._step(HeartbeatArrived(heartbeat))

    def _on_coordinator(self, fields: Mapping[str, Any]) -> None:
        """A coordinator speaks to itself: this one, or another one."""
        if fields["coordinator"] != self._id:
            self._meet(fields.get("cluster"), float(fields.get("active_seconds", 0.0)))
            return
        number, sent_at = int(fields["number"]), float(fields["sent_at"])
        if not self._active:
            self._hearing.own_message(number, sent_at)
        elif not self._stopping.is_set():
            self._step(OwnMessageArrived(number, sent_at))

    def _meet(self, cluster: object, active_seconds: float) -> None:
        """Another coordinator is here. Of two clusters the one that has been active for longer
        stays; if that is not clear, the one with the lower id."""
        if type(cluster) is not str or not cluster or cluster == self._cluster:
            return
        if not self._active or not active_seconds > 0:
            return
        lead_seconds = self._now() - self._active_since - active_seconds
        if abs(lead_seconds) < CLEAR_LEAD_SECONDS:
            stays = self._cluster < cluster
        else:
            stays = lead_seconds > 0
        if not stays and not self._stopping.is_set():
            error = self._other_cluster("another coordinator, which stays,", cluster)
            self._background_tasks.start("leave", _raise(error))

    def _is_stranger(self, heartbeat: Heartbeat) -> bool:
        if not heartbeat.cluster or not self._cluster or heartbeat.cluster == self._cluster:
            return False
        if heartbeat.server not in self._strangers and len(self._strangers) < MAX_STRANGERS:
            self._strangers.add(heartbeat.server)
            logger.warning(
                "coordinator.stranger server=%s cluster=%s expected=%s",
                heartbeat.server,
                heartbeat.cluster,
                self._cluster,
            )
        return True

    def _on_request(self, message: BusMessage) -> None:
        if not self._subjects.may_answer(message.subject, message.reply) or self._stopping.is_set():
            return
        tenant = self._subjects.tenant_of(message.subject)
        size_bytes = _room_of(message)
        if self._waiting_count >= MAX_WAITING_REQUESTS or not self._inbox_room.has(
            tenant, size_bytes
        ):
            if len(self._replies) < MAX_WAITING_REFUSALS:
                self._reply(message.reply, BusyError(what="the coordinator's queue"))
        else:
            self._inbox.push(tenant, message)
            self._inbox_room.take(tenant, size_bytes)
        self._wake.set()

    def _reply(self, reply_to: str, reply: Fields | HoldfastError) -> None:
        try:
            if isinstance(reply, HoldfastError):
                payload = encode_control_error(reply, cluster=self._cluster)
            else:
                payload = encode_control(cluster=self._cluster, **reply)
        except Exception as cause:  # noqa: BLE001 (what cannot be packed fails alone)
            self._mishaps.note("coordinator.reply_failed", reply_to, cause)
            payload = encode_control_error(internal_error("a reply", cause))
        limit_bytes = self._bus.max_payload_bytes
        if len(payload) > limit_bytes:
            error = TooLargeError(what="reply", size=len(payload), limit=limit_bytes)
            payload = encode_control_error(error)
        self._replies.append((reply_to, payload))
        self._wake.set()

    async def _send_replies(self) -> None:
        while self._replies:
            subject, payload = self._replies.popleft()
            try:
                async with asyncio.timeout(CONTROL_TIMEOUT_SECONDS):
                    await self._bus.publish(subject, payload)
            except TimeoutError:
                # The asker asks again, as after any loss.
                logger.warning("coordinator.reply_lost subject=%s", subject)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _raise(error: HoldfastError) -> None:
    raise error


class _Recorded(NamedTuple):
    """What a new coordinator finds in the state file."""

    present: Collection[_Key]
    ended: Collection[_Key]
    drains: Collection[str]
    #: What is still to be surveyed.
    files_pending: bool
    manifests_pending: bool


def _read(state: StateFile) -> _Recorded:
    with state.transaction():
        return _Recorded(
            present=state.servers.present(),
            ended=state.servers.ended(MAX_ENDED_REMEMBERED),
            drains=state.servers.drains(),
            files_pending=state.cluster.surveying(),
            manifests_pending=not state.cluster.knows_all_stores(),
        )


def _room_of(message: BusMessage) -> int:
    return _REQUEST_BYTES + len(message.payload)
