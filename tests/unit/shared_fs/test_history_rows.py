"""The history of a kv in its file: former values, large ones too, and what becomes of them."""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import pytest

from holdfast.protocol.changes import (
    CHANGE_CLEAR,
    CHANGE_CONFIGURE,
    CHANGE_DELETE_ENTRIES,
    CHANGE_PUT_CHUNK,
    CHANGE_SET_ENTRY,
    Removal,
)
from holdfast.protocol.errors import StorageFailedError
from holdfast.shared_fs.inspection.inspection import FileState, inspect_store_file
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.store_file import StoreFile
from holdfast.shared_fs.store_file.store_image import new_store_image
from tests.support.small_store_files import KV, reopened

KEEP_3: list[Any] = [CHANGE_CONFIGURE, {"history": 3}]


def put(key: str, value: bytes, expires: int | None = None) -> list[Any]:
    return [CHANGE_SET_ENTRY, key, value] + ([None, expires] if expires is not None else [])


def applied(file: StoreFile, *changes: list[Any]) -> None:
    file.apply([AppliedBatch(file.meta.revision, 1000 + file.meta.revision, list(changes))])


def values(file: StoreFile, key: str) -> list[bytes]:
    return [row[3] for row in file.versions(key)]


@pytest.fixture
def kv(path: Path) -> StoreFile:
    return StoreFile.create(path, KV, time=1)


def test_a_kv_without_a_history_has_nothing_of_it(kv: StoreFile, path: Path) -> None:
    applied(kv, put("a", b"1"), put("a", b"2"), [CHANGE_CONFIGURE, {"max_messages": 9}])
    found = kv._connection.execute("SELECT sql FROM sqlite_schema").fetchall()
    statements = " ".join(row[0] or "" for row in found)
    assert "history" not in statements
    kv.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.FORMAT_VERSION,)
    connection.close()


def test_former_values_are_kept_from_the_change_that_asks_for_them(
    kv: StoreFile, path: Path
) -> None:
    applied(kv, put("a", b"0"), put("a", b"1"), KEEP_3, put("a", b"2"), put("b", b"x"))
    applied(kv, put("a", b"3"), put("a", b"4"), [CHANGE_DELETE_ENTRIES, ["b"]])
    assert (values(kv, "a"), values(kv, "b")) == ([b"2", b"3"], [b"x"])
    assert (kv.meta.count, kv.meta.bytes) == (1, 8)
    assert kv.versions("b")[0][5:] == (8, 1005)
    assert [kv.entry_at("b", revision)[1] for revision in (2, 3, 4)] == [False, True, True]
    kv.close()
    with reopened(path, KV) as again:
        assert values(again, "a") == [b"2", b"3"]
    assert inspect_store_file(path, KV, deep=True).state is FileState.SOUND


def test_a_wrong_count_of_former_values_is_found(kv: StoreFile, path: Path) -> None:
    applied(kv, KEEP_3, put("a", b"1"), put("a", b"2"))
    kv._connection.execute("UPDATE history_state SET bytes = 99")
    kv.close()
    found = inspect_store_file(path, KV, deep=True)
    assert found.state is FileState.MISCOUNTED
    assert "99" in found.reason


def test_a_new_file_that_is_written_whole_has_the_history(path: Path) -> None:
    batches = [AppliedBatch(0, 5, [KEEP_3, put("a", b"1"), put("a", b"2")])]
    new = new_store_image(KV, time=1, owner=(1, "s", "i"), batches=batches, outcomes=())
    assert new is not None
    file = StoreFile.new(path, new)
    file.hold()
    applied(file, put("a", b"3"))
    assert values(file, "a") == [b"1", b"2"]
    file.close()


