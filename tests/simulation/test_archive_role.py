"""Servers that read the archive for an owner, in a simulated cluster whose servers are killed, with
a table that lacks some of what an export marked, and readers that mix messages up: what was
acknowledged stays readable, once, as it was."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from holdfast.client import HoldfastError
from holdfast.coordinator.answering.assigning import WorkAssigner
from holdfast.coordinator.answering.requests import ClaimWork
from holdfast.coordinator.decisions.claims import WorkClaim
from holdfast.coordinator.state.claim_records import ClaimRecords
from holdfast.persist import composition
from holdfast.persist.archive_reading import archive_access, archive_server
from holdfast.persist.archive_reading.asks import ArchiveAsk
from holdfast.persist.operations import reads
from holdfast.persist.tier import archiving
from holdfast.persist.tier.archiving import Archiver
from holdfast.protocol.errors import ArchiveMissingError
from holdfast.protocol.frames import GET_MESSAGES
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.work import cold_work
from holdfast.protocol.work.roles import Role
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests
from holdfast.shared_fs.snapshots.store_entry import ArchiveMark, StoreEntry
from holdfast.shared_fs.store_file import archived_blocks
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Bodies
from tests.simulation.run import tiers_of
from tests.simulation.simulated_bucket import SimulatedBucket
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import TENANT, ClientNode, ServerNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop
from tests.simulation.work_witness import WorkWitness

SEED = 2
_NAMES = ("notes", "tasks")
_WORK_SECONDS = 12.0
_OWNER = (Role.PERSIST, Role.TIER)
_READER = (Role.ARCHIVE,)


class Table:
    """What exports have written: values by stream, seq and revision, in the table's newest
    version."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, int], bytes] = {}
        #: How often the table lacked a message that it is marked to have.
        self.lost_count = 0
        self.read_count = 0
        self.warm_count = 0

    def archive(self, url: str) -> SimulatedArchive:
        return SimulatedArchive(self)


