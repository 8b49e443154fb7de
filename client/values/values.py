"""Values between an application and the wire: encoded, then compressed if that helps.

    value ── codec ──▶ bytes ── zstd, if it saves an eighth ──▶ stored bytes, and a header for it

Large values (`large_value.py`) go through the codec and are not compressed. An arriving value is
decoded only when it is handed out. So an unreadable value is an error of its message or key only,
buffers hold the compressed form, and values that nobody reads are never decoded.

A single read of an unreadable value raises. In `get_all` or a subscription it is an
UnreadableMessage or UnreadableEntry, whose `value` raises when it is read. So the iteration
continues, and seq, key, headers and deletes work without the value.

A client compresses only if the coordinator says that all readers can decompress
(`Link.compresses`), so not before it has asked for the owner of its first store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic

from holdfast.client.values.codec import Codec, RawCodec
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import Value, checked_value
from holdfast.protocol.compression import ENCODING_HEADER, compressed, decompressed
from holdfast.protocol.errors import InvalidArgumentError, ValueUnreadableError
from holdfast.protocol.header_block import HeaderBlock
from holdfast.protocol.limits import COMPRESS_ABOVE_BYTES
from holdfast.protocol.messages import Change, Entry, Headers, LargeValue, Message, V


class UnreadableValue(bytes):
    """The stored bytes of a value that cannot be decompressed."""

    error: ValueUnreadableError


class _Unreadable:
    """A listed row with an unreadable value: reading `value` raises."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        raise ValueUnreadableError(**self.unreadable.fields) from self.unreadable

    @property
    def unreadable(self) -> ValueUnreadableError:
        stored: Any = self
        error: ValueUnreadableError = stored[1].error
        return error


class UnreadableMessage(_Unreadable, Message[Any]):
    """A Message whose `value` raises ValueUnreadableError."""

    __slots__ = ()


class UnreadableEntry(_Unreadable, Entry[Any]):
    """An Entry whose `value` raises ValueUnreadableError."""

    __slots__ = ()


