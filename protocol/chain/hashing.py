"""The chain of hashes over the messages of a stream, or the sets of a kv: what is hashed, and how.

A store that is configured with `chain=True` keeps one value of 32 bytes. Each message that is
appended, and each set of a key, changes it, and whoever knows the value after it can tell later
whether that one, or any before it, is still what it was.

    leaf of a message    SHA-256(00, seq, time, form, lengths, subject, headers, value)
    leaf of a set        SHA-256(02, revision, time, form, lengths, key, headers, value)
    chain after it       SHA-256(01, chain before it, leaf)
    chain of nothing     GENESIS

Numbers are big-endian: seq or revision 8 bytes, time 8 (signed, milliseconds), form 1, then the
lengths of subject or key and of headers (4 each) and of the value (8). So no two messages have the
same bytes. `form` says what is there: FORM_SUBJECT, FORM_BLOCK (the headers are a header block,
byte for byte; else they are pairs, sorted by the UTF-8 of their names, each text after its length
in 4 bytes), FORM_LARGE (the value was uploaded in chunks: its SHA-256 stands for it, after its own
length).

The leaf of a message that was removed stays, so the chain of those after it can still be checked. A
leaf tells nothing of its message but whether a guess is right; see docs/chain.md for what that
means for short values. This module does not decide which leaves are kept.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.protocol.header_block import HeaderBlock

FORM_SUBJECT: Final = 1
FORM_BLOCK: Final = 2
FORM_LARGE: Final = 4
_LEAF: Final = b"\x00"
_LINK: Final = b"\x01"
_SET: Final = b"\x02"

_sha256: Final = hashlib.sha256
_head: Final = struct.Struct(">cQqBIIQ").pack
_length: Final = struct.Struct(">I").pack
#: Before the first message.
GENESIS: Final = _sha256(b"holdfast chain 1").digest()


class ChainLink(NamedTuple):
    """The chain after the message `seq`, or the set of a kv with this revision: 32 bytes."""

    seq: int
    chain: bytes


#: Before the first message of a stream that has had its chain from the beginning.
BEGINNING: Final = ChainLink(0, GENESIS)


def leaf_of(
    seq: int, time: int, value: Any, headers: Any = None, subject: str | None = None
) -> bytes:
    """Return the leaf of a message as it is stored. `value` is bytes, or the fields of a LargeValue
    in their order; `headers` is a map of text to text, a HeaderBlock, a header block as bytes, or
    None."""
    if subject is None:
        return _leaf_of(_LEAF, seq, time, value, headers, 0, b"")
    return _leaf_of(_LEAF, seq, time, value, headers, FORM_SUBJECT, subject.encode())


def leaf_of_set(revision: int, time: int, value: Any, headers: Any, key: str) -> bytes:
    """Return the leaf of a set of a key, as `leaf_of` does."""
    return _leaf_of(_SET, revision, time, value, headers, 0, key.encode())


def _leaf_of(
    kind: bytes, number: int, time: int, value: Any, headers: Any, form: int, about: bytes
) -> bytes:
    packed = b""
    if headers is not None:
        if type(headers) is HeaderBlock:
            headers = headers.block
        if type(headers) is bytes:
            form |= FORM_BLOCK
            packed = headers
        elif headers:
            packed = _pairs(headers)
    if type(value) is bytes:
        size_bytes = len(value)
    else:
        form |= FORM_LARGE
        _, size_bytes, value, *_ = value
    head = _head(kind, number, time, form, len(about), len(packed), size_bytes)
    return _sha256(head + about + packed + value).digest()


def after(chain: bytes, leaf: bytes) -> bytes:
    """Return the chain after a message with this leaf."""
    return _sha256(_LINK + chain + leaf).digest()


def after_all(chain: bytes, leaves: Iterable[bytes]) -> bytes:
    """Return the chain after messages with these leaves, in order of seq."""
    for leaf in leaves:
        chain = _sha256(_LINK + chain + leaf).digest()
    return chain


def after_values(chain: bytes, seq: int, time: int, values: Sequence[bytes]) -> list[bytes]:
    """Return the chain after each of the messages from `seq` on that have a value and nothing else.

    Does what `leaf_of` and `after` do, for each plain append, in less time.
    """
    chains = []
    for value in values:
        leaf = _sha256(_head(_LEAF, seq, time, 0, 0, 0, len(value)) + value).digest()
        chain = _sha256(_LINK + chain + leaf).digest()
        chains.append(chain)
        seq += 1
    return chains


def _pairs(headers: Mapping[str, str]) -> bytes:
    pairs = sorted((name.encode(), text.encode()) for name, text in headers.items())
    parts: list[bytes] = []
    for pair in pairs:
        for text in pair:
            parts += (_length(len(text)), text)
    return b"".join(parts)
