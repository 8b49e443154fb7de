"""Values that come in chunks: staged, put in place by one operation, read, taken over, given up,
removed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.write_path.tick import Tick
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_PUT_CHUNK
from holdfast.protocol.limits import MAX_CHUNK_BYTES, MAX_STAGED_UPLOADS, UPLOAD_RETENTION_SECONDS
from holdfast.protocol.messages import Durability
from holdfast.protocol.names import StoreKind
from tests.support.effort import examples
from tests.support.stores import file_of
from tests.support.ticked_store import Bench

RETENTION_MS = int(UPLOAD_RETENTION_SECONDS * 1000)


def upload_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def reference(number: int, value: bytes) -> list[Any]:
    return [upload_id(number), len(value), hashlib.sha256(value).digest(), zlib.crc32(value)]


class Uploading(Bench):
    """A store that is sent values in chunks."""

    @property
    def place(self) -> int | str:
        """Where the value of these tests goes: message 1, or the key of that name."""
        return self.at(1)

    def at(self, number: int) -> int | str:
        return number if self.store.is_stream else f"{number}"

    def put(self, upload: int, value: bytes, at: int | str | None = None) -> list[Any]:
        """Return what makes an upload a value."""
        number = frames.SET_MESSAGE if self.store.is_stream else frames.SET_ENTRY
        return [number, self.place if at is None else at, reference(upload, value)]

    def stage(self, number: int, value: bytes, chunk_bytes: int = 3) -> None:
        for offset in range(0, len(value), chunk_bytes):
            data = value[offset : offset + chunk_bytes]
            [end, _] = self.do(frames.PUT_CHUNK, upload_id(number), offset, data)
            assert end == offset + len(data)

    def store_value(self, number: int, value: bytes) -> None:
        self.stage(number, value)
        self.do(*self.put(number, value))

    def remove_all(self) -> None:
        is_stream = self.store.is_stream
        self.do(*([frames.TRIM, self.store.last_seq] if is_stream else [frames.CLEAR]))

    def fail(self, *operation: Any) -> None:
        self.tick(list(operation), commit=False)

    def expire(self) -> None:
        """What the owner does in each tick before anything else."""
        assert Tick(self.number + 1, self.time, Durability.SYNCED).expire(self.store)
        self.commit()

    def value(self, place: int | str | None = None) -> bytes | None:
        """What a client would read, chunk by chunk."""
        number = frames.GET_MESSAGE if self.store.is_stream else frames.GET_ENTRY
        row = self.read(number, self.place if place is None else place)
        if row is None or type(row[3]) is bytes:
            return None if row is None else row[3]
        wire = frames.large_value_from_wire(row[3])
        value = b""
        while chunk := self.read(frames.READ_CHUNK, wire.upload_id, len(value)):
            value += chunk
        assert (len(value), hashlib.sha256(value).digest()) == (wire.size_bytes, wire.sha256)
        return value

    def count(self, table: str) -> int:
        self.materialise()
        return int(file_of(self.store)._execute(f"SELECT count(*) FROM {table}").get)

    def take_over(self) -> None:
        """Go on as the next owner, who has nothing but the log."""
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()
        self.fail_over()


@pytest.fixture(params=[StoreKind.STREAM, StoreKind.KV], ids=["stream", "kv"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Uploading]:
    with closing(Uploading(tmp_path, request.param)) as bench:
        yield bench


def test_chunks_are_a_value_only_once_one_operation_says_so(bench: Uploading) -> None:
    value = b"0123456789"
    bench.stage(7, value)
    assert bench.value() is None
    assert bench.read(frames.UPLOAD, upload_id(7)) == [10, zlib.crc32(value), None]
    assert bench.read(frames.READ_CHUNK, upload_id(7), 0) is None
    assert bench.store.count == bench.store.bytes == 0
    revision = bench.do(*bench.put(7, value))[-1]
    assert bench.value() == value
    assert bench.store.bytes == 10 + (not bench.store.is_stream)
    seq = 1 if bench.store.is_stream else 0
    assert bench.read(frames.UPLOAD, upload_id(7))[2] == [seq, revision, 1000]


def test_a_chunk_may_be_sent_twice_but_none_left_out(bench: Uploading) -> None:
    assert bench.do(frames.PUT_CHUNK, upload_id(1), 0, b"abc") == [3, 1]
    assert bench.do(frames.PUT_CHUNK, upload_id(1), 0, b"abc") == [3, 1]
    assert bench.do(frames.PUT_CHUNK, upload_id(1), 4, b"x")[0] == "upload_mismatch"
    assert bench.do(frames.PUT_CHUNK, upload_id(1), 2, b"xx")[0] == "upload_mismatch"
    assert bench.do(frames.PUT_CHUNK, upload_id(2), 3, b"x")[0] == "upload_mismatch"


@pytest.mark.parametrize(
    "wrong",
    [
        [None, 0, b"x"], [b"short", 0, b"x"], [bytes(16), -1, b"x"], [bytes(16), 0, b""],
        [bytes(16), 0, "x"], [bytes(16), 0, bytes(MAX_CHUNK_BYTES + 1)], [bytes(16), 1 << 62, b"x"],
        [bytes(16)],
    ],
)  # fmt: skip
def test_a_chunk_that_makes_no_sense_is_a_typed_refusal(bench: Uploading, wrong: list[Any]) -> None:
    result = bench.do(frames.PUT_CHUNK, *wrong)
    assert result[0] in ("invalid_argument", "too_large", "malformed_frame")
    assert bench.store.revision == 0


def test_what_is_incomplete_or_of_another_content_is_not_put_in_place(bench: Uploading) -> None:
    bench.stage(1, b"abcdef")
    for value in (b"abcdefg", b"abcde", b"abcdeF"):
        assert bench.do(*bench.put(1, value))[0] == "upload_mismatch"
    assert bench.do(*bench.put(2, b"abcdef"))[0] == "upload_mismatch"
    assert bench.store.count == 0
    bench.do(*bench.put(1, b"abcdef"))
    assert bench.value() == b"abcdef"


def test_an_upload_is_one_value_only(bench: Uploading) -> None:
    bench.stage(1, b"abcdef")
    second = bench.put(1, b"abcdef", bench.at(2))
    assert bench.do(frames.BATCH, [bench.put(1, b"abcdef"), second])[0] == "upload_mismatch"
    assert bench.store.count == 0
    bench.do(*bench.put(1, b"abcdef"))
    assert bench.do(*second)[0] == "upload_mismatch"
    assert bench.do(frames.PUT_CHUNK, upload_id(1), 6, b"g")[0] == "upload_mismatch"
    assert bench.do(frames.DROP_UPLOADS, [upload_id(1)])[0] == 0
    assert bench.value() == b"abcdef"


def test_an_upload_whose_value_was_replaced_is_not_stored_again(bench: Uploading) -> None:
    for number in (1, 2):
        bench.store_value(number, b"value %d" % number)
    found = bench.read(frames.UPLOAD, upload_id(1))
    assert found[:2] == [7, zlib.crc32(b"value 1")]
    bench.remove_all()
    bench.reopen()
    for number in (1, 2):
        seq, revision, _ = bench.read(frames.UPLOAD, upload_id(number))[2]
        assert (seq, revision > 0) == (int(bench.store.is_stream), True)
        assert bench.do(*bench.put(number, b"value %d" % number))[0] == "upload_mismatch"
        assert bench.do(frames.PUT_CHUNK, upload_id(number), 7, b"g")[0] == "upload_mismatch"
        assert bench.read(frames.READ_CHUNK, upload_id(number), 0) is None
    bench.time += RETENTION_MS + 1
    bench.store_value(3, b"value 3")
    bench.store_value(4, b"value 4")
    assert bench.read(frames.UPLOAD, upload_id(1)) is None
    assert bench.read(frames.UPLOAD, upload_id(3)) is not None


def test_a_tick_that_failed_has_staged_and_placed_nothing(bench: Uploading) -> None:
    bench.stage(1, b"abcdef")
    bench.fail(frames.PUT_CHUNK, upload_id(1), 6, b"g")
    assert bench.do(frames.PUT_CHUNK, upload_id(1), 6, b"G")[0] == 7
    bench.fail(*bench.put(1, b"abcdefG"))
    bench.do(*bench.put(1, b"abcdefG"))
    assert bench.value() == b"abcdefG"


def test_who_reads_what_was_replaced_is_told_and_its_chunks_are_swept(bench: Uploading) -> None:
    for number in (1, 2):
        bench.store_value(number, b"value %d" % number)
    assert bench.read(frames.READ_CHUNK, upload_id(1), 3) is None
    assert bench.value() == b"value 2"
    bench.remove_all()
    assert bench.read(frames.READ_CHUNK, upload_id(2), 0) is None
    assert bench.store.bytes == 0
    file = file_of(bench.store)
    assert bench.store.needs_sweep
    assert bench.count("chunks") > 0
    file.sweep()
    assert bench.count("chunks") == bench.count("bodies") == 0
    assert not file.needs_sweep()


def test_the_next_owner_goes_on_with_an_upload(bench: Uploading) -> None:
    bench.stage(1, b"abcdef")
    bench.take_over()
    assert bench.read(frames.UPLOAD, upload_id(1)) == [6, zlib.crc32(b"abcdef"), None]
    assert bench.do(frames.PUT_CHUNK, upload_id(1), 6, b"ghi")[0] == 9
    bench.do(*bench.put(1, b"abcdefghi"))
    bench.take_over()
    assert bench.value() == b"abcdefghi"


def test_an_upload_that_gets_no_chunks_is_dropped_after_its_time_also_by_the_next_owner(
    bench: Uploading,
) -> None:
    bench.stage(1, b"abcdef")
    bench.store_value(2, b"placed")
    bench.take_over()
    bench.time += RETENTION_MS - 1
    bench.expire()
    assert bench.read(frames.UPLOAD, upload_id(1)) is not None
    bench.stage(3, b"younger")
    bench.time += 1
    bench.expire()
    assert bench.read(frames.UPLOAD, upload_id(1)) is None
    assert bench.read(frames.UPLOAD, upload_id(3)) is not None
    assert bench.value() == b"placed"
    bench.take_over()
    assert bench.read(frames.UPLOAD, upload_id(1)) is None
    bench.time += RETENTION_MS
    bench.expire()
    assert bench.store.contents.staged() == {}


def test_limits_count_all_of_a_large_value(bench: Uploading) -> None:
    bench.do(frames.CONFIGURE, {"max_bytes": 12, "max_message_bytes": 10})
    bench.stage(1, b"12345678")
    assert bench.do(frames.PUT_CHUNK, upload_id(1), 8, b"9ab")[0] == "limit_exceeded"
    bench.do(*bench.put(1, b"12345678"))
    assert bench.store.bytes >= 8


def test_a_store_takes_so_many_uploads_at_a_time(bench: Uploading) -> None:
    for number in range(MAX_STAGED_UPLOADS):
        bench.do(frames.PUT_CHUNK, upload_id(number), 0, b"x")
    assert bench.do(frames.PUT_CHUNK, upload_id(999), 0, b"x")[0] == "limit_exceeded"
    assert bench.do(frames.DROP_UPLOADS, [upload_id(0), upload_id(999)])[0] == 1
    assert bench.do(frames.PUT_CHUNK, upload_id(999), 0, b"x")[0] == 1


def test_followers_are_told_of_chunks_without_their_bytes_and_the_log_has_them(
    bench: Uploading,
) -> None:
    chunk, placing = [frames.PUT_CHUNK, upload_id(1), 0, b"abc"], bench.put(1, b"abc")
    logged, told = [], []
    for number, operation in enumerate((chunk, placing), 1):
        tick = Tick(number, bench.time, Durability.SYNCED)
        group = frames.Group(bench.id.kind, bench.id.name, number, 1, 0, [operation])
        tick.write(bench.store, Arrival("reply", 0, b"w" * 16, bench.id, group))
        logged += tick.records()
        told += [frames.decode_changes(payload).changes for _, payload in tick.broadcasts]
        tick.committed(segment=1)
        bench.store.validate()
    assert told[0] == [[CHANGE_PUT_CHUNK, upload_id(1), 0, None, zlib.crc32(b"abc")]]
    assert b"abc" in logged[0].payloads[0]
    assert told[-1][-1][2] == reference(1, b"abc")


# Anything, against a model
class AgainstAModel(RuleBasedStateMachine):
    """Random chunks, commits, removals and losses: what is readable is what a plain model says, and
    who applies the log to an empty file has the same."""

    def __init__(self, kind: StoreKind) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.bench = Uploading(self.folder, kind)
        self.staged: dict[int, bytes] = {}
        self.placed: dict[Any, tuple[int, bytes]] = {}
        self.next_id = 0

    def teardown(self) -> None:
        self.bench.close()
        shutil.rmtree(self.folder)

    def _place(self, key: int) -> Any:
        store = self.bench.store
        return self.bench.at(min(key, store.last_seq + 1) if store.is_stream else key)

    @rule(which=st.integers(0, 2), data=st.binary(min_size=1, max_size=6), again=st.booleans())
    def chunk(self, which: int, data: bytes, again: bool) -> None:
        if which < len(self.staged):
            number = sorted(self.staged)[which]
        else:
            self.next_id = number = self.next_id + 1
        value = self.staged.get(number, b"")
        for _ in range(1 + again):
            result = self.bench.do(frames.PUT_CHUNK, upload_id(number), len(value), data)
            assert result[0] == len(value) + len(data)
        self.staged[number] = value + data

    @rule(which=st.integers(0, 2), key=st.integers(1, 3), fails=st.booleans())
    def commit(self, which: int, key: int, fails: bool) -> None:
        if which >= len(self.staged):
            return
        number = sorted(self.staged)[which]
        at = self._place(key)
        operation = self.bench.put(number, self.staged[number], at)
        if fails:
            self.bench.fail(*operation)
            return
        assert type(self.bench.do(*operation)[0]) is int
        self.placed[at] = number, self.staged.pop(number)

    @rule(key=st.integers(1, 3), value=st.none() | st.binary(max_size=4))
    def replace_or_delete(self, key: int, value: bytes | None) -> None:
        at, is_stream = self._place(key), self.bench.store.is_stream
        if value is not None:
            number = frames.SET_MESSAGE if is_stream else frames.SET_ENTRY
            self.bench.do(number, at, value)
            self.placed[at] = 0, value
        elif at in self.placed:
            number = frames.DELETE_MESSAGES if is_stream else frames.DELETE_ENTRIES
            self.bench.do(number, [at])
            del self.placed[at]

    @rule()
    def remove_all(self) -> None:
        self.bench.remove_all()
        self.placed.clear()

    @rule(which=st.integers(0, 2))
    def drop(self, which: int) -> None:
        if which < len(self.staged):
            number = sorted(self.staged)[which]
            assert self.bench.do(frames.DROP_UPLOADS, [upload_id(number)])[0] == 1
            del self.staged[number]

    @rule()
    def materialise(self) -> None:
        self.bench.materialise()

    @rule()
    def sweep(self) -> None:
        self.bench.materialise()
        if self.bench.store.file is not None:
            self.bench.store.file.sweep()

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()

    @rule()
    def take_over(self) -> None:
        self.bench.take_over()

    @rule()
    def read(self) -> None:
        for at in map(self.bench.at, (1, 2, 3)):
            found = self.placed.get(at)
            assert self.bench.value(at) == (None if found is None else found[1])

    @invariant()
    def what_is_staged_and_counted_is_known(self) -> None:
        store = self.bench.store
        assert store.contents.staged().keys() == {upload_id(number) for number in self.staged}
        for number, value in self.staged.items():
            upload = store.contents.upload(upload_id(number))
            assert upload is not None
            assert (upload.size_bytes, upload.crc32) == (len(value), zlib.crc32(value))
        key_bytes = 0 if store.is_stream else 1
        expected = sum(len(value) + key_bytes for _, value in self.placed.values())
        assert (store.count, store.bytes) == (len(self.placed), expected)


@pytest.mark.parametrize("kind", StoreKind)
def test_random_uploads_leave_what_a_plain_model_says(kind: StoreKind) -> None:
    run_state_machine_as_test(
        lambda: AgainstAModel(kind),
        settings=settings(max_examples=examples(20), stateful_step_count=25, deadline=None),
    )
