"""A whole cluster in one event loop: coordinators, persist servers and clients that can be harmed.

All chance comes from the seed, in one stream for each use, so that a change in one place does not
move everything. The processes are in `simulated_nodes.py`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self
from unittest.mock import patch

from holdfast.persist import service
from holdfast.persist.operations import eviction
from holdfast.persist.shared_disk import freshness
from holdfast.persist.threads.loop_watch import Turns
from holdfast.persist.write_path import checkpointing, materialising
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.bus.bus_memory import MemoryDelivery, MemoryNetwork
from holdfast.protocol.changes import SETS, number_of, set_value
from holdfast.protocol.limits import (
    LOG_SEGMENT_BYTES,
    MAX_EXPIRED_ROWS,
    MAX_PENDING_CHANGES,
    PROBE_TIMEOUT_SECONDS,
    SILENCE_SECONDS,
)
from holdfast.protocol.serving import trouble
from holdfast.protocol.subjects import Inboxes, Subjects
from holdfast.protocol.work.roles import ALL_ROLES
from holdfast.shared_fs.bucket import cluster_id
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.layout import Layout
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import ReadsKeys
from tests.simulation.simulated_bucket import SimulatedBucket
from tests.simulation.simulated_files import Inode, Operation, SimulatedFileSystem
from tests.simulation.simulated_nodes import (
    EPOCH_MS,
    ROOT,
    TENANT,
    ClientNode,
    CoordinatorNode,
    Node,
    ServerNode,
)
from tests.simulation.simulated_pipes import SimulatedPipes
from tests.simulation.simulated_threads import current_thread
from tests.simulation.simulated_tiers import short_policy
from tests.simulation.token_office import TokenOffice
from tests.simulation.virtual_loop import current_process
from tests.simulation.work_witness import ROLES, WorkWitness
from tests.support.checking.history import Broadcast, History, change_of_wire

SERVERS: Final = ("s1", "s2", "s3")
COORDINATORS: Final = ("c1", "c2")
#: In a cluster that asks for tokens only clients have these, and names come after their ids.
_INBOXES: Final = f"{Inboxes().start(TENANT)}."
#: Clients' names on the bus start with k.
_CLIENTS_INBOXES: Final = f"{_INBOXES}k"
#: A coordinator that has heard nothing for longer fences nobody.
HEARING_SECONDS: Final = 2.0
#: A fence that was begun in a silence is not called off by what is heard later, and it may take so
#: long: a pause of the coordinator, and a slow disk.
_FENCE_SECONDS: Final = 10.0
#: In subjects that a stranger names for replies and has no business with.
CANARY: Final = "canary"
#: How long the tasks of a dead process may take to notice.
_UNWIND_SECONDS: Final = 120.0


class Trace:
    """What happened, as text: the same for the same seed, to the byte."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._loop = asyncio.get_running_loop()

    def add(self, text: str) -> None:
        """Note `text` with the time and the process."""
        process = current_process()
        name = process.name if process is not None else "-"
        self.lines.append(f"{self._loop.time():12.6f} {name:8} {text}")

    @property
    def checksum(self) -> int:
        return zlib.crc32("\n".join(self.lines).encode())


class _LogToTrace(logging.Handler):
    def __init__(self, trace: Trace) -> None:
        super().__init__(logging.INFO)
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        self._trace.add(f"{record.levelname.lower()} {record.getMessage()}")


class Weather:
    """How the bus and the disks behave, but for what is cut off altogether."""

    def __init__(self, chance: random.Random) -> None:
        self.loss = chance.choice((0.0, 0.0, 0.002, 0.02))
        self.doubling = chance.choice((0.0, 0.0, 0.01))
        self.in_order = chance.random() < 0.7
        self.latency_seconds = chance.choice((0.0002, 0.001, 0.005))
        self.sync_seconds = chance.choice((0.001, 0.005, 0.02, 0.06))
        self.slow_hosts: set[str] = set()
        #: Hosts whose operations fail, with the kinds that do and how often.
        self.failing: dict[str, tuple[frozenset[str], int, float]] = {}


