"""What an erasure looks for."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from holdfast.protocol.names import StoreId, StoreKind, TenantName
from holdfast.shared_fs.erasure.sought import Sought

NOTES = StoreId("acme", StoreKind.STREAM, "notes")
PAST = Sought(TenantName("acme"), NOTES, 4)


@pytest.mark.parametrize(
    ("name", "is_sought"),
    [
        ("notes.stream.4.db", True),
        ("notes.stream.4.db-wal", True),
        ("notes.stream.1.db.0192-draft", True),
        ("notes.stream.5.db", False),
        ("notes.stream.deleted", False),
        ("notes.kv.1.db", False),
        ("notes.stream.more.stream.1.db", False),
    ],
)
def test_files_of_earlier_owners_are_sought_and_no_others(name: str, is_sought: bool) -> None:
    assert PAST.has_file(PurePath(name)) is is_sought


def test_a_store_that_took_the_name_later_is_not_sought() -> None:
    assert PAST.has(NOTES, 4)
    assert not PAST.has(NOTES, 5)
    key = "snapshots/acme/notes.stream/{:010d}-0000000000000001-ab"
    assert PAST.has_snapshot(key.format(4))
    assert PAST.has_snapshot("places/acme/1/" + key.format(4))
    assert not PAST.has_snapshot(key.format(5))


def test_of_a_tenant_everything_is_sought_also_what_is_no_snapshot() -> None:
    acme = Sought(TenantName("acme"))
    assert acme.has(NOTES, 9)
    assert not acme.has(NOTES._replace(tenant="acme2"), 1)
    assert acme.has_snapshot("snapshots/acme/a-strangers-object")
    assert not acme.has_snapshot("snapshots/acme2/notes.stream/a")
