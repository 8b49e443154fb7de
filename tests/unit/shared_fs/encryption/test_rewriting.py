"""Values in clear, and under former keys, are encrypted with the current one: the store is the same
to its readers, and no byte of what it was is left in the file."""

from __future__ import annotations

import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.protocol import frames
from holdfast.protocol.errors import DecryptionFailedError, KeyUnavailableError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.names import StoreKind
from holdfast.shared_fs.encryption.data_keys import TenantKeys
from holdfast.shared_fs.encryption.rewriting import Rewritten, ValueRewriting
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.inspection.inspection import FileState, inspect_store_file
from holdfast.shared_fs.store_file import schema
from holdfast.shared_fs.store_file.applying import WriterOutcome
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.effort import examples
from tests.support.stores import file_of, stream_id
from tests.support.tenant_keys import KEYS, encrypt
from tests.support.ticked_store import Bench, configure

SECRET: Final = b"8c1f73a9d04be652"
BEFORE = TenantKeys("acme", {1: KEYS.keys[1]}, 1)
HEADERS = (None, {"by": SECRET.hex()}, HeaderBlock.of({"by": SECRET.hex()}).block)
#: Which keys there are when something is written: none, the former one, the current one.
STAGES = (None, BEFORE, KEYS)


def with_keys(bench: Bench, keys: TenantKeys | None) -> None:
    bench.materialise()
    bench.keys = keys
    encrypt(bench.store, keys)


def large(bench: Bench, value: bytes, number: int) -> list[Any]:
    """Upload a value in chunks of nine bytes; return how it is named."""
    upload, crc = bytes([number]) * 16, 0
    for offset in range(0, len(value), 9):
        data = value[offset : offset + 9]
        crc = crc32(data, crc)
        bench.do(frames.PUT_CHUNK, upload, offset, data, crc)
    return [upload, len(value), sha256(value).digest(), crc]


def rewritten(bench: Bench) -> Rewritten:
    """Rewrite the file, as a job does with a copy, and go on with it."""
    bench.materialise()
    file_of(bench.store).close()
    file = StoreFile.open(bench.path, bench.id)
    names = file.encryption.state.former_names
    found = reencrypt(file, StoreCipher(CipherSessions(KEYS), bench.id, names))
    bench.keys = KEYS
    bench.store = encrypt(type(bench.store)(bench.id, bench.store.epoch, file, bench.create), KEYS)
    return found


def reencrypt(file: StoreFile, cipher: StoreCipher) -> Rewritten:
    return file.rewrite(lambda parts: ValueRewriting(parts).run(cipher))


def everything(bench: Bench) -> Any:
    if bench.store.is_stream:
        return bench.read(frames.GET_MESSAGES)[0]
    return bench.read(frames.GET_ENTRIES)[0]


def check(bench: Bench, folder: Path) -> None:
    file = file_of(bench.store)
    assert rewritten(bench) == (0, 0, 0), "once is enough"
    file_of(bench.store).checkpoint()
    for path in folder.iterdir():
        content = path.read_bytes()
        assert SECRET not in content and SECRET.hex().encode() not in content, path
    verdict_path = folder / "copy.db"
    file = file_of(bench.store)
    file.copy_to(verdict_path)
    verdict = inspect_store_file(verdict_path, bench.id, deep=True)
    assert verdict.state is FileState.SOUND, verdict
    verdict_path.unlink()


