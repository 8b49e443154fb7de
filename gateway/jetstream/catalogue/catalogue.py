"""The streams of a tenant as this gateway knows them: a mirror of the kv `jetstream`. Pure.

The kv has a key `s.<stream>` for each stream, and `r`, which every change of the streams sets too,
behind them and in one transaction that expects the `r` it has seen. So a gateway that decides by
this mirror, about a name or about overlapping subjects, has seen every stream that counts, however
many gateways decide at once: `keeper.py` does that.

Names are kept in order, and subjects in a tree, so a million streams cost a lookup little.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.gateway.jetstream.api import names
from holdfast.gateway.jetstream.catalogue.subject_index import SubjectIndex
from holdfast.protocol.errors import InvalidNameError, MalformedFrameError
from holdfast.protocol.limits import MAX_NAME_BYTES
from holdfast.protocol.names import check_store, quote

#: The kv of a tenant that holds its catalogue.
CATALOGUE_KV: Final = "jetstream"
#: The key that every change of the catalogue sets.
REVISION_KEY: Final = "r"
_STREAM_KEYS: Final = "s."


def key_of(stream: str) -> str:
    """Return the key of a stream."""
    return _STREAM_KEYS + stream


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """What the catalogue says of one stream.

    The configuration stays JSON, in the form of STREAM.INFO: most streams are idle, and a gateway
    reads it only of those that it serves.
    """

    name: str
    subjects: tuple[str, ...]
    #: The holdfast stream that holds its messages.
    store: str
    created_ms: int
    config_json: str
    #: What it reserves, and whether it does so of what is for streams in memory.
    max_bytes: int = 0
    in_memory: bool = False
    #: Whether its store is being destroyed; then nobody serves it, and its name is not free yet.
    deleting: bool = False

    @classmethod
    def of(
        cls, config: dict[str, Any], store: str, created_ms: int, *, deleting: bool = False
    ) -> StreamEntry:
        """Return the entry of a stream with this configuration."""
        text = json.dumps(config, separators=(",", ":"), ensure_ascii=False)
        return cls(
            config["name"],
            tuple(config.get("subjects") or ()),
            store,
            created_ms,
            text,
            max(0, int(config.get("max_bytes") or 0)),
            config.get("storage") == "memory",
            deleting,
        )

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, as JSON has it."""
        found: dict[str, Any] = json.loads(self.config_json)
        return found

    def to_bytes(self) -> bytes:
        """Return the value of its key."""
        value: dict[str, Any] = {"store": self.store, "created_ms": self.created_ms}
        if self.deleting:
            value["deleting"] = True
        head = json.dumps(value, separators=(",", ":"))
        return f'{head[:-1]},"config":{self.config_json}}}'.encode()

    @classmethod
    def from_bytes(cls, name: str, value: bytes) -> StreamEntry:
        """Return the entry that a key holds. Raises MalformedFrameError."""
        try:
            found = json.loads(value)
            config, created_ms = found["config"], found["created_ms"]
            subjects, max_bytes = config.get("subjects") or [], config.get("max_bytes") or 0
            if config["name"] != name or not names.is_name(name):
                raise ValueError("another name")
            if not (type(created_ms) is type(max_bytes) is int and type(subjects) is list):
                raise ValueError("other types")
            if not all(type(each) is str and names.is_subject(each) for each in subjects):
                raise ValueError("subjects that are none")
            entry = cls.of(
                config,
                str(check_store(found["store"])),
                created_ms,
                deleting=bool(found.get("deleting", False)),
            )
        except (
            *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
            InvalidNameError,
        ) as error:
            reason = f"the catalogue's entry of stream {name!r:.80}: {error}"
            raise MalformedFrameError(reason=reason) from error
        return entry


def store_names(stream: str) -> Iterator[str]:
    """Yield the names that the store of a stream may have: its own if it may be the name of a
    store, and `.2`, `.3` ... behind it while others have been written."""
    name = quote(stream)
    if len(name) > MAX_NAME_BYTES - 8:
        # A name of 255 characters is longer than a store's may be. The catalogue tells them apart.
        name = name[: MAX_NAME_BYTES - 16]
    yield name
    number = 2
    while True:
        yield f"{name}.{number}"
        number += 1


#: Told of each change: the entry as it was and as it is, None where there is none.
CatalogueListener = Callable[["StreamEntry | None", "StreamEntry | None"], None]


