"""The persist server: one incarnation, from its lock to its last checkpoint.

    start     lock the server's name, make the incarnation's folder, fence file and log, register
    serve     frames in, through `pipeline.py`; stores opened when first used, after the coordinator
              granted them and `takeover.py` has brought their files up to date; heartbeats
    maintain  `checkpointing.py`, four times a second
    drain     `draining.py`, when the coordinator says so: opens nothing, hands over what is open
    stop      hand over likewise, answer what has arrived, release, leave nothing behind

An incarnation that is fenced, or whose log cannot be synced, stops at once and answers nothing more;
its supervisor starts the next one, which is a new incarnation like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.persist.checkpointing import Checkpointer
from holdfast.persist.coordination import Coordination
from holdfast.persist.draining import Drainer
from holdfast.persist.fence_watch import Watch, watch_folder
from holdfast.persist.log_reaper import LogReaper
from holdfast.persist.opening import StoreOpener
from holdfast.persist.ownership import Arrival, Ownership, Wanted
from holdfast.persist.pipeline import Pipeline, RunInThread
from holdfast.persist.sync_thread import SyncThread
from holdfast.persist.takeover import DeadLogs
from holdfast.protocol import frames
from holdfast.protocol.bus import Bus, BusMessage, BusSubscription
from holdfast.protocol.control import Grant, Heartbeat, ServerMode
from holdfast.protocol.errors import (
    BusyError,
    FencedError,
    HoldfastError,
    InvalidNameError,
    MalformedFrameError,
    NotOwnerError,
    ProtocolError,
    StorageError,
    UnavailableError,
    error_from_wire,
)
from holdfast.protocol.limits import (
    HEARTBEAT_SECONDS,
    IDLE_CLOSE_SECONDS,
    MAX_OPEN_STORES,
    SYNC_STALL_SECONDS,
)
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind, check_server, check_store, check_tenant
from holdfast.protocol.subjects import DEFAULT_PREFIX, Subjects
from holdfast.shared_fs.commit_log import CommitLog
from holdfast.shared_fs.disk import Disk
from holdfast.shared_fs.fence import FenceGate, create_fence
from holdfast.shared_fs.layout import Layout
from holdfast.shared_fs.remains import let_go

logger = logging.getLogger("holdfast.persist")

_MAINTENANCE_SECONDS: Final = 0.25
#: Dead logs are let go in the background, well after the failover that made them.
_REAP_SECONDS: Final = 5.0
#: Stores asked for in one `open` request.
_OPEN_BATCH: Final = 512
#: Files being opened at once: bounds the syncs of a takeover that queue on one disk.
_PARALLEL_OPENS: Final = 8
#: How long stores that are asked for wait until others can be closed for them.
_ROOM_SECONDS: Final = 2.0
_ROOM_LOOK_SECONDS: Final = 0.01
#: Between two tries to open a file whose lock another process still holds.
_LOCK_RETRY_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 0.1
#: How long a stopping server hands its stores over while clients write, and how long it waits for
#: the first or next store to go; the rest is released with the incarnation, at once.
_HAND_OVER_SECONDS: Final = 5.0
_HAND_OVER_PATIENCE_SECONDS: Final = 1.5
#: How long it then waits for what has arrived to be answered.
_ANSWER_SECONDS: Final = 2.0


def new_incarnation() -> str:
    """Return the id of a new life: sortable by its start, never the same twice."""
    return f"{int(time.time() * 1000):011x}{secrets.token_hex(4)}"


class PersistServer:
    """One incarnation of one server. Make it, `run` it once, and make another for the next life."""

    def __init__(
        self,
        bus: Bus,
        layout: Layout,
        disk: Disk,
        server: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        incarnation: str | None = None,
        clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        run_in_thread: RunInThread | None = None,
        durability: Durability = Durability.SYNCED,
        idle_close_seconds: float = IDLE_CLOSE_SECONDS,
        max_open_stores: int = MAX_OPEN_STORES,
        watch: Watch = watch_folder,
    ) -> None:
        self._bus = bus
        self._layout = layout
        self._disk = disk
        self.server = check_server(server)
        self.incarnation = incarnation or new_incarnation()
        self._subjects = Subjects(prefix)
        self._clock_ms = clock_ms
        self._run_in_thread = run_in_thread or asyncio.to_thread
        #: The log's own thread, unless whoever made this runs everything in its own way.
        self._has_sync_thread = run_in_thread is None
        self._durability = durability
        self._idle_close_seconds = idle_close_seconds
        self._max_open_stores = max_open_stores
        self._watch = watch
        self._ownership = Ownership()
        self._dead_logs = DeadLogs(disk, layout, self.incarnation)
        self._subscriptions: list[BusSubscription] = []
        self._stopping = asyncio.Event()
        self._wanted = asyncio.Event()
        self._opening: set[asyncio.Task[None]] = set()
        #: Held while stores are being opened.
        self._opens = asyncio.Lock()
        self._draining = False
        self._mode_changed = asyncio.Event()
        self._give_up_at = float("inf")
        self._operations_per_second = 0.0
        self._coordination = Coordination(
            bus=bus,
            subjects=self._subjects,
            server=self.server,
            incarnation=self.incarnation,
            mode=lambda: self.mode,
            drain=self._set_draining,
        )

    @property
    def registered(self) -> bool:
        """The coordinator has accepted this incarnation: it may own stores."""
        return self._coordination.registered

    @property
    def mode(self) -> ServerMode:
        if self._stopping.is_set():
            return ServerMode.STOPPING
        return ServerMode.DRAINING if self._draining else ServerMode.RUNNING

    def stop(self) -> None:
        """Ask for a clean end; `run` returns when everything is durable and released."""
        self._stopping.set()

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Live this incarnation until `stop`. Sets `ready` once frames are accepted.

        Raises AlreadyRunningError, FencedError, StorageError, or whatever ended it.
        """
        home = self._layout.server(self.server)
        self._disk.make_directory(home)
        lock = self._disk.lock(home / "lock", f"server {self.server!r}")
        sync_thread = SyncThread() if self._has_sync_thread else None
        try:
            self._start_incarnation(sync_thread or self._run_in_thread)
            try:
                await self._live(ready)
            except BaseException:
                self._abandon()
                raise
        finally:
            if sync_thread is not None:
                sync_thread.stop()
            lock.release()

    # --- start and stop ----------------------------------------------------------------------
    def _start_incarnation(self, sync_in_thread: RunInThread) -> None:
        folder = self._layout.incarnation(self.server, self.incarnation)
        self._disk.make_directory(folder)
        fence_path = self._layout.fence(self.server, self.incarnation)
        create_fence(self._disk, fence_path)
        self._gate = FenceGate(self._disk, fence_path, self.server, self.incarnation)
        self._log = CommitLog(self._disk, self._layout.log(self.server, self.incarnation))
        self._pipeline = Pipeline(
            server=self.server,
            log=self._log,
            gate=self._gate,
            bus=self._bus,
            subjects=self._subjects,
            ownership=self._ownership,
            run_in_thread=sync_in_thread,
            clock_ms=self._clock_ms,
            want_stores=self._wanted.set,
            default_durability=self._durability,
        )
        self._opener = StoreOpener(
            server=self.server,
            incarnation=self.incarnation,
            disk=self._disk,
            layout=self._layout,
            dead_logs=self._dead_logs,
            gate=self._gate,
            run_in_thread=self._run_in_thread,
            clock_ms=self._clock_ms,
            raise_epoch=self._coordination.raise_epoch,
            confirm=self._coordination.created,
        )
        self._checkpointer = Checkpointer(
            log=self._log,
            gate=self._gate,
            ownership=self._ownership,
            pipeline=self._pipeline,
            run_in_thread=self._run_in_thread,
            clock_ms=self._clock_ms,
            confirm=self._coordination.created,
            idle_close_seconds=self._idle_close_seconds,
            max_open_stores=self._max_open_stores,
        )
        self._drainer = Drainer(
            server=self.server,
            ownership=self._ownership,
            pipeline=self._pipeline,
            checkpointer=self._checkpointer,
            coordination=self._coordination,
            give_up=lambda: asyncio.get_running_loop().time() > self._give_up_at,
        )

    async def _live(self, ready: asyncio.Event | None) -> None:
        await self._subscribe(self._subjects.control(self.server), self._on_control)
        await self._coordination.register(self._stopping.is_set)
        await self._subscribe(self._subjects.server_pattern(self.server), self._on_frame)
        await self._bus.flush()
        logger.info("server.started server=%s incarnation=%s", self.server, self.incarnation)
        if ready is not None:
            ready.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._pipeline.run()),
                    tasks.create_task(self._heartbeat_loop()),
                    tasks.create_task(self._watch_fence()),
                    tasks.create_task(self._open_loop()),
                    tasks.create_task(self._coordination.keep_registered(self._stopping.is_set)),
                    tasks.create_task(self._drain_loop()),
                    tasks.create_task(self._reap_loop()),
                ]
                await self._maintain_until_stopped()
                await self._hand_over()
                await self._stop_cleanly()
                for task in running:
                    task.cancel()
        except BaseExceptionGroup as group:
            raise _first_cause(group) from group
        finally:
            for task in self._opening:
                task.cancel()

    async def _stop_cleanly(self) -> None:
        """Answer what has arrived, close everything, release, remove this incarnation's folder."""
        # The coordinator is answered until the end: a client that finds nobody on the subject of
        # frames has it ask, and a server that does not answer either would be fenced.
        control, *others = self._subscriptions
        for subscription in others:
            await subscription.unsubscribe()
        try:
            await self._close_and_release()
        finally:
            await control.unsubscribe()

    async def _close_and_release(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._answered()
        left = await self._checkpointer.close_all()
        if left:
            # Some file could not be made durable: the log stays, and whoever opens the store next
            # applies it, as after a crash.
            logger.error("server.not_clean server=%s stores=%d", self.server, len(left))
            self._gate.fence_myself()
            return
        try:
            await self._coordination.release_all()
        except HoldfastError as error:
            logger.warning("server.release_failed server=%s reason=%s", self.server, error)
        self._gate.fence_myself()
        self._log.close()
        let_go(self._disk, self._layout, self.server, self.incarnation)
        logger.info("server.stopped server=%s incarnation=%s", self.server, self.incarnation)

    async def _answered(self) -> None:
        """Return once everything that has arrived is answered."""
        while not self._pipeline.idle or self._ownership.waiting_count:  # noqa: ASYNC110
            # Five different places empty at their own pace; this is the end of a life, not a loop.
            await asyncio.sleep(0.005)

    def _abandon(self) -> None:
        """Let go of every file as it is: the log has what the files have not."""
        for store in self._ownership.stores():
            if store.file is not None and not store.busy:
                with contextlib.suppress(HoldfastError):
                    store.file.abandon()

    async def _subscribe(self, subject: str, callback: Callable[[BusMessage], None]) -> None:
        self._subscriptions.append(await self._bus.subscribe(subject, callback))

    # --- what arrives ------------------------------------------------------------------------
    def _on_frame(self, message: BusMessage) -> None:
        if not self._subjects.may_answer(message.reply):
            # Nobody could learn what became of it.
            logger.debug("frame.without_reply subject=%s", message.subject)
            return
        try:
            tenant = check_tenant(self._subjects.tenant_of(message.subject))
            writer, groups = frames.decode_request(message.payload)
        except (ProtocolError, InvalidNameError) as error:
            self._pipeline.refuse(message.reply, -1, error)
            return
        if not groups:
            self._pipeline.answer_empty(message.reply)
            return
        arrivals = []
        share_bytes = len(message.payload) // len(groups)
        for index, group in enumerate(groups):
            store = StoreId(tenant, group.kind, group.name)
            wrong = _check_operations(group)
            if wrong is None and self._ownership.find(store) is None:
                wrong = _check_name(group)
            if wrong is not None:
                self._pipeline.refuse(message.reply, index, wrong)
                continue
            arrivals.append(Arrival(message.reply, index, writer, store, group, share_bytes))
        self._pipeline.submit(arrivals)

    def _on_control(self, message: BusMessage) -> None:
        if self._stalled:
            # Nor an answer to a probe.
            return
        self._reply(message, self._coordination.command(message.payload))

    def _reply(self, message: BusMessage, payload: bytes) -> None:
        if self._subjects.may_answer(message.reply):
            self._spawn(self._bus.publish(message.reply, payload))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    # --- heartbeats ---------------------------------------------------------------------------
    async def _heartbeat_loop(self) -> None:
        loop = asyncio.get_running_loop()
        last_count, last_at = self._pipeline.operation_count, loop.time()
        stalled = False
        while True:
            self._look_at_fence()
            if self._stalled != stalled:
                stalled = not stalled
                if stalled:
                    logger.error(
                        "log.sync_hangs server=%s seconds=%.1f",
                        self.server,
                        self._pipeline.sync_seconds,
                    )
                else:
                    logger.warning("log.sync_goes_on server=%s", self.server)
            now, count = loop.time(), self._pipeline.operation_count
            if now > last_at:
                self._operations_per_second = (count - last_count) / (now - last_at)
            last_count, last_at = count, now
            await self._beat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    @property
    def _stalled(self) -> bool:
        """The disk hangs: a server that cannot acknowledge must not count as one that serves. Silent
        to the coordinator, it is fenced, and ends when it reads that."""
        return self._pipeline.sync_seconds > SYNC_STALL_SECONDS

    async def _beat(self) -> None:
        if self._stalled:
            return
        await self._coordination.beat(
            Heartbeat(
                self.server,
                self.incarnation,
                self.mode,
                self._ownership.open_count,
                self._log.size_bytes,
                self._operations_per_second,
            )
        )

    async def _watch_fence(self) -> None:
        changed = asyncio.Event()
        folder = self._layout.incarnation(self.server, self.incarnation)
        with self._watch(folder, changed.set):
            while True:
                # At first too: for what changed before there was a watch.
                self._look_at_fence()
                await changed.wait()
                changed.clear()

    def _look_at_fence(self) -> None:
        """A fenced server that nobody asks anything would never look, and keep its files."""
        try:
            self._gate.check()
        except FencedError:
            raise
        except StorageError as error:
            logger.error("fence.unreadable reason=%s", error)

    # --- draining ----------------------------------------------------------------------------
    def _set_draining(self, draining: bool) -> None:
        if draining != self._draining:
            logger.info("server.draining server=%s draining=%s", self.server, draining)
            self._draining = draining
            self._mode_changed.set()

    async def _drain_loop(self) -> None:
        while True:
            await self._mode_changed.wait()
            self._mode_changed.clear()
            # At once: from the next heartbeat on the coordinator assigns nothing to this server.
            await self._beat()
            while self.mode is ServerMode.DRAINING or self._drainer.vacating:
                if self._ownership.open_count:
                    await self._drainer.step()
                elif await self._vacate():
                    logger.info(
                        "server.drained server=%s stores=%d",
                        self.server,
                        self._drainer.released_count,
                    )
                    break

    async def _vacate(self) -> bool:
        async with self._opens:
            return self._ownership.open_count == 0 and await self._drainer.vacate()

    async def _hand_over(self) -> None:
        """Let other servers have the open stores, few by few, as long as that gets on."""
        clock = asyncio.get_running_loop().time
        stop_at = clock() + _HAND_OVER_SECONDS
        self._give_up_at = clock() + _HAND_OVER_PATIENCE_SECONDS
        await self._beat()
        while self._ownership.open_count and clock() < min(stop_at, self._give_up_at):
            before = self._drainer.released_count
            await self._drainer.step()
            if self._drainer.released_count > before:
                self._give_up_at = clock() + _HAND_OVER_PATIENCE_SECONDS

    @property
    def _opens_nothing(self) -> bool:
        return self.mode is not ServerMode.RUNNING or self._drainer.vacating

    async def _turn_away(self, wanted: list[Wanted], grants: list[list[Any]]) -> None:
        """Release what was asked of this server but is not open, and send the clients elsewhere."""
        granted = []
        for each, grant in zip(wanted, grants, strict=True):
            if grant[0] is not None:
                granted.append((each.store, int(grant[0])))
                # Open at the most as one that nobody ever wrote to, for reads.
                opened = self._ownership.find(each.store)
                if opened is not None:
                    self._ownership.closed(opened)
        if granted:
            await self._drainer.release(granted)
        error = NotOwnerError(server=self.server)
        for each in wanted:
            self._refuse_waiting(each.store, error)

    # --- opening stores ----------------------------------------------------------------------
    async def _open_loop(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            batch = max(1, min(_OPEN_BATCH, self._max_open_stores // 4))
            while wanted := self._ownership.take_wanted(batch):
                async with self._opens:
                    await self._open_batch(wanted)

    async def _make_room(self, count: int) -> None:
        """Close what was used longest ago until `count` more stores may be open. Raises BusyError
        if they are all in use, or cannot be made durable."""
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + _ROOM_SECONDS
        while (excess := self._ownership.open_count + count - self._max_open_stores) > 0:
            if await self._checkpointer.make_room(excess):
                continue
            if clock() > give_up_at:
                raise BusyError(what=f"the open stores of server {self.server!r}")
            await asyncio.sleep(_ROOM_LOOK_SECONDS)

    async def _open_batch(self, wanted: list[Wanted]) -> None:
        try:
            await self._make_room(len(wanted))
            grants = await self._coordination.open(wanted)
            if self._opens_nothing:
                await self._turn_away(wanted, grants)
                return
            await self._run_in_thread(self._dead_logs.refresh)
        except BusyError as error:
            for each in wanted:
                self._refuse_waiting(each.store, error)
            return
        except UnavailableError as error:
            # Whoever waits gets its answer when the coordinator is back, or gives up by itself.
            logger.warning("store.open_waits stores=%d reason=%s", len(wanted), error)
            await asyncio.sleep(_RETRY_SECONDS)
            self._ownership.ask_again(wanted)
            self._wanted.set()
            return
        except FencedError:
            raise
        except HoldfastError as error:
            for each in wanted:
                self._refuse_waiting(each.store, error)
            return
        slots = asyncio.Semaphore(_PARALLEL_OPENS)
        async with asyncio.TaskGroup() as tasks:
            for each, grant in zip(wanted, grants, strict=True):
                if grant[0] is None:
                    self._refuse_waiting(each.store, error_from_wire(grant[1], grant[2]))
                else:
                    tasks.create_task(self._open_store(slots, each, Grant(*grant[:3])))

    async def _open_store(self, slots: asyncio.Semaphore, wanted: Wanted, grant: Grant) -> None:
        try:
            async with slots:
                # A new store opens without waiting for anything; hundreds of them in one turn of
                # the loop would keep heartbeats back.
                await asyncio.sleep(0)
                store = await self._opener.open(wanted.store, grant)
        except UnavailableError:
            self._spawn(self._open_later(wanted))
            return
        except FencedError:
            raise
        except HoldfastError as error:
            logger.error("store.open_failed store=%s reason=%s", wanted.store, error)
            self._refuse_waiting(wanted.store, error)
            return
        store.used_at = asyncio.get_running_loop().time()
        earlier = self._ownership.find(wanted.store)
        assert earlier is None or earlier.file is None
        self._pipeline.submit_again(self._ownership.opened(store))

    async def _open_later(self, wanted: Wanted) -> None:
        """Another process still has the file, or the coordinator's answer is to be had later."""
        await asyncio.sleep(_LOCK_RETRY_SECONDS)
        self._ownership.ask_again([wanted])
        self._wanted.set()

    def _refuse_waiting(self, store: StoreId, error: HoldfastError) -> None:
        self._pipeline.refuse_waiting(self._ownership.refused(store), error)

    # --- maintenance -------------------------------------------------------------------------
    async def _reap_loop(self) -> None:
        reaper = LogReaper(
            server=self.server,
            incarnation=self.incarnation,
            bus=self._bus,
            subjects=self._subjects,
            disk=self._disk,
            layout=self._layout,
            dead_logs=self._dead_logs,
            clock_ms=self._clock_ms,
        )
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            try:
                reaper.end_unknown_lives()
                await self._run_in_thread(self._dead_logs.refresh)
                await reaper.run_pass()
            except StorageError as error:
                logger.warning("log.reap_failed server=%s reason=%s", self.server, error)

    async def _maintain_until_stopped(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MAINTENANCE_SECONDS):
                    await self._stopping.wait()
            await self._checkpointer.run_pass(loop.time())


def _check_name(group: frames.Group) -> HoldfastError | None:
    """Return what is wrong with a group's store, None if nothing is."""
    try:
        StoreKind(group.kind)
        check_store(group.name)
    except ValueError:
        return MalformedFrameError(reason=f"unknown kind of store {group.kind}")
    except InvalidNameError as error:
        return error
    return None


def _check_operations(group: frames.Group) -> HoldfastError | None:
    """Return what is wrong with a group's operations, None if nothing is."""
    writes = group.counter > 0
    for number in {operation[0] for operation in group.operations}:
        if (number < frames.FIRST_READ) != writes:
            return MalformedFrameError(
                reason="a group is of writes, with a counter, or of reads, with counter 0"
            )
    return None


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what ended the server: of the single exceptions in a group the first that names a disk
    or a file, since who is failed by those fences itself, and its other tasks find the fence."""
    causes = list(_single(group))
    for cause in causes:
        if isinstance(cause, StorageError) and not isinstance(cause, FencedError):
            return cause
    return causes[0]


def _single(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _single(error)
        else:
            yield error
