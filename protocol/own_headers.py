"""Headers that holdfast's clients add to those of applications, and sizes counted without them.

They are stored with the other headers and count as space: in `max_bytes`, rates and `HEAD`. The
size limits of one message and of its headers apply to what the application gave: there these
headers do not count, and the value counts with its size before compression. Only short texts are
left out of the count, since an application may use such a name as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.protocol.compression import ENCODING_HEADER, ZSTD, size_inside

#: The writer of a message of a live stream, and which of its messages this is.
LIVE_HEADER: Final = "live"
#: Where a dead letter came from, and why it was given up.
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
#: The longest of these texts is the name of a stream.
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
    """Return the decompressed size of a value that is stored with these headers."""
    return size_inside(value) if headers.get(ENCODING_HEADER) == ZSTD else len(value)
