"""Values as a live replica takes them from its application: encoded, of any size that may wait.

Pure.
"""

from __future__ import annotations

from typing import Any

from holdfast.client.large_values.large_value import is_large
from holdfast.client.values.codec import Codec, RawCodec
from holdfast.client.wire.operations import checked_value
from holdfast.protocol.errors import TooLargeError
from holdfast.protocol.limits import MAX_UNSAVED_BYTES


def encoded_for_live(codec: Codec[Any], value: Any) -> bytes:
    """Return a value as bytes. Raises InvalidArgumentError, and TooLargeError above
    MAX_UNSAVED_BYTES: such a value could never wait to be stored."""
    data = value if isinstance(codec, RawCodec) else codec.encode(value)
    if not is_large(data):
        return checked_value(data)
    data = bytes(data)
    if len(data) > MAX_UNSAVED_BYTES:
        raise TooLargeError(what="a value", size=len(data), limit=MAX_UNSAVED_BYTES)
    return data
