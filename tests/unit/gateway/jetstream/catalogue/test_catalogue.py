"""The mirror of the catalogue: entries, names, subjects, and changes of its own that come again."""

from __future__ import annotations

from itertools import islice

import pytest

from holdfast.gateway.jetstream.catalogue.catalogue import (
    REVISION_KEY,
    Catalogue,
    StreamEntry,
    key_of,
    store_names,
)
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.names import check_store


def _entry(name: str, *subjects: str, deleting: bool = False) -> StreamEntry:
    config = {"name": name, "subjects": list(subjects)}
    return StreamEntry.of(config, name, 1_000, deleting=deleting)


def test_an_entry_is_read_as_it_was_written() -> None:
    config = {"name": "S", "subjects": ["s.>"], "description": "é", "metadata": {"a": "b"}}
    for deleting in (False, True):
        entry = StreamEntry.of(config, "S.2", 17, deleting=deleting)
        again = StreamEntry.from_bytes("S", entry.to_bytes())
        assert again == entry
        assert again.config == config


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"store":"S","created_ms":1,"config":{"name":"T"}}',
        b'{"store":"a/b","created_ms":1,"config":{"name":"S"}}',
        b'{"store":"S","created_ms":"x","config":{"name":"S"}}',
        b'{"store":"S","created_ms":1,"config":7}',
        b'{"store":"S","created_ms":1e999,"config":{"name":"S"}}',
        b'{"store":"S","created_ms":1,"config":{"name":"S","max_bytes":1e999}}',
        b'{"store":"S","created_ms":1,"config":{"name":"S","max_bytes":"9"}}',
        b'{"store":"S","created_ms":1,"config":{"name":"S","subjects":[1]}}',
        b'{"store":"S","created_ms":1,"config":{"name":"S","subjects":["a..b"]}}',
        b'{"store":"S","created_ms":1,"config":{"name":"S","subjects":{"a":1}}}',
        b"[" * 100_000,
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        StreamEntry.from_bytes("S", value)


def test_changes_are_told_and_found_by_name_and_by_subject() -> None:
    told: list[tuple[str | None, str | None]] = []
    catalogue = Catalogue(
        lambda before, after: told.append((before and before.store, after and after.store))
    )
    catalogue.set(key_of("B"), _entry("B", "b.>").to_bytes(), 1)
    catalogue.set(key_of("A"), _entry("A", "a.*", "x").to_bytes(), 2)
    catalogue.set(REVISION_KEY, b"", 3)
    assert list(catalogue.names()) == ["A", "B"]
    assert catalogue.names("*.*") == ["A", "B"]
    assert catalogue.names("x") == ["A"]
    assert catalogue.colliding(["a.1", "c"]) == {"A"}
    assert catalogue.colliding(["a.1", "c"], other_than="A") == set()
    assert catalogue.revision == 3
    assert catalogue.store_is_taken("A") and not catalogue.store_is_taken("A.2")

    catalogue.set(key_of("A"), _entry("A", "y").to_bytes(), 4)
    catalogue.deleted(key_of("B"), 5)
    assert catalogue.names("a.1") == [] and catalogue.names("y") == ["A"]
    assert list(catalogue.names()) == ["A"]
    assert told == [(None, "B"), (None, "A"), ("A", "A"), ("B", None)]


def test_its_own_change_counts_at_once_and_what_the_kv_tells_late_does_not_undo_it() -> None:
    catalogue = Catalogue()
    catalogue.set(key_of("A"), _entry("A", "a").to_bytes(), 1)
    catalogue.set(REVISION_KEY, b"", 2)
    catalogue.committed("A", _entry("A", "b"), 4)
    catalogue.committed("A", None, 6)
    assert catalogue.get("A") is None and catalogue.revision == 6
    catalogue.set(key_of("A"), _entry("A", "b").to_bytes(), 3)
    catalogue.set(REVISION_KEY, b"", 4)
    catalogue.deleted(key_of("A"), 5)
    catalogue.set(REVISION_KEY, b"", 6)
    assert catalogue.get("A") is None and catalogue.revision == 6
    catalogue.set(key_of("A"), _entry("A", "c").to_bytes(), 7)
    assert catalogue.get("A") == _entry("A", "c")


def test_a_whole_state_replaces_what_was_known() -> None:
    catalogue = Catalogue()
    catalogue.set(key_of("A"), _entry("A", "a").to_bytes(), 1)
    catalogue.set(key_of("B"), _entry("B", "b").to_bytes(), 2)
    errors = catalogue.reset(
        {
            key_of("B"): (_entry("B", "c").to_bytes(), 8),
            key_of("C"): (b"nonsense", 9),
            REVISION_KEY: (b"", 10),
            "unknown": (b"", 11),
        }
    )
    assert len(errors) == 1
    assert list(catalogue.names()) == ["B"]
    assert catalogue.names("b") == [] and catalogue.names("c") == ["B"]
    assert catalogue.revision == 10
    # Older than what was known before: the kv was made anew.
    catalogue.set(key_of("D"), _entry("D", "d").to_bytes(), 3)
    assert list(catalogue.names()) == ["B", "D"]


@pytest.mark.parametrize("stream", ["S", "KV_b", "Größe", "%", "x" * 255, "é" * 255])
def test_stores_of_any_stream_have_names_that_stores_may_have(stream: str) -> None:
    names = list(islice(store_names(stream), 3))
    assert len(set(names)) == 3
    for name in names:
        check_store(name)
