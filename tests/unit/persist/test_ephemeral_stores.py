"""Ephemeral stores: what a tick says of them, what their file has, and what the next owner begins
with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.persist.ephemeral.anchor import RESERVED_NUMBERS
from holdfast.persist.ephemeral.memory_use import MemoryUse
from holdfast.persist.operations import reads
from holdfast.persist.recovery.point_in_time import RestoreTarget, course
from holdfast.persist.recovery.takeover import plan
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.tick import MemoryPart, Tick
from holdfast.protocol import changes, frames
from holdfast.protocol.errors import StorageFailedError, StoreDamagedError
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.present import present
from tests.support.stores import EPHEMERAL, ephemeral_store, file_of, no_file, store_of
from tests.unit.persist.test_tick import append, arrival

STREAM = StoreId("acme", StoreKind.STREAM, "cursors")
KV = StoreId("acme", StoreKind.KV, "presence")
SYNCED, MEMORY = Durability.SYNCED, Durability.MEMORY


class Life:
    """An ephemeral store and its owners, one after the other, with the log that they wrote."""

    def __init__(self, directory: Path, store: StoreId = STREAM) -> None:
        self.id = store
        self.path = directory / "store.db"
        self.records: list[LogRecord] = []
        self.number = self.counter = 0
        self.store = ephemeral_store(self.path, store)

    def tick(self, *wanted: list[Any], durability: int = 0, commit: bool = True) -> Tick:
        """Execute a group in a tick of its own, which the log takes if it has anything for it."""
        self.counter += 1
        tick = Tick(self.number + 1, 1000 + self.number, SYNCED)
        options: Any = {"durability": durability, "first_unacked": self.counter}
        tick.write(self.store, arrival(self.store, self.counter, *wanted, **options))
        records = tick.records()
        if records and commit:
            self.records += records
            self.number += 1
            tick.committed(1)
        return tick

    def materialise(self) -> None:
        self.store.materialise(self.number)
        self.store.validate()

    def fail_over(self) -> None:
        """The owner is killed. The next one has the file, and the log."""
        file_of(self.store).abandon()
        file = StoreFile.open(self.path, self.id)
        found = plan(
            self.id, self.records, file_epoch=file.meta.epoch, file_revision=file.meta.revision
        )
        file.apply(found.batches, found.outcomes)
        file.take(self.store.epoch + 1, "s", "i")
        self.store = Store(self.id, self.store.epoch + 1, file, no_file)

    def read(self, *operation: Any) -> Any:
        self.materialise()
        return reads.execute(self.store, "s1", [list(operation)])[0]

    def values(self) -> list[bytes]:
        return [row[3] for row in self.read(frames.GET_MESSAGES)[0]]


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path)
    yield life
    file_of(life.store).abandon()


def part_of(tick: Tick) -> MemoryPart:
    [part] = tick.memory_parts(0)
    return part


def outcome(tick: Tick) -> frames.Outcome:
    [[element]] = part_of(tick).answers.values()
    return frames.decode_outcome(element[2])


def test_the_first_write_reserves_and_waits_and_later_ones_wait_for_nothing(life: Life) -> None:
    first = life.tick(append(b"zq7"))
    [record] = life.records
    [payload] = record.payloads
    assert b"zq7" not in payload
    [change] = frames.decode_changes(payload).changes
    assert changes.reserved(change)[1:] == (2 + RESERVED_NUMBERS, 1 + RESERVED_NUMBERS)
    assert (record.previous_revision, record.revision) == (1, 2 + RESERVED_NUMBERS)
    assert record.outcomes == []
    assert part_of(first).wait_for == 1
    for number in range(3):
        later = life.tick(append(b"%d" % number))
        assert later.records() == []
        # That of the first: their order holds.
        assert part_of(later).wait_for == 1
        assert outcome(later).durability == MEMORY
        assert (later.synced, later.broadcasts) == ({}, [])
        assert len(part_of(later).broadcasts) == 1
    assert life.values() == [b"zq7", b"0", b"1", b"2"]
    assert b"zq7" not in life.path.read_bytes()
    assert file_of(life.store).meta.revision == record.revision
    assert file_of(life.store).meta.count == 0


def test_numbers_are_reserved_again_before_they_run_out(life: Life) -> None:
    life.tick(append())
    anchor = present(life.store.anchor)
    life.store.revision = anchor.revision - 2
    assert life.tick(append()).records() == []
    life.tick(append())
    assert len(life.records) == 2
    assert life.records[1].previous_revision == life.records[0].revision
    assert life.records[1].revision == life.store.revision + RESERVED_NUMBERS


def test_the_next_owner_begins_empty_and_beyond_and_followers_begin_anew(life: Life) -> None:
    life.tick(append(b"a"), append(b"b"))
    revision = life.store.revision
    before = life.records[-1].revision
    for _ in range(3):
        # Whoever writes nothing reserves nothing.
        life.fail_over()
        assert (life.store.count, life.store.revision) == (0, before)
        assert life.values() == []
        _, _, _, _, is_reset = life.read(frames.CHANGES, revision, None, None, None)
        assert is_reset
        _, _, _, _, is_reset = life.read(frames.CHANGES, before, None, None, None)
        assert not is_reset
    acks = outcome(life.tick(append(b"c"))).results
    assert isinstance(acks, frames.Run)
    assert acks[:2] == (2 + RESERVED_NUMBERS + 1, before + 1)
    assert life.values() == [b"c"]


def test_a_retry_is_known_to_its_owner_and_new_to_the_next_one(life: Life) -> None:
    life.tick(append(b"a"))
    life.counter = 0
    again = life.tick(append(b"a"))
    assert (life.store.count, again.memory_parts(0)) == (1, [])
    [[element]] = again.synced.values()
    assert frames.decode_outcome(element[2]).durability == MEMORY
    life.fail_over()
    life.counter = 0
    life.tick(append(b"a"))
    assert life.values() == [b"a"]


def test_a_configuration_is_in_the_log_and_outlives_the_owner(life: Life) -> None:
    life.tick(append(b"a"))
    tick = life.tick([frames.CONFIGURE, {"max_messages": 5}])
    assert part_of(tick).wait_for == 2
    life.fail_over()
    assert (life.store.config.max_messages, life.store.config.ephemeral) == (5, True)
    life.fail_over()
    assert life.store.config.max_messages == 5


@pytest.mark.parametrize(
    "sent_along",
    [append(b"a"), [frames.BATCH, [append(b"a")]], [frames.CONFIGURE, {"max_messages": 5}]],
)
def test_what_is_sent_along_with_the_configuration_is_refused_and_not_lost(
    sent_along: list[Any],
) -> None:
    store = store_of(STREAM)
    tick = Tick(1, 1000, SYNCED)
    wanted = [frames.CONFIGURE, {"ephemeral": True}], sent_along
    tick.write(store, arrival(store, 1, *wanted))
    assert tick.records()
    tick.committed(1)
    assert tick.becoming_ephemeral == [store]
    assert store.count == 0
    [[element]] = tick.synced.values()
    _, refusal = frames.decode_outcome(element[2]).results
    assert refusal[0] == "invalid_argument"


def test_a_log_that_takes_no_record_takes_back_the_store_alone(life: Life, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Life(tmp_path / "other", KV)
    other.tick([frames.SET_ENTRY, "a", b"1"])
    tick = Tick(2, 1000, SYNCED)
    tick.write(life.store, arrival(life.store, 1, append(b"a"), reply="r1"))
    tick.write(other.store, arrival(other.store, 2, [frames.SET_ENTRY, "b", b"2"], reply="r2"))
    assert [record.store for record in tick.records()] == [STREAM]
    tick.fail(StorageFailedError(reason="full"))
    assert (life.store.count, other.store.count) == (0, 2)
    assert list(part_of(tick).answers) == ["r2"]
    assert [store.id for store, _ in part_of(tick).broadcasts] == [KV]
    assert list(tick.synced) == ["r1"]
    file_of(other.store).abandon()


@pytest.mark.parametrize("level", [Durability.APPLIED, Durability.SYNCED, Durability.STORED])
def test_a_write_that_asks_for_a_disk_is_refused(life: Life, level: Durability) -> None:
    tick = life.tick(append(), durability=level)
    assert (life.store.count, tick.memory_parts(0)) == (0, [])
    assert "invalid_argument" in str(tick.synced)
    assert outcome(life.tick(append(), durability=MEMORY)).durability == MEMORY


def test_a_read_waits_for_what_its_store_reserves_and_for_no_other(life: Life) -> None:
    tick = Tick(7, 1000, SYNCED)
    group = frames.Group(StoreKind.STREAM, "cursors", 0, 0, 0, [[frames.HEAD]])
    tick.read(life.store, arrival(life.store, 0)._replace(group=group))
    assert tick.records() == []
    assert part_of(tick).wait_for == 0
    assert tick.reads == []


def test_a_reservation_that_is_missing_is_found(life: Life) -> None:
    life.tick(append())
    life.tick([frames.CONFIGURE, {"max_messages": 5}])
    del life.records[0]
    with pytest.raises(StoreDamagedError, match="neither in its file nor in any log"):
        plan(STREAM, life.records, file_epoch=0, file_revision=1)


def test_a_point_in_time_goes_through_reservations(life: Life) -> None:
    life.tick(append())
    life.tick([frames.CONFIGURE, {"max_messages": 5}])
    beginning = AppliedBatch(0, 1, [[changes.CHANGE_CONFIGURE, EPHEMERAL]])
    payload = frames.encode_changes(1, *beginning[:3])
    records = [LogRecord(STREAM, 1, 0, 1, [payload], []), *life.records]
    found = course(STREAM, None, records, RestoreTarget())
    assert found.revision == life.records[-1].revision


def test_a_store_with_content_is_not_forgotten_and_an_empty_one_is_after_a_while(
    life: Life,
) -> None:
    assert not life.store.keeps_memory(0.0), "nobody has used it"
    life.tick(append())
    life.store.used_at = 10.0
    assert life.store.keeps_memory(1e9)
    life.tick([frames.TRIM, 1])
    assert life.store.count == 0
    assert life.store.keeps_memory(600.0), "a retry may come"
    assert not life.store.keeps_memory(1000.0)


def test_memory_is_counted_and_given_back(life: Life) -> None:
    use = MemoryUse(limit_bytes=200_000)
    present(life.store.anchor).joins(use)
    life.tick([frames.CONFIGURE, {"max_bytes": 1 << 20}])
    for _ in range(4):
        life.tick(append(bytes(60_000)))
        life.materialise()
    assert use.used_bytes > 240_000
    assert present(life.store.anchor).is_full
    content = present(life.store.contents.file)._connection
    life.store.end()
    assert use.used_bytes == 0
    # The collector would close it, but hardly ever looks at what is old.
    with pytest.raises(apsw.ConnectionClosedError):
        content.pragma("page_count")


def test_memory_that_changes_take_before_they_are_rows_is_counted(life: Life) -> None:
    use = MemoryUse(limit_bytes=200_000)
    anchor = present(life.store.anchor)
    anchor.joins(use)
    empty_bytes = use.used_bytes
    assert empty_bytes == present(life.store.contents.file).size_bytes()
    life.tick([frames.CONFIGURE, {"max_bytes": 1 << 20}])
    for _ in range(4):
        life.tick(append(bytes(60_000)))
    assert use.used_bytes > 240_000
    assert anchor.is_full
    life.materialise()
    size_bytes = present(life.store.contents.file).size_bytes()
    assert use.used_bytes == size_bytes
    life.store.end()
    assert use.used_bytes == 0
    anchor.takes(1000)
    assert use.used_bytes == 0, "it has ended"


def test_memory_of_removed_content_is_given_back_while_the_store_stays_open(life: Life) -> None:
    use = MemoryUse()
    present(life.store.anchor).joins(use)
    life.tick([frames.CONFIGURE, {"max_bytes": 1 << 24}])
    for _ in range(10):
        life.tick(append(bytes(900_000)))
    life.materialise()
    assert not life.store.needs_sweep
    full_bytes, allocated_bytes = use.used_bytes, apsw.memory_used()
    life.tick(append(b"kept"))
    life.tick([frames.TRIM, 10])
    life.materialise()
    assert life.store.needs_sweep, "a checkpoint shrinks it"
    present(life.store.contents.file).shrink()
    life.store.tidied()
    assert use.used_bytes < full_bytes // 5
    assert apsw.memory_used() < allocated_bytes - 7_000_000
    life.tick(append(b"more"))
    assert life.values() == [b"kept", b"more"]


def test_what_memory_no_longer_needs_is_removed_now_and_then(tmp_path: Path) -> None:
    life = Life(tmp_path, KV)
    for _ in range(2):
        life.tick([frames.SET_ENTRY, "a", b"1"])
        life.tick([frames.DELETE_ENTRIES, ["a"]])
    life.materialise()
    assert not life.store.needs_sweep
    present(life.store.anchor)._tidied_at -= 1 << 14
    life.tick([frames.SET_ENTRY, "a", b"1"])
    life.materialise()
    assert life.store.needs_sweep
    file_of(life.store).abandon()


def test_operations_read_the_content_and_not_the_file_on_the_disk() -> None:
    # The file of an ephemeral store on the disk has no content, so the mistake shows nowhere else.
    folder = Path(__file__).parents[3] / "persist" / "operations"
    wrong = [
        f"{path.name}:{number}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\bstore\.file\b", line)
    ]
    assert wrong == [], "use store.contents.file"