def test_a_preview_leaves_the_history_as_it_was(kv: StoreFile) -> None:
    applied(kv, put("a", b"1"))
    with kv.preview([AppliedBatch(1, 5, [KEEP_3, put("a", b"2")])]):
        assert values(kv, "a") == [b"1"]
    assert not kv.history.exists
    applied(kv, KEEP_3, put("a", b"2"))
    state = kv.history.state
    with pytest.raises(StorageFailedError), kv._transaction():
        kv._apply([AppliedBatch(3, 5, [put("a", b"3")])], ())
        raise StorageFailedError(reason="no room")
    assert (kv.history.state, values(kv, "a")) == (state, [b"1"])


def large(number: int) -> tuple[list[Any], list[Any], bytes]:
    """Return an upload, a value that it becomes, and its content."""
    content = b"%d" % number * 3000
    upload_id, crc32 = bytes([number]) * 16, zlib.crc32(content)
    chunk = [CHANGE_PUT_CHUNK, upload_id, 0, content, crc32]
    sha256 = hashlib.sha256(content).digest()
    return chunk, [CHANGE_SET_ENTRY, "a", [upload_id, len(content), sha256, crc32]], content


def test_large_values_are_kept_and_go_with_their_place_in_the_history(kv: StoreFile) -> None:
    applied(kv, KEEP_3)
    for number in range(1, 6):
        applied(kv, *large(number)[:2])
    assert [row[3][0][:1] for row in kv.versions("a")] == [b"\x03", b"\x04"]
    assert kv.read_body(bytes([3]) * 16, 0) == large(3)[2]
    assert kv.read_body(bytes([2]) * 16, 0) is None
    assert kv.meta.bytes == 3 * 3001
    applied(kv, [CHANGE_CLEAR])
    row, is_known = kv.entry_at("a", kv.meta.revision - 1)
    assert row is not None
    assert (row[3][0], is_known) == (bytes([5]) * 16, True)
    assert kv._bodies.damage() == ""
    applied(kv, [CHANGE_CONFIGURE, {}])
    assert (kv.meta.count, kv.meta.bytes) == (0, 0)
    assert kv.read_body(bytes([5]) * 16, 0) is None


def test_an_erased_key_leaves_no_byte_of_its_history(kv: StoreFile, path: Path) -> None:
    applied(kv, KEEP_3, put("a", b"SECRET-1"), put("a", b"SECRET-2"), put("b", b"stays"))
    applied(kv, [CHANGE_DELETE_ENTRIES, ["a"]])
    kv.checkpoint()
    assert b"SECRET-1" in path.read_bytes()
    assert kv.scrub("a")
    assert not kv.scrub("a")
    kv.close()
    content = path.read_bytes()
    assert b"SECRET" not in content
    assert b"stays" in content


def test_what_limits_and_ttls_remove_is_gone_or_was_never_there(kv: StoreFile) -> None:
    applied(kv, KEEP_3, put("a", b"1"), put("a", b"2"), put("b", b"3", 7), put("b", b"4"))
    applied(kv, [CHANGE_DELETE_ENTRIES, [], None, int(Removal.EVICTED), [2]])
    assert kv.entry_at("a", 2) == (None, False)
    assert kv.entry_at("a", 3)[1]
    applied(kv, [CHANGE_DELETE_ENTRIES, [], None, int(Removal.EXPIRED), [4]])
    assert kv.entry_at("b", 4) == (None, True)
    assert kv._execute("SELECT count(*) FROM changes").get == 1, "followers need none of it"
    applied(kv, put("a", b"5"), [CHANGE_DELETE_ENTRIES, ["a"], None, int(Removal.EVICTED), []])
    assert (values(kv, "a"), kv.entry_at("a", 8)[1]) == ([], False)
    assert kv.history.damage() == ""


def test_revisions_before_a_restore_to_an_earlier_state_are_told_apart(kv: StoreFile) -> None:
    applied(kv, KEEP_3, put("a", b"1"), put("a", b"2"))
    kv.go_on_from(10, time=2000)
    assert (kv.history.state.since, kv.history.state.reaches) == (10, 10)
    assert values(kv, "a") == [b"1"]
