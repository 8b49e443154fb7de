"""The registry of quotas: what is set is read, what has not changed is not read again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from holdfast.protocol.access.quota import NO_QUOTA, Quota
from holdfast.protocol.errors import InvalidArgumentError, InvalidNameError, StoreDamagedError
from holdfast.shared_fs.access.quotas import (
    NO_QUOTAS,
    QuotaRegistry,
    quotas_of,
    registry_in_bucket,
    registry_in_folder,
)
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.disk.layout import Layout


@pytest.fixture
def bucket() -> Bucket:
    return Bucket(MemoryBackend())


def requests(bucket: Bucket) -> int:
    counts = asdict(bucket.usage.total())
    return sum(counts[name] for name in counts if name.endswith("_count"))


def test_what_is_set_is_read_and_the_rest_stays(bucket: Bucket) -> None:
    registry = registry_in_bucket(bucket)
    assert registry.read() is NO_QUOTAS
    assert registry.get("acme") == NO_QUOTA
    assert registry.change("acme", {"max_stores": 3, "max_rate": 2.5}) == Quota(3, None, 2.5)
    assert registry.change("acme", {"max_bytes": 9, "max_rate": None}) == Quota(3, 9)
    registry.change("other", {"max_bytes": 1})
    found = quotas_of(Layout(Path("unused")), bucket).read()
    assert found.tenants == {"acme": Quota(3, 9), "other": Quota(max_bytes=1)}
    assert registry.get("acme") == Quota(3, 9)
    registry.change("acme", {"max_stores": None, "max_bytes": None})
    assert registry.read(found).tenants == {"other": Quota(max_bytes=1)}


def test_only_what_has_changed_is_read_again(bucket: Bucket) -> None:
    registry = QuotaRegistry(bucket)
    for number in range(40):
        registry.change(f"t{number}", {"max_stores": number})
    known = registry.read()
    before = requests(bucket)
    assert registry.read(known) is known
    assert requests(bucket) - before == 1
    registry.change("t7", {"max_stores": 700})
    before = requests(bucket)
    again = registry.read(known)
    assert requests(bucket) - before == 3, "the index twice, and one shard"
    assert again.tenants == {**known.tenants, "t7": Quota(700)}


def test_a_change_whose_writer_died_halfway_comes_with_its_repetition(bucket: Bucket) -> None:
    registry = QuotaRegistry(bucket)
    registry.change("acme", {"max_stores": 1})
    known = registry.read()
    index = bucket.get("index")
    registry.change("acme", {"max_stores": 2})
    bucket.replace("index", index.body + b" ", bucket.head("index").version)
    assert registry.read(known).tenants["acme"] == Quota(1)
    registry.change("acme", {"max_stores": 2})
    assert registry.read(known).tenants["acme"] == Quota(2)


def test_several_operators_overwrite_nothing_of_each_other(bucket: Bucket) -> None:
    registry = QuotaRegistry(bucket)
    registry.change("acme", {"max_stores": 1})
    put, others = bucket.replace, [{"max_bytes": 2}, {"max_rate": 3.0}]

    def raced(*arguments: object) -> str:
        if others:
            QuotaRegistry(Bucket(bucket._backend)).change("acme", others.pop())
        return put(*arguments)  # type: ignore[arg-type]

    bucket.replace = raced  # type: ignore[method-assign, assignment]
    registry.change("acme", {"max_bytes_per_second": 4})
    assert registry.get("acme") == Quota(1, 2, 3.0, 4)


def test_wrong_names_and_limits_are_refused_and_change_nothing(bucket: Bucket) -> None:
    registry = QuotaRegistry(bucket)
    with pytest.raises(InvalidNameError):
        registry.change("*", {"max_stores": 1})
    with pytest.raises(InvalidArgumentError):
        registry.change("acme", {"max_stores": -1})
    assert registry.read() is NO_QUOTAS


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"shards": 3}', b'{"shards": {"00": "x"}}'])
def test_an_index_that_makes_no_sense_is_damage(bucket: Bucket, body: bytes) -> None:
    bucket.put_new("index", body)
    with pytest.raises(StoreDamagedError):
        QuotaRegistry(bucket).read()


@pytest.mark.parametrize(
    "body", [b"7", b'{"tenants": 7}', b'{"tenants": {"a": 7}}', b'{"tenants": {"a b": {}}}']
)
def test_a_shard_that_makes_no_sense_is_damage(bucket: Bucket, body: bytes) -> None:
    bucket.put_new("index", b'{"shards": {"00": 1}}')
    bucket.put_new("shards/00", body)
    with pytest.raises(StoreDamagedError):
        QuotaRegistry(bucket).read()


def test_a_folder_without_quotas_stays_as_it_is_until_the_first_is_set(tmp_path: Path) -> None:
    reader = quotas_of(Layout(tmp_path), None)
    assert reader.read() is NO_QUOTAS
    assert list(tmp_path.iterdir()) == []
    registry_in_folder(Layout(tmp_path)).change("acme", {"max_stores": 1})
    found = reader.read()
    assert found.tenants == {"acme": Quota(1)}
    assert reader.read(found) is found
