"""What the stories and the judgement share: a cluster, an application, and what it was promised."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Protocol

from holdfast.persist.service import PersistServer
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.errors import NotOwnerError, UnavailableError
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.bucket_log.bucket_log import fence_slot, list_logs
from holdfast.shared_fs.snapshots.collecting import Collector
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.pack import PACK_PREFIX
from holdfast.shared_fs.snapshots.pins import PIN_PREFIX
from holdfast.shared_fs.snapshots.snapshot import SNAPSHOT_PREFIX, verify
from holdfast.shared_fs.snapshots.store_entry import StoreEntry
from tests.crashes.cluster import SERVERS, CrashCluster
from tests.power.application import Application, Violation, stream
from tests.power.cluster import COORDINATOR, ROOT
from tests.simulation.simulated_files import Directory

#: What an operation is about, and who stands by.
NOTES: Final = stream("notes")
CHAT: Final = stream("chat")
OTHER: Final = stream("other")
BYSTANDER: Final = stream("bystander")
_SUBJECTS: Final = Subjects()
_DAY_MS: Final = 86_400_000
_LOOK_SECONDS: Final = 0.15
_PATIENCE_SECONDS: Final = 60.0
_ASK_SECONDS: Final = 1.0


class Recovers(Protocol):
    """What the judgement needs of an operation."""

    expected: ClassVar[str]

    def repair(self, world: World) -> None: ...

    async def again(self, world: World) -> None: ...


class World:
    """One run's. `told` is what the operation was answered, if it was."""

    def __init__(self, cluster: CrashCluster) -> None:
        self.cluster = cluster
        self.app = Application(cluster.network)
        self.told: Mapping[str, Any] | None = None
        #: What the operation's own store holds, where the application does not know it.
        self.values: list[bytes] | None = None
        self._bus = cluster.network.connect("operator")

    # What stories are made of
    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Return when something holds. Raises Violation if it never does."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _PATIENCE_SECONDS
        while not holds():
            if loop.time() > give_up_at:
                raise Violation(f"it never holds that {what}; there is {self.files()}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def pause(self) -> None:
        """Let the cluster work for a while."""
        await asyncio.sleep(10 * _LOOK_SECONDS)

    async def until_cold(self) -> None:
        """Return when nobody has a store open, the bucket has all of them, and no file is left."""
        await self.until("every store is closed and in the bucket", self._rests)

    def _rests(self) -> bool:
        return (
            not any(
                isinstance(life.part, PersistServer)
                and life.part.parts is not None
                and list(life.part.parts.open_stores.stores())
                for life in self.cluster.lives.values()
                if not life.disk.dead
            )
            and self._all_snapshotted()
            and (self.cluster.bucket_only or not self.files())
        )

    def files(self) -> list[str]:
        """Return what lies in the stores' folders, but for tombstones."""
        root = self.cluster.files.find(ROOT / "stores")
        folders = [root] if isinstance(root, Directory) else []
        found = []
        while folders:
            for name, node in folders.pop().entries.items():
                if isinstance(node, Directory):
                    folders.append(node)
                elif not name.endswith(".deleted"):
                    found.append(name)
        return found

    def entry(self, store: StoreId) -> StoreEntry:
        return open_manifests(self.cluster.bucket).find(store) or StoreEntry()

    def _all_snapshotted(self) -> bool:
        return all(
            (newest := self.entry(store).newest) is not None
            and newest.revision >= self.app.model(store, len(groups)).revision
            for store, groups in self.app.sent.items()
        )

    async def append_stored(self, store: StoreId, *values: bytes) -> None:
        """Append, acknowledged as `stored`."""
        await self.app.write(
            (store, [[frames.APPEND, value] for value in values]), durability=Durability.STORED
        )

    async def ask_owner(
        self, store: StoreId, verb: str, *, of: str = "", **fields: object
    ) -> Mapping[str, Any]:
        """Have a store's owner, or the server `of`, do an operator's job, as `holdfast.cli` does;
        return what it tells.

        Raises what it ends with.
        """
        give_up_at = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        job, server = secrets.token_hex(8), of
        while True:
            try:
                if not server:
                    server = await self._owner(store)
                payload = frames.encode_control(job=job, verb=verb, store=list(store), **fields)
                reply = await self._bus.request(_SUBJECTS.operator(server), payload, _ASK_SECONDS)
                done = frames.decode_control(reply)
            except (UnavailableError, NotOwnerError, BusTimeoutError, NoRespondersError):
                if asyncio.get_running_loop().time() > give_up_at:
                    raise
                job, server = secrets.token_hex(8), of
            else:
                if done.get("done"):
                    return done
            await asyncio.sleep(_LOOK_SECONDS)

    async def _owner(self, store: StoreId) -> str:
        [(server, _)] = await self.app.owners_of([store])
        return server

    async def read_values(self, store: StoreId) -> list[bytes]:
        """Return what a stream's owner says that it holds."""
        model = await self.app.read(store)
        return [model.rows[seq][0] for seq in sorted(model.rows)]

    # After the crash
    async def recover(self, operation: Recovers, number: int) -> None:
        """Start everything, go on, and judge; with odd numbers the server that died stays so."""
        cluster = self.cluster
        self.check_bucket()
        operation.repair(self)
        dead = [name for name in SERVERS if cluster.is_dead(name)]
        others = [name for name in SERVERS if name not in dead]
        if number % 2 and dead and others:
            cluster.start(COORDINATOR, *others)
        else:
            cluster.start(COORDINATOR, "s1")
        await self.app.check_nothing_is_lost()
        await operation.again(self)
        await self.app.check_retries()
        for store, groups in self.app.sent.items():
            await self.app.append(store, b"after group %d" % len(groups))
        await self.until_cold()
        self.check_bucket()
        await self.until("dead logs have nothing but their fences", self.dead_logs_are_gone)
        self.collect()
        await self.check_stores()
        if any(not operation.expected or operation.expected not in each for each in cluster.errors):
            raise Violation("errors were reported")

    async def check_stores(self) -> None:
        """Every store holds what it shall."""
        for store in self.app.sent:
            self.app.check_equal(store, await self.app.read(store))

    def check_bucket(self) -> None:
        """Whatever a manifest names is in the bucket, whole."""
        for _, entry in open_manifests(self.cluster.bucket).entries():
            for version in entry.versions:
                verify(self.cluster.bucket, version)

    def collect(self) -> None:
        """Run the collector until it finds nothing, and see that nothing is left for it."""
        bucket = self.cluster.bucket
        for day in range(1, 12):
            now_ms = self.cluster.now_ms() + 2 * day * _DAY_MS
            done = Collector(bucket, clock_ms=lambda now_ms=now_ms: now_ms).run_pass()
            if not (done.marked or done.slots_marked or done.repacked):
                break
        else:
            raise Violation(f"the collector never ends: {done}")
        named = {
            version.key
            for _, entry in open_manifests(bucket).entries()
            for version in entry.versions
        }
        there = {
            listed.key
            for prefix in (SNAPSHOT_PREFIX, PACK_PREFIX)
            for listed in bucket.list(prefix)
        }
        if there != named:
            raise Violation(f"beside what is named there is {there - named}, gone {named - there}")
        pins = [listed.key for listed in bucket.list(PIN_PREFIX)]
        if pins:
            raise Violation(f"pins are left: {pins}")

    def slots_are_retired(self) -> bool:
        return all(len(log.slots) == 1 for log in list_logs(self.cluster.bucket))

    def dead_logs_are_gone(self) -> bool:
        cluster = self.cluster
        live = {life.incarnation for life in cluster.lives.values() if not life.disk.dead}
        for log in list_logs(cluster.bucket):
            if log.incarnation in live:
                continue
            if len(log.slots) > 1 or fence_slot(cluster.bucket, log) is None:
                return False
        return True