@settings(max_examples=examples(25), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(STAGES), st.integers(0, 40), st.sampled_from(HEADERS), st.booleans()
        ),
        min_size=1,
        max_size=8,
    ),
    chain=st.booleans(),
)
def test_a_stream_is_the_same_to_its_readers(
    steps: list[tuple[TenantKeys | None, int, Any, bool]], chain: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), StoreKind.STREAM)
        bench.do(frames.APPEND, b"before")
        if chain:
            configure(bench, chain=True)
        for number, (keys, length, headers, is_large) in enumerate(steps):
            with_keys(bench, keys)
            value = (SECRET * 3)[:16] + bytes(length)
            subject = "a.b" if type(headers) is bytes else None
            if is_large:
                named = large(bench, value, number)
                bench.do(frames.APPEND, named, headers, None, None, None, subject)
            else:
                bench.do(frames.APPEND, value, headers, None, None, None, subject)
        bench.do(frames.DELETE_MESSAGES, [1])
        with_keys(bench, KEYS)
        before, head = everything(bench), bench.store.chain
        rewritten(bench)
        assert everything(bench) == before
        assert bench.store.chain == head
        for row in before:
            if type(row[3]) is list:
                assert (file_of(bench.store).read_body(row[3][0], 0) or b"")[:5] == SECRET[:5]
        bench.do(frames.APPEND, SECRET)
        check(bench, Path(name))
        bench.close()


@settings(max_examples=examples(20), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STAGES), st.sampled_from("ab"), st.booleans()), max_size=8
    ),
    kept=st.sampled_from((1, 3)),
    chain=st.booleans(),
)
def test_a_kv_and_its_history_are_the_same_to_their_readers(
    steps: list[tuple[TenantKeys | None, str, bool]], kept: int, chain: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), StoreKind.KV)
        bench.do(frames.SET_ENTRY, "first", SECRET)
        if kept > 1:
            configure(bench, history=kept)
        if chain:
            configure(bench, chain=True)
        for number, (keys, key, is_large) in enumerate(steps):
            with_keys(bench, keys)
            value: Any = SECRET + bytes([number])
            bench.do(frames.SET_ENTRY, key, large(bench, value, number) if is_large else value)
        with_keys(bench, KEYS)
        before, chain_before = everything(bench), bench.store.chain
        versions = [file_of(bench.store).versions(key) for key in "ab"]
        rewritten(bench)
        everything(bench)
        file = file_of(bench.store)
        bench.store.contents.readable(file)
        assert everything(bench) == before
        assert [file.versions(key) for key in "ab"] == versions
        assert bench.store.chain == chain_before
        bench.do(frames.SET_ENTRY, "a", SECRET)
        check(bench, Path(name))
        bench.close()


def test_rewriting_is_continued_where_it_was_cut_short(tmp_path: Path) -> None:
    bench = Bench(tmp_path, StoreKind.STREAM)
    for _ in range(200):
        bench.do(frames.APPEND, SECRET)
    bench.materialise()
    file = file_of(bench.store)
    cipher = Stopping(150)
    with pytest.raises(InterruptedError):
        reencrypt(file, cipher)
    # Two transactions were committed, and the third was not.
    boxes = [row[4] is not None for row in file.messages(1, None, 999)]
    assert boxes == [True] * 128 + [False] * 72
    assert reencrypt(file, Stopping(999)) == (72, 0, 0)
    bench.close()


