"""Encrypts the values and headers of one store, and decrypts them.

What is authenticated besides them is where they belong: tenant, kind and name of the store, seq or
key, and revision. So nothing that was encrypted can be put in another place. How long the value is,
and whether it is a large one, is authenticated too: value and headers are encrypted as one, and
would otherwise be cut apart anywhere. In a store with a chain, its leaf is. A fork, and a store
that was restored under another name, has values that were encrypted under the former name; its file
lists those names (`store_file/encryption/`), and each of them is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.protocol import changes
from holdfast.protocol.errors import DecryptionFailedError, HoldfastError
from holdfast.protocol.frames import WireChange
from holdfast.protocol.names import StoreId
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.store_file.applying import pack_headers, unpack_headers
from holdfast.shared_fs.store_file.encrypted.encrypted_values import Box, is_box, read_box

_PREFIX: Final = b"holdfast value 1\0"
_SIZE_AT: Final = 1
_SHA256_AT: Final = 2
_NUMBERS: Final = 8


class StoreCipher:
    """The cipher of one open store."""

    __slots__ = ("_places", "sessions", "store")

    def __init__(
        self, sessions: CipherSessions, store: StoreId, former_names: Sequence[str] = ()
    ) -> None:
        self.sessions = sessions
        self.store = store
        self._places = [_place_of(store, name) for name in (store.name, *former_names)]

    @property
    def current_id(self) -> int:
        """The number of the data key of new values."""
        return self.sessions.keys.current_id

    @property
    def problem(self) -> HoldfastError | None:
        """Why nothing of the store can be read or written now; None if it can."""
        return self.sessions.keys.problem

    # Changes
    def encrypted(
        self, change: WireChange, revision: int, leaf: bytes | None = None
    ) -> WireChange:
        """Return a set of a message or an entry, or a chunk, as it is kept. `leaf` is that of a set
        in a chain."""
        if changes.number_of(change) == changes.CHANGE_PUT_CHUNK:
            return self._encrypted_chunk(change)
        value = change[2]
        headers = pack_headers(change[3]) if len(change) > 3 and change[3] else b""
        clear = value if type(value) is bytes else value[_SHA256_AT]
        aad = self._places[0] + _bound(leaf) + _spot(change[1], revision, value)
        box, hidden = self.sessions.encrypt(clear + (headers or b""), aad)
        if leaf is not None:
            box = box._replace(leaf=leaf)
        length = len(clear)
        kept: Any = hidden[:length]
        if type(value) is not bytes:
            kept = [*value[:_SHA256_AT], kept, *value[_SHA256_AT + 1 :]]
        return [change[0], change[1], kept, box.packed() + hidden[length:], *change[4:]]

    def decrypted(self, change: WireChange, revision: int) -> WireChange:
        """Return a set as its writer sent it, and any other change as it is. Raises
        KeyUnavailableError, TenantShreddedError, DecryptionFailedError."""
        if (
            changes.number_of(change) not in changes.SETS
            or len(change) < 4
            or not is_box(change[3])
        ):
            return change
        value, packed = self.row(change[1], revision, change[2], change[3])
        more = list(change[4:])
        if packed is None and not more:
            return [*change[:2], value]
        return [*change[:2], value, unpack_headers(packed), *more]

    # Rows
    def row(
        self, place: Any, revision: int, value: Any, headers: bytes
    ) -> tuple[Any, bytes | None]:
        """Return value and packed headers of a row whose headers are a box. Raises
        KeyUnavailableError, TenantShreddedError, DecryptionFailedError."""
        hidden = value if type(value) is bytes else value[_SHA256_AT]
        box, rest = read_box(str(self.store), place, headers)
        clear = self._decrypted(box, hidden + rest, place, _spot(place, revision, value))
        length = len(hidden)
        shown: Any = clear[:length]
        if type(value) is not bytes:
            shown = [*value[:_SHA256_AT], shown, *value[_SHA256_AT + 1 :]]
        return shown, clear[length:] or None

    def kept_row(
        self, place: Any, revision: int, value: Any, packed: bytes | None, leaf: bytes | None
    ) -> tuple[Any, bytes]:
        """Return value and packed headers of a row as they are kept: the inverse of `row`."""
        kind = changes.CHANGE_SET_MESSAGE if type(place) is int else changes.CHANGE_SET_ENTRY
        _, _, kept, box = self.encrypted([kind, place, value, packed], revision, leaf)
        return kept, box

    # Outcomes of writers
    def encrypted_outcome(self, writer: bytes, counter: int, outcome: bytes) -> bytes:
        """Return the answer to a writer's group as it is kept."""
        aad = self._places[0] + _outcome_spot(writer, counter)
        box, hidden = self.sessions.encrypt(outcome, aad)
        return box.packed() + hidden

    def outcome(self, writer: bytes, counter: int, kept: bytes) -> bytes:
        """Return a kept answer in clear. Raises KeyUnavailableError, TenantShreddedError,
        DecryptionFailedError."""
        if not is_box(kept):
            return kept
        return self._behind_box(kept, f"group {counter}", _outcome_spot(writer, counter))

    # Chunks of large values
    def _encrypted_chunk(self, change: WireChange) -> WireChange:
        upload_id, offset, data, crc32, *_ = changes.chunk(change)
        assert data is not None
        return [*change[:3], self.kept_chunk(upload_id, offset, data), crc32, len(data)]

    def chunk(self, upload_id: bytes, offset: int, data: bytes) -> bytes:
        """Return the clear bytes of an encrypted chunk. Raises KeyUnavailableError,
        TenantShreddedError, DecryptionFailedError."""
        return self._behind_box(data, offset, _chunk_spot(upload_id, offset))

    def kept_chunk(self, upload_id: bytes, offset: int, data: bytes) -> bytes:
        """Return a chunk as it is kept: the inverse of `chunk`."""
        box, hidden = self.sessions.encrypt(data, self._places[0] + _chunk_spot(upload_id, offset))
        return box.packed() + hidden

    def _behind_box(self, kept: bytes, place: object, spot: bytes) -> bytes:
        box, hidden = read_box(str(self.store), place, kept)
        return self._decrypted(box, hidden, place, spot)

    def _decrypted(self, box: Box, hidden: bytes, place: object, spot: bytes) -> bytes:
        spot = _bound(box.leaf) + spot
        for prefix in self._places:
            clear = self.sessions.decrypt(box, hidden, prefix + spot)
            if clear is not None:
                return clear
        raise DecryptionFailedError(store=str(self.store), place=place)


def _bound(leaf: bytes | None) -> bytes:
    return b"h" + leaf if leaf else b""


def _outcome_spot(writer: bytes, counter: int) -> bytes:
    return b"o" + counter.to_bytes(_NUMBERS) + writer


def _place_of(store: StoreId, name: str) -> bytes:
    parts = (store.tenant.encode(), bytes((int(store.kind),)), name.encode())
    return _PREFIX + b"".join(len(part).to_bytes(4) + part for part in parts)


def _spot(place: Any, revision: int, value: Any) -> bytes:
    form, size_bytes = (b"v", len(value)) if type(value) is bytes else (b"l", value[_SIZE_AT])
    of_value = form + _number(size_bytes) + _number(revision)
    if type(place) is int:
        return b"m" + of_value + _number(place)
    return b"e" + of_value + str(place).encode()


def _number(number: int) -> bytes:
    """Return a number of a file, which may have been changed to a negative one."""
    return number.to_bytes(_NUMBERS, signed=True)


def _chunk_spot(upload_id: bytes, offset: int) -> bytes:
    return b"c" + offset.to_bytes(_NUMBERS) + upload_id
