"""Salts of encrypted values in a chain.

The leaf of a value confirms a guess of it, and leaves are in clear wherever the value is kept, also
after it is gone. So each value in a chain gets a header with 128 random bits before its leaf is
made. It is encrypted like all headers, it goes to every reader of the value, who can make the leaf
with it, and it goes with the value: then its leaf tells nothing.
"""

from __future__ import annotations

import os
from typing import Any, Final

from holdfast.protocol.frames import WireChange
from holdfast.protocol.header_block import HeaderBlock

SALT_HEADER: Final = "Holdfast-Salt"
_RANDOM_BYTES: Final = 16
_HEADERS_AT: Final = 3


def salted(change: WireChange) -> WireChange:
    """Return a set of a message or an entry with a salt in its headers. One that its writer has
    given stays. Raises TooLargeError if a header block has no room for it."""
    headers: Any = change[_HEADERS_AT] if len(change) > _HEADERS_AT else None
    if type(headers) is bytes:
        block = HeaderBlock(headers)
        if SALT_HEADER in block:
            return change
        headers = block.with_added({SALT_HEADER: _salt()}).block
    elif headers is None or SALT_HEADER not in headers:
        headers = {**(headers or {}), SALT_HEADER: _salt()}
    return [*change[:_HEADERS_AT], headers, *change[_HEADERS_AT + 1 :]]


def _salt() -> str:
    return os.urandom(_RANDOM_BYTES).hex()