class Stopping(StoreCipher):
    """Stops after some values."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        super().__init__(CipherSessions(KEYS), stream_id("a.b"))
        self.left = left

    def kept_row(
        self, place: Any, revision: int, value: Any, packed: bytes | None, leaf: bytes | None
    ) -> tuple[Any, bytes]:
        self.left -= 1
        if self.left < 0:
            raise InterruptedError
        return super().kept_row(place, revision, value, packed, leaf)


def test_what_retries_are_answered_is_encrypted_also_if_it_was_in_clear(tmp_path: Path) -> None:
    path, writer = tmp_path / "a.db", bytes(16)
    file = StoreFile.create(path, stream_id("a.b"), time=1)
    file.apply([], [WriterOutcome(writer, each, 1, 5, SECRET) for each in range(1, 200)])
    cipher = StoreCipher(CipherSessions(KEYS), stream_id("a.b"))
    assert reencrypt(file, cipher) == (0, 0, 0)
    assert file.encryption.exists, "whoever reads them has to have the key"
    again = [cipher.outcome(writer, each, kept) for each, kept in file.outcomes(writer)]
    assert again == [SECRET] * 199
    file.close()
    assert SECRET not in path.read_bytes()


def needed(file: StoreFile, key: int) -> bool:
    return ValueRewriting(file.parts).is_needed(key)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("keys", [None, BEFORE])
def test_whatever_is_in_clear_or_under_a_former_key_is_found_wherever_it_is(
    tmp_path: Path, keys: TenantKeys | None, is_large: bool
) -> None:
    bench = Bench(tmp_path, StoreKind.KV, keys=keys)
    configure(bench, history=3)
    # An upload that is not finished, or a value that only the history has.
    if is_large:
        large(bench, SECRET * 3, 7)
    else:
        bench.do(frames.SET_ENTRY, "b", SECRET)
    with_keys(bench, KEYS)
    bench.do(frames.SET_ENTRY, "b", b"")
    bench.materialise()
    assert needed(file_of(bench.store), 2)
    rewritten(bench)
    assert not needed(file_of(bench.store), 2) and needed(file_of(bench.store), 1)
    bench.close()


def test_what_retries_are_answered_in_clear_later_needs_no_rewriting(tmp_path: Path) -> None:
    bench = Bench(tmp_path, StoreKind.STREAM, keys=KEYS)
    bench.do(frames.APPEND, SECRET)
    rewritten(bench)
    file, writer = file_of(bench.store), bytes(16)
    file.apply([], [WriterOutcome(writer, 1, 1, 5, b"\x93\x01\x02\x03")])
    assert not needed(file, 2)
    cipher = StoreCipher(CipherSessions(BEFORE), stream_id("a.b"))
    kept = cipher.encrypted_outcome(writer, 2, SECRET)
    file.apply([], [WriterOutcome(writer, 2, 1, 5, kept)])
    assert needed(file, 2)
    bench.close()


def test_the_mark_of_a_rewritten_file_is_of_the_store_with_that_name_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, StoreKind.STREAM, keys=KEYS)
    bench.do(frames.APPEND, SECRET)
    bench.materialise()
    file = file_of(bench.store)
    assert file.encryption.state.rewritten is None
    file.note_rewritten(1, 4)
    file.note_rewritten(2, 9)
    file.copy_to(tmp_path / "fork.db")
    bench.close()
    again = StoreFile.open(bench.path, bench.id)
    assert again.encryption.state.rewritten == (2, 9, 0)
    again.close()
    fork = StoreFile.open(tmp_path / "fork.db", bench.id)
    fork.become(stream_id("fork"))
    assert fork.encryption.state.rewritten is None, "its epochs are its own"
    fork.close()
    assert inspect_store_file(tmp_path / "fork.db", stream_id("fork"), deep=True).state is (
        FileState.SOUND
    )


def test_a_file_without_an_encrypted_value_gets_no_mark_and_stays_what_it_was(
    tmp_path: Path,
) -> None:
    file = StoreFile.create(tmp_path / "a.db", stream_id("a.b"), time=1)
    file.note_rewritten(2, 9)
    assert file.encryption.state.rewritten is None
    assert file._connection.pragma("user_version") == schema.FORMAT_VERSION
    file.close()


def test_a_value_that_does_not_decrypt_or_whose_key_is_missing_stops_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, StoreKind.STREAM, keys=BEFORE)
    bench.do(frames.APPEND, SECRET)
    bench.materialise()
    file = file_of(bench.store)
    new = TenantKeys("acme", {2: KEYS.keys[2]}, 2)
    with pytest.raises(KeyUnavailableError):
        reencrypt(file, StoreCipher(CipherSessions(new), bench.id))
    file._execute("UPDATE messages SET value = zeroblob(length(value))")
    with pytest.raises(DecryptionFailedError):
        reencrypt(file, StoreCipher(CipherSessions(KEYS), bench.id))
    assert file._connection.pragma("user_version") == schema.ENCRYPTED_FORMAT
    bench.close()
