"""What is asked of a store's owner beside reads and writes: by operators snapshots of it, a past state of
it, its end; by applications the end of a store of their tenant.

Each request starts a job, or asks what became of one: the same id, again and again, until it is done. So
a reply that is lost costs nothing, and nobody waits on the wire for a large store. Jobs are kept in
memory; one that its server did not survive is begun anew by the next owner, which is harmless.

Restoring in place, as the owner (invariants 2 and 4 of the design):

1. The past state is made, as a draft beside the file, while the store goes on.
2. The store is held: what arrives waits; what was accepted becomes durable and is answered; the file is
   closed. Its last state is snapshotted, so that a restore can be undone by another one.
3. The coordinator grants the next epoch. The draft goes on at the next revision, and at the last seq, of
   the present state: neither is ever used again for something else. Followers are behind its horizon,
   so they are told to begin anew. What retries of writers are answered comes from the present state.
4. The draft takes the place of the file, by a rename to a generation of its own: before that nothing has
   happened, and after it log records of the epochs before are void.
5. What waited is answered NotOwnerError, so that clients ask again; the store opens as ever.

An application that destroys a store names its epoch (`HEAD` tells it). If a tombstone is of that epoch or
a later one, that was done before, and what is there now was written since: a retry removes it not.

Without a shared file system the newest version of the manifest takes the place of the rename.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.persist.jobs.point_in_time_restore import PointInTimeRestore
from holdfast.persist.jobs.removal import bury, remove_files, remove_snapshots
from holdfast.persist.lifecycle.open_queue import Opens
from holdfast.persist.peers.coordination import Coordination
from holdfast.persist.peers.owners import Owners
from holdfast.persist.recovery.point_in_time import Course, Point, RestoreTarget
from holdfast.persist.store.open_stores import OpenStores
from holdfast.persist.store.states import OpenState
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.write_path.checkpointing import Checkpointer
from holdfast.persist.write_path.pipeline import Pipeline
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.control import Grant, StoreState
from holdfast.protocol.errors import (
    BusyError,
    HoldfastError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    StorageError,
    UnavailableError,
    error_from_wire,
    internal_error,
)
from holdfast.protocol.limits import (
    MAX_ARRAY_LENGTH,
    MAX_DESTROYING,
    MAX_DESTROYING_OF_TENANT,
    MAX_INTEGER,
)
from holdfast.protocol.names import StoreId, StoreKind, check_store, check_tenant
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.bucket.bucket_errors import BucketError
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.disk.tombstone import Grave, read_tombstone, write_tombstone
from holdfast.shared_fs.snapshots.manifest import Manifests, Tombstone
from holdfast.shared_fs.store_file.applying import StoreMeta, WriterOutcome
from holdfast.shared_fs.store_file.generations import current_generation
from holdfast.shared_fs.store_file.store_file import StoreFile

logger = logging.getLogger("holdfast.persist")

#: Jobs whose end is remembered, and as many that run.
_MAX_JOBS: Final = 64
_HOLD_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.02
#: Of a damaged store nobody knows how many revisions are lost: a restored one goes on well beyond.
_LOST_REVISIONS: Final = 1 << 20


class Held(NamedTuple):
    """A store that is closed and stays so. `revision` 0: nobody could open it. Then `known_revision` is
    what the coordinator knows that it had reached."""

    epoch: int
    revision: int
    state: int
    known_revision: int = 0


class Administrator:
    """The jobs of one incarnation."""

    def __init__(
        self,
        *,
        server: str,
        incarnation: str,
        bus: Bus,
        subjects: Subjects,
        disk: Disk,
        layout: Layout,
        gate: FenceGate,
        open_stores: OpenStores,
        owners: Owners,
        pipeline: Pipeline,
        checkpointer: Checkpointer,
        coordination: Coordination,
        run_in_thread: RunInThread,
        clock_ms: Callable[[], int],
        opens: Opens,
        past_states: PointInTimeRestore | None,
        manifests: Callable[[], Manifests] | None,
        snapshot: Callable[[list[StoreId]], Awaitable[None]],
        bucket_only: bool,
    ) -> None:
        """`opens` is held while stores are opened; without a bucket there are no past states."""
        self._server = server
        self._incarnation = incarnation
        self._bus = bus
        self._subjects = subjects
        self._disk = disk
        self._layout = layout
        self._gate = gate
        self._open_stores = open_stores
        self._owners = owners
        self._pipeline = pipeline
        self._checkpointer = checkpointer
        self._coordination = coordination
        self._run_in_thread = run_in_thread
        self._clock_ms = clock_ms
        self._opens = opens
        self._past_states = past_states
        self._manifests = manifests
        self._snapshot = snapshot
        self._bucket_only = bucket_only
        #: By the tenant whose application asked, nothing of operators, and the name that it gave.
        self._jobs: OrderedDict[tuple[str, str], asyncio.Task[dict[str, Any]]] = OrderedDict()
        self._at_work: set[StoreId] = set()
        self._mishaps = Mishaps(logger)

    def command(self, payload: bytes) -> bytes:
        """Start a job, or tell what became of it, and return the reply, whatever `payload` holds."""

        def answer() -> dict[str, Any]:
            fields = frames.decode_control(payload, max_length=MAX_ARRAY_LENGTH)
            return self._answer("", fields, lambda: self._work(fields))

        return self._replied(answer)

    def destroy(self, tenant: str, payload: bytes) -> bytes:
        """Start the end of a store for an application of `tenant`, or tell what became of it, and return
        the reply, whatever `payload` holds."""

        def answer() -> dict[str, Any]:
            fields = frames.decode_control(payload, max_length=MAX_ARRAY_LENGTH)
            named = fields.get("store")
            if type(named) is not list:
                raise InvalidArgumentError(argument="store", reason="a list of kind and name")
            store, epoch = _store([tenant, *named]), _integer(fields, "epoch")
            if epoch is None:
                raise InvalidArgumentError(argument="epoch", reason="that of the store's head")
            return self._answer(tenant, fields, lambda: self._destroy(store, epoch))

        return self._replied(answer)

    def _replied(self, answer: Callable[[], dict[str, Any]]) -> bytes:
        """Return the reply that is made of an answer, or of what it raises."""
        try:
            return frames.encode_control(**answer())
        except HoldfastError as error:
            return frames.encode_control_error(error)
        except Exception as error:  # noqa: BLE001 (it is this request's answer)
            self._mishaps.note("operator.job_failed", self._server, error)
            return frames.encode_control_error(internal_error("the job", error))

    async def stop(self) -> None:
        """Cancel what runs."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    def _answer(
        self,
        tenant: str,
        fields: Mapping[str, Any],
        work: Callable[[], Coroutine[Any, Any, dict[str, Any]]],
    ) -> dict[str, Any]:
        name = fields.get("job")
        if type(name) is not str or not 1 <= len(name) <= 64:
            raise InvalidArgumentError(argument="job", reason="a name of 1 to 64 characters")
        job = self._jobs.get((tenant, name))
        if job is None:
            self._check_room(tenant)
            job = asyncio.get_running_loop().create_task(work(), name=f"holdfast.{name}")
            job.add_done_callback(_heard)
            self._jobs[tenant, name] = job
            finished = [each for each, task in self._jobs.items() if task.done()]
            for each in finished[: max(0, len(self._jobs) - _MAX_JOBS)]:
                del self._jobs[each]
        if not job.done():
            return {"done": False}
        if job.cancelled():
            raise UnavailableError(reason=f"server {self._server!r} is about to stop")
        return {"done": True, **job.result()}

    def _check_room(self, tenant: str) -> None:
        """Raise BusyError if as many jobs run as may for operators, or for applications."""
        running = [key[0] for key, task in self._jobs.items() if not task.done()]
        if tenant:
            of_applications = len(running) - running.count("")
            is_full = (
                of_applications >= MAX_DESTROYING
                or running.count(tenant) >= MAX_DESTROYING_OF_TENANT
            )
        else:
            is_full = running.count("") >= _MAX_JOBS
        if is_full:
            whose = "operators'" if not tenant else "destroyers'"
            raise BusyError(what=f"the {whose} queue of server {self._server!r}")

    def _work(self, fields: Mapping[str, Any]) -> Coroutine[Any, Any, dict[str, Any]]:
        store = _store(fields.get("store"))
        match fields.get("verb"):
            case "versions":
                return self._versions(store)
            case "backup":
                return self._backup(store)
            case "restore":
                target = RestoreTarget(_integer(fields, "time"), _integer(fields, "revision"))
                target.check()
                source = fields.get("source")
                return self._restore(
                    store,
                    store if source is None else _store(source),
                    target,
                    nearest=bool(fields.get("nearest")),
                    dry_run=bool(fields.get("dry_run")),
                )
            case "delete":
                return self._delete(store)
            case unknown:
                raise InvalidArgumentError(argument="verb", reason=f"{unknown!r:.80} is none")

    # Snapshots
    async def _versions(self, store: StoreId) -> dict[str, Any]:
        past_states = self._with_bucket()
        versions = await self._run_in_thread(lambda: past_states.versions(store))
        return {"versions": [_version_fields(version) for version in versions]}

    async def _backup(self, store: StoreId) -> dict[str, Any]:
        past_states = self._with_bucket()
        revision = await self._opened(store)
        await self._snapshot([store])
        versions = await self._run_in_thread(lambda: past_states.versions(store))
        if not versions or versions[0].revision < revision:
            raise BusyError(what=f"the file of {store}")
        return {"versions": [_version_fields(version) for version in versions]}

    async def _opened(self, store: StoreId) -> int:
        """Open a store as a client would, and return its revision. Raises NotFoundError for one that
        is none."""
        await self._owners.take_over([store])
        opened = self._open_stores.find(store)
        if opened is None:
            raise NotOwnerError(server=self._server)
        if opened.file is None and opened.revision == 0:
            raise NotFoundError(what="store", name=store.name)
        return opened.revision

    # Past states
    async def _restore(
        self, store: StoreId, source: StoreId, target: RestoreTarget, *, nearest: bool, dry_run: bool
    ) -> dict[str, Any]:
        past_states = self._with_bucket()
        seen: list[Point] = []
        if store == source:
            # One that is damaged can be restored all the same.
            with contextlib.suppress(StorageError):
                await self._opened(store)
                opened = self._open_stores.find(store)
                if opened is not None:
                    now = self._clock_ms()
                    seen.append(Point(opened.epoch, opened.revision, opened.time, now))
        path = self._layout.store(store)
        draft = path.with_name(f"{path.name}.{self._incarnation}")

        def prepare() -> Course:
            with past_states.found(source, target, nearest=nearest, seen=seen) as found:
                if not dry_run:
                    past_states.draft(source, found, store, draft).close()
                return found

        with self._alone(store):
            found: Course = await self._run_in_thread(prepare)
            report: dict[str, Any] = {
                "exact": found.exact,
                "revision": found.revision,
                "time": found.time,
                "version": _version_fields(found.version) if found.version else None,
                "replayed": found.batches.change_count,
            }
            if dry_run:
                return report
            try:
                return report | await self._put_in_place(store, store == source, draft)
            finally:
                for part in (draft, draft.with_name(draft.name + "-wal")):
                    self._disk.remove(part)

    async def _put_in_place(self, store: StoreId, in_place: bool, draft: Path) -> dict[str, Any]:
        past_states = self._with_bucket()
        async with self._held(store) as held:
            if not in_place and held.state != StoreState.UNKNOWN:
                raise InvalidArgumentError(
                    argument="--as", reason=f"{store.name!r} exists: take a new name"
                )
            before: StoreMeta | None = None
            outcomes: list[WriterOutcome] = []
            generation = await self._run_in_thread(
                lambda: current_generation(self._disk, self._layout, store, self._incarnation)
            )
            if in_place and generation is not None:
                present = self._layout.store(store, generation)
                before, outcomes = await self._run_in_thread(
                    lambda: past_states.remember(present, store)
                )
            versions = await self._run_in_thread(lambda: past_states.versions(store))
            grave = await self._run_in_thread(
                lambda: read_tombstone(self._disk, self._layout.tombstone(store))
            )
            known_epoch = max(held.epoch, grave.epoch if grave is not None else 0)
            epoch = await self._coordination.raise_epoch(store, known_epoch)
            newest = max(
                grave.revision if grave else 0,
                held.known_revision,
                *(version.revision for version in versions),
            )
            if before is not None:
                go_on = max(before.revision, newest) + 1
            else:
                lost = 0 if not in_place or held.revision else _LOST_REVISIONS
                go_on = max(newest, held.revision) + 1 + lost
            last_seq = max(
                [before.last_seq if before else 0, *(version.last_seq for version in versions)]
            )

            def finish() -> int:
                file = StoreFile.open(draft, store, disk=self._disk)
                try:
                    file.apply([], outcomes)
                    file.go_on_from(
                        max(go_on, file.meta.revision + 1), time=self._clock_ms(), last_seq=last_seq
                    )
                    file.take(epoch, self._server, self._incarnation)
                    revision = file.meta.revision
                finally:
                    file.close()
                self._gate.check()
                if self._bucket_only:
                    return past_states.publish(draft, store).revision
                placed = self._layout.store(store, epoch)
                self._disk.place(draft, placed)
                return revision

            revision: int = await self._run_in_thread(finish)
            if not self._bucket_only:
                await self._coordination.created([(store, revision)])
                await self._publish(store, epoch)
            logger.info(
                "store.restored_by_operator store=%s epoch=%d revision=%d", store, epoch, revision
            )
        self._gate.check()
        # Followers that hear of a revision beyond theirs ask for what they lack.
        payload = frames.encode_changes(epoch, revision, self._clock_ms(), [])
        await self._bus.publish(self._subjects.changes(store), payload)
        return {"new_revision": revision, "epoch": epoch}

    async def _publish(self, store: StoreId, epoch: int) -> None:
        """Have the restored state among the versions too. It counts without."""
        past_states, placed = self._with_bucket(), self._layout.store(store, epoch)
        try:
            await self._run_in_thread(lambda: past_states.publish(placed, store))
        except BucketError as error:
            logger.warning("operator.snapshot_failed store=%s reason=%s", store, error)

    # The end of a store
    async def _destroy(self, store: StoreId, epoch: int) -> dict[str, Any]:
        """End the life of a store that had this epoch, if it has not ended."""
        with contextlib.suppress(NotFoundError):
            await self._delete(store, epoch)
        return {}

    async def _delete(self, store: StoreId, life_epoch: int | None = None) -> dict[str, Any]:
        """Remove all of a store; with `life_epoch` only if it is the store that had this epoch."""
        # One that is damaged can be deleted all the same, and one that is half deleted.
        with contextlib.suppress(StorageError, NotFoundError):
            await self._opened(store)
        with self._alone(store):
            async with self._held(store) as held:
                if life_epoch is not None and held.revision:
                    buried: int = await self._run_in_thread(lambda: self._buried_epoch(store))
                    if buried >= life_epoch:
                        return {"epoch": buried}
                generations = self._layout.generations(self._disk, store, with_deleted=True)
                # Files of one that is gone are what a deletion left that was cut short.
                if held.state == StoreState.UNKNOWN and not held.revision and not generations:
                    raise NotFoundError(what="store", name=store.name)
                epoch = max([held.epoch, *generations])
                if epoch > held.epoch:
                    epoch = await self._coordination.raise_epoch(store, epoch)
                dropped: dict[str, int] = await self._run_in_thread(
                    lambda: self._entomb(store, epoch, held.revision)
                )
                if not await self._coordination.deleted(store, epoch):
                    raise NotOwnerError(server=self._server)
                removed = await self._run_in_thread(lambda: self._remove(store, epoch))
        logger.info("store.deleted store=%s epoch=%d", store, epoch)
        self._gate.check()
        # Followers that hear of a revision beyond theirs ask, and are told to begin anew.
        payload = frames.encode_changes(epoch, held.revision + 1, self._clock_ms(), [])
        await self._bus.publish(self._subjects.changes(store), payload)
        return {"epoch": epoch, **dropped, "files": removed}

    def _buried_epoch(self, store: StoreId) -> int:
        """Blocking. Return the epoch of the store's tombstone, 0 without one."""
        if self._bucket_only:
            assert self._manifests is not None
            entry = self._manifests().find(store)
            return entry.deleted.epoch if entry is not None and entry.deleted is not None else 0
        grave = read_tombstone(self._disk, self._layout.tombstone(store))
        return grave.epoch if grave is not None else 0

    def _entomb(self, store: StoreId, epoch: int, revision: int) -> dict[str, int]:
        """Blocking. The order is that of `removal.py`."""
        now = self._clock_ms()
        snapshots = 0
        self._gate.check()
        if self._manifests is not None:
            manifests = self._manifests()
            known = [version.revision for version in self._with_bucket().versions(store)]
            revision = max([revision, *known])
            dropped = bury(manifests, store, Tombstone(epoch, now, revision))
            snapshots = len(dropped)
            if not self._bucket_only:
                write_tombstone(
                    self._disk, self._layout.tombstone(store), Grave(epoch, revision, now)
                )
            remove_snapshots(manifests, store, dropped, epoch, now)
        else:
            write_tombstone(self._disk, self._layout.tombstone(store), Grave(epoch, revision, now))
        return {"snapshots": snapshots}

    def _remove(self, store: StoreId, epoch: int) -> int:
        self._gate.check()
        return remove_files(self._disk, self._layout, store, epoch)

    # Holding a store
    @contextlib.contextmanager
    def _alone(self, store: StoreId) -> Any:
        """One job of a store at a time."""
        if store in self._at_work:
            raise BusyError(what=f"another job of {store}")
        self._at_work.add(store)
        try:
            yield
        finally:
            self._at_work.discard(store)

    @asynccontextmanager
    async def _held(self, store: StoreId) -> AsyncIterator[Held]:
        """Keep a store of this server closed around the body; what arrives for it waits, and is then
        sent to ask for the owner again."""
        give_up_at = asyncio.get_running_loop().time() + _HOLD_SECONDS
        while True:
            opened = self._open_stores.find(store)
            if opened is None or opened.state is OpenState.SERVING:
                break
            if asyncio.get_running_loop().time() > give_up_at:
                raise BusyError(what=f"the file of {store}")
            await asyncio.sleep(_LOOK_SECONDS)
        if opened is None or (opened.file is None and opened.revision == 0):
            async with self._opens:
                if self._open_stores.find(store) is not opened:
                    raise BusyError(what=f"the file of {store}")
                [grant] = await self._coordination.open([(store, False)])
                if grant[0] is None:
                    raise error_from_wire(grant[1], grant[2])
                granted = Grant(*grant[:5])
                yield Held(granted.epoch, 0, granted.state, granted.revision)
                if opened is not None:
                    self._open_stores.closed(opened)
            self._open_stores.leases.turn_away(store, NotOwnerError(server=self._server))
            return
        with self._open_stores.leases.hold(opened) as lease:
            await self._pipeline.settled(opened.last_tick)
            if not await self._checkpointer.close_held([opened]):
                raise BusyError(what=f"the file of {store}")
            try:
                yield Held(opened.epoch, opened.revision, StoreState.DURABLE)
            finally:
                lease.leave(NotOwnerError(server=self._server))

    def _with_bucket(self) -> PointInTimeRestore:
        if self._past_states is None:
            raise InvalidArgumentError(
                argument="--bucket", reason=f"server {self._server!r} was started without one"
            )
        return self._past_states


def _heard(job: asyncio.Task[dict[str, Any]]) -> None:
    """Take note of how a job ended: whoever asks hears of it, if anybody does."""
    if job.cancelled():
        return
    error = job.exception()
    if error is not None:
        logger.warning("operator.job_failed job=%s reason=%s", job.get_name(), error)


def _store(value: Any) -> StoreId:
    if type(value) is not list or len(value) < 3:
        raise InvalidArgumentError(argument="store", reason="a list of tenant, kind and name")
    tenant, kind, name = value[:3]
    if type(kind) is not int or kind not in tuple(StoreKind):
        raise InvalidArgumentError(argument="kind", reason="1 is a stream, 2 a kv")
    return StoreId(check_tenant(tenant), int(kind), check_store(name))


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= MAX_INTEGER):
        raise InvalidArgumentError(argument=name, reason="a number from 0 on")
    return value


def _version_fields(version: Any) -> dict[str, Any]:
    return {
        "epoch": version.epoch,
        "revision": version.revision,
        "time": version.time,
        "taken": version.taken,
        "last_seq": version.last_seq,
        "count": version.count,
        "bytes": version.bytes,
        "stored_bytes": version.length,
        "key": version.key,
        "offset": version.offset,
        "sha256": version.sha256,
    }
