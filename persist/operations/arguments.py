"""The arguments of write operations, as they came from the wire. Each is checked once, here.

Pure, except that a large value is looked up in the store's file.
"""

from __future__ import annotations

from typing import Any

from holdfast.persist.operations import uploads
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import (
    DeniedError,
    DeposedWriterError,
    InvalidArgumentError,
    TooLargeError,
)
from holdfast.protocol.header_block import check_block
from holdfast.protocol.limits import (
    MAX_DELETE_COUNT,
    MAX_HEADERS_BYTES,
    MAX_INTEGER,
    MAX_MSG_ID_BYTES,
    MAX_VALUE_BYTES,
    MIN_INTEGER,
)
from holdfast.protocol.own_headers import given
from holdfast.protocol.store_config import ttl_ms
from holdfast.shared_fs.store_file.applying import pack_headers


def padded(operation: list[Any], length: int) -> list[Any]:
    """Return the first `length` elements of an operation, with None for omitted ones."""
    missing = length - len(operation)
    return operation + [None] * missing if missing > 0 else operation[:length]


def integer(argument: str, value: Any) -> int:
    """Return an integer argument. Raises InvalidArgumentError."""
    if type(value) is not int or not MIN_INTEGER <= value <= MAX_INTEGER:
        raise InvalidArgumentError(argument=argument, reason=f"{value!r:.80} is not a number")
    return value


def check_time(store: Store, time_ms: int) -> None:
    """Check when something that is written now was written elsewhere before. Raises
    InvalidArgumentError."""
    if not 0 < time_ms <= store.time:
        raise InvalidArgumentError(argument="time_ms", reason="must be a time in the past")


def check_serving_epoch(store: Store, serving_epoch: Any) -> None:
    """Raise DeposedWriterError if another gateway has begun to serve the stream. None is that of
    a client which is no gateway."""
    if serving_epoch is not None:
        actual = store.config.serving_epoch
        if integer("serving_epoch", serving_epoch) != actual:
            raise DeposedWriterError(serving_epoch=serving_epoch, actual=actual)


def check_allowed(store: Store, action: str, *settings: str) -> None:
    """Raise DeniedError if one of these settings of the stream is true."""
    config = store.config
    for setting in settings:
        if getattr(config, setting):
            raise DeniedError(setting=setting, action=action)


def expires_at(store: Store, ttl_seconds: Any) -> int | None:
    """Return when a row set now expires by its ttl, or None without a ttl."""
    return None if ttl_seconds is None else store.time + ttl_ms(ttl_seconds)


def check_value(store: Store, value: Any) -> int:
    """Return the size of a value. Raises like `uploads.check_value`."""
    if type(value) is list:
        return uploads.check_value(store, value)
    if type(value) is not bytes:
        raise InvalidArgumentError(argument="value", reason="must be bytes")
    if len(value) > MAX_VALUE_BYTES:
        raise TooLargeError(what="value", size=len(value), limit=MAX_VALUE_BYTES)
    return len(value)


def check_headers(headers: Any) -> int:
    """Return the size of headers. Raises InvalidArgumentError, TooLargeError."""
    if headers is None:
        return 0
    if type(headers) is bytes:
        check_block(headers)
        return len(headers)
    if type(headers) is not dict or not all(
        type(name) is str and type(text) is str for name, text in headers.items()
    ):
        raise InvalidArgumentError(argument="headers", reason="must map text to text")
    packed = pack_headers(headers)
    size_bytes = len(packed) if packed else 0
    if size_bytes > MAX_HEADERS_BYTES:
        texts = (text.encode() for item in given(headers).items() for text in item)
        if (given_bytes := sum(map(len, texts))) > MAX_HEADERS_BYTES:
            raise TooLargeError(what="headers", size=given_bytes, limit=MAX_HEADERS_BYTES)
    return size_bytes


def check_msg_id(msg_id: Any) -> None:
    """Raise InvalidArgumentError, TooLargeError unless it is a valid `msg_id`."""
    if type(msg_id) is not str or not msg_id:
        raise InvalidArgumentError(argument="msg_id", reason="must be text, and not empty")
    if len(msg_id.encode()) > MAX_MSG_ID_BYTES:
        raise TooLargeError(what="msg_id", size=len(msg_id.encode()), limit=MAX_MSG_ID_BYTES)


def check_list(argument: str, values: Any) -> list[Any]:
    """Return a list argument. Raises InvalidArgumentError, TooLargeError."""
    if type(values) is not list:
        raise InvalidArgumentError(argument=argument, reason="must be a list")
    if len(values) > MAX_DELETE_COUNT:
        raise TooLargeError(what=argument, size=len(values), limit=MAX_DELETE_COUNT)
    return values
