"""Headers that holdfast's clients add to those of applications, and what is counted without them.

They lie with the others, and count where space is counted: `max_bytes`, rates, `HEAD`. A limit of
what one message may be is of what the application gave, and so is that of headers: there neither
these count, nor what compression saved. Only a short one is left out, since an application may use
such a name too. """

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.protocol.compression import ENCODING_HEADER, ZSTD, size_inside

#: Who wrote a message of a live stream, and which one it is.
LIVE_HEADER: Final = "live"
#: Where a dead letter came from, and why it is one.
DEAD_STREAM_HEADER: Final = "hf-dead-stream"
DEAD_SEQ_HEADER: Final = "hf-dead-seq"
DEAD_CONSUMER_HEADER: Final = "hf-dead-consumer"
DEAD_DELIVERIES_HEADER: Final = "hf-dead-deliveries"
DEAD_REASON_HEADER: Final = "hf-dead-reason"
DEAD_HEADERS: Final = (
    DEAD_STREAM_HEADER,
    DEAD_SEQ_HEADER,
    DEAD_CONSUMER_HEADER,
    DEAD_DELIVERIES_HEADER,
    DEAD_REASON_HEADER,
)
_OWN: Final = frozenset((ENCODING_HEADER, LIVE_HEADER, *DEAD_HEADERS))
#: The longest of them is the name of a stream.
_MAX_OWN_CHARACTERS: Final = 200


def given(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers without those that clients add; the same object if there are none."""
    if _OWN.isdisjoint(headers):
        return headers
    return {
        name: text
        for name, text in headers.items()
        if name not in _OWN or len(text) > _MAX_OWN_CHARACTERS
    }


def given_value_bytes(value: bytes, headers: Mapping[str, str]) -> int:
    """Return how large a value is that is stored with these headers, once it is decompressed."""
    return size_inside(value) if headers.get(ENCODING_HEADER) == ZSTD else len(value)