class Simulation:
    """One run's cluster. Use it as `async with`, in a VirtualLoop."""

    def __init__(
        self, seed: int, *, tiers: bool = False, grants: bool = False, roles: bool = False
    ) -> None:
        """With `tiers` there is a bucket, and stores go cold within seconds; with `grants` the
        cluster is not open: it asks for tokens; with `roles` servers own stores or do cold work."""
        self.seed = seed
        self.loop = asyncio.get_running_loop()
        self.trace = Trace()
        self.history = History()
        self.history.epoch_seconds = EPOCH_MS / 1000
        self.weather = Weather(self.chance("weather"))
        self.layout = Layout(ROOT)
        self.network = MemoryNetwork(self._deliveries)
        self.files = SimulatedFileSystem(
            self.chance("power"), self._observe, lambda: EPOCH_MS + int(self.loop.time() * 1000)
        )
        self.bucket = (
            SimulatedBucket(self.chance("bucket"), lambda: EPOCH_MS / 1000 + self.loop.time())
            if tiers
            else None
        )
        #: After so many more calls of the bucket, or operations of a thread on a disk, who makes it
        #: dies.
        self.crash_in_bucket = self.crash_on_disk = 0
        #: Who next publishes a snapshot is stopped for so long.
        self.stop_in_bucket_seconds = 0.0
        #: Names of connections that nothing reaches and nothing leaves.
        self.cut_off: set[str] = set()
        #: Names of connections that hear nothing, and since when, and may speak.
        self.deaf: dict[str, float] = {}
        limits = self.chance("limits")
        self.idle_close_seconds = limits.choice((1.0, 3.0, 10.0))
        self.max_open_stores = limits.choice((2, 4, 1000))
        self.max_awake_files = self.chance("awake files").choice((0, 1, 1000))
        tier_chance = self.chance("tiers")
        self.tier_policy = short_policy(tier_chance)
        if tiers:
            self.idle_close_seconds = tier_chance.choice((0.2, 0.5, 2.0))
        #: What servers know of encrypted tenants. None: there are none.
        self.keys: ReadsKeys | None = None
        self.master_keys: dict[str, MasterKey] = {}
        self._life_count = 0
        self._skews = self.chance("clocks")
        self._network_chance = self.chance("network")
        self._disk_chance = self.chance("disk")
        self._thread_chance = self.chance("threads")
        self.crash_chance = self.chance("crashes")
        self._arrivals: dict[tuple[str, str], float] = {}
        #: Where the fence of each incarnation lies, by the name of its process.
        self._fences: dict[str, Path] = {}
        #: Coordinators that have written to the state, and not read their claim since.
        self._unproven: set[str] = set()
        #: The coordinators that have begun a term.
        self._claimants: set[str] = set()
        #: When a heartbeat of a server last reached a coordinator, by the names of their processes.
        self._heard_at: dict[tuple[str, str], float] = {}
        #: When the last silence ended that was long enough for a fence to be begun in it.
        self._silent_until: dict[tuple[str, str], float] = {}
        #: These two exclude each other: see `Nemesis._restore_state`.
        self.power_was_cut = self.state_is_being_restored = False
        #: A coordinator may fence healthy servers: it began from an older state, which does not
        #: know them, or its disk failed, and it tries until a fence begun long ago is there.
        self.may_fence_the_healthy = False
        #: Whoever waits for the file server waits until then.
        self.storage_stops_until = 0.0
        #: The same for a host whose own mount hangs.
        self.mounts_hang_until: dict[str, float] = {}
        self.roles = ROLES if roles else dict.fromkeys(SERVERS, ALL_ROLES)
        self.servers = [ServerNode(self, name) for name in self.roles]
        self.witness = WorkWitness(self)
        self.coordinators = [CoordinatorNode(self, name) for name in COORDINATORS]
        #: How often the coordinators' clocks have been set.
        self.coordinators_leapt = 0
        self.clients: list[ClientNode] = []
        #: None if all that servers hear and say goes over the bus.
        self.direct: SimulatedPipes | None = None
        self._handler = _LogToTrace(self.trace)
        self._subjects = Subjects()
        self.network.taps.append(self._on_publish)
        #: Who issues tokens; None in an open cluster.
        self.office = TokenOffice(self) if grants else None

    def chance(self, use: str) -> random.Random:
        """Return the stream of chance for one use."""
        return random.Random(f"{self.seed}/{use}")

    @property
    def nodes(self) -> list[Node]:
        return [*self.servers, *self.coordinators]

    def active_coordinator(self) -> CoordinatorNode | None:
        """Return the coordinator that has the lock."""
        lock = self.files.find(self.layout.coordinator / "lock")
        holders = [
            node
            for node in self.coordinators
            if node.running and isinstance(lock, Inode) and lock.locked_by is node.disk
        ]
        return holders[0] if holders else None

    def term(self) -> int:
        """Return the last term that has begun; 0 before the first."""
        term = self.files.find(self.layout.coordinator / "term")
        return int(term.content) if isinstance(term, Inode) and term.content else 0

    def skew_ms(self) -> int:
        """Return how far a node's wall clock is off."""
        return self._skews.choice((0, 0, self._skews.randrange(-5000, 5000)))

    async def __aenter__(self) -> Self:
        logger = logging.getLogger("holdfast")
        self._log_state = (logger.level, logger.propagate)
        self._segment_bytes = commit_log.LOG_SEGMENT_BYTES
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self._handler)
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        for node in self.nodes:
            node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            await client.stop()
        for node in self.nodes:
            node.end()
        dead = [task for node in self.nodes for task in node.tasks]
        dead += [task for client in self.clients for task in client.tasks]
        if dead:
            _ended, left = await asyncio.wait(dead, timeout=_UNWIND_SECONDS)
            for task in left:
                self.fail(f"a task of a dead process does not end: {task!r}")
        await self.end_lives()
        if self.office is not None:
            self.office.close()
        # A doomed stream may have made it smaller.
        commit_log.LOG_SEGMENT_BYTES = self._segment_bytes  # type: ignore[misc]
        logger = logging.getLogger("holdfast")
        logger.removeHandler(self._handler)
        logger.level, logger.propagate = self._log_state

    def fail(self, what: str) -> None:
        """Something is wrong beyond what the checker sees."""
        self.trace.add(f"FAILURE {what}")
        self.history.failures.append(what)

    def next_incarnation(self, node: Node) -> str:
        """Return the id of a server's next life; ids sort by their start."""
        self._life_count += 1
        number = node.life if self.bucket is None else self._life_count
        return f"{number:04d}{node.name}"

    def started(self, node: Node, incarnation: str) -> None:
        """A persist server's new incarnation is about to publish under this process's name."""
        assert node.process is not None
        self._fences[node.process.name] = self.layout.fence(node.name, incarnation)

    def ends_history(self) -> None:
        """What leaves servers from now on is no longer noted."""
        self.network.taps.remove(self._on_publish)

    def node_here(self) -> Node:
        """Return the node that the running callback belongs to."""
        process = current_process()
        return next(node for node in self.nodes if node.process is process)

    async def end_lives(self) -> None:
        """Kill every node, and return once nothing of them is left."""
        for node in self.nodes:
            node.kill()
        ending = [task for node in self.nodes for task in node.tasks]
        if ending:
            await asyncio.wait(ending, timeout=_UNWIND_SECONDS)
        give_up_at = self.loop.time() + _UNWIND_SECONDS
        while any(node.thread_count for node in self.nodes):
            if self.loop.time() > give_up_at:
                self.fail("a thread of a dead process does not end")
                return
            await asyncio.sleep(0.05)

    # --- the bus -----------------------------------------------------------------------------
    def _deliveries(self, delivery: MemoryDelivery) -> Sequence[float]:
        sender, receiver, subject, payload = delivery
        weather, chance = self.weather, self._network_chance
        if sender in self.cut_off or receiver in self.cut_off or receiver in self.deaf:
            return ()
        if chance.random() < weather.loss:
            self.trace.add(f"lost {subject} to {receiver}")
            return ()
        delays = [self._delay(chance)]
        if chance.random() < weather.doubling:
            delays.append(delays[0] + self._delay(chance) * 10)
        if weather.in_order:
            # As on one TCP connection.
            now = asyncio.get_running_loop().time()
            at = max(now + delays[0], self._arrivals.get((sender, receiver), 0.0) + 1e-7)
            self._arrivals[sender, receiver] = at
            delays[0] = at - now
        if subject == self._subjects.heartbeat():
            self._note_heartbeat(sender, receiver, asyncio.get_running_loop().time() + delays[0])
        self.trace.add(f"send {subject} to {receiver} in {delays[0]:.6f} {zlib.crc32(payload):08x}")
        return delays

    def _delay(self, chance: random.Random) -> float:
        typical = self.weather.latency_seconds
        if chance.random() < 0.01:
            return typical + chance.uniform(0.0, 0.3)
        return typical * chance.uniform(0.5, 1.5)

    def _on_publish(self, sender: str, message: BusMessage) -> None:
        fence_path, subject = self._fences.get(sender), message.subject
        if CANARY in subject:
            self.fail(f"{sender} publishes on {subject}, where nobody has asked")
        if sender in self._unproven and subject.startswith("_INBOX"):
            self.fail(f"{sender} answers, and has not read its term since it wrote to the state")
        if fence_path is None:
            return
        if ".chg.m." in subject:
            # A second time, without values.
            self._observe_meta(sender, message)
        elif ".chg." in subject:
            self._on_broadcast(sender, message)
        elif not subject.startswith(_CLIENTS_INBOXES if self.office is None else _INBOXES):
            return
        self.check_open(sender, subject)

    def check_open(self, sender: str, subject: str) -> None:
        """What an incarnation sends to clients must not leave it once it is fenced."""
        fence_path = self._fences.get(sender)
        if fence_path is None:
            return
        fence = self.files.find(fence_path)
        if not isinstance(fence, Inode) or bytes(fence.content) != b"open  \n":
            self.fail(f"{sender} is fenced and publishes on {subject}")

    def _observe_meta(self, sender: str, message: BusMessage) -> None:
        changes = frames.decode_changes(message.payload).changes
        if any(number_of(each) in SETS and set_value(each) for each in changes):
            self.fail(f"{sender} tells a value on {message.subject}")

    def _on_broadcast(self, sender: str, message: BusMessage) -> None:
        store = self._subjects.store_of(message.subject)
        batch = frames.decode_changes(message.payload)
        changes = tuple(
            (batch.previous_revision + number, change_of_wire(change))
            for number, change in enumerate(batch.changes, start=1)
        )
        self.history.broadcasts.append(
            Broadcast(sender, (store.kind, store.name), batch.epoch, changes)
        )

    # --- disks and threads -------------------------------------------------------------------
    def _observe(self, operation: Operation) -> None:
        if operation.kind != "read":
            self.trace.add(f"{operation.kind} {operation.path} {operation.size_bytes}")
        if operation.host in COORDINATORS and operation.process in self.deaf:
            self._observe_deaf(operation)
        is_fence = operation.kind == "write" and operation.path.endswith("/fence")
        failing = self.weather.failing.get(operation.host)
        if operation.host in COORDINATORS:
            self.may_fence_the_healthy |= failing is not None
            self._observe_term(operation)
            if is_fence and self._is_deposed(operation.process):
                self.fail(f"{operation.process} fences, and a later coordinator has deposed it")
            if is_fence and not self.may_fence_the_healthy:
                self._observe_fence(operation)
        if failing is not None:
            kinds, number, ratio = failing
            if operation.kind in kinds and self._disk_chance.random() < ratio:
                self.trace.add(f"disk fails {operation.kind} {operation.path}")
                raise OSError(number, f"simulated {errno.errorcode[number]}")
        if self.crash_on_disk and operation.kind != "read" and current_thread() is not None:
            self.crash_on_disk -= 1
            if self.crash_on_disk == 0:
                next(node for node in self.nodes if node.name == operation.host).crash()

    def _observe_term(self, operation: Operation) -> None:
        """A coordinator must read its own claim after it has written to the state."""
        name = Path(operation.path).name
        if name.startswith("state.") and operation.kind == "write":
            self._unproven.add(operation.process)
        elif name.startswith("term.") and operation.kind == "rename":
            self._claimants.add(operation.process)
        elif name.startswith("term.") and operation.kind == "read":
            claim = self.files.find(Path(operation.path))
            if isinstance(claim, Inode) and _is_claim_of(operation.process, claim):
                self._unproven.discard(operation.process)

    def _is_deposed(self, process: str) -> bool:
        """Tell if the term of this life of a coordinator does not count any more. Before it begins
        one it may fence whoever is left of a state that is lost, if it has the lock."""
        folder = self.layout.coordinator
        lock = self.files.find(folder / "lock")
        if process not in self._claimants and isinstance(lock, Inode):
            return getattr(lock.locked_by, "process", None) != process
        claims = [self.files.find(folder / name) for name in self.files.names(folder, ("term.",))]
        return not any(isinstance(each, Inode) and _is_claim_of(process, each) for each in claims)

    def _observe_deaf(self, operation: Operation) -> None:
        """A coordinator that hears nothing must know that it may be deaf itself. What it heard
        before counts: a server that was silent long enough by then may be fenced."""
        if operation.kind != "write" or not operation.path.endswith("/fence"):
            return
        deaf_at = self.deaf[operation.process]
        seconds = self.loop.time() - deaf_at
        heard_at = [
            self._heard_at.get((process, operation.process), -SILENCE_SECONDS)
            for process, path in self._fences.items()
            if str(path) == operation.path
        ]
        was_silent = all(deaf_at - at > SILENCE_SECONDS for at in heard_at)
        if seconds > HEARING_SECONDS and not was_silent:
            self.fail(f"{operation.process} fences, and has heard nothing for {seconds:.1f} s")

    def may_cut_power(self) -> bool:
        """Tell if the power may be cut now, which it is then."""
        if self.state_is_being_restored:
            return False
        self.power_was_cut = True
        return True

    def _note_heartbeat(self, server: str, coordinator: str, at: float) -> None:
        pair = server, coordinator
        silent_seconds = at - self._heard_at.get(pair, -SILENCE_SECONDS)
        if silent_seconds > SILENCE_SECONDS - PROBE_TIMEOUT_SECONDS:
            self._silent_until[pair] = at
        self._heard_at[pair] = at

    def _observe_fence(self, operation: Operation) -> None:
        """Who was heard a moment ago, and runs, is healthy, whatever NATS says of who listens."""
        path = Path(operation.path)
        for node in self.servers:
            process = node.process
            if process is None or not node.running or self._fences.get(process.name) != path:
                continue
            pair, now = (process.name, operation.process), self.loop.time()
            silent_seconds = now - self._heard_at.get(pair, -SILENCE_SECONDS)
            heard_seconds = now - self._silent_until.get(pair, now)
            if silent_seconds < SILENCE_SECONDS / 2 and heard_seconds > _FENCE_SECONDS:
                self.fail(f"{process.name} is fenced, heard {silent_seconds:.2f} s ago")

    def thread_seconds(self, host: str) -> float:
        """Return how long a call in a thread takes."""
        typical = self.weather.sync_seconds * (30 if host in self.weather.slow_hosts else 1)
        stops_until = max(self.storage_stops_until, self.mounts_hang_until.get(host, 0.0))
        stopped_seconds = max(0.0, stops_until - self.loop.time())
        if self._thread_chance.random() < 0.02:
            return stopped_seconds + typical * 10
        return stopped_seconds + typical * self._thread_chance.uniform(0.3, 1.7)

    def runs_early(self) -> bool:
        """Tell if a call in a thread has its effect at its start rather than at its end."""
        return self._thread_chance.random() < 0.7

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.fail(f"in the loop: {context.get('message')}: {error!r}")


