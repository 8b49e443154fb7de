"""What an export writes of a value: tables have values as applications wrote them.

Clients compress values (`protocol/compression.py`). A table that other programs read must not show
that, so the export decompresses, and the archive, which is read back from the table, knows its
messages in the same form. A value that cannot be decompressed is exported as it is stored, its
header too: that depends on the value alone, so both sides have the same.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.protocol.compression import (
    ENCODING_HEADER,
    compressed_always,
    decompressed,
    size_inside,
)
from holdfast.protocol.errors import ValueUnreadableError
from holdfast.protocol.frames import pack, unpack
from holdfast.protocol.messages import Headers

_MARK: Final = ENCODING_HEADER.encode()


def is_marked(headers: Any) -> bool:
    """Tell if headers, a map, its packed form or None, may be those of a compressed value."""
    if not headers:
        return False
    return _MARK in headers if isinstance(headers, bytes) else ENCODING_HEADER in headers


def exported_bytes(value: bytes, headers: Any) -> int:
    """Return how large a value is when it is exported."""
    return size_inside(value) if is_marked(headers) else len(value)


def exported(value: Any, headers: Any) -> tuple[Any, Any]:
    """Return value and headers as they are exported; headers are a map, its packed form or None,
    and are returned in the form that they came in."""
    if not is_marked(headers) or not isinstance(value, bytes):
        return value, headers
    packed = isinstance(headers, bytes)
    found: Headers = unpack(headers) if packed else headers
    try:
        value, found = decompressed(value, found, "a value")
    except ValueUnreadableError:
        return value, headers
    plain = dict(found) or None
    return value, pack(plain) if packed and plain else plain


def stored_again(
    value: bytes, headers: dict[str, str] | None, size_bytes: int
) -> tuple[bytes, dict[str, str] | None]:
    """Return an exported value, and its headers, about as they were stored in `size_bytes`: whoever
    bounds a page of them reckons with that."""
    if len(value) + (len(pack(headers)) if headers else 0) <= size_bytes:
        return value, headers
    return compressed_always(value, headers)
