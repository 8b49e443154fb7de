"""A cluster with a bucket, in which each call of the disk, the bucket and the coordinator is a
point.

The cluster of the power cuts (`power/cluster.py`) with a bucket in memory and policies so short
that stores go cold within seconds. `at_point` hears of every call before and after its effect, with
the process that makes it and would die there. What changes nothing by itself, a read, is a point
too."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from unittest.mock import patch

from holdfast.coordinator.service import Coordinator
from holdfast.coordinator.storage import Storage
from holdfast.persist.bucket_log import stored_writer
from holdfast.persist.bucket_only import bucket_mode as bucket_ground
from holdfast.persist.bucket_only import bucket_reaper
from holdfast.persist.options import ServerOptions
from holdfast.persist.service import PersistServer
from holdfast.persist.tier import cooling
from holdfast.persist.tier.cooling import Cooler
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import (
    Backend,
    BucketUpload,
    ByteRange,
    Condition,
    ObjectHead,
    Page,
    Reading,
)
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket_log import bucket_log
from holdfast.shared_fs.bucket_log.fences import BucketFences
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.snapshots.store_entry import KeepPolicy
from tests.power.cluster import COORDINATOR, ROOT, Cluster, Life
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_files import Operation
from tests.simulation.simulated_tiers import OneByOne, resting_files

SERVERS: Final = ("s1", "s2")
IDLE_CLOSE_SECONDS: Final = 0.1
POLICY: Final = TierPolicy(
    snapshot_seconds=0.1, cold_after_seconds=0.4, keep=KeepPolicy(count=4, days=7.0)
)
_READS: Final = frozenset({"read", "lock"})
#: What a crash of a process takes nothing of; a power cut does, which `tests/power` has.
_SYNCS: Final = frozenset({"sync", "sync_directory"})
#: What is in a file that nobody else opens before it is renamed is nothing to others.
_CONTENT: Final = frozenset({"write", "truncate"})
_PRIVATE: Final = re.compile(r"\.tmp$|\.db\.[0-9A-Za-z]+")
_BUCKET_READS: Final = frozenset({"get", "head", "list"})
_SUBJECTS: Final = Subjects()
_T = TypeVar("_T")


class Point(NamedTuple):
    """Where a process may die. `changed`: since the point before, others can see a difference."""

    process: str
    text: str
    changed: bool


class CrashCluster(Cluster):
    """Use it as `async with`, in a VirtualLoop, within `short_times`."""

    def __init__(self, *, bucket_only: bool = False) -> None:
        super().__init__((COORDINATOR, *SERVERS), idle_close_seconds=IDLE_CLOSE_SECONDS)
        self.bucket_only = bucket_only
        self.objects = MemoryBackend(lambda: self.now_ms() / 1000)
        self.bucket = Bucket(self.objects)
        self.files.now_ms = self.now_ms
        #: Hears of each point while it is set, in the process's own call; True: it dies there.
        self.at_point: Callable[[Point], bool] | None = None
        #: Those that are none of the cluster's processes, as an operator's commands are.
        self._commands: dict[str, HostDisk] = {}
        self._changed = False
        #: Frames were written to some WAL: to who comes next they are nothing until the last of
        #: them.
        self._uncommitted = False
        self.network.taps.append(self._on_publish)

    def make_part(self, life: Life) -> PersistServer | Coordinator:
        root = ROOT / life.name if self.bucket_only else ROOT
        layout = open_layout(root, life.disk)
        bucket = Bucket(CallerBackend(self, life.name))
        if life.name == COORDINATOR:
            fences = BucketFences(bucket) if self.bucket_only else None
            return Coordinator(
                life.bus,
                Storage(layout, life.disk, bucket=bucket, fences=fences),
                clock_ms=self.now_ms,
                run_blocking=self.run_in_thread,
            )
        return PersistServer(
            life.bus,
            layout,
            life.disk,
            life.name,
            ServerOptions(
                idle_close_seconds=self.idle_close_seconds,
                tier_policy=POLICY,
                bucket_only=self.bucket_only,
            ),
            incarnation=life.incarnation,
            bucket=bucket,
            machine=self.machine(),
        )

    def command(self, name: str) -> tuple[Bucket, HostDisk]:
        """Return bucket and files as a process sees them that is none of the cluster's."""
        disk = self._commands[name] = HostDisk(self.files, name, name)
        return Bucket(CallerBackend(self, name)), disk

    def is_dead(self, name: str) -> bool:
        if name in self._commands:
            return self._commands[name].dead
        life = self.lives.get(name)
        return life is not None and life.disk.dead

    # Points
    def point(self, name: str, text: str) -> None:
        """A process is about to make a call, or has just made it. Raises OSError if it dies
        here."""
        if self.is_dead(name):
            raise OSError(errno.EIO, f"{name} is dead")
        if self._meet(name, text):
            raise OSError(errno.EIO, f"{name} has just died")

    @contextlib.contextmanager
    def call(self, name: str, text: str, *, changes: bool) -> Iterator[None]:
        """A call: a point before it, and one after it."""
        self.point(name, f"before {text}")
        yield
        self._changed |= changes
        self.point(name, f"after {text}")

    def _meet(self, name: str, text: str) -> bool:
        if self.at_point is None:
            return False
        changed, self._changed = self._changed, False
        if not self.at_point(Point(name, text, changed)):
            return False
        self.at_point = None
        if name in self._commands:
            self._commands[name].kill()
        elif name in self.lives:
            self.lives[name].die()
        self.powered_off.set()
        return True

    def _observe(self, operation: Operation) -> None:
        kind, path = operation.kind, Path(operation.path)
        if kind in _READS or operation.host not in (*self.names, *self._commands):
            return
        if operation.host in self._commands:
            # It writes into a folder of its own, which whoever comes after it begins anew.
            self.point(operation.host, f"before {kind} {path.name}")
            return
        in_transaction = kind == "write" and path.name.endswith("-wal")
        if not in_transaction:
            self._changed |= self._uncommitted
            self._uncommitted = False
        # After one operation is before the next, or before another call.
        self.point(operation.host, f"before {kind} {path.name}")
        if in_transaction:
            self._uncommitted = True
        elif kind not in _SYNCS and not (kind in _CONTENT and _PRIVATE.search(path.name)):
            self._changed = True

    def _on_publish(self, sender: str, message: BusMessage) -> None:
        name = sender.partition("-")[0]
        if message.subject == _SUBJECTS.heartbeat() or self.at_point is None:
            return
        self._changed |= self._uncommitted
        self._uncommitted = False
        to_coordinator = message.subject.startswith(_SUBJECTS.cluster(""))
        if to_coordinator and name in SERVERS:
            # Dead, it says nothing more, and what it says now does not arrive.
            verb = message.subject.rpartition(".")[2]
            self.point(name, f"before asking the coordinator to {verb}")
        self._changed = True
        if name == COORDINATOR and message.subject.startswith("_INBOX."):
            # The inboxes of the bus in memory: _INBOX.<tenant>.<connection>-<number>.<number>
            asked = message.subject.split(".")[2].partition("-")[0]
            if asked in self.lives and not self.is_dead(asked):
                self._meet(asked, "after the coordinator's answer")