def _is_claim_of(process: str, claim: Inode) -> bool:
    """Tell if this is the claim of a term by a coordinator, and not fenced."""
    return bytes(claim.content).split()[:2] == [b"open", process.encode()]


@contextlib.contextmanager
def small_limits(chance: random.Random) -> Iterator[None]:
    """Make limits so small that a short run reaches them."""
    with contextlib.ExitStack() as stack:
        segment_bytes = chance.choice((2048, 16384, LOG_SEGMENT_BYTES))
        stack.enter_context(patch.object(commit_log, "LOG_SEGMENT_BYTES", segment_bytes))
        stack.enter_context(patch.object(checkpointing, "_QUIET_SEGMENTS", chance.choice((1, 4))))
        changes = chance.choice((2, 32, MAX_PENDING_CHANGES))
        stack.enter_context(patch.object(materialising, "MAX_PENDING_CHANGES", changes))
        stack.enter_context(patch.object(materialising, "MAX_PENDING_MESSAGES", changes))
        stack.enter_context(patch.object(materialising, "MAX_GATHERED_CHANGES", 8 * changes))
        stack.enter_context(patch.object(materialising, "APPLY_SLICE_CHANGES", changes // 2))
        # Not drawn, or every seed would be another run.
        expired = min(changes, MAX_EXPIRED_ROWS)
        stack.enter_context(patch.object(eviction, "MAX_EXPIRED_ROWS", expired))
        stack.enter_context(patch.object(eviction, "_LOOKED_AT_ROWS", max(1, expired // 4)))
        stack.enter_context(patch.object(eviction, "_TURNS_IN_LOOP", 1))
        stack.enter_context(patch.object(freshness, "PROOF_ROUNDS", 2))
        # Neither what is drawn elsewhere nor the time of this machine may show in a trace.
        tokens = SimpleNamespace(token_hex=lambda count: "5a" * count)
        stack.enter_context(patch.object(cluster_id, "secrets", tokens))
        clock = asyncio.get_running_loop().time
        stack.enter_context(patch.object(service, "Turns", lambda server: Turns(server, clock)))
        stack.enter_context(patch.object(trouble, "time", SimpleNamespace(monotonic=clock)))
        yield
