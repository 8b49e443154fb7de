"""Codecs: how an application's values become bytes.

A store holds bytes and never interprets them. The codec is chosen by each application for its own
handle and is not a property of the store, so all applications that use one store should use the
same codec.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol, TypeVar

import msgpack

from holdfast.client.values.json_dates import dumps, loads
from holdfast.client.wire.operations import checked_value
from holdfast.protocol.errors import InvalidArgumentError, ValueUnreadableError

V = TypeVar("V")

#: The names of the built-in codecs.
CodecName = Literal["raw", "json", "msgpack"]


class Codec(Protocol[V]):
    """Converts values to bytes and back. `decode` must return a new object each time."""

    def encode(self, value: V) -> bytes:
        """Return `value` as bytes. Raises InvalidArgumentError if it cannot be converted."""
        ...

    def decode(self, data: bytes) -> V:
        """Return the value that `encode` was given. Raises ValueUnreadableError if `data` is no
        such value.
        """
        ...


class RawCodec:
    """Leaves bytes as they are."""

    def encode(self, value: bytes) -> bytes:
        return checked_value(value)

    def decode(self, data: bytes) -> bytes:
        return data


class JsonCodec:
    """Values that JSON can represent, as compact UTF-8, and datetimes with a time zone."""

    def encode(self, value: Any) -> bytes:
        try:
            return dumps(value).encode()
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgumentError(argument="value", reason=f"not JSON: {error}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueUnreadableError(what="a value", reason=f"not JSON: {error}") from error


class MsgpackCodec:
    """Values that msgpack can represent, with datetimes as its timestamps. It keeps text and bytes
    apart."""

    def encode(self, value: Any) -> bytes:
        try:
            # No shared packer: threads of blocking code encode at the same time.
            packed: bytes = msgpack.packb(value, datetime=True)
            return packed
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgumentError(argument="value", reason=f"not msgpack: {error}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return msgpack.unpackb(data, strict_map_key=False, timestamp=_AS_DATETIME)
        except (
            *(ValueError, TypeError, OverflowError, RecursionError),
            msgpack.UnpackException,
        ) as error:
            reason = f"not msgpack: {error or type(error).__name__}"
            raise ValueUnreadableError(what="a value", reason=reason) from error


RAW: Final = RawCodec()
#: msgpack-python's number for timestamps as datetimes in UTC.
_AS_DATETIME: Final = 3
_CODECS: Final[dict[str, Codec[Any]]] = {
    "raw": RAW,
    "json": JsonCodec(),
    "msgpack": MsgpackCodec(),
}


def codec_of(codec: Codec[V] | str | None) -> Codec[V] | Codec[Any]:
    """Return the codec of a name, or `codec` itself; None is "raw". Raises InvalidArgumentError."""
    if codec is None:
        return RAW
    if isinstance(codec, str):
        found = _CODECS.get(codec)
    else:
        is_codec = all(callable(getattr(codec, name, None)) for name in ("encode", "decode"))
        found = codec if is_codec else None
    if found is None:
        words = ", ".join(_CODECS)
        raise InvalidArgumentError(argument="codec", reason=f"must be one of {words}, or a Codec")
    return found