class SimulatedArchive:
    """Reads that table: the version that it has looked up last."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known: dict[tuple[str, int, int], bytes] | None = None

    def bodies(self, messages: Sequence[ArchivedMessage]) -> Bodies:
        self._table.read_count += 1
        wanted = [(each.place.name, each.seq, each.revision) for each in messages]
        if self._known is None or any(each not in self._known for each in wanted):
            self._known = dict(self._table.rows)
        missing = [each[1] for each in wanted if each not in self._known]
        if missing:
            name, seqs = messages[0].place.name, (missing[0], missing[-1])
            raise ArchiveMissingError(
                store=name, first_seq=seqs[0], last_seq=seqs[1], table="t", reason="lost"
            )
        return {each[1:]: (self._known[each], None) for each in wanted}

    def warm(self, messages: Sequence[ArchivedMessage]) -> None:
        self._table.warm_count += 1

    def look_again(self, table: str) -> None:
        self._known = None

    def forget(self) -> None:
        self._known = None


class World:
    """Streams that are written, exported, archived, deleted from and read, and what they have."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.chance = simulation.chance("archive role")
        self.table = Table()
        self.values: dict[str, dict[int, tuple[int, bytes]]] = {name: {} for name in _NAMES}
        assert simulation.bucket is not None
        self.manifests = open_manifests(simulation.bucket.in_good_weather())
        self.read_count = self.told_count = self.mixed_count = 0
        #: Watches which server reads which part of the archive, in which epoch.
        self.witness = WorkWitness(simulation)

    @contextlib.contextmanager
    def in_it(self) -> Iterator[None]:
        """Let servers read this table, and let some that read it for others mix messages up."""
        answer_of, bucket_of = archive_server.answer_of, SimulatedBucket.of

        def mixed(ask: ArchiveAsk, bodies: Bodies, limit_bytes: int) -> list[tuple[bytes, Any]]:
            rows = answer_of(ask, bodies, limit_bytes)
            self.told_count += 1
            if len(rows) > 1 and self.chance.random() < 0.2:
                self.mixed_count += 1
                rows[0], rows[-1] = rows[-1], rows[0]
            return rows

        def of(shared: SimulatedBucket, caller: Any) -> Bucket:
            bucket = bucket_of(shared, caller)
            bucket.url = "memory://simulated"
            return bucket

        cold_work.archive_works.cache_clear()
        with (
            patch.object(composition, "Archive", self.table.archive),
            patch.object(archive_server, "answer_of", mixed),
            patch.object(archived_blocks, "ARCHIVE_BLOCK_ROWS", 8),
            patch.object(archiving, "_LOOKS_PASSED_OVER", 2),
            # All of it is one part, which both owners ask for.
            patch.object(cold_work, "ARCHIVE_PARTS", 1),
            patch.object(archive_access, "_AWAY_SECONDS", 0.5),
            patch.object(archive_access, "_WRONG_SECONDS", 0.5),
            patch.object(SimulatedBucket, "of", of),
            self.witness.watching(),
            tiers_of(self.simulation),
        ):
            yield
        cold_work.archive_works.cache_clear()

    def export(self) -> None:
        """Write what is acknowledged to the table, perhaps not all of it, and mark it."""
        for name, values in self.values.items():
            self._export(name, values)

    def _export(self, name: str, values: dict[int, tuple[int, bytes]]) -> None:
        store = StoreId(TENANT, StoreKind.STREAM, name)
        entry = self.manifests.find(store)
        if entry is None or entry.newest is None:
            return
        newest = entry.newest
        for seq, (revision, value) in values.items():
            if revision > newest.revision or (name, seq, revision) in self.table.rows:
                continue
            if self.chance.random() < 0.1:
                # It comes with a later export.
                self.table.lost_count += 1
            else:
                self.table.rows[name, seq, revision] = value
        there = [seq for seq, (revision, _) in values.items() if revision <= newest.revision]
        mark = ArchiveMark(newest.epoch, newest.revision, "")

        def change(found: StoreEntry | None) -> StoreEntry | None:
            if found is None:
                return None
            return replace(found, archive=mark, archived_seq=max([found.archived_seq, *there]))

        self.manifests.update_entry(store, change)

    async def work(self, client: Any, until: float) -> None:
        """Write, delete and read until a time."""
        await asyncio.gather(*(self._work(client, name, until) for name in _NAMES))

    async def _work(self, client: Any, name: str, until: float) -> None:
        loop, values = asyncio.get_running_loop(), self.values[name]
        stream = client.stream(name)
        await stream.configure(archive_after_seconds=0.01, timeout_seconds=30.0)
        number = 0
        while loop.time() < until:
            await asyncio.sleep(self.chance.expovariate(10.0))
            number += 1
            match self.chance.choice(("append", "append", "read", "read", "delete", "set")):
                case "append":
                    new = [b"%s %d/%d" % (name.encode(), number, each) for each in range(4)]
                    acks = await stream.append_many(new, timeout_seconds=60.0)
                    for ack, value in zip(acks, new, strict=True):
                        values[ack.seq] = ack.revision, value
                case "delete" if values:
                    seq = self.chance.choice(sorted(values))
                    await stream.delete([seq], timeout_seconds=60.0)
                    del values[seq]
                case "set" if values:
                    seq = self.chance.choice(sorted(values))
                    ack = await stream.set(seq, b"set %d" % number, timeout_seconds=60.0)
                    values[seq] = ack.revision, b"set %d" % number
                case _:
                    await self._check(client, name)

    async def check(self, client: Any) -> None:
        """Read all of them, and compare."""
        for name in _NAMES:
            await self._check(client, name)

    async def _check(self, client: Any, name: str) -> None:
        found: dict[int, bytes] = {}
        self.read_count += 1
        try:
            async for each in client.stream(name).get_all(timeout_seconds=60.0):
                if each.seq in found:
                    self.simulation.fail(f"message {each.seq} of {name} is read twice")
                found[each.seq] = each.value
        except HoldfastError as error:
            self.simulation.fail(f"what was acknowledged cannot be read: {error!r}")
            return
        expected = {seq: value for seq, (_, value) in self.values[name].items()}
        if found != expected:
            wrong = sorted(seq for seq in found | expected if found.get(seq) != expected.get(seq))
            self.simulation.fail(f"messages {wrong} are {[found.get(seq) for seq in wrong]}")


