"""Makes pictures of pages smaller: PNG with a palette of 256 colours.

The commonest colours of text differ little, so a palette of them alone would lose the few pixels of
a red dot: colours that are near to one in it are left out until all others are in.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

_SIGNATURE = b"\x89PNG\r\n\x1a\n"

_COLOURS = 256
#: The square of a distance that is hardly seen.
_NEAR = 300

Colour = tuple[int, ...]


def with_palette(picture: bytes) -> bytes:
    """Return a PNG of 8 bits a channel, as browsers take them, with a palette. Other colours become
    the nearest one in it."""
    chunks = list(_chunks(picture))
    width, height, depth, kind = struct.unpack(">IIBB", chunks[0][1][:10])
    assert depth == 8 and kind in (2, 6)
    channels = 3 if kind == 2 else 4
    raw = zlib.decompress(b"".join(body for name, body in chunks if name == b"IDAT"))
    rows = [
        [tuple(line[at : at + 3]) for at in range(0, len(line), channels)]
        for line in _lines(raw, width * channels, height, channels)
    ]
    counts = Counter(colour for row in rows for colour in row)
    palette = _palette([colour for colour, _ in counts.most_common()])
    index = {colour: number for number, colour in enumerate(palette)}
    for colour in counts:
        if colour not in index:
            index[colour] = _nearest(colour, palette)
    packed = b"".join(b"\0" + bytes(index[colour] for colour in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return _SIGNATURE + b"".join(
        [
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", b"".join(map(bytes, palette))),
            _chunk(b"IDAT", zlib.compress(packed, 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(picture):
        (size,) = struct.unpack(">I", picture[at : at + 4])
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        at += 12 + size


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _lines(raw: bytes, stride: int, height: int, channels: int) -> Iterator[bytearray]:
    """Undo the filters of PNG."""
    above = bytearray(stride)
    for number in range(height):
        start = number * (stride + 1)
        how, line = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        for at in range(stride if how else 0):
            left = line[at - channels] if at >= channels else 0
            corner = above[at - channels] if at >= channels else 0
            line[at] = (line[at] + _predicted(how, left, above[at], corner)) & 255
        yield line
        above = line


def _predicted(how: int, left: int, up: int, corner: int) -> int:
    if how == 1:
        return left
    if how == 2:
        return up
    if how == 3:
        return (left + up) // 2
    far = {left: abs(up - corner), up: abs(left - corner), corner: abs(left + up - 2 * corner)}
    return min((left, up, corner), key=far.__getitem__)


def _palette(colours: list[Colour]) -> list[Colour]:
    """Return 256 of these colours, which come with the commonest first."""
    distinct: list[Colour] = []
    for colour in colours:
        if len(distinct) < _COLOURS and all(_distance(colour, each) > _NEAR for each in distinct):
            distinct.append(colour)
    taken = set(distinct)
    others = [colour for colour in colours if colour not in taken]
    return distinct + others[: _COLOURS - len(distinct)]


def _nearest(colour: Colour, palette: list[Colour]) -> int:
    return min(range(len(palette)), key=lambda number: _distance(colour, palette[number]))


def _distance(one: Colour, other: Colour) -> int:
    return sum((here - there) ** 2 for here, there in zip(one, other, strict=True))
