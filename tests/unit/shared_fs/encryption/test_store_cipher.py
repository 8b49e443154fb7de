"""What is encrypted is what was written, belongs to its place alone, and never repeats a nonce."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import changes
from holdfast.protocol.changes import CHANGE_PUT_CHUNK, CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.errors import (
    DecryptionFailedError,
    KeyUnavailableError,
    TenantShreddedError,
)
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.encryption import sessions
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_BYTES, is_box, read_box
from tests.support.stores import kv_id, stream_id
from tests.support.tenant_keys import KEYS

STREAM = stream_id("a.b")
TEXTS = st.text(max_size=8)
VALUES = st.binary(max_size=40) | st.builds(
    lambda upload, digest: [upload, 5, digest, 77],
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=32, max_size=32),
)
HEADERS = (
    st.none()
    | st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=3)
    | st.just(HeaderBlock.of({"a": "1"}).block)
)


def cipher_of(store: StoreId = STREAM, keys: TenantKeys = KEYS, *former: str) -> StoreCipher:
    return StoreCipher(CipherSessions(keys), store, former)


def message(seq: int = 1, value: Any = b"secret", headers: Any = None) -> list[Any]:
    return [CHANGE_SET_MESSAGE, seq, value] if headers is None else [1, seq, value, headers]


@given(st.integers(1, 1 << 62), VALUES, HEADERS, st.sampled_from([(), ("id-1", 9, "a.b", 3)]))
def test_a_message_is_decrypted_to_what_was_sent(
    seq: int, value: Any, headers: Any, more: tuple[Any, ...]
) -> None:
    change = [CHANGE_SET_MESSAGE, seq, value, headers, *more]
    kept = cipher_of().encrypted(change, 7)
    assert list(kept[4:]) == list(more)
    assert is_box(kept[3])
    back = changes.message_set(cipher_of().decrypted(kept, 7))
    assert back == changes.message_set(change)
    assert len(kept[2]) == len(value), "a value keeps its length"


@given(TEXTS, VALUES, st.none() | st.integers(1, 99))
def test_an_entry_is_decrypted_to_what_was_sent(key: str, value: Any, expires: int | None) -> None:
    change = [CHANGE_SET_ENTRY, key, value, {"by": "ada"}, expires]
    kept = cipher_of(kv_id()).encrypted(change, 7)
    assert cipher_of(kv_id()).decrypted(kept, 7) == change


@given(st.binary(min_size=1, max_size=99), st.integers(0, 1 << 40))
def test_a_chunk_is_decrypted_at_its_offset_alone(data: bytes, offset: int) -> None:
    kept = cipher_of().encrypted([CHANGE_PUT_CHUNK, b"u" * 16, offset, data, 5], 3)
    chunk = changes.chunk(kept)
    assert chunk.data is not None
    assert (chunk.crc32, chunk.end, len(chunk.data)) == (
        *(5, offset + len(data)),
        len(data) + BOX_BYTES,
    )
    assert cipher_of().chunk(b"u" * 16, offset, chunk.data) == data
    for upload, at in ((b"v" * 16, offset), (b"u" * 16, offset + 1)):
        with pytest.raises(DecryptionFailedError):
            cipher_of().chunk(upload, at, chunk.data)


def test_a_change_in_clear_and_one_without_a_value_stay_as_they_are() -> None:
    cipher = cipher_of()
    for change in (message(), message(headers={"a": "b"}), [changes.CHANGE_TRIM, 7]):
        assert cipher.decrypted(change, 1) is change


@pytest.mark.parametrize(
    ("place", "revision", "store"),
    [
        (2, 7, STREAM),
        (1, 8, STREAM),
        (1, 7, stream_id("a.c")),
        (1, 7, kv_id("a.b")),
        (1, 7, StoreId("other", StoreKind.STREAM, "a.b")),
    ],
)
def test_what_was_moved_to_another_place_is_not_decrypted(
    place: int, revision: int, store: StoreId
) -> None:
    _, _, value, box = cipher_of().encrypted(message(), 7)
    assert cipher_of().row(1, 7, value, box) == (b"secret", None)
    with pytest.raises(DecryptionFailedError):
        cipher_of(store).row(place, revision, value, box)


def test_a_fork_decrypts_what_its_parent_encrypted_and_nobody_else_does() -> None:
    _, _, value, box = cipher_of().encrypted(message(), 7)
    fork = cipher_of(stream_id("fork"), KEYS, "other", "a.b")
    assert fork.row(1, 7, value, box)[0] == b"secret"


@given(st.binary(min_size=1, max_size=9), HEADERS, st.data())
def test_a_value_and_its_headers_are_not_cut_apart_elsewhere(
    value: bytes, headers: Any, data: st.DataObject
) -> None:
    _, _, hidden, box = cipher_of().encrypted(message(1, value, headers), 7)
    parts = hidden + box[BOX_BYTES:]
    cut = data.draw(st.integers(0, len(parts)).filter(lambda at: at != len(hidden)))
    with pytest.raises(DecryptionFailedError):
        cipher_of().row(1, 7, parts[:cut], box[:BOX_BYTES] + parts[cut:])


def test_a_value_is_not_taken_for_a_large_one_nor_a_large_one_for_another() -> None:
    digest = bytes(range(32))
    large = [b"u" * 16, 5, digest, 77]
    _, _, hidden, box = cipher_of().encrypted(message(1, large), 7)
    for other in (hidden[2], [b"u" * 16, 6, *hidden[2:]], [b"u" * 16, -1, *hidden[2:]]):
        with pytest.raises(DecryptionFailedError):
            cipher_of().row(1, 7, other, box)
    _, _, hidden, box = cipher_of().encrypted(message(1, digest), 7)
    with pytest.raises(DecryptionFailedError):
        cipher_of().row(1, 7, [b"u" * 16, 32, hidden, 77], box)


@given(st.integers(0, 8 * (6 + BOX_BYTES + 3) - 1))
def test_a_flipped_bit_is_found_and_no_key_is_said_to_be_missing(bit: int) -> None:
    _, _, value, box = cipher_of().encrypted(message(headers={"a": ""}), 7)
    flipped = bytearray(value + box)
    flipped[bit // 8] ^= 1 << bit % 8
    value, box = bytes(flipped[:6]), bytes(flipped[6:])
    # Of the key's number a flipped bit names another key.
    with pytest.raises((DecryptionFailedError, KeyUnavailableError)) as caught:
        cipher_of().row(1, 7, value, box)
    assert isinstance(caught.value, KeyUnavailableError) == (8 <= bit // 8 < 12)


@given(st.binary(max_size=BOX_BYTES + 9))
def test_any_bytes_in_the_place_of_a_box_are_refused(box: bytes) -> None:
    with pytest.raises((DecryptionFailedError, KeyUnavailableError)):
        cipher_of().row(1, 7, b"secret", b"\xc1" + box)


def test_a_wrong_key_a_missing_key_and_a_destroyed_key_are_told_apart() -> None:
    _, _, value, box = cipher_of().encrypted(message(), 7)
    wrong = TenantKeys("acme", {2: bytes(32)}, 2)
    missing = TenantKeys("acme", {1: bytes(32)}, 1)
    gone = TenantKeys.unwrapped(KeyRecord("acme", (), shredded=5), {})
    for keys, expected in (
        (wrong, DecryptionFailedError),
        (missing, KeyUnavailableError),
        (gone, TenantShreddedError),
    ):
        with pytest.raises(expected):
            cipher_of(STREAM, keys).row(1, 7, value, box)
    assert KeyUnavailableError.retryable
    assert not TenantShreddedError.retryable


def test_a_problem_with_keys_keeps_no_frames_of_those_who_heard_of_it() -> None:
    missing = TenantKeys.missing("acme", "it is not here")
    for _ in range(50):
        with pytest.raises(KeyUnavailableError) as caught:
            missing.key(1)
    assert len(caught.traceback) < 5


def test_no_nonce_is_used_twice_under_one_key() -> None:
    seen: set[tuple[int, bytes, int]] = set()
    both = CipherSessions(KEYS)
    ciphers = [StoreCipher(both, stream_id(name), ()) for name in ("a", "b")]
    ciphers.append(cipher_of())
    for revision in range(1, 50):
        for cipher in ciphers:
            box, _ = read_box("s", 1, cipher.encrypted(message(revision), revision)[3])
            seen.add((box.key_id, box.salt, box.counter))
    assert len(seen) == 49 * 3
    assert len({salt for _, salt, _ in seen}) == 2, "each process has a salt of its own"


def test_a_session_ends_before_its_counter_repeats() -> None:
    one = CipherSessions(KEYS)
    with patch.object(sessions, "SESSION_VALUES", 3):
        boxes = [one.encrypt(b"v", b"")[0] for _ in range(7)]
    assert [box.counter for box in boxes] == [0, 1, 2, 0, 1, 2, 0]
    assert len({(box.salt, box.counter) for box in boxes}) == 7


def test_new_values_get_the_new_key_and_earlier_ones_stay_readable() -> None:
    before = TenantKeys("acme", {1: KEYS.keys[1]}, 1)
    both = CipherSessions(before)
    cipher = StoreCipher(both, STREAM)
    old = cipher.encrypted(message(), 7)
    both.becomes(KEYS)
    new = cipher.encrypted(message(2), 8)
    assert [read_box("s", 1, each[3])[0].key_id for each in (old, new)] == [1, 2]
    assert cipher.decrypted(old, 7) == message()
    assert cipher.decrypted(new, 8) == message(2)


def test_what_was_destroyed_is_not_read_from_memory() -> None:
    both = CipherSessions(KEYS)
    cipher = StoreCipher(both, STREAM)
    kept = cipher.encrypted(message(), 7)
    assert cipher.decrypted(kept, 7) == message()
    both.becomes(TenantKeys.unwrapped(KeyRecord("acme", (), shredded=5), {}))
    for use in (lambda: cipher.decrypted(kept, 7), lambda: cipher.encrypted(message(), 8)):
        with pytest.raises(TenantShreddedError):
            use()


#: Made by the version that introduced them: seq 1, revision 7, headers {"a": "b"}.
RELEASED_VALUE = "e6827d8daa6e"
RELEASED_BOX = (
    "c10100000002000102030405060708090a0b0c0d0e0f00000000"
    "b963e99053732400ca55812da660e32a664e5514b9"
)


def test_the_form_of_today_is_read() -> None:
    value, box = bytes.fromhex(RELEASED_VALUE), bytes.fromhex(RELEASED_BOX)
    assert cipher_of().row(1, 7, value, box) == (b"secret", b"\x81\xa1a\xa1b")