class Values(Generic[V]):
    """Converts the values of one handle."""

    def __init__(self, link: Link, name: str, codec: Codec[V], *, lenient: bool = False) -> None:
        """`name` is the store's, for errors. With `lenient`, a value that cannot be decompressed is
        an UnreadableValue and no error, for callers that keep values and decode them later."""
        self._link = link
        self._name = name
        self._codec = codec
        self.is_raw = isinstance(codec, RawCodec)
        self._lenient = lenient

    def encoded(self, value: V | Value) -> Value:
        """Return a value as bytes of any size. Raises InvalidArgumentError."""
        # `Any` instead of `cast`, here and below: that would be a call for each value.
        plain: Any = value
        return plain if self.is_raw else self._codec.encode(plain)

    def stored(self, value: Value, headers: Headers | None) -> tuple[Value, Headers | None]:
        """Return an encoded value, and its headers, as they are stored. Raises
        InvalidArgumentError, TooLargeError."""
        if headers is None:
            if type(value) is bytes and len(value) <= COMPRESS_ABOVE_BYTES:
                return value, None
        else:
            if type(headers) is HeaderBlock:
                # It is stored byte for byte, so nothing may be added to it.
                return value, headers
            check_headers_free(headers)
        if not self._link.compresses:
            return value, headers
        return compressed(checked_value(value), headers)

    def stored_or_large(
        self, value: Value | LargeValue, headers: Headers | None
    ) -> tuple[Value | LargeValue, Headers | None]:
        """Do as `stored`, but leave a LargeValue as it is."""
        if isinstance(value, LargeValue):
            check_headers_free(headers)
            return value, headers
        return self.stored(value, headers)

    def decoded(self, data: bytes, what: str) -> V:
        """Return the value that was encoded as `data`. Raises ValueUnreadableError."""
        try:
            return self._codec.decode(data)
        except ValueUnreadableError as error:
            raise ValueUnreadableError(what=what, reason=error.reason) from error

    def plain_message(self, row: Message) -> Message:
        """Return a message with its value decompressed but not decoded. Raises
        ValueUnreadableError."""
        # A header block is not looked into: its value is never compressed.
        if type(row.headers) is HeaderBlock or ENCODING_HEADER not in row.headers:
            return row
        value, headers = self._plain(row.value, row.headers, self.message_name(row.seq))
        return row._replace(value=value, headers=headers)

    def plain_entry(self, row: Entry) -> Entry:
        """Return an entry with its value decompressed but not decoded. Raises
        ValueUnreadableError."""
        if type(row.headers) is HeaderBlock or ENCODING_HEADER not in row.headers:
            return row
        value, headers = self._plain(row.value, row.headers, self.entry_name(row.key))
        return row._replace(value=value, headers=headers)

    def message(self, row: Message) -> Message[V]:
        """Return a message as the application sees it. Raises ValueUnreadableError."""
        plain: Any = self.plain_message(row) if row.headers else row
        if not self.is_raw and plain.large is None:
            plain = plain._replace(value=self.decoded(plain.value, self.message_name(row.seq)))
        told: Message[V] = plain
        return told

    def entry(self, row: Entry) -> Entry[V]:
        """Return an entry as the application sees it. Raises ValueUnreadableError."""
        plain: Any = self.plain_entry(row) if row.headers else row
        if not self.is_raw and plain.large is None:
            plain = plain._replace(value=self.decoded(plain.value, self.entry_name(row.key)))
        told: Entry[V] = plain
        return told

    def listed_message(self, row: Message) -> Message[V]:
        """Return a message of a list as the application sees it, perhaps an UnreadableMessage."""
        try:
            return self.message(row)
        except ValueUnreadableError as error:
            return UnreadableMessage._make(_with_error(row, error))

    def listed_entry(self, row: Entry) -> Entry[V]:
        """Return an entry of a list as the application sees it, perhaps an UnreadableEntry."""
        try:
            return self.entry(row)
        except ValueUnreadableError as error:
            return UnreadableEntry._make(_with_error(row, error))

    def change(self, change: Change) -> Change[V]:
        """Return a change as the application sees it, with its message or entry as in a list."""
        plain: Any = change
        if change.message is not None:
            if not self.is_raw or change.message.headers:
                plain = plain._replace(message=self.listed_message(change.message))
        elif change.entry is not None and (not self.is_raw or change.entry.headers):
            plain = plain._replace(entry=self.listed_entry(change.entry))
        told: Change[V] = plain
        return told

    def message_name(self, seq: int) -> str:
        return f"message {seq} of {self._name}"

    def entry_name(self, key: str) -> str:
        return f"key {key!r} of {self._name}"

    def _plain(self, value: bytes, headers: Headers, what: str) -> tuple[bytes, Headers]:
        try:
            return decompressed(value, headers, what)
        except ValueUnreadableError as error:
            if not self._lenient:
                raise
            return _unreadable(value, error), headers


def _unreadable(value: bytes, error: ValueUnreadableError) -> UnreadableValue:
    unreadable = UnreadableValue(value)
    unreadable.error = error
    return unreadable


def _with_error(row: Message | Entry, error: ValueUnreadableError) -> Iterator[Any]:
    """Yield the fields of a row with its value unreadable."""
    fields: tuple[Any, ...] = row
    for index, field in enumerate(fields):
        yield _unreadable(field, error) if index == 1 else field


def check_headers_free(headers: Headers | None) -> None:
    """Raise InvalidArgumentError if headers contain the one reserved for compressed values."""
    if type(headers) is HeaderBlock:
        return
    if isinstance(headers, Mapping) and ENCODING_HEADER in headers:
        raise InvalidArgumentError(argument="headers", reason=f"{ENCODING_HEADER!r} is reserved")


def decoded_or_raise(codec: Codec[V], data: bytes) -> V:
    """Return the value that was encoded as `data`. Raises ValueUnreadableError, also for
    an UnreadableValue."""
    if isinstance(data, UnreadableValue):
        raise ValueUnreadableError(**data.error.fields)
    return codec.decode(data)
