"""A draft of the catalogue: changes that are decided one after the other and not written yet."""

from __future__ import annotations

from holdfast.gateway.jetstream.catalogue.catalogue import Catalogue, StreamEntry, key_of
from holdfast.gateway.jetstream.catalogue.draft import CatalogueChange, CatalogueDraft


def _entry(name: str, *subjects: str) -> StreamEntry:
    return StreamEntry.of({"name": name, "subjects": list(subjects)}, name, 1_000)


def test_each_change_is_decided_as_if_those_before_it_were_written() -> None:
    catalogue = Catalogue()
    catalogue.set(key_of("A"), _entry("A", "a.*").to_bytes(), 1)
    catalogue.set(key_of("B"), _entry("B", "b").to_bytes(), 2)
    draft = CatalogueDraft(catalogue)
    assert draft.colliding(["a.1", "c"]) == {"A"}
    draft.add(CatalogueChange("C", _entry("C", "c")))
    draft.add(CatalogueChange("A", None))
    assert draft.get("A") is None and draft.get("C") == _entry("C", "c")
    assert draft.colliding(["a.1", "c"]) == {"C"}
    assert draft.colliding(["c"], other_than="C") == set()
    assert len(draft) == 2
    assert draft.store_is_taken("C") and draft.store_is_taken("B")
    draft.add(CatalogueChange("C", _entry("C", "d")))
    assert draft.colliding(["c"]) == set() and draft.colliding(["d"]) == {"C"}
    assert [change.name for change in draft.changes.values()] == ["C", "A"]


def test_what_streams_reserve_is_summed_with_what_is_decided() -> None:
    def entry(name: str, max_bytes: int, storage: str) -> StreamEntry:
        config = {"name": name, "subjects": [name], "max_bytes": max_bytes, "storage": storage}
        return StreamEntry.of(config, name, 1)

    catalogue = Catalogue()
    for number, (name, max_bytes, storage) in enumerate(
        [("A", 10, "file"), ("B", 20, "memory"), ("C", -1, "file")]
    ):
        catalogue.set(key_of(name), entry(name, max_bytes, storage).to_bytes(), number + 1)
    assert catalogue.reserved_bytes(in_memory=False) == 10 and catalogue.live_count == 3
    draft = CatalogueDraft(catalogue)
    draft.add(CatalogueChange("C", entry("C", 5, "file")))
    draft.add(CatalogueChange("B", None))
    assert draft.reserved_bytes(in_memory=False, other_than="") == 15
    assert draft.reserved_bytes(in_memory=False, other_than="C") == 10
    assert draft.reserved_bytes(in_memory=False, other_than="A") == 5
    assert draft.reserved_bytes(in_memory=True, other_than="A") == 0
    catalogue.committed("A", None, 9)
    assert catalogue.reserved_bytes(in_memory=False) == 0 and catalogue.live_count == 2