class CallerBackend(Backend):
    """The bucket of one process, each call of which is a point before and after."""

    name = "memory://crashes"

    def __init__(self, cluster: CrashCluster, caller: str) -> None:
        self._cluster = cluster
        self._caller = caller

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        return self._call(
            "put", key, lambda: self._cluster.objects.put(key, body, metadata, condition)
        )

    @contextlib.contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        with contextlib.ExitStack() as stack:
            objects = self._cluster.objects
            yield self._call("get", key, lambda: stack.enter_context(objects.read(key, wanted)))

    def head(self, key: str) -> ObjectHead:
        return self._call("head", key, lambda: self._cluster.objects.head(key))

    def delete(self, key: str, expected_version: str | None) -> None:
        self._call("delete", key, lambda: self._cluster.objects.delete(key, expected_version))

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        objects = self._cluster.objects
        return self._call("list", prefix, lambda: objects.list_page(prefix, start_after, limit))

    def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload:
        return self._call("begin", key, lambda: self._cluster.objects.begin_upload(key, metadata))

    def put_part(self, upload: BucketUpload, number: int, offset: int, body: bytes) -> str:
        objects = self._cluster.objects
        return self._call(
            "part", upload.key, lambda: objects.put_part(upload, number, offset, body)
        )

    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        objects = self._cluster.objects
        return self._call(
            "complete", upload.key, lambda: objects.complete_upload(upload, tags, condition)
        )

    def abort_upload(self, upload: BucketUpload) -> None:
        self._call("abort", upload.key, lambda: self._cluster.objects.abort_upload(upload))

    def close(self) -> None:
        """Nothing is kept open."""

    def _call(self, kind: str, key: str, effect: Callable[[], _T]) -> _T:
        text = f"{kind} {key.partition('/')[0]}"
        with self._cluster.call(self._caller, text, changes=kind not in _BUCKET_READS):
            return effect()


@contextlib.contextmanager
def short_times(cluster: Callable[[], CrashCluster]) -> Iterator[None]:
    """Let what the tiers take from the machine come from the cluster, and wait seconds, not
    hours."""

    class Thread:
        def __call__(self, function: Callable[[], Any]) -> Any:
            return cluster().run_in_thread(function)

        def stop(self) -> None:
            """It ends with its process."""

    def files(*arguments: Any, **options: Any) -> Iterator[Any]:
        return resting_files(cluster().files, *arguments, **options)

    places: list[tuple[Any, str, Any]] = [
        (stored_writer, "BucketThread", Thread),
        (bucket_ground, "BucketThread", Thread),
        (bucket_log, "ThreadPoolExecutor", OneByOne),
        (cooling, "resting_files", files),
        (cooling, "_ABANDONED_SECONDS", 1.0),
        (Cooler, "_free_ratio", lambda cooler: 1.0),
        (bucket_reaper, "_PASS_SECONDS", 2.0),
        (stored_writer, "_RETIRE_SECONDS", 1.0),
        (stored_writer, "_LATE_PUT_SECONDS", 1.0),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in places:
            stack.enter_context(patch.object(owner, name, value))
        yield
