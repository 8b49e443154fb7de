"""Compression of values: a client compresses when it writes, and every reader decompresses.

A value above COMPRESS_ABOVE_BYTES is stored as a zstd frame if that saves at least an eighth, and
the header ENCODING_HEADER of its message or entry says so. The header travels like any other, so
servers, logs, files and followers keep what they get and need not know of compression. The space of
a store is counted in stored bytes. The size limit of one message counts the bytes that the
application gave (`own_headers.py`). Readers remove the header.

Input may be damaged or hostile: a frame must state its size, which may be at most MAX_VALUE_BYTES,
and its checksum is verified.

The package zstandard is imported at the first use. Without it nothing is compressed, and compressed
values cannot be read.
"""

from __future__ import annotations

import threading
from typing import Final

from holdfast.protocol.distribution import how_to_install
from holdfast.protocol.errors import ValueUnreadableError
from holdfast.protocol.limits import COMPRESS_ABOVE_BYTES, MAX_HEADERS_BYTES, MAX_VALUE_BYTES
from holdfast.protocol.messages import Headers

#: The header that names the encoding of a value. Applications cannot set it.
ENCODING_HEADER: Final = "hf-encoding"
ZSTD: Final = "zstd"
#: The encodings that a coordinator allows clients to write.
ENCODINGS: Final = (ZSTD,)

#: Measured in docs/performance.md: level 3 saves a few per cent more and takes 1.5 times as long.
_LEVEL: Final = 1
#: The most that the header adds to packed headers.
MARK_BYTES: Final = len(ENCODING_HEADER) + len(ZSTD) + 4


class _Zstd(threading.local):
    """The zstd contexts of one thread: they must not be shared, and
    take longer to make than to use."""

    def __init__(self) -> None:
        import zstandard

        self.error: type[Exception] = zstandard.ZstdError
        self.compress = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress
        self.size_inside = zstandard.frame_content_size
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd: _Zstd | None = None


def is_available() -> bool:
    """Tell whether this process can compress."""
    try:
        _loaded()
    except ImportError:
        return False
    return True


def compressed(value: bytes, headers: Headers | None) -> tuple[bytes, Headers | None]:
    """Return a value and its headers as they are to be stored.

    Both are unchanged unless the value is above COMPRESS_ABOVE_BYTES, at most MAX_VALUE_BYTES, and
    compression saves an eighth. Raises ImportError without zstandard.
    """
    if not COMPRESS_ABOVE_BYTES < len(value) <= MAX_VALUE_BYTES:
        return value, headers
    if headers and sum(len(n) + len(t) for n, t in headers.items()) > MAX_HEADERS_BYTES // 8:
        # The added header must not push the headers over their limit.
        return value, headers
    packed, marked = compressed_always(value, headers)
    if len(packed) + MARK_BYTES > len(value) - len(value) // 8:
        return value, headers
    return packed, marked


def compressed_always(value: bytes, headers: Headers | None) -> tuple[bytes, dict[str, str]]:
    """Compress any value, as `compressed` does. Raises ImportError without zstandard."""
    return _loaded().compress(value), {**(headers or {}), ENCODING_HEADER: ZSTD}


def size_inside(value: bytes) -> int:
    """Return the decompressed size that a compressed value states.

    If that size is missing or impossible, returns the length of `value`.
    Raises ImportError without zstandard.
    """
    zstd = _loaded()
    try:
        size_bytes = zstd.size_inside(value)
    except zstd.error:
        return len(value)
    return size_bytes if 0 <= size_bytes <= MAX_VALUE_BYTES else len(value)


def decompressed(value: bytes, headers: Headers, what: str) -> tuple[bytes, Headers]:
    """Return a value as it was written, and its headers without the encoding.

    Raises ValueUnreadableError, which names `what`.
    """
    encoding = headers.get(ENCODING_HEADER)
    if encoding is None:
        return value, headers
    if encoding != ZSTD:
        raise ValueUnreadableError(what=what, reason=f"unknown encoding {encoding!r}")
    try:
        zstd = _loaded()
    except ImportError as error:
        reason = f"it is compressed, but zstandard is missing: {how_to_install('compression')}"
        raise ValueUnreadableError(what=what, reason=reason) from error
    try:
        # The stated size is allocated at once, so check it first. -1 means that none is stated.
        size_bytes = zstd.size_inside(value)
        if not 0 <= size_bytes <= MAX_VALUE_BYTES:
            reason = f"it claims {size_bytes} bytes; at most {MAX_VALUE_BYTES} are allowed"
            raise ValueUnreadableError(what=what, reason=reason)
        plain = zstd.decompress(value, allow_extra_data=False)
    except zstd.error as error:
        raise ValueUnreadableError(what=what, reason=f"not zstd: {error}") from error
    if len(plain) != size_bytes:
        raise ValueUnreadableError(
            what=what, reason=f"it has {len(plain)} bytes instead of {size_bytes}"
        )
    return plain, {name: text for name, text in headers.items() if name != ENCODING_HEADER}


def _loaded() -> _Zstd:
    global _zstd
    if _zstd is None:
        _zstd = _Zstd()
    return _zstd