def play(seed: int) -> World:
    """Kill owners and readers of the archive under an application."""

    async def main() -> World:
        simulation = Simulation(seed, tiers=True)
        simulation.tier_policy = replace(
            simulation.tier_policy, archive_look_seconds=0.1, snapshot_seconds=0.2
        )
        # Two own stores, and the others read the archive for them.
        simulation.roles = {"s1": _OWNER, "s2": _READER, "s3": _READER, "s4": _OWNER}
        simulation.servers.append(ServerNode(simulation, "s4"))
        world = World(simulation)
        with world.in_it():
            async with simulation:
                node = ClientNode(simulation, "k1")
                simulation.clients.append(node)
                client = await node.run(node.start(timeout_seconds=60.0))
                loop = asyncio.get_running_loop()
                until = loop.time() + _WORK_SECONDS
                working = node.run(world.work(client, until))
                while loop.time() < until:
                    await asyncio.sleep(0.4)
                    world.export()
                    if world.chance.random() < 0.15:
                        server = world.chance.choice(simulation.servers)
                        server.kill()
                        server.start_later(0.3)
                await working
                await asyncio.sleep(6.0)
                await node.run(world.check(client))
        return world

    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def failures_of(world: World) -> list[str]:
    return world.simulation.history.failures


def test_what_was_archived_is_read_as_it_was_whoever_reads_it_and_dies() -> None:
    world = play(SEED)
    assert failures_of(world) == []
    assert world.read_count > 5 and world.told_count > 20
    assert world.mixed_count and world.table.lost_count
    assert world.witness.step_count > 20 and world.witness.change_count > 0


def test_an_answer_that_nobody_checks_is_found() -> None:
    def unchecked(answer: Any, wanted: Sequence[ArchivedMessage]) -> Bodies:
        rows = zip(wanted, answer["bodies"], strict=False)
        return {(message.seq, message.revision): tuple(row) for message, row in rows}

    with patch.object(archive_access, "bodies_of_answer", unchecked):
        failures = failures_of(play(SEED))
    assert any("are [" in failure for failure in failures), failures


def test_what_the_archive_said_of_messages_that_were_deleted_since_is_found() -> None:
    execute = reads.execute
    everything: dict[Any, dict[int, Any]] = {}

    def believing(
        store: Any, server: str, operations: Any, archived: Any = None, *more: Any
    ) -> Any:
        results = execute(store, server, operations, archived, *more)
        if operations[0][0] != GET_MESSAGES or not results or not results[0][0]:
            return results
        rows = {row[0]: row for row in results[0][0]}
        told = everything.setdefault(store.id, {})
        told.update((seq, row) for seq, row in rows.items() if (seq, row[1]) in (archived or {}))
        kept = {seq: row for seq, row in told.items() if min(rows) <= seq <= max(rows)}
        whole = kept | rows
        return [[[whole[seq] for seq in sorted(whole)], *results[0][1:]], *results[1:]]

    with patch.object(reads, "execute", believing):
        failures = failures_of(play(SEED))
    assert any("are [" in failure for failure in failures), failures


def test_a_block_that_leaves_its_file_unread_is_found() -> None:
    async def believed(this: Archiver, draft: Any) -> bool:
        return True

    with patch.object(Archiver, "_is_archived", believed):
        failures = failures_of(play(SEED))
    assert any("ArchiveMissingError" in failure for failure in failures), failures


def test_a_part_of_the_archive_that_is_granted_to_a_second_server_is_found() -> None:
    everything, claim = ClaimRecords.all, WorkAssigner.claim
    granted: dict[str, dict[str, int]] = {}
    turns = itertools.count()

    def free_for_all(records: ClaimRecords) -> dict[str, WorkClaim]:
        return {
            work: WorkClaim(None, claim.epoch) if work.startswith("archive-") else claim
            for work, claim in everything(records).items()
        }

    def twice(this: WorkAssigner, asked: ClaimWork) -> dict[str, object]:
        """Grant it to whoever asks, and take it from nobody."""
        if asked.offers == frozenset(granted.get(asked.server, ())):
            return {"claims": list(granted[asked.server].items()), "wanted": []}
        answer = claim(this, asked)
        if any(work.startswith("archive-") for work in asked.offers):
            granted[asked.server] = dict(answer["claims"])  # type: ignore[call-overload]
        return answer

    def named(this: WorkAssigner, works: Iterable[str]) -> list[list[object]]:
        """Name one of them, or the other."""
        if not granted:
            return []
        server = sorted(granted)[next(turns) % len(granted)]
        return [[work, server, epoch] for work, epoch in granted[server].items()]

    with (
        patch.object(ClaimRecords, "all", free_for_all),
        patch.object(WorkAssigner, "claim", twice),
        patch.object(WorkAssigner, "holders", named),
    ):
        failures = failures_of(play(SEED))
    assert any(" does archive-" in failure for failure in failures), failures
