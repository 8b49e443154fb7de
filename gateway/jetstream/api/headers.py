"""NATS header blocks as bytes: read one field, build, extend, cut.

A header block is `NATS/1.0`, an optional status, CR LF, lines of `Name: value` CR LF and an empty
line. It is kept byte for byte as it came: order, repeated names and spaces are what clients sent
and compare. So nothing here parses a block and writes it again; fields are found by search, and
are matched by case, as nats-server does. A value is what follows the colon without the spaces in
front.

Blocks come from strangers. Whatever the bytes are, reading gives a value or None; bytes that are no
UTF-8 become replacement characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

FIRST_LINE: Final = b"NATS/1.0\r\n"
#: A block without fields.
EMPTY_BLOCK: Final = b"NATS/1.0\r\n\r\n"
_VERSION: Final = b"NATS/1.0"
_END: Final = b"\r\n"


def get(block: bytes, name: str) -> str | None:
    """Return the first value of a field, None if the block has none of that name."""
    return get_raw(block, b"\r\n%b:" % name.encode())


def get_raw(block: bytes, mark: bytes) -> str | None:
    """The same for a hot path: `mark` is CR LF, the name and a colon."""
    start = block.find(mark)
    if start < 0:
        return None
    start += len(mark)
    end = block.find(_END, start)
    value = block[start:] if end < 0 else block[start:end]
    return value.lstrip(b" ").decode(errors="replace")


def items(block: bytes) -> Iterator[tuple[str, str]]:
    """Yield name and value of each field, in order. Lines without a colon are skipped."""
    for line in block.split(_END)[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            yield name.decode(errors="replace"), value.lstrip(b" ").decode(errors="replace")


def is_status(block: bytes) -> bool:
    """Return whether the block says a status in its first line."""
    return block[:8] == _VERSION and block[8:10] not in (_END, b"")


def build(fields: Mapping[str, object] | Iterable[tuple[str, object]]) -> bytes:
    """Return a block of these fields."""
    return b"%b%b\r\n" % (FIRST_LINE, lines(fields))


def append(block: bytes, fields: Mapping[str, object] | Iterable[tuple[str, object]]) -> bytes:
    """Return the block with fields behind those it has. An empty one becomes a block."""
    return b"%b%b\r\n" % (opened(block), lines(fields))


def opened(block: bytes) -> bytes:
    """Return the block without the empty line at its end, so that more lines may follow. An empty
    one becomes the start of a block."""
    if not block:
        return FIRST_LINE
    if block.endswith(b"\r\n\r\n"):
        return block[:-2]
    # What does not end in an empty line gets one: the lines stay lines.
    return block.rstrip(_END) + _END


def without(block: bytes, name: str) -> bytes:
    """Return the block without any field of that name; b"" if no field is left."""
    return without_prefix(block, f"{name}:")


def without_prefix(block: bytes, start: str) -> bytes:
    """Return the block without any field whose name begins so; b"" if no field is left."""
    mark = b"\r\n" + start.encode()
    at = block.find(mark)
    if at < 0:
        return block
    while at >= 0:
        end = block.find(_END, at + len(mark))
        block = block[:at] + (block[end:] if end >= 0 else b"\r\n\r\n")
        at = block.find(mark, at)
    return b"" if block == EMPTY_BLOCK else block


def replaced(block: bytes, name: str, value: str) -> bytes:
    """Return the block with the first field of that name changed, or the field appended."""
    mark = b"\r\n%b:" % name.encode()
    start = block.find(mark)
    if start < 0:
        return append(block, [(name, value)])
    start += len(mark)
    end = block.find(_END, start)
    behind = block[end:] if end >= 0 else b"\r\n\r\n"
    space = b" " if block[start : start + 1] == b" " else b""
    return block[:start] + space + _safe(value) + behind


def cut_status(block: bytes) -> bytes:
    """Return the block without the status of its first line, as messages are stored.

    b"" if nothing else is in it.
    """
    if not is_status(block):
        return block
    end = block.find(_END)
    rest = _VERSION + block[end:] if end >= 0 else b""
    return b"" if rest == EMPTY_BLOCK else rest


class StatusError(Exception):
    """What is wrong with a request that is answered by messages: a status instead of them."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{code} {description}")
        self.code: Final = code
        self.description: Final = description

    @property
    def block(self) -> bytes:
        """The header block of the answer, which has no payload."""
        return status_block(self.code, self.description)

    def __reduce__(self) -> tuple[type[StatusError], tuple[int, str]]:
        return (StatusError, (self.code, self.description))


def status_block(
    code: int,
    description: str = "",
    fields: Mapping[str, object] | Iterable[tuple[str, object]] = (),
) -> bytes:
    """Return the block of a status message: `NATS/1.0 404 No Messages` and fields."""
    text = f"{code} {description}" if description else str(code)
    return b"%b %b\r\n%b\r\n" % (_VERSION, _safe(text), lines(fields))


def lines(fields: Mapping[str, object] | Iterable[tuple[str, object]]) -> bytes:
    """Return the lines of these fields."""
    pairs = fields.items() if isinstance(fields, Mapping) else fields
    return b"".join(b"%b: %b\r\n" % (_safe(name), _safe(str(value))) for name, value in pairs)


def _safe(text: str) -> bytes:
    # A line break inside would begin another field.
    return text.replace("\r", " ").replace("\n", " ").encode(errors="replace")
