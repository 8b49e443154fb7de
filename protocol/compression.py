"""Compressed values: what a client makes of a value, and what every reader makes of that.

A value above COMPRESS_ABOVE_BYTES is stored as a zstd frame where that is smaller by an eighth, and
the header ENCODING_HEADER of its message or entry says so. It travels with the message like any
other header, so servers, logs, files and followers need know nothing of it: they keep what they
got. What a store may take counts what is kept, what one message may be what was given
(`own_headers.py`). Readers take the header off again.

What is read may be damaged or hostile: a frame says how large it is inside, no more than
MAX_VALUE_BYTES is taken, and its checksum is compared.

The package zstandard is imported with the first use. Without it nothing is compressed, and a value
that is cannot be read.
"""

from __future__ import annotations

import threading
from typing import Final

from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import ValueUnreadableError
from holdfast.protocol.limits import COMPRESS_ABOVE_BYTES, MAX_HEADERS_BYTES, MAX_VALUE_BYTES
from holdfast.protocol.messages import Headers

#: The header that says how a value was packed. Applications cannot set it.
ENCODING_HEADER: Final = "hf-encoding"
ZSTD: Final = "zstd"
#: What a coordinator tells clients that they may write.
ENCODINGS: Final = (ZSTD,)

#: Measured in docs/performance.md: level 3 saves a few per cent more in half as much time again.
_LEVEL: Final = 1
#: What the header takes in packed headers, at most.
MARK_BYTES: Final = len(ENCODING_HEADER) + len(ZSTD) + 4


class _Zstd(threading.local):
    """The contexts of one thread: they must not be shared, and take longer to make than to use."""

    def __init__(self) -> None:
        import zstandard

        self.error: type[Exception] = zstandard.ZstdError
        self.compress = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress
        self.size_inside = zstandard.frame_content_size
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd: _Zstd | None = None


def is_available() -> bool:
    """Tell if this process can compress."""
    try:
        _loaded()
    except ImportError:
        return False
    return True


def compressed(value: bytes, headers: Headers | None) -> tuple[bytes, Headers | None]:
    """Return a value as it is to be stored, and its headers: both as they are unless it is above
    COMPRESS_ABOVE_BYTES, at most MAX_VALUE_BYTES, and an eighth can be saved. Raises ImportError
    without zstandard."""
    if not COMPRESS_ABOVE_BYTES < len(value) <= MAX_VALUE_BYTES:
        return value, headers
    if headers and sum(len(n) + len(t) for n, t in headers.items()) > MAX_HEADERS_BYTES // 8:
        # The header that is added must not be what makes them too large.
        return value, headers
    packed, marked = compressed_always(value, headers)
    if len(packed) + MARK_BYTES > len(value) - len(value) // 8:
        return value, headers
    return packed, marked


def compressed_always(value: bytes, headers: Headers | None) -> tuple[bytes, dict[str, str]]:
    """As `compressed`, of any value. Raises ImportError without zstandard."""
    return _loaded().compress(value), {**(headers or {}), ENCODING_HEADER: ZSTD}


def size_inside(value: bytes) -> int:
    """Return how many bytes a compressed value says that it has inside; its own where that cannot
    be. Raises ImportError without zstandard."""
    zstd = _loaded()
    try:
        size_bytes = zstd.size_inside(value)
    except zstd.error:
        return len(value)
    return size_bytes if 0 <= size_bytes <= MAX_VALUE_BYTES else len(value)


def decompressed(value: bytes, headers: Headers, what: str) -> tuple[bytes, Headers]:
    """Return a value as it was written, and its headers without the one that says how it is stored.

    Raises ValueUnreadableError, which says `what` it was.
    """
    encoding = headers.get(ENCODING_HEADER)
    if encoding is None:
        return value, headers
    if encoding != ZSTD:
        raise ValueUnreadableError(what=what, reason=f"its encoding {encoding!r} is not known")
    try:
        zstd = _loaded()
    except ImportError as error:
        reason = f"it is compressed, and zstandard is missing: {how_to_install('compression')}"
        raise ValueUnreadableError(what=what, reason=reason) from error
    try:
        # What a frame says of itself is allocated at once; -1 is one that does not say.
        size_bytes = zstd.size_inside(value)
        if not 0 <= size_bytes <= MAX_VALUE_BYTES:
            reason = f"{size_bytes} bytes are said to be inside; at most {MAX_VALUE_BYTES}"
            raise ValueUnreadableError(what=what, reason=reason)
        plain = zstd.decompress(value, allow_extra_data=False)
    except zstd.error as error:
        raise ValueUnreadableError(what=what, reason=f"not zstd: {error}") from error
    if len(plain) != size_bytes:
        raise ValueUnreadableError(what=what, reason=f"{len(plain)} bytes, not {size_bytes}")
    return plain, {name: text for name, text in headers.items() if name != ENCODING_HEADER}


def _loaded() -> _Zstd:
    global _zstd
    if _zstd is None:
        _zstd = _Zstd()
    return _zstd
