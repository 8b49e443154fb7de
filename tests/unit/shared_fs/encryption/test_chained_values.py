"""A chain in an encrypted tenant: leaves are those of clear text, are in the boxes, tell nothing,
and are checked by whoever has the keys; links are checked by everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol import changes, frames
from holdfast.protocol.chain.hashing import GENESIS, after, leaf_of, leaf_of_set
from holdfast.protocol.changes import CHANGE_CONFIGURE, CHANGE_SET_ENTRY, CHANGE_SET_MESSAGE
from holdfast.protocol.errors import (
    DecryptionFailedError,
    KeyUnavailableError,
    StoreDamagedError,
    TooLargeError,
)
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import MAX_HEADER_BLOCK_BYTES
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.encryption.data_keys import KeyRecord, WrappedKey
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import NO_KEYS, KeyRecords
from holdfast.shared_fs.encryption.salts import SALT_HEADER, salted
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from holdfast.shared_fs.inspection.value_check import ValueCheck
from holdfast.shared_fs.inspection.verification import StoreVerdict, Verifier
from holdfast.shared_fs.store_file.applying import AppliedBatch
from holdfast.shared_fs.store_file.chain.kept_leaves import kept_leaf_of, leaf_of_kept
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_BYTES, Box, leaf_in_box
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.chain_world import ChainWorld
from tests.support.literal_store_files import CHAIN, ENTRIES, MESSAGES, META, write_file
from tests.support.stores import kv_id, stream_id
from tests.support.tenant_keys import KEYS

STREAM, KV = stream_id("a.b"), kv_id("a.b")
MASTER = MasterKey(bytes(range(32)))
MASTERS = {MASTER.id: MASTER}
CHAINED_BOX_BYTES = BOX_BYTES + 32
VALUES = {seq: b"value %d" % seq for seq in range(1, 6)}


class Registry:
    """The keys of tests, wrapped; or none, or none any more."""

    def __init__(self, *ids: int, shredded: int | None = None) -> None:
        wrapped = [WrappedKey.of("acme", each, KEYS.keys[each], MASTER, 1) for each in ids]
        self._record = KeyRecord("acme", tuple(wrapped), shredded)

    def read(self, known: KeyRecords = NO_KEYS) -> KeyRecords:
        return KeyRecords("1", {"acme": (1, self._record)})


def cipher_of(store: StoreId = STREAM) -> StoreCipher:
    return StoreCipher(CipherSessions(KEYS), store)


def kept(seq: int, value: bytes, headers: Any = None, leaf: bytes | None = None) -> Any:
    """Return a message as it is kept with revision seq + 1, at time 5."""
    change = salted([CHANGE_SET_MESSAGE, seq, value, headers])
    return cipher_of().encrypted(change, seq + 1, leaf or changes.leaf(change, 5))


@given(
    st.binary(max_size=40),
    st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
def test_the_leaf_of_a_kept_message_is_that_of_what_it_decrypts_to(
    value: bytes, headers: dict[str, str] | None
) -> None:
    change = kept(3, value, headers)
    found = changes.message_set(cipher_of().decrypted(change, 4))
    assert found.value == value
    salt = found.headers.pop(SALT_HEADER)
    assert len(bytes.fromhex(salt)) == 16 and found.headers == (headers or {})
    leaf = leaf_of(3, 5, value, {**(headers or {}), SALT_HEADER: salt})
    assert leaf_of_kept(change, 5) == leaf_in_box(change[3]) == leaf
    assert len(change[3]) >= CHAINED_BOX_BYTES


@given(st.integers(0, 8 * (6 + CHAINED_BOX_BYTES + 3) - 1))
def test_a_flipped_bit_also_of_the_leaf_is_found_with_the_key(bit: int) -> None:
    _, _, value, box = cipher_of().encrypted([1, 1, b"secret", {"a": ""}], 7, bytes(range(32)))
    flipped = bytearray(value + box)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises((DecryptionFailedError, KeyUnavailableError)):
        cipher_of().row(1, 7, bytes(flipped[:6]), bytes(flipped[6:]))


def test_a_leaf_is_neither_taken_away_nor_exchanged() -> None:
    _, _, value, box = cipher_of().encrypted([1, 1, b"secret"], 7, bytes(range(32)))
    parts, leaf, rest = box[2:BOX_BYTES], box[BOX_BYTES:CHAINED_BOX_BYTES], box[CHAINED_BOX_BYTES:]
    assert leaf == bytes(range(32))
    for other in (b"\xc1\x01" + parts + rest, b"\xc1\x02" + parts + bytes(32) + rest):
        with pytest.raises(DecryptionFailedError):
            cipher_of().row(1, 7, value, other)


@given(st.binary(max_size=CHAINED_BOX_BYTES + 5))
def test_any_bytes_have_a_leaf_and_only_a_whole_box_names_one(rest: bytes) -> None:
    box = b"\xc1" + rest
    named = leaf_in_box(box)
    assert (named is not None) == (rest[:1] == b"\x02" and len(box) >= CHAINED_BOX_BYTES)
    assert kept_leaf_of(1, 5, b"v", box, None) == (named or leaf_of(1, 5, b"v", box))


def test_a_client_believes_no_leaf_that_it_is_told() -> None:
    _, _, value, box = kept(1, b"v")
    assert leaf_of(1, 5, value, box) != leaf_in_box(box)


def test_equal_values_have_different_leaves_and_what_a_writer_salts_stays() -> None:
    assert len({leaf_in_box(kept(1, b"yes")[3]) for _ in range(9)}) == 9
    given_by_writer = [CHANGE_SET_MESSAGE, 1, b"yes", {SALT_HEADER: "mine"}]
    assert salted(given_by_writer) == given_by_writer
    block = HeaderBlock.of({"a": "1"}).block
    change = salted([CHANGE_SET_MESSAGE, 1, b"v", block, "id", None, "subject"])
    found = changes.message_set(change)
    assert (found.msg_id, found.subject) == ("id", "subject")
    assert found.headers.startswith(block[:-2])
    assert list(HeaderBlock(found.headers)) == ["a", SALT_HEADER]
    assert salted(change) == change
    full = HeaderBlock.of({"a": "x" * (MAX_HEADER_BLOCK_BYTES - 17)}).block
    with pytest.raises(TooLargeError):
        salted([CHANGE_SET_MESSAGE, 1, b"v", full])


def test_a_box_without_a_leaf_breaks_the_chain_of_its_owner(tmp_path: Path) -> None:
    file = StoreFile.create(tmp_path / "a.db", STREAM, time=1)
    leaf = leaf_of(1, 5, b"v")
    change = cipher_of().encrypted([CHANGE_SET_MESSAGE, 1, b"v"], 2)
    batch = AppliedBatch(0, 5, [[CHANGE_CONFIGURE, {"chain": True}], change], after(GENESIS, leaf))
    with pytest.raises(StoreDamagedError, match="its owner had the chain"):
        file.apply([batch])
    file.abandon()


# Verification
def sets_of(values: dict[int, bytes]) -> list[Any]:
    return [kept(seq, value) for seq, value in values.items()]


@pytest.fixture
def world(tmp_path: Path) -> ChainWorld[dict[int, bytes]]:
    return ChainWorld(tmp_path, STREAM, sets_of)


def with_keys(world: ChainWorld[Any], registry: Registry | None = None) -> StoreVerdict:
    check = ValueCheck(registry or Registry(1, 2), MASTERS)
    return Verifier(world.layout, world.bucket, check).verify(STREAM)


def test_links_are_checked_without_keys_and_leaves_with_them(
    world: ChainWorld[dict[int, bytes]],
) -> None:
    world.write(VALUES, [changes.CHANGE_DELETE_MESSAGES, [3]])
    found = world.verdict()
    assert (found.file, found.chain, found.values, found.problems) == ("sound", "links", "-", [])
    found = with_keys(world)
    assert (found.file, found.chain, found.values, found.problems) == (
        *("sound", "sound", "sound"),
        [],
    )
    missing = with_keys(world, Registry(1))
    assert (missing.values, missing.chain) == ("broken", "links")
    assert "the registry, as this process knows it, has no such key" in missing.problems[0]
    shredded = with_keys(world, Registry(shredded=5))
    assert (shredded.values, shredded.chain, shredded.problems) == ("shredded", "links", [])


def test_a_forger_without_keys_who_mends_every_link_is_found_with_the_keys(
    world: ChainWorld[dict[int, bytes]],
) -> None:
    world.write(VALUES)
    _, _, value, box = kept(2, b"forged!")
    forged = b"\xc1\x02" + box[2:BOX_BYTES] + bytes(range(32)) + box[CHAINED_BOX_BYTES:]
    file = StoreFile.open(world.path, STREAM)
    leaves = dict(file.chain.leaves(file._connection.execute, has_subjects=False))
    file.close()
    chain = GENESIS
    for leaf in (leaves | {2: bytes(range(32))}).values():
        chain = after(chain, leaf)
    world.forge(
        f"UPDATE messages SET value = x'{value.hex()}', headers = x'{forged.hex()}' WHERE seq = 2;"
        f"UPDATE chain SET value = x'{chain.hex()}'"
    )
    assert world.verdict().chain == "links"
    found = with_keys(world)
    assert found.values == "broken"
    assert found.problems == ["its values: 2 of its file does not decrypt"]


@pytest.mark.parametrize(
    ("store", "table", "place"), [(STREAM, "messages", "seq"), (KV, "entries", "revision")]
)
def test_a_box_is_not_believed_in_a_file_that_is_not_encrypted(
    tmp_path: Path, store: StoreId, table: str, place: str
) -> None:
    """Otherwise whoever can write a file would need no more than the leaf of what was there."""

    def sets_in_clear(values: dict[int, bytes]) -> list[Any]:
        if store is STREAM:
            return [[CHANGE_SET_MESSAGE, seq, value] for seq, value in values.items()]
        return [[CHANGE_SET_ENTRY, str(seq), value] for seq, value in values.items()]

    world = ChainWorld(tmp_path, store, sets_in_clear)
    world.write(VALUES)
    assert (world.verdict().file, world.verdict().chain) == ("sound", "sound")
    leaf = leaf_of(2, 5, VALUES[2])
    if store is KV:
        leaf = leaf_of_set(2, 5, VALUES[1], None, "1")
    box = Box(1, bytes(16), 1, bytes(16), leaf).packed()
    world.forge(
        f"UPDATE {table} SET value = x'{b'forged!'.hex()}', headers = x'{box.hex()}'"
        f" WHERE {place} = 2; UPDATE meta SET bytes = bytes + {len(box)}"
    )
    check = ValueCheck(Registry(1, 2), MASTERS)
    for verifier in (
        Verifier(world.layout, world.bucket),
        Verifier(world.layout, world.bucket, check),
    ):
        found = verifier.verify(store)
        assert found.chain == "broken"
        assert "give the chain" in found.problems[0]


def test_earlier_values_of_a_kv_are_decrypted_too(tmp_path: Path) -> None:
    path = tmp_path / "kv.db"
    file = StoreFile.create(path, KV, time=1)
    cipher = cipher_of(KV)
    sets = [cipher.encrypted([CHANGE_SET_ENTRY, "a", b"v%d" % at], at) for at in (2, 3, 4)]
    file.apply([AppliedBatch(0, 5, [[CHANGE_CONFIGURE, {"history": 3}], *sets])])
    check = ValueCheck(Registry(1, 2), MASTERS)
    file.checkpoint()
    assert check.values(path, KV, "its file") == (3, (), False)
    file._execute("UPDATE history SET value = x'0000' WHERE revision = 2")
    file.close()
    assert check.values(path, KV, "its file") == (
        *(2, ("its values: 'a' of its file does not decrypt",)),
        False,
    )


def test_an_owner_that_lies_about_a_leaf_is_found_with_the_keys(
    world: ChainWorld[dict[int, bytes]],
) -> None:
    world._sets = lambda values: [
        kept(seq, value, leaf=bytes(range(32)) if seq == 2 else None)
        for seq, value in values.items()
    ]
    world.write(VALUES)
    assert (world.verdict().chain, world.verdict().problems) == ("links", [])
    found = with_keys(world)
    assert found.problems == ["its chain: the leaf of 2 of its file is not that of its value"]


def test_values_without_a_chain_are_decrypted_too(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kv.db"
    file = StoreFile.create(path, KV, time=1)
    cipher = cipher_of(KV)
    sets = [cipher.encrypted([CHANGE_SET_ENTRY, key, b"v"], at) for at, key in ((1, "a"), (2, "b"))]
    file.apply([AppliedBatch(0, 5, [*sets, [CHANGE_SET_ENTRY, "clear", b"v"]])])
    file.close()
    check = ValueCheck(Registry(1, 2), MASTERS)
    assert check.values(path, KV, "its file") == (2, (), False)
    with pytest.raises(StoreDamagedError):
        (tmp_path / "none").write_bytes(b"no database" * 99)
        check.values(tmp_path / "none", KV, "its file")


#: A stream with a chain, as format 10 has it: message 2 was deleted, and left its leaf.
_STREAM_10: Final = f"""
{META}
{MESSAGES}
CREATE TABLE former_names(name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
{CHAIN}
INSERT INTO meta VALUES
    (1, 'acme', 1, 'a.b', 1000, 3, 's1', 'i1', 5, 1000, 3, 2, 196, 0, '{{"chain": true}}');
INSERT INTO messages VALUES
    (1, 2, 1000, x'fa897b',
x'c10200000002000102030405060708090a0b0c0d0e0f0000000040d10dcdf6c2940391b464a5f43c8e4713ef2e61f00a'
|| x'9463fcd4b114f886a8442289ffb848c41d7987548fcbe5beac687e6252888350d3ba494568c20066508c7adf2269',
    NULL, NULL, NULL),
    (3, 4, 1000, x'4fe60c7703',
x'c10200000002000102030405060708090a0b0c0d0e0f00000002307c5ade5d9c92d8952efd98d4b819fa9a01d7bdf670'
|| x'016d4f591de09d7a561e9c16e2b7c89d403879b645ae6e1316914008e0408cde367f38090afdec3997cad41ad8fb',
    NULL, NULL, NULL);
INSERT INTO chain VALUES (
    1, x'0f9b2e64d9c8726e3d0268c5a9798b6e632f6fc8795ae89a03514c300b9714c8', 0,
    x'65a85bbe79639cf42b2ba988f52233bc2f09f8eab7e511db0e366cf65760d941');
INSERT INTO leaves VALUES (2, x'0951489e3f6c22d97a49d3fb43785694557723267b0ee6187b27ddcb8cdb6503');
"""
#: The same of a kv: `k` was set, then `j`, then `k` again.
_KV_10: Final = f"""
{META}
{ENTRIES}
CREATE TABLE former_names(name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
{CHAIN}
INSERT INTO meta VALUES
    (1, 'acme', 2, 'a.b', 1000, 3, 's1', 'i1', 4, 1000, 0, 2, 202, 0, '{{"chain": true}}');
INSERT INTO entries VALUES
    (3, 'j', 1000, x'291ed3',
x'c10200000002000102030405060708090a0b0c0d0e0f00000001608f151b72277a7dba015f67b815b6e0b21be4ad0574'
|| x'dc980017ef5dc07f7d2bc1539191dcb5915c1ce5c0fd4e3461b10888af13985d2e9d81476fb97133bf10181c4c2f'
|| x'173c42ff', NULL, NULL),
    (4, 'k', 1000, x'4fe60c7703',
x'c10200000002000102030405060708090a0b0c0d0e0f000000024d142979333d60994d9f45c729fb81d1ed7e7224e5d9'
|| x'feba8d3ee86c381483a723597454de340770c354b40ac00283b84008e0408cde367f38090afdec3997cad41ad8fb',
    NULL, NULL);
INSERT INTO chain VALUES (
    1, x'368aa77920b2275e99d4028c3c4189494002dcd5c795de5a08c5e3347ef058f3', 2,
    x'8515c62fffa423586824a21cd06b59939dc37b7eabe06f03912835b1357d71e3');
"""


@pytest.mark.parametrize(("kind", "sql"), [(StoreKind.STREAM, _STREAM_10), (StoreKind.KV, _KV_10)])
def test_encrypted_values_in_a_chain_of_format_10_are_read_and_written(
    tmp_path: Path, kind: StoreKind, sql: str
) -> None:
    path, store = tmp_path / "store.db", StoreId("acme", kind, "a.b")
    # The long values are in two lines.
    write_file(path, 10, sql.replace("'\n|| x'", ""))
    assert ValueCheck(Registry(1, 2), MASTERS).values(path, store, "it") == (2, (), False)
    file = StoreFile.open(path, store)
    damage = file.chain.damage
    assert damage(file._connection.execute, has_subjects=False) == ""
    cipher = file.encryption.cipher = StoreCipher(CipherSessions(KEYS), store)
    if kind is StoreKind.STREAM:
        rows = [row[3:] for row in file.messages(1, None, 9)]
        change: list[Any] = [CHANGE_SET_MESSAGE, 4, b"four"]
        leaf = changes.leaf(change, 2000)
    else:
        rows = [row[3:5] for row in file.entries("", None, 9, with_values=True)]
        change = [CHANGE_SET_ENTRY, "l", b"four"]
        leaf = changes.leaf_of_change(change, 5, 2000)
    assert sorted(value for value, _ in rows) == sorted(
        [b"three", b"one" if kind is StoreKind.STREAM else b"two"]
    )
    assert all(SALT_HEADER in frames.unpack(headers) for _, headers in rows)
    chain = file.chain.value
    assert chain is not None
    revision = file.meta.revision
    batch = AppliedBatch(revision, 2000, [cipher.encrypted(change, revision + 1, leaf)])
    file.apply([batch._replace(chain=after(chain, leaf))])
    assert damage(file._connection.execute, has_subjects=False) == ""
    assert file._connection.pragma("user_version") == 10
    file.close()


def test_a_file_that_is_encrypted_before_it_has_a_chain_has_format_10_with_the_first_leaf(
    tmp_path: Path,
) -> None:
    file = StoreFile.create(tmp_path / "a.db", STREAM, time=1)
    file.apply([AppliedBatch(0, 5, [cipher_of().encrypted([CHANGE_SET_MESSAGE, 1, b"v"], 1)])])
    formats = [file._connection.pragma("user_version")]
    configure = [CHANGE_CONFIGURE, {"chain": True}]
    file.apply([AppliedBatch(1, 5, [configure])])
    formats.append(file._connection.pragma("user_version"))
    change = [CHANGE_SET_MESSAGE, 2, b"v"]
    leaf = changes.leaf(change, 5)
    chained = cipher_of().encrypted(change, 3, leaf)
    with file.preview([AppliedBatch(2, 5, [chained])]):
        pass
    assert not file.encryption.state.is_chained
    file.apply([AppliedBatch(2, 5, [chained], after(GENESIS, leaf))])
    formats.append(file._connection.pragma("user_version"))
    assert formats == [9, 9, 10]
    file.close()
    again = StoreFile.open(tmp_path / "a.db", STREAM)
    assert (again.chain.exists, again.encryption.state.is_chained) == (True, True)
    again.close()
