"""The registry of tokens, in memory and in a directory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import Token, new_token, sign_token
from holdfast.protocol.errors import InvalidArgumentError, InvalidTokenError, StoreDamagedError
from holdfast.shared_fs.access.registry import AccessRegistry, Issuer, verified
from holdfast.shared_fs.bucket.bucket import Bucket, open_bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend

KEY = SigningKey(bytes(32))
CLUSTER = Issuer("cluster", bytes(KEY.verify_key), ("*",))


@pytest.fixture(params=["memory", "directory"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    if request.param == "memory":
        yield Bucket(MemoryBackend())
    else:
        opened = open_bucket(f"file://{tmp_path}/auth")
        yield opened
        opened.close()


@pytest.fixture
def registry(bucket: Bucket) -> AccessRegistry:
    return AccessRegistry(bucket, "auth/")


def token(tenant: str = "acme", issuer: str = "cluster", expires_at: int | None = 2_000) -> Token:
    return new_token(
        issuer=issuer,
        tenant=tenant,
        stores=[">"],
        rights=Right.READ,
        created_at=0,
        expires_at=expires_at,
    )


def test_an_empty_registry_has_nothing(registry: AccessRegistry) -> None:
    assert registry.issuers() == {}
    assert registry.token_text("a" * 16) is None
    assert list(registry.token_ids()) == []
    assert registry.revocations().ids == {}


def test_an_issuer_is_registered_once(registry: AccessRegistry) -> None:
    registry.add_issuer(CLUSTER)
    assert registry.issuers() == {"cluster": CLUSTER}
    with pytest.raises(InvalidArgumentError, match="already"):
        registry.add_issuer(replace(CLUSTER, public_key=bytes(32)))
    assert registry.issuers() == {"cluster": CLUSTER}


def test_a_key_of_another_length_is_refused(registry: AccessRegistry) -> None:
    with pytest.raises(InvalidArgumentError, match="32 bytes"):
        registry.add_issuer(replace(CLUSTER, public_key=bytes(31)))


def test_an_issuer_issues_only_for_its_tenants_and_only_the_cluster_for_operators() -> None:
    sso = Issuer("sso", bytes(KEY.verify_key), ("acme",))
    everywhere = Issuer("all", bytes(KEY.verify_key), ("*",))
    issuers = {each.name: each for each in (CLUSTER, sso, everywhere)}
    for tenant, issuer, allowed in [
        ("acme", "sso", True),
        ("umbrella", "sso", False),
        ("umbrella", "all", True),
        ("*", "all", False),
        ("*", "sso", False),
        ("*", "cluster", True),
    ]:
        made = token(tenant, issuer)
        text = sign_token(made, KEY)
        if allowed:
            assert verified(text, issuers) == made
        else:
            with pytest.raises(InvalidTokenError, match="may not issue"):
                verified(text, issuers)


def test_a_token_is_registered_once_under_its_id(registry: AccessRegistry) -> None:
    made = token()
    text = sign_token(made, KEY)
    registry.put_token(text, made)
    registry.put_token(text, made)
    assert registry.token_text(made.id) == text
    assert list(registry.token_ids()) == [made.id]
    other = replace(made, rights=Right.WRITE)
    with pytest.raises(InvalidTokenError, match="another token"):
        registry.put_token(sign_token(other, KEY), other)
    assert registry.token_text(made.id) == text
    registry.forget_token(made.id)
    assert registry.token_text(made.id) is None


def test_a_revoked_token_is_listed_until_it_has_expired_by_every_clock(
    registry: AccessRegistry,
) -> None:
    first, second, lasting = token(), token(expires_at=3_000), token(expires_at=None)
    before = registry.revocations()
    registry.revoke(first, 1_000)
    registry.revoke(lasting, 1_000)
    assert registry.revocations().ids == {first.id: 2_000, lasting.id: None}
    registry.revoke(second, 2_500)
    assert first.id in registry.revocations().ids
    registry.revoke(second, 2_500 + 24 * 3600)
    after = registry.revocations(before)
    assert after.ids == {second.id: 3_000, lasting.id: None}
    assert registry.revocations(after) is after


def test_revocations_at_the_same_time_are_all_kept(registry: AccessRegistry) -> None:
    tokens = [token(expires_at=None) for _ in range(8)]
    threads = [threading.Thread(target=registry.revoke, args=(each, 0)) for each in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.revocations().ids.keys() == {each.id for each in tokens}


@pytest.mark.parametrize("key", ["auth/revoked", "auth/issuers/cluster"])
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"revoked":1,"count":1}', b"\xff"])
def test_what_is_damaged_is_said_to_be(
    bucket: Bucket, registry: AccessRegistry, key: str, body: bytes
) -> None:
    bucket.put_new(key, body)
    with pytest.raises(StoreDamagedError, match=key):
        registry.revocations() if key.endswith("revoked") else registry.issuers()
