"""Snapshots of large stores, by way of drafts: a crash at every step, before and after its effect.

One server's tier with real files, a bucket in memory and the coordinator's real state file. The run
is cut short at each call of the disk, the bucket and the coordinator in turn; then another
incarnation goes on, and every acknowledged message must be there. What the tiers do with small
stores, and all else that they do, `tests/crashes` has, in virtual time.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from holdfast.coordinator.answering.batch import RequestBatch, execute
from holdfast.coordinator.answering.requests import (
    ClaimWork,
    ColdStore,
    Cool,
    Created,
    CreatedStore,
    HeldClaim,
    Open,
    OpenStore,
    Request,
    ResolveRequest,
    StoreToTend,
    Tend,
)
from holdfast.coordinator.answering.transaction import Reply
from holdfast.coordinator.decisions.events import RecordDead, RecordLive
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.state.state_file import open_state_file
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.recovery.takeover import DeadLogs
from holdfast.persist.shared_disk import locked_files
from holdfast.persist.shared_disk.opening import StoreOpener
from holdfast.persist.store.open_stores import OpenStores, WantedStore
from holdfast.persist.store.store import Store
from holdfast.persist.tier.cold_stores import ColdStores, StoreIsColdError
from holdfast.persist.tier.cooling import ColdCandidate, Cooler
from holdfast.persist.tier.snapshotter import Snapshotter
from holdfast.persist.tier.tending import SharedTending
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.persist.tier.tier_pools import TierPools
from holdfast.protocol.changes import CHANGE_SET_MESSAGE
from holdfast.protocol.control import Grant, ServerState, StoreTotals
from holdfast.protocol.errors import BusyError, HoldfastError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.work.cold_work import SWEEPS, sweep
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import ByteRange, Condition, ObjectHead, Page, Reading
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.fence import FenceGate, create_fence, fence
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.snapshots import snapshot as snapshots
from holdfast.shared_fs.snapshots.shard import shard_of
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.schema import PAGE_BYTES
from tests.support.effort import tries
from tests.support.held_claims import held_claims
from tests.support.near import near_of
from tests.support.write_path_parts import a_life as an_incarnation

A = StoreId("acme", StoreKind.STREAM, "a")


class CrashError(BaseException):
    """The process ends here."""


class Steps:
    """Counts the steps; crashes at one of them."""

    def __init__(self, crash_at: int | None) -> None:
        self.crash_at = crash_at
        self.taken: list[str] = []

    def step(self, what: str) -> None:
        if self.crash_at is not None and len(self.taken) == self.crash_at:
            raise CrashError(what)
        self.taken.append(what)

    @contextmanager
    def around(self, what: str) -> Iterator[None]:
        self.step(f"before {what}")
        yield
        self.step(f"after {what}")


class SteppingDisk(Disk):
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def write_durably(self, path: Path, content: bytes, *, new: bool = False) -> None:
        with self._steps.around(f"write {path.name}"):
            super().write_durably(path, content, new=new)

    def remove(self, path: Path) -> None:
        with self._steps.around(f"remove {path.name}"):
            super().remove(path)

    def rename(self, source: Path, target: Path) -> None:
        with self._steps.around(f"rename {target.name}"):
            super().rename(source, target)

    def place(self, draft: Path, path: Path) -> None:
        with self._steps.around(f"place {path.name}"):
            super().place(draft, path)

    def sync_directory(self, path: Path) -> None:
        with self._steps.around("sync a folder"):
            super().sync_directory(path)


class SteppingBackend(MemoryBackend):
    """In memory, beyond the process."""

    steps: Steps

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        with self.steps.around(f"put {key.partition('/')[0]}"):
            return super().put(key, body, metadata, condition)

    @contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        self.steps.step(f"get {key.partition('/')[0]}")
        with super().read(key, wanted) as reading:
            yield reading

    def head(self, key: str) -> ObjectHead:
        self.steps.step(f"head {key.partition('/')[0]}")
        return super().head(key)

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        self.steps.step("list")
        return super().list_page(prefix, start_after, limit)


class Cluster:
    """What outlives a server: files, bucket, coordinator, and what clients were promised."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root / "data")
        self.no_logs = Layout(root / "nothing")
        Disk().make_directory(root / "data" / "coordinator")
        self.state = open_state_file(root / "data" / "coordinator" / "state.db", Disk())
        self.backend = SteppingBackend()
        self.acknowledged: dict[StoreId, list[bytes]] = {A: []}
        self.numbers = itertools.count(1)

    def ask(self, server: Server, request: Request, *records: Any) -> Any:
        member = MemberView("s1", server.incarnation, ServerState.LIVE, 0.1, True, 0, 0, 0.0)
        outcome = execute(self.state, RequestBatch(records, [request], [member], 1000))
        assert outcome.failure is None
        reply: Reply = outcome.replies[0]
        assert not isinstance(reply, HoldfastError), reply
        return reply

    def start(self, crash_at: int | None) -> Server:
        return Server(self, f"i{next(self.numbers)}", Steps(crash_at))

    def bury(self, server: Server) -> None:
        """The process is gone, and its locks; its files are as they were."""
        for connection in apsw.connections():
            if connection.filename.startswith(str(self.layout.root / "stores")):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close(True)
        fence(Disk(), self.layout.fence("s1", server.incarnation))
        dead = RecordDead("s1", server.incarnation, "killed", released=False)
        execute(self.state, RequestBatch([dead], [], [], 1000))

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.layout.root / "stores").rglob("*.*"))