class Catalogue:
    """All streams of a tenant."""

    def __init__(self, listener: CatalogueListener = lambda before, after: None) -> None:
        self._listener = listener
        self._entries: dict[str, StreamEntry] = {}
        self._names: list[str] = []
        self._subjects = SubjectIndex()
        self._stores: set[str] = set()
        #: How many streams there are that are not being deleted, and what all reserve: on disk, and
        #: in memory.
        self.live_count = 0
        self._reserved = [0, 0]
        #: The revision of the key `r`, 0 if there is none.
        self.revision = 0
        #: Changes up to this one are in, whether the kv has told them yet or not.
        self._applied = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[StreamEntry]:
        return iter(list(self._entries.values()))

    def get(self, name: str) -> StreamEntry | None:
        """Return the entry of a stream, None if there is none."""
        return self._entries.get(name)

    def names(self, subject: str | None = None) -> Sequence[str]:
        """Return the names of all streams, or of those with a subject that collides with this one,
        in order."""
        if subject is None:
            return self._names
        return sorted(self._subjects.colliding(subject))

    def colliding(self, subjects: Sequence[str], other_than: str = "") -> set[str]:
        """Return the streams, but for this one, of which a subject collides with any of these."""
        found: set[str] = set()
        for subject in subjects:
            found |= self._subjects.colliding(subject)
        found.discard(other_than)
        return found

    def reserved_bytes(self, *, in_memory: bool) -> int:
        """Return what all streams of a kind reserve."""
        return self._reserved[in_memory]

    def store_is_taken(self, store: str) -> bool:
        """Tell whether a stream has this store. Long names that differ only at their end may want
        the same."""
        return store in self._stores

    # Changes

    def set(self, key: str, value: bytes, revision: int) -> None:
        """Take a key as the kv has it. Keys of no known form are ignored, and changes that are in
        already. Raises MalformedFrameError for an entry that cannot be read; it changes nothing.
        """
        if revision <= self._applied:
            return
        if key == REVISION_KEY:
            self.revision = revision
        elif key.startswith(_STREAM_KEYS):
            name = key[len(_STREAM_KEYS) :]
            self._put(name, StreamEntry.from_bytes(name, value))

    def deleted(self, key: str, revision: int) -> None:
        """Take the removal of a key."""
        if revision <= self._applied:
            return
        if key == REVISION_KEY:
            self.revision = 0
        elif key.startswith(_STREAM_KEYS):
            self._put(key[len(_STREAM_KEYS) :], None)

    def committed(self, name: str, entry: StreamEntry | None, revision: int) -> None:
        """Take a change that this gateway has made itself, and that set `r` at `revision`: the kv
        will tell it later."""
        self._applied = self.revision = revision
        self._put(name, entry)

    def reset(self, found: dict[str, tuple[bytes, int]]) -> list[MalformedFrameError]:
        """Take the whole kv as it is, keys with values and revisions. Return what is unreadable."""
        errors: list[MalformedFrameError] = []
        self._applied = 0
        self.revision = found[REVISION_KEY][1] if REVISION_KEY in found else 0
        present = {key[len(_STREAM_KEYS) :] for key in found if key.startswith(_STREAM_KEYS)}
        for name in [each for each in self._names if each not in present]:
            self._put(name, None)
        for name in present:
            try:
                self._put(name, StreamEntry.from_bytes(name, found[key_of(name)][0]))
            except MalformedFrameError as error:
                errors.append(error)
        return errors

    def _put(self, name: str, entry: StreamEntry | None) -> None:
        before = self._entries.get(name)
        if before == entry:
            return
        if before is not None:
            self._count(before, -1)
            self._stores.discard(before.store)
            for subject in before.subjects:
                self._subjects.remove(subject, name)
        if entry is None:
            del self._entries[name]
            del self._names[bisect_left(self._names, name)]
        else:
            if before is None:
                insort(self._names, name)
            self._entries[name] = entry
            self._count(entry, 1)
            self._stores.add(entry.store)
            for subject in entry.subjects:
                self._subjects.add(subject, name)
        self._listener(before, entry)

    def _count(self, entry: StreamEntry, sign: int) -> None:
        self.live_count += sign * (not entry.deleting)
        self._reserved[entry.in_memory] += sign * entry.max_bytes
