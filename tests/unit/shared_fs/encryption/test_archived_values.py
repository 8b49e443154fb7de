"""Encrypted messages leave the file for the archive like others, and are decrypted by the owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.persist.operations import reads
from holdfast.persist.operations.read_rows import ArchiveNeededError
from holdfast.protocol import frames
from holdfast.protocol.changes import CHANGE_ARCHIVE, CHANGE_SET_MESSAGE
from holdfast.protocol.header_block import HeaderBlock
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.applying import AppliedBatch, unpack_headers
from holdfast.shared_fs.store_file.archived_blocks import ArchivedMessage, Body, checksum_of
from holdfast.shared_fs.store_file.encrypted.encrypted_values import is_box
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.stores import store_of, stream_id
from tests.support.tenant_keys import KEYS, encrypt

STREAM = stream_id("notes")
FAR = 1 << 62
BLOCK = HeaderBlock.of({"Nats-Msg-Id": "last"}).block
#: In clear, as before the tenant was encrypted; then encrypted.
CLEAR: list[list[Any]] = [[CHANGE_SET_MESSAGE, 1, b"early", {"a": "b"}]]
SECRET: list[list[Any]] = [
    [CHANGE_SET_MESSAGE, 2, b"secret"],
    [CHANGE_SET_MESSAGE, 3, b"with headers", {"by": "ada"}],
    [CHANGE_SET_MESSAGE, 4, b"a block", BLOCK],
    [CHANGE_SET_MESSAGE, 5, b"the last", BLOCK],
]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StoreFile]:
    file = StoreFile.create(tmp_path / "db", STREAM, time=1)
    cipher = StoreCipher(CipherSessions(KEYS), STREAM)
    kept = [cipher.encrypted(change, change[1]) for change in SECRET]
    file.apply([AppliedBatch(0, 1000, [*CLEAR, *kept])])
    yield file
    file.abandon()


def archive(file: StoreFile, *more: Any) -> list[int]:
    """Archive everything that may be; return the seqs of what was moved."""
    revision = file.meta.revision
    [draft] = file.archivable("t", revision=revision, time=FAR, max_blocks=9)
    file.apply([AppliedBatch(revision, 2000, [[CHANGE_ARCHIVE, draft.end_seq, "t", *more]])])
    rows = file.messages(1, None, 99)
    return [row[0] for row in rows if isinstance(row[3], ArchivedMessage)]


def test_the_log_of_an_earlier_version_moves_what_it_has_moved_there(file: StoreFile) -> None:
    assert archive(file) == [1]


def test_the_last_encrypted_message_stays_since_its_msg_id_may_be_asked_for(
    file: StoreFile,
) -> None:
    assert archive(file, True) == [1, 2, 3, 4]
    assert file.archivable("t", revision=FAR, time=FAR, max_blocks=9) == []
    assert file.oldest_time() is None
    store = encrypt(store_of(STREAM, file=file), KEYS)
    assert store.last_msg_id() == "last"
    assert store.contents.headers_of([4, 5], []) == {5: BLOCK}


def test_an_owner_accepts_that_encrypted_messages_go_if_its_store_is_encrypted(
    file: StoreFile,
) -> None:
    for keys, change in ((None, [CHANGE_ARCHIVE, 4, "t"]), (KEYS, [CHANGE_ARCHIVE, 4, "t", True])):
        store = encrypt(store_of(STREAM, file=file), keys)
        store.begin()
        store.archive(4, "t")
        assert store.changes == [change]


def test_archived_values_are_decrypted_in_the_owner_alone(file: StoreFile) -> None:
    kept: dict[tuple[int, int], Body] = {}
    for seq, revision, _, value, headers in file.messages(1, None, 99):
        kept[seq, revision] = value, headers if is_box(headers) else unpack_headers(headers)
    archive(file, True)
    for seq, headers in ((1, {"a": "b"}), (3, None)):
        found = file.message(seq)
        assert found is not None
        value, packed = kept[seq, seq]
        if headers is None:
            assert isinstance(packed, bytes)
            assert found[3].checksum == checksum_of(value, packed)
    store = encrypt(store_of(STREAM, file=file), KEYS)
    expected = [[change[1], change[2], [*change, None][3]] for change in CLEAR + SECRET]
    for operation in ([frames.GET_MESSAGES, 1], [frames.GET_SEQS, [1, 2, 3, 4, 5]]):
        with pytest.raises(ArchiveNeededError) as needed:
            reads.execute(store, "s1", [operation])
        assert [each.seq for each in needed.value.messages] == [1, 2, 3, 4]
        [found] = reads.execute(store, "s1", [operation], kept)
        rows = frames.unpack(frames.pack(found))[0]
        assert [[row[0], row[3], unpack_headers_of(row[4])] for row in rows] == expected
    [changed] = reads.execute(store, "s1", [[frames.CHANGES, 1, 1]], kept)
    assert [[change[1], change[2], [*change, None][3]] for _, _, change in changed[0][:3]] == (
        expected[1:4]
    )


def unpack_headers_of(headers: Any) -> Any:
    return unpack_headers(headers) if type(headers) is bytes else headers


def test_an_archived_value_in_the_place_of_another_is_told_and_the_others_are_read(
    file: StoreFile,
) -> None:
    rows = {row[0]: row for row in file.messages(1, None, 99)}
    archive(file, True)
    store = encrypt(store_of(STREAM, file=file), KEYS)
    moved: dict[tuple[int, int], Body] = {
        (2, 2): (rows[2][3], rows[2][4]),
        (3, 3): (rows[2][3], rows[2][4]),
    }
    asked = [[frames.GET_MESSAGE, seq] for seq in (2, 3)]
    first, second = reads.execute(store, "s1", asked, moved)
    assert first[3] == b"secret"
    assert second[0] == "decryption_failed"