class Server:
    """One incarnation's tier, and as much of a server as its tier needs."""

    def __init__(self, cluster: Cluster, incarnation: str, steps: Steps) -> None:
        self.cluster = cluster
        self.incarnation = incarnation
        self.steps = steps
        disk, layout = SteppingDisk(steps), cluster.layout
        cluster.backend.steps = steps
        Disk().make_directory(layout.incarnation("s1", incarnation))
        create_fence(Disk(), layout.fence("s1", incarnation))
        execute(cluster.state, RequestBatch([RecordLive("s1", incarnation)], [], [], 1000))
        gate = FenceGate(Disk(), layout.fence("s1", incarnation), "s1", incarnation)
        bucket = Bucket(cluster.backend)
        self.open_stores = OpenStores()
        self.asked_again = asyncio.Event()
        self.refusals: list[HoldfastError] = []
        life = an_incarnation(
            layout,
            server="s1",
            incarnation=incarnation,
            disk=disk,
            gate=gate,
            clock_ms=lambda: int(time.time() * 1000) + 10_000,
        )
        waiting: Any = SimpleNamespace(
            ask_again=lambda wanted: self.asked_again.set(),
            refused=lambda store: (),
            refuse_waiting=lambda waiting, error: self.refusals.append(error),
        )
        self.cold_stores = ColdStores(
            bucket, life, waiting, waiting, at_once, near_of(life)
        )
        self.opener = StoreOpener(
            life,
            DeadLogs(Disk(), cluster.no_logs, incarnation),
            raise_epoch=never,
            confirm=self.created,
            cold_stores=self.cold_stores,
        )
        checkpointer: Any = SimpleNamespace(with_durable=never, on_closed=lambda hear: None)
        self.snapshotter = Snapshotter(
            bucket,
            TierPolicy(cold_after_seconds=0.001),
            life,
            TierPools(at_once),
            self.open_stores,
            checkpointer,
            LifePhase("s1"),
        )
        coordinator: Any = self
        offers = ClaimWork("s1", incarnation, frozenset(SWEEPS), ())
        claimed = dict(cluster.ask(self, offers)["claims"])
        assert claimed.keys() == set(SWEEPS)
        self.claims = held_claims(life)
        self.claims._held = claimed
        self.tending = tending = SharedTending(coordinator)
        self.cooler = Cooler(
            self.snapshotter, life, coordinator, at_once, self.claims, tending
        )

    # The coordinator
    async def tend(self, stores: Sequence[tuple[StoreId, tuple[str, int] | None]]) -> Any:
        with self.steps.around("tend"):
            named = tuple(
                StoreToTend(store, None if claim is None else HeldClaim(*claim))
                for store, claim in stores
            )
            return self.cluster.ask(self, Tend("s1", self.incarnation, named))["stores"]

    async def cold(
        self, stores: Sequence[tuple[StoreId, int, int, tuple[str, int] | None]]
    ) -> Any:
        with self.steps.around("cold"):
            named = tuple(
                ColdStore(*each, None if claim is None else HeldClaim(*claim))
                for *each, claim in stores
            )
            return self.cluster.ask(self, Cool("s1", self.incarnation, named))["cold"]

    async def created(self, stores: Sequence[tuple[StoreId, int, StoreTotals | None]]) -> None:
        with self.steps.around("created"):
            named = tuple(CreatedStore(*each) for each in stores)
            self.cluster.ask(self, Created("s1", self.incarnation, named))

    # What clients do
    async def open(self, store: StoreId, *, to_read: bool) -> Store:
        self.cluster.ask(self, ResolveRequest((store,)))
        while True:
            wanted = OpenStore(store, not to_read)
            reply = self.cluster.ask(self, Open("s1", self.incarnation, (wanted,)))
            grant = Grant(*reply["grants"][0])
            try:
                opened = await self.opener.open(store, grant, to_read=to_read)
            except StoreIsColdError:
                self.asked_again.clear()
                bringing = asyncio.create_task(
                    self.cold_stores.bring(WantedStore(store, not to_read), grant)
                )
                again = asyncio.create_task(self.asked_again.wait())
                try:
                    await asyncio.wait([bringing, again], return_when=asyncio.FIRST_COMPLETED)
                    if bringing.done():
                        bringing.result()
                    assert not self.refusals, self.refusals
                finally:
                    again.cancel()
                continue
            self.open_stores.opened(opened)
            return opened

    def close(self, opened: Store) -> None:
        if opened.file is not None:
            opened.file.close()
            self.snapshotter.closed(opened, opened.file)
        self.open_stores.closed(opened)

    async def read(self, store: StoreId) -> list[bytes]:
        opened = await self.open(store, to_read=True)
        found = [] if opened.file is None else [row[3] for row in opened.file.messages(1, None, 99)]
        self.close(opened)
        return found

    async def append(self, store: StoreId, value: bytes) -> None:
        """Acknowledged once it is in the file, durably, and the coordinator knows that."""
        opened = await self.open(store, to_read=False)
        file = opened.file or opened.contents._create_file(PAGE_BYTES)
        opened.file = file
        revision = file.meta.revision
        change = (CHANGE_SET_MESSAGE, file.meta.last_seq + 1, value)
        with self.steps.around("write"):
            file.apply([AppliedBatch(revision, 1000, [change])])
        with self.steps.around("checkpoint"):
            file.checkpoint()
        opened.last_tick = 1
        await self.created([(store, file.meta.revision, file.meta.totals)])
        self.cluster.acknowledged[store].append(value)
        self.close(opened)


