"""NATS header blocks: the headers of a message, byte for byte as a NATS client sent them.

A block is `NATS/1.0`, perhaps a status, then `Name: text` lines, each ended by CR LF, and an empty
line. A name may occur several times. Blocks are stored and sent as they are, in the place of the
map that other headers are: its first byte, `N`, never begins a packed map.

`check_block` decides what may be stored. Reading is lazy, since most readers pass a block on or
look at one name; it never fails, whatever the bytes are: lines that are no headers are left out.
Names are case-sensitive, as in NATS. Texts are UTF-8, or else Latin-1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from holdfast.protocol.errors import InvalidArgumentError, TooLargeError
from holdfast.protocol.limits import MAX_HEADER_BLOCK_BYTES

#: The first byte of a block: never that of a packed map.
FIRST_BYTE: Final = 0x4E
#: The header with the msg_id of a message, as JetStream's clients send it.
MSG_ID_HEADER: Final = "Nats-Msg-Id"
_VERSION: Final = b"NATS/1.0"
_END: Final = b"\r\n"
_NAME: Final = rb"[^\x00-\x20\x7f:][^\x00-\x1f\x7f:]*"
_BLOCK: Final = re.compile(rb"NATS/1\.0(?: [^\r\n]*)?\r\n(?:" + _NAME + rb":[^\r\n]*\r\n)*\r\n")
_LINE: Final = re.compile(rb"(" + _NAME + rb"):[ \t]*([^\r\n]*?)[ \t]*\r\n")


class HeaderBlock(Mapping[str, str]):
    """The headers of a message as a NATS header block: a read-only mapping of each name to its
    first text. `block` is the block, byte for byte.
    """

    __slots__ = ("_texts", "block")

    def __init__(self, block: bytes) -> None:
        """Nothing is checked here: see `check_block`."""
        self.block = block
        self._texts: dict[str, list[str]] | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> HeaderBlock:
        """Return the block with these headers, in this order. Raises InvalidArgumentError,
        TooLargeError."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        try:
            encoded = [(name.encode(), text.encode()) for name, text in pairs]
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(argument="headers", reason="not UTF-8") from error
        names = [name for name, _ in encoded]
        lines = [b"%b: %b\r\n" % each for each in encoded]
        block = b"".join((_VERSION, _END, *lines, _END))
        check_block(block)
        if [name for name, _ in _LINE.findall(block)] != names:
            reason = "a name has a colon, or a text has a line break"
            raise InvalidArgumentError(argument="headers", reason=reason)
        return cls(block)

    def all(self, name: str) -> list[str]:
        """Return every text of `name`, in order."""
        return list(self._parsed().get(name, ()))

    def joined(self) -> dict[str, str]:
        """Return the headers as a plain map: several texts of a name are joined by `, `."""
        return {name: ", ".join(texts) for name, texts in self._parsed().items()}

    def without(self, names: Iterable[str]) -> HeaderBlock:
        """Return the block without the lines of these names; the same one if it has none."""
        unwanted = frozenset(names)
        if unwanted.isdisjoint(self._parsed()):
            return self
        head, *lines = self.block.split(_END)
        kept = [line for line in lines if _text(line.partition(b":")[0]) not in unwanted]
        return HeaderBlock(_END.join([head, *kept]))

    def with_added(self, headers: Mapping[str, str]) -> HeaderBlock:
        """Return the block with these headers after its own. Raises InvalidArgumentError,
        TooLargeError."""
        added = HeaderBlock.of(headers).block
        block = self.block.removesuffix(_END) + added[added.find(_END) + len(_END) :]
        check_block(block)
        return HeaderBlock(block)

    def __getitem__(self, name: str) -> str:
        return self._parsed()[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __bool__(self) -> bool:
        # Also a block without a header is something that was sent, and is stored.
        return True

    def __repr__(self) -> str:
        return f"HeaderBlock({self.block!r})"

    def _parsed(self) -> dict[str, list[str]]:
        if self._texts is None:
            texts: dict[str, list[str]] = {}
            start = self.block.find(_END) + len(_END)
            for name, text in _LINE.findall(self.block[:MAX_HEADER_BLOCK_BYTES], start):
                texts.setdefault(_text(name), []).append(_text(text))
            self._texts = texts
        return self._texts


def check_block(block: bytes) -> None:
    """Raise InvalidArgumentError, TooLargeError unless `block` is a header block."""
    if len(block) > MAX_HEADER_BLOCK_BYTES:
        raise TooLargeError(what="headers", size=len(block), limit=MAX_HEADER_BLOCK_BYTES)
    if _BLOCK.fullmatch(block) is None:
        raise InvalidArgumentError(argument="headers", reason="not a NATS header block")


def headers_from_wire(wire: Any) -> Any:
    """Return the headers that a message or change carries: a map, empty if there are none, or a
    HeaderBlock. What is neither is returned as it is."""
    if type(wire) is bytes:
        return HeaderBlock(wire)
    return wire or {}


def msg_id_in(headers: Any) -> str | None:
    """Return the msg_id that a header block has, if these headers are one."""
    return HeaderBlock(headers).get(MSG_ID_HEADER) if type(headers) is bytes else None


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
