"""Values as an export writes them: in the form in which applications wrote them.

Clients compress values (`protocol/compression.py`). A table that other programs read must not show
that, so the export decompresses. The archive, which is read back from the table, identifies its
messages by the same form. A value that cannot be decompressed is exported as stored, with its
header. That depends on the value alone, so both sides agree.
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
from holdfast.protocol.header_block import FIRST_BYTE
from holdfast.protocol.messages import Headers
from holdfast.shared_fs.store_file.encrypted.encrypted_values import BOX_FIRST_BYTE

_MARK: Final = ENCODING_HEADER.encode()


def is_marked(headers: Any) -> bool:
    """Tell whether headers (a map, its packed form, a header block as bytes, or None) may be those
    of a compressed value."""
    if not headers:
        return False
    if isinstance(headers, bytes):
        # A header block is never that of a compressed value, and a box tells nothing.
        return headers[0] not in (FIRST_BYTE, BOX_FIRST_BYTE) and _MARK in headers
    return ENCODING_HEADER in headers


def exported_bytes(value: bytes, headers: Any) -> int:
    """Return the size of a value when it is exported."""
    return size_inside(value) if is_marked(headers) else len(value)


def exported(value: Any, headers: Any) -> tuple[Any, Any]:
    """Return value and headers as they are exported.

    Headers are a map, its packed form or None, and are returned in the form they came in.
    """
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
    """Return an exported value and its headers about as large as they were stored, in `size_bytes`.

    Callers use that size to limit a page of values.
    """
    if len(value) + (len(pack(headers)) if headers else 0) <= size_bytes:
        return value, headers
    return compressed_always(value, headers)