async def at_once(function: Callable[[], Any], /) -> Any:
    return function()


async def never(*arguments: Any) -> Any:
    raise AssertionError(arguments)


async def a_life(server: Server) -> None:
    """A store goes cold, is read and written as a cold one, and goes cold again."""
    await server.append(A, b"first")
    await server.snapshotter.run_pass()
    await server.cooler.sweep()
    await check(server)
    await server.append(A, b"of a restored one")
    await server.snapshotter.run_pass()
    await server.cooler.sweep()
    await check(server)


async def check(server: Server) -> None:
    """Nothing acknowledged is missing, nor is anything there twice or out of order."""
    for store, acknowledged in server.cluster.acknowledged.items():
        found = await server.read(store)
        remaining = iter(found)
        assert all(value in remaining for value in acknowledged), (store.name, found, acknowledged)
        assert len(found) <= len(acknowledged) + 1


async def the_next_life(server: Server) -> None:
    """Whatever happened before: all is there, can be written, and goes cold."""
    await check(server)
    await server.append(A, b"again")
    server.cluster.acknowledged[A] = await server.read(A)
    await server.snapshotter.run_pass()
    await server.cooler.sweep()
    # Nor any draft of the life before.
    assert server.cluster.files() == []
    await check(server)


@contextmanager
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder:
        found = Cluster(Path(folder))
        try:
            yield found
        finally:
            found.state.close()


def run(crash_at: int | None) -> list[str] | None:
    """Return the steps that were taken, if the crash came after all of them."""
    with cluster() as world:
        server = world.start(crash_at)
        crashed = ""
        try:
            asyncio.run(a_life(server))
        except* CrashError as group:
            crashed = repr(group.exceptions)
        world.bury(server)
        try:
            asyncio.run(the_next_life(world.start(None)))
        except BaseException as error:
            error.add_note(f"after a crash at step {crash_at}: {crashed}")
            raise
        return None if crashed else server.steps.taken


