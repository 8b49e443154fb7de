"""A draft of the catalogue: the mirror, and changes that are decided and not written yet. Pure.

Several changes travel in one transaction. Each is decided as if those before it were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.gateway.jetstream.catalogue.catalogue import Catalogue, StreamEntry
from holdfast.gateway.jetstream.catalogue.subject_index import SubjectIndex


class CatalogueChange(NamedTuple):
    """What a change of the catalogue does: the stream has this entry then, or none."""

    name: str
    entry: StreamEntry | None


class CatalogueDraft:
    """The catalogue as it will be."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._subjects = SubjectIndex()
        #: By name.
        self.changes: dict[str, CatalogueChange] = {}

    def add(self, change: CatalogueChange) -> None:
        """Decide a change."""
        before = self.changes.get(change.name)
        if before is not None and before.entry is not None:
            for subject in before.entry.subjects:
                self._subjects.remove(subject, change.name)
        self.changes[change.name] = change
        if change.entry is not None:
            for subject in change.entry.subjects:
                self._subjects.add(subject, change.name)

    def __len__(self) -> int:
        added = 0
        for name, change in self.changes.items():
            added += (change.entry is not None) - (self._catalogue.get(name) is not None)
        return len(self._catalogue) + added

    def get(self, name: str) -> StreamEntry | None:
        """Return the entry of a stream, None if there is none."""
        change = self.changes.get(name)
        return self._catalogue.get(name) if change is None else change.entry

    def colliding(self, subjects: Sequence[str], other_than: str = "") -> set[str]:
        """Return the streams, but for this one, of which a subject collides with any of these."""
        found = self._catalogue.colliding(subjects) - self.changes.keys()
        for subject in subjects:
            found |= self._subjects.colliding(subject)
        found.discard(other_than)
        return found

    def reserved_bytes(self, *, in_memory: bool, other_than: str) -> int:
        """Return what all streams of a kind but one reserve."""
        total = self._catalogue.reserved_bytes(in_memory=in_memory)
        for name in {*self.changes, other_than}:
            before, now = self._catalogue.get(name), self.get(name)
            if before is not None and before.in_memory == in_memory:
                total -= before.max_bytes
            if now is not None and now.in_memory == in_memory and name != other_than:
                total += now.max_bytes
        return total

    def store_is_taken(self, store: str) -> bool:
        """Tell whether a stream has this store."""
        return self._catalogue.store_is_taken(store) or any(
            change.entry is not None and change.entry.store == store
            for change in self.changes.values()
        )
