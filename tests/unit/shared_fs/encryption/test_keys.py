"""Master keys are read with care; data keys are wrapped, rotated, wrapped anew and destroyed."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.errors import (
    InvalidArgumentError,
    KeyUnavailableError,
    StorageFailedError,
    StoreDamagedError,
    TenantShreddedError,
)
from holdfast.shared_fs.access.audit_outbox import AuditOutbox
from holdfast.shared_fs.access.quotas import quotas_of
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys, WrappedKey
from holdfast.shared_fs.encryption.master_keys import (
    MasterKey,
    key_in_file,
    key_of_command,
    read_master_keys,
)
from holdfast.shared_fs.encryption.registry import (
    NO_KEYS,
    KeyRegistry,
    keys_in_folder,
    keys_of,
)

RAW = bytes(range(100, 132))
MASTER, OTHER = MasterKey(RAW), MasterKey(bytes(32))


def key_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "master.key"
    path.touch(0o600)
    path.write_bytes(content)
    path.chmod(mode)
    return path


# Master keys
@pytest.mark.parametrize(
    "content",
    [RAW, RAW.hex().encode(), RAW.hex().encode() + b"\n", base64.b64encode(RAW) + b"\n"],
)
def test_a_master_key_is_32_bytes_as_they_are_in_hex_or_in_base64(
    tmp_path: Path, content: bytes
) -> None:
    path = key_file(tmp_path, content)
    assert key_in_file(path) == MASTER
    assert key_of_command(f"cat {path}") == MASTER
    assert read_master_keys([path], [f"cat '{path}'"]) == {MASTER.id: MASTER}


@pytest.mark.parametrize("content", [b"", RAW[:31], RAW + b"x", b"z" * 64, b"\n" * 32 + b"!" * 9])
def test_what_is_no_master_key_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = key_file(tmp_path, content)
    for read in (lambda: key_in_file(path), lambda: key_of_command(f"cat {path}")):
        with pytest.raises(InvalidArgumentError) as refused:
            read()
        assert content.hex() not in str(refused.value) or not content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_master_key_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InvalidArgumentError, match="chmod go="):
        key_in_file(key_file(tmp_path, RAW, mode))


def test_files_and_commands_that_fail_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InvalidArgumentError, match=path.name):
            key_in_file(path)
    for command in ("false", "/no/such/command", "", "'", f"ls {tmp_path}/absent"):
        with pytest.raises(InvalidArgumentError):
            key_of_command(command)


def test_a_command_runs_without_a_shell(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        key_of_command(f"cat {key_file(tmp_path, RAW)} ; touch {tmp_path}/made")
    assert not (tmp_path / "made").exists()


def test_a_key_is_in_no_text_of_its_objects() -> None:
    wrapped = WrappedKey.new("acme", 1, MASTER, 5)
    shown = repr(MASTER) + repr(wrapped) + repr(KeyRecord("acme", (wrapped,)))
    for secret in (RAW, wrapped.key("acme", {MASTER.id: MASTER})):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown


# Wrapped keys
def test_a_wrapped_key_is_that_of_its_tenant_its_number_and_its_master_alone() -> None:
    masters = {MASTER.id: MASTER}
    wrapped = WrappedKey.new("acme", 1, MASTER, 5)
    assert len(wrapped.key("acme", masters)) == 32
    moved = WrappedKey(2, wrapped.master, wrapped.wrapped, 5)
    renamed = WrappedKey(1, OTHER.id, wrapped.wrapped, 5)
    for tenant, one, known in (
        ("other", wrapped, masters),
        ("acme", moved, masters),
        ("acme", wrapped, {}),
        ("acme", renamed, {OTHER.id: OTHER}),
    ):
        with pytest.raises(KeyUnavailableError):
            one.key(tenant, known)


@given(st.integers(0, 8 * 60 - 1))
def test_a_flipped_bit_of_a_wrapped_key_is_found(bit: int) -> None:
    flipped = bytearray(WRAPPED.wrapped)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(KeyUnavailableError, match="was changed"):
        WrappedKey(1, MASTER.id, bytes(flipped), 5).key("acme", {MASTER.id: MASTER})


WRAPPED = WrappedKey.new("acme", 1, MASTER, 5)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=9),
        lambda inner: st.dictionaries(
            st.sampled_from(["id", "master", "wrapped", "made"]), inner, max_size=4
        ),
        max_leaves=5,
    )
)
def test_whatever_is_in_the_place_of_a_key_is_a_key_or_refused(fields: object) -> None:
    with pytest.raises(InvalidArgumentError):
        WrappedKey.from_json(fields)


# The registry
@pytest.fixture
def registry(tmp_path: Path) -> KeyRegistry:
    return KeyRegistry(open_bucket((tmp_path / "keys").as_uri()))


def keys_now(registry: KeyRegistry, *masters: MasterKey) -> TenantKeys:
    found = registry.read().tenants["acme"][1]
    return TenantKeys.unwrapped(found, {each.id: each for each in masters})


def test_a_tenant_is_encrypted_once_and_its_key_is_rotated_and_kept(registry: KeyRegistry) -> None:
    assert registry.read() == NO_KEYS
    [first] = registry.encrypt(["acme"], MASTER, 5)
    assert registry.encrypt(["acme"], MASTER, 6) == [first], "it is encrypted already"
    before = keys_now(registry, MASTER)
    assert (before.current_id, list(before.keys)) == (1, [1])
    registry.rotate("acme", MASTER, 7)
    after = keys_now(registry, MASTER)
    assert (after.current_id, after.keys[1]) == (2, before.keys[1])
    assert after.keys[2] != after.keys[1]
    assert [each.made for each in registry.record("acme").keys] == [5, 7]


def test_a_former_key_is_destroyed_for_good_and_neither_the_current_one_nor_an_unknown_one(
    registry: KeyRegistry,
) -> None:
    with pytest.raises(InvalidArgumentError, match="not encrypted"):
        registry.drop("acme", 1)
    registry.encrypt(["acme"], MASTER, 5)
    for refused in (1, 2, 0, -1):
        with pytest.raises(InvalidArgumentError):
            registry.drop("acme", refused)
    registry.rotate("acme", MASTER, 6)
    known = registry.read()
    assert [each.id for each in registry.drop("acme", 1).keys] == [2]
    assert registry.read(known) is not known, "servers see it"
    assert registry.drop("acme", 1) == registry.record("acme"), "once more changes nothing"
    found = keys_now(registry, MASTER)
    with pytest.raises(KeyUnavailableError):
        found.key(1)
    registry.rotate("acme", MASTER, 7)
    assert keys_now(registry, MASTER).current_id == 3, "its number is not used again"
    registry.shred("acme", 8)
    with pytest.raises(TenantShreddedError):
        registry.drop("acme", 2)


def test_a_clock_that_goes_back_or_stands_changes_neither_keys_nor_their_order(
    registry: KeyRegistry,
) -> None:
    registry.encrypt(["acme", "other"], MASTER, 9_000)
    for now in (5, 0, 9_000):
        registry.rotate("acme", MASTER, now)
    assert keys_now(registry, MASTER).current_id == 4
    assert [each.id for each in registry.record("acme").keys] == [1, 2, 3, 4]
    registry.shred("acme", 0)
    assert registry.record("acme").shredded == 0
    with pytest.raises(TenantShreddedError):
        keys_now(registry, MASTER).key(1)
    assert "acme" in registry.read().tenants, "it stays encrypted for whoever starts now"


def test_what_has_not_changed_is_not_read_again(registry: KeyRegistry) -> None:
    registry.encrypt(["acme", "other"], MASTER, 5)
    known = registry.read()
    assert registry.read(known) is known
    registry.rotate("other", MASTER, 6)
    changed = registry.read(known)
    assert changed.tenants["acme"] is known.tenants["acme"]
    assert changed.tenants["other"][0] == 2


def test_a_new_master_key_opens_the_same_data_keys_and_the_old_one_none(
    registry: KeyRegistry,
) -> None:
    registry.encrypt(["acme"], MASTER, 5)
    registry.rotate("acme", MASTER, 6)
    before = keys_now(registry, MASTER)
    with pytest.raises(KeyUnavailableError):
        registry.rewrap("acme", {}, OTHER)
    registry.rewrap("acme", {MASTER.id: MASTER}, OTHER)
    assert keys_now(registry, OTHER).keys == before.keys
    without = keys_now(registry, MASTER)
    assert isinstance(without.problem, KeyUnavailableError)
    assert without.problem.fields["tenant"] == "acme"


def test_a_key_that_is_destroyed_is_gone_and_never_made_again(
    registry: KeyRegistry, tmp_path: Path
) -> None:
    [record] = registry.encrypt(["acme"], MASTER, 5)
    wrapped = base64.b64encode(record.keys[0].wrapped)
    assert any(wrapped in each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert registry.shred("acme", 9) == registry.shred("acme", 10), "that is done once"
    assert not any(wrapped in each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    gone = keys_now(registry, MASTER)
    assert isinstance(gone.problem, TenantShreddedError)
    for change in (
        lambda: registry.encrypt(["acme"], MASTER, 11),
        lambda: registry.rotate("acme", MASTER, 11),
        lambda: registry.rewrap("acme", {MASTER.id: MASTER}, OTHER),
    ):
        with pytest.raises(TenantShreddedError):
            change()


def test_keys_of_a_tenant_that_is_not_encrypted_are_not_changed(registry: KeyRegistry) -> None:
    for change in (
        lambda: registry.rotate("acme", MASTER, 1),
        lambda: registry.rewrap("acme", {}, OTHER),
        lambda: registry.shred("acme", 1),
    ):
        with pytest.raises(InvalidArgumentError):
            change()
    assert registry.read() == NO_KEYS


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"keys": [], "shredded": null}', b'{"keys": [1], "shredded": 1}']
)
def test_a_record_that_makes_no_sense_is_damage_and_not_an_open_tenant(
    registry: KeyRegistry, tmp_path: Path, body: bytes
) -> None:
    registry.encrypt(["acme"], MASTER, 5)
    known = registry.read()
    registry.rotate("acme", MASTER, 6)
    bucket = open_bucket((tmp_path / "keys").as_uri())
    bucket.replace("tenants/acme", body, bucket.head("tenants/acme").version)
    for before in (NO_KEYS, known):
        with pytest.raises(StoreDamagedError):
            registry.read(before)
    for change in (
        lambda: registry.rotate("acme", MASTER, 7),
        lambda: registry.shred("acme", 7),
    ):
        if body != b"{}":
            with pytest.raises(StoreDamagedError):
                change()
    bucket.delete("index")
    with pytest.raises(StoreDamagedError, match="gone"):
        registry.read(known)


@pytest.mark.parametrize(
    "tenants", ["null", "[]", '{"acme": 1e999}', '{"acme": "1"}', '{"acme": 1.5}', '{"a b": 1}']
)
def test_an_index_that_makes_no_sense_is_damage(
    registry: KeyRegistry, tmp_path: Path, tenants: str
) -> None:
    registry.encrypt(["acme"], MASTER, 5)
    bucket = open_bucket((tmp_path / "keys").as_uri())
    body = b'{"tenants": %s}' % tenants.encode()
    bucket.replace("index", body, bucket.head("index").version)
    with pytest.raises(StoreDamagedError):
        registry.read()


def test_an_index_that_has_lost_a_tenant_is_damage_and_no_open_tenant(
    registry: KeyRegistry, tmp_path: Path
) -> None:
    bucket = open_bucket((tmp_path / "keys").as_uri())
    registry.encrypt(["other"], MASTER, 5)
    earlier = bucket.get("index", limit_bytes=1 << 20).body
    registry.encrypt(["acme"], MASTER, 6)
    known = registry.read()
    bucket.replace("index", earlier, bucket.head("index").version)
    with pytest.raises(StoreDamagedError, match="acme"):
        registry.read(known)
    registry.encrypt(["acme"], MASTER, 7)
    assert set(registry.read(known).tenants) == {"acme", "other"}


def test_the_folder_is_read_once_it_is_there(tmp_path: Path) -> None:
    layout = open_layout(tmp_path, Disk())
    late = keys_of(layout, None)
    assert late.read() == NO_KEYS
    keys_in_folder(layout).encrypt(["acme"], MASTER, 5)
    assert set(late.read().tenants) == {"acme"}


def test_a_folder_that_cannot_be_looked_at_is_no_folder_without_keys() -> None:
    out_of_reach = Layout(Path("/" + "x" * 300))
    for read in (keys_of(out_of_reach, None).read, quotas_of(out_of_reach, None).read):
        with pytest.raises(StorageFailedError):
            read()
    with pytest.raises(StorageFailedError):
        next(AuditOutbox(None, out_of_reach.audit).waiting())
