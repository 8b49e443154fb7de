"""The form of encrypted values and headers: what tells them from others, and how long they are.

A value and its headers are encrypted together. The value keeps its length. A *box* stands in the
place of the headers: what is needed to decrypt both, and the encrypted headers. `Box` names its
parts, each big-endian:

    first byte, 1      0xC1, which neither a packed map nor a header block begins with
    version, 1         1
    key id, 4          which of the tenant's data keys
    salt, 16           makes a key of its own for one server process: see `sessions.py`
    counter, 4         of values encrypted with that key
    tag, 16            authenticates the value, its headers, and where both belong
    headers, any       encrypted, packed as a file stores them; empty if there are none

In a store that keeps a chain of hashes, the version is 2, and before the headers is

    leaf, 32           of the value and headers in clear: `chain/kept_leaves.py`

A chunk of a large value has the same form, without headers, in front of the encrypted bytes. Of a
large value itself, its SHA-256 is encrypted in place of the value. Pure; nothing here encrypts.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import DecryptionFailedError

#: The first byte of a box. msgpack never uses it.
BOX_FIRST_BYTE: Final = 0xC1
_VERSION: Final = 1
_CHAINED_VERSION: Final = 2
SALT_BYTES: Final = 16
TAG_BYTES: Final = 16
_LEAF_BYTES: Final = 32
_PARTS: Final = struct.Struct(f">BBI{SALT_BYTES}sI{TAG_BYTES}s")
_CHAINED_PARTS: Final = struct.Struct(f"{_PARTS.format}{_LEAF_BYTES}s")
#: What encryption adds to a value, or to a chunk of one.
BOX_BYTES: Final = _PARTS.size
#: In a table, in place of the headers of an encrypted value: its box, in Base64.
BOX_HEADER: Final = "Holdfast-Encrypted"


class Box(NamedTuple):
    """The parts of a box, without the headers."""

    key_id: int
    salt: bytes
    counter: int
    tag: bytes
    #: Of a value in a chain; else empty.
    leaf: bytes = b""

    def packed(self) -> bytes:
        if self.leaf:
            return _CHAINED_PARTS.pack(BOX_FIRST_BYTE, _CHAINED_VERSION, *self)
        return _PARTS.pack(BOX_FIRST_BYTE, _VERSION, *self[:-1])


def is_box(headers: Any) -> bool:
    """Tell whether what is in the place of headers says that they, and the value, are encrypted."""
    return type(headers) is bytes and headers[:1] == b"\xc1"


def headers_in_table(box: bytes) -> dict[str, str]:
    """Return what a table has in the place of the headers of an encrypted value."""
    return {BOX_HEADER: base64.b64encode(box).decode()}


def box_in_table(headers: Mapping[str, str]) -> bytes | None:
    """Return the box that a table has in the place of the headers; None if it has other headers.
    An application may have written a header with that name, so look whether the box fits."""
    text = headers.get(BOX_HEADER) if len(headers) == 1 else None
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def leaf_in_box(headers: Any) -> bytes | None:
    """Return the leaf that a box has; None if it has none, or this is no box."""
    if not is_box(headers) or _form_of(headers) is not _CHAINED_PARTS:
        return None
    *_, leaf = _CHAINED_PARTS.unpack_from(headers)
    return bytes(leaf)


def read_box(store: str, place: object, headers: bytes) -> tuple[Box, bytes]:
    """Return the parts of a box, and what follows it. Raises DecryptionFailedError."""
    form = _form_of(headers)
    if form is None or headers[0] != BOX_FIRST_BYTE:
        raise DecryptionFailedError(store=store, place=place)
    _, _, *parts = form.unpack_from(headers)
    return Box(*parts), headers[form.size :]


def _form_of(box: bytes) -> struct.Struct | None:
    """Return how a box is packed; None if this version does not know it, or it is cut short."""
    form = {_VERSION: _PARTS, _CHAINED_VERSION: _CHAINED_PARTS}.get(box[1]) if box[1:] else None
    return form if form is not None and len(box) >= form.size else None
