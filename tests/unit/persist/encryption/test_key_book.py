"""Open stores get the ciphers that the registry and their files say, and what lacks a key is
refused whatever it is."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.persist.encryption.key_book import KeyBook
from holdfast.protocol import frames
from holdfast.protocol.errors import KeyUnavailableError, TenantShreddedError
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.shared_fs.encryption.data_keys import KeyRecord, WrappedKey
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import KeyRecords
from tests.support.stores import store_of, stream_id
from tests.support.tenant_keys import KEYS
from tests.support.ticked_store import Bench, append

MASTER = MasterKey(bytes(range(32)))
MASTERS = {MASTER.id: MASTER}


def records(*keys: int, count: int = 1, shredded: int | None = None) -> KeyRecords:
    made = [WrappedKey.of("acme", each, bytes((each,)) * 32, MASTER, 1) for each in keys]
    return KeyRecords(str(count), {"acme": (count, KeyRecord("acme", tuple(made), shredded))})


def test_a_store_of_a_tenant_that_is_not_encrypted_pays_nothing() -> None:
    store = store_of(stream_id())
    book = KeyBook(MASTERS)
    book.opened(store)
    assert store.cipher is None and store.contents.cipher is None


def test_open_stores_are_encrypted_from_the_moment_that_the_registry_says_so() -> None:
    store = store_of(stream_id())
    book = KeyBook(MASTERS)
    book.opened(store)
    book.change(records(1), [store])
    cipher = store.cipher
    assert cipher is not None and cipher.problem is None
    book.change(records(1, 2, count=2), [store])
    assert store.cipher is cipher
    assert cipher.sessions.keys.current_id == 2
    book.change(records(shredded=9, count=3), [store])
    assert isinstance(cipher.problem, TenantShreddedError)


def test_a_server_without_the_master_key_has_a_problem_until_it_is_started_with_it() -> None:
    store = store_of(stream_id())
    book = KeyBook({})
    book.change(records(1), [])
    book.opened(store)
    assert store.cipher is not None
    assert isinstance(store.cipher.problem, KeyUnavailableError)


def test_a_tenant_whose_keys_are_gone_from_the_registry_is_refused_and_no_other() -> None:
    stores = [store_of(stream_id()), store_of(StoreId("other", StoreKind.STREAM, "a"))]
    book = KeyBook(MASTERS)
    book.change(records(), [])
    for store in stores:
        book.opened(store)
    assert stores[0].cipher is not None and stores[1].cipher is None
    assert isinstance(stores[0].cipher.problem, KeyUnavailableError)


@pytest.mark.parametrize("kind", [StoreKind.STREAM, StoreKind.KV])
def test_a_file_with_encrypted_values_is_never_given_out_as_it_is(
    tmp_path: Path, kind: StoreKind
) -> None:
    with closing(Bench(tmp_path, kind, keeps_up=True, keys=KEYS)) as bench:
        bench.tick(append(b"secret") if bench.store.is_stream else [frames.SET_ENTRY, "k", b""])
        bench.keys = None
        bench.reopen()
        assert bench.store.cipher is None
        KeyBook(MASTERS).opened(bench.store)
        assert bench.store.cipher is not None
        problem = bench.store.cipher.problem
        assert isinstance(problem, KeyUnavailableError)
        assert "does not know the tenant" in str(problem)
