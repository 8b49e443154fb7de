"""Values of any size are sent and fetched in chunks, a few in flight, and never held whole.

    value_source.py   what is uploaded: a file, or bytes in memory
    value_upload.py   sends it in chunks, and makes it a value with one atomic operation
    value_reader.py   reads one value from its first byte to its last

Here is what decides that a value is large, and what gives a row its large value back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.client.wire.operations import Value
from holdfast.protocol.errors import (
    ValueReplacedError,
)
from holdfast.protocol.limits import (
    MAX_VALUE_BYTES,
)
from holdfast.protocol.messages import Entry, Message

_Row = TypeVar("_Row", Message, Entry)


def is_large(value: Value) -> bool:
    """Return whether a value has to be uploaded in chunks."""
    if type(value) is bytes:
        return len(value) > MAX_VALUE_BYTES
    if isinstance(value, memoryview):
        return value.nbytes > MAX_VALUE_BYTES
    return isinstance(value, bytearray) and len(value) > MAX_VALUE_BYTES


async def with_large_value(
    row: _Row,
    read: Callable[[_Row], Awaitable[bytes]],
    find: Callable[[], Awaitable[_Row | None]],
) -> _Row | None:
    """Return a message or entry with its large value, which `read` returns whole.

    If it is replaced meanwhile, use the row that `find` returns, or return None if there is none
    any more. Raises what both raise, but ValueReplacedError only if `find` returns the same row.
    """
    wanted: _Row | None = row
    while wanted is not None and wanted.large is not None:
        try:
            value = await read(wanted)
        except ValueReplacedError:
            before, wanted = wanted, await find()
            if wanted is not None and wanted.revision == before.revision:
                raise
        else:
            return wanted._replace(value=value, large=None)
    return wanted
