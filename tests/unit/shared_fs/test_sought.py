"""What an erasure looks for."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from holdfast.protocol.names import StoreId, StoreKind, TenantName
from holdfast.shared_fs.erasure.sought import Sought

NOTES = StoreId("acme", StoreKind.STREAM, "notes")
PAST = Sought(TenantName("acme"), {NOTES: 4})


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


def test_files_of_several_stores_are_told_apart_whatever_dots_their_names_have() -> None:
    dotted = StoreId("acme", StoreKind.STREAM, "notes.stream.4")
    odd = StoreId("acme", StoreKind.KV, "notes.db.x")
    past = Sought(TenantName("acme"), {NOTES: 4, dotted: 2, odd: 7})
    found = {
        name: past.store_of_file(PurePath(name))
        for name in (
            *("notes.stream.4.db", "notes.stream.4.stream.2.db-wal", "notes.db.x.kv.7.db.draft"),
            *("notes.stream.4.stream.3.db", "notes.db.x.stream.1.db", "notes.stream.x.db"),
        )
    }
    assert [*found.values()] == [NOTES, dotted, odd, None, None, None]
    assert past.has_quarantined("notes.stream.4.stream.5.ab")
    assert past.has_quarantined("notes.stream.4") and not past.has_quarantined("notes.kv.4")
    assert (past.has(dotted, 2), past.has(dotted, 3), past.has(odd, 3)) == (True, False, True)
    assert past.snapshot_folder == "snapshots/acme/"
    assert PAST.snapshot_folder == "snapshots/acme/notes.stream/"


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