@pytest.fixture
def in_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every image as one that does not fit in memory."""
    for function in (snapshots.take_image, snapshots.fetch):
        assert function.__kwdefaults__ is not None
        monkeypatch.setitem(function.__kwdefaults__, "small_bytes", 0)


@pytest.mark.usefixtures("in_drafts")
def test_a_crash_at_any_step_loses_nothing_of_a_large_store() -> None:
    steps = run(None)
    assert steps is not None
    expected = ("put manifests", "put snapshots", "cold", "tend", "created", "sync a folder")
    assert {f"before {name}" for name in expected} <= set(steps)
    # After a step is before the next, but for what goes on beside it.
    for crash_at in range(0, len(steps), tries(4, 2, 1)):
        run(crash_at)


@pytest.mark.parametrize("is_owner", [True, False])
async def test_a_zombie_that_unlinks_late_does_not_touch_what_the_next_owner_has(
    monkeypatch: pytest.MonkeyPatch, is_owner: bool
) -> None:
    with cluster() as world:
        zombie = world.start(None)
        await zombie.append(A, b"one")
        await zombie.snapshotter.run_pass()
        if not is_owner:
            # What the next one does is cold work, for a store without an owner.
            world.bury(zombie)
            zombie = world.start(None)
        # It has read its fence, and stops right before it unlinks.
        file = zombie.snapshotter.imager.open_closed(A)
        assert file is not None
        entry = zombie.snapshotter.manifests().find(A)
        assert entry is not None and entry.newest is not None
        with zombie.claims.doing(*SWEEPS) as held:
            (tended,) = await zombie.tending.tended([A], held)
        claim = None if is_owner else (sweep(shard_of(A)), zombie.claims._held[sweep(shard_of(A))])
        assert await zombie.cold([(A, tended.epoch, file.meta.revision, claim)]) == [True]
        candidate = ColdCandidate(A, tended.epoch, entry.newest, tended.claim)
        assert (tended.claim is None) == is_owner
        monkeypatch.setattr(zombie.snapshotter.imager._gate, "check", lambda: None)
        fence(Disk(), world.layout.fence("s1", zombie.incarnation))
        dead = RecordDead("s1", zombie.incarnation, "stopped", released=False)
        execute(world.state, RequestBatch([dead], [], [], 1000))

        owner = world.start(None)
        with pytest.raises(BusyError):
            await owner.open(A, to_read=False)
        monkeypatch.setattr(locked_files, "LOCK_WAIT_SECONDS", 0.0)
        await owner.append(A, b"two")
        zombie.cooler._unlink([(candidate, file)])
        file.abandon()
        assert world.files() == ["a.stream.2.db"]
        assert await owner.read(A) == [b"one", b"two"]


async def test_a_store_that_changed_since_its_snapshot_does_not_leave() -> None:
    with cluster() as world:
        server = world.start(None)
        await server.append(A, b"one")
        await server.snapshotter.run_pass()
        entry = server.snapshotter.manifests().find(A)
        assert entry is not None and entry.newest is not None
        await server.append(A, b"two")
        candidate = ColdCandidate(A, 1, entry.newest)
        assert await server.cooler.cool([candidate]) == 0
        assert world.files() == ["a.stream.1.db"]
        assert server.snapshotter.backlog == 1


async def test_a_store_that_somebody_uses_does_not_leave() -> None:
    with cluster() as world:
        server = world.start(None)
        await server.append(A, b"one")
        await server.snapshotter.run_pass()
        opened = await server.open(A, to_read=True)
        await server.cooler.sweep()
        assert opened.file is not None
        assert opened.file.message(1) is not None
        server.close(opened)
        await server.cooler.sweep()
        assert world.files() == []


@pytest.mark.parametrize("damage", ["a flipped byte", "older", "empty"])
async def test_a_cold_store_s_leftover_that_is_damaged_or_older_gives_way_to_the_snapshot(
    damage: str,
) -> None:
    with cluster() as world:
        server = world.start(None)
        await server.append(A, b"one")
        path = world.layout.store(A)
        older = path.read_bytes()
        await server.append(A, b"two")
        content = bytearray(path.read_bytes())
        await server.snapshotter.run_pass()
        await server.cooler.sweep()
        assert world.files() == []
        content[len(content) // 2] ^= 1
        path.write_bytes({"older": older, "empty": b""}.get(damage, bytes(content)))
        assert await server.read(A) == [b"one", b"two"]
        await server.append(A, b"three")
        assert await server.read(A) == [b"one", b"two", b"three"]
        assert len(list((world.layout.quarantine / "acme").iterdir())) == 1
