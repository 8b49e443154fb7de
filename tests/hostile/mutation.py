"""Makes wrong values out of right ones: by their structure, and then by their bytes.

`mutate` changes some places of a nested value: other types, extreme numbers, other lengths, deep
nesting. `Packed` is msgpack that no encoder would make (declared lengths without content, text that
is not UTF-8, keys that cannot be keys), put where a value was. `pack` makes the bytes, and `damage`
changes those.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgpack

_DEPTHS: Final = (5, 31, 33, 100, 500, 990, 1_000, 2_000, 20_000)
#: Stands for a Packed until all is packed.
_STAND_IN: Final = b"\x00stand-in\x00%06d"
_STAND_IN_BYTES: Final = 16
_STAND_INS: Final = re.compile(rb"\xc4\x10\x00stand-in\x00([0-9]{6})")
_FEW_PLACES: Final = 50


class Packed(bytes):
    """Bytes that go into the frame as they are, in the place of a value."""


INTEGERS: Final = (
    0,
    1,
    -1,
    2,
    63,
    64,
    4095,
    4096,
    4097,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53 + 1,
    10**12,
    2**62,
    2**63 - 2,
    2**63 - 1,
    2**63,
    2**64 - 2,
    2**64 - 1,
    -(2**31),
    -(2**53),
    -(2**63),
)
FLOATS: Final = (0.0, -0.0, 1e-300, 0.5, 1e18, 1e308, -1e308, math.inf, -math.inf, math.nan)
TEXTS: Final = (
    "",
    "_",
    ".",
    "..",
    "a..b",
    "*",
    ">",
    "torture.>",
    "../../../etc/passwd",
    "hf._.hb",
    "%2E%2E",
    "con",
    "\x00",
    "a\x00b",
    "a b",
    "a\nb",
    "a\r\nPUB hf._.hb 0\r\n",
    "\u202e",
    "\U0001f600" * 50,
    "'; DROP TABLE messages; --",
    "x" * 200,
    "x" * 255,
    "x" * 5_000,
    ".".join("x" * 17),
)
_PACKED: Final = (
    Packed(b"\xdd\xff\xff\xff\xff"),  # an array of 2^32 - 1 without one element
    Packed(b"\xdf\xff\xff\xff\xff"),  # a map
    Packed(b"\xc6\xff\xff\xff\xff"),  # bin
    Packed(b"\xdb\xff\xff\xff\xff"),  # text
    Packed(b"\xdc\xff\xff" + b"\xc0" * 100),
    Packed(b"\xa4\xff\xfe\xfd\xfc"),  # text that is not UTF-8
    Packed(b"\xa3\xed\xa0\x80"),  # a lone surrogate
    Packed(b"\x81\x90\xc0"),  # a map whose key is an array
    Packed(b"\x81\x80\xc0"),  # a map whose key is a map
    Packed(b"\x81\xc0\xc0"),
    Packed(b"\x82\xa1a\x01\xa1a\x02"),  # a key twice
    Packed(b"\xc1"),  # the one byte that msgpack never uses
    Packed(b"\xd4\x05\x00"),  # an extension
    Packed(b"\xd6\xff\xff\xff\xff\xff"),  # a timestamp
    Packed(
        b"\xc7\x0c\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff"
    ),  # one in the year 292e9
    Packed(b"\xc7\x05\xff\x00\x00\x00\x00\x00"),  # one of a length that none has
    Packed(b""),
)

_Path = tuple[Any, ...]


def extreme(rng: random.Random) -> Any:
    """Return a value that is not what anybody asked for."""
    kind = rng.randrange(14)
    if kind < 4:
        return rng.choice(INTEGERS)
    if kind == 4:
        return rng.choice(FLOATS)
    if kind < 7:
        return rng.choice(TEXTS)
    if kind == 7:
        return rng.choice((b"", b"\xff" * rng.choice((1, 16, 33, 300)), b"\x00" * 16))
    if kind == 8:
        return rng.choice(
            (None, True, False, [], {}, [None] * 5_000, {"": ""}, {1: 2}, {b"": None})
        )
    if kind == 9:
        return nested(rng)
    if kind == 10:
        return rng.choice(_PACKED)
    if kind == 11:
        return [rng.choice(INTEGERS) for _ in range(rng.choice((1, 2, 6, 4_097)))]
    if kind == 12:
        return {text: rng.choice(INTEGERS) for text in rng.sample(TEXTS, 5)}
    return rng.randbytes(rng.randrange(64))


def nested(rng: random.Random) -> Packed:
    """Return arrays in arrays, or maps in maps, very deep."""
    depth = rng.choice(_DEPTHS)
    opening = rng.choice((b"\x91", b"\x81\xa1a", b"\x92\xc0", b"\xdd\x00\x00\x00\x01"))
    return Packed(opening * depth + b"\xc0")


def mutate(value: Any, rng: random.Random) -> Any:
    """Return a copy of `value`, which is made of lists and maps, with a few places changed."""
    value = _copied(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        places = _places(value)
        if not places:
            return extreme(rng)
        container, key = rng.choice(places)
        rng.choice(_CHANGES)(container, key, rng)
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(each) for each in value]
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in `value`: the container and the index or key; long lists in part."""
    found: list[tuple[Any, Any]] = []
    open_containers = [value]
    while open_containers:
        container = open_containers.pop()
        if isinstance(container, list):
            indexes = range(len(container)) if len(container) < 50 else (0, 1, len(container) - 1)
            keys: Any = list(indexes)
        elif isinstance(container, dict):
            keys = list(container)
        else:
            continue
        for key in keys:
            found.append((container, key))
            open_containers.append(container[key])
    return found


def _replace(container: Any, key: Any, rng: random.Random) -> None:
    container[key] = extreme(rng)


def _remove(container: Any, key: Any, rng: random.Random) -> None:
    del container[key]


def _double(container: Any, key: Any, rng: random.Random) -> None:
    if isinstance(container, list):
        # Doubled again and again, what is large would never end.
        many = 70 if len(_places(container[key])) < _FEW_PLACES else 2
        container[key:key] = [container[key]] * rng.choice((1, 2, many))
    else:
        container[f"{key}2"] = container[key]


def _insert(container: Any, key: Any, rng: random.Random) -> None:
    if isinstance(container, list):
        container.insert(key, extreme(rng))
    else:
        container[rng.choice((*TEXTS[:8], *INTEGERS[:4]))] = extreme(rng)


def _wrap(container: Any, key: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 30))):
        container[key] = [container[key]]


def _nest(container: Any, key: Any, rng: random.Random) -> None:
    container[key] = nested(rng)


def _nudge(container: Any, key: Any, rng: random.Random) -> None:
    """Change a value to one of its own type, a little or all of it."""
    value = container[key]
    if type(value) is int:
        container[key] = rng.choice((value + 1, value - 1, -value, rng.choice(INTEGERS)))
        container[key] = max(-(2**63), min(2**64 - 1, container[key]))
    elif type(value) is str:
        container[key] = rng.choice((value + "\x00", value[:-1], value * 20, rng.choice(TEXTS)))
    elif type(value) is bytes:
        container[key] = rng.choice((value[:-1], value + b"\x00", value * 20, rng.randbytes(16)))
    else:
        container[key] = extreme(rng)


_CHANGES: Final[tuple[Callable[[Any, Any, random.Random], None], ...]] = (
    _replace,
    _replace,
    _replace,
    _nudge,
    _nudge,
    _nudge,
    _remove,
    _double,
    _insert,
    _wrap,
    _nest,
)


def pack(value: Any) -> bytes:
    """Return `value` as msgpack, each Packed in it as it is."""
    packed: list[Packed] = []

    def stand_in(one: Any) -> Any:
        if isinstance(one, Enum):
            return one.value
        assert isinstance(one, Packed), one
        packed.append(one)
        return _STAND_IN % (len(packed) - 1)

    # Strictly, bytes and numbers of types of their own are neither.
    body: bytes = msgpack.packb(value, default=stand_in, strict_types=True, use_bin_type=True)
    return _STAND_INS.sub(lambda match: packed[int(match[1])], body)


def damage(payload: bytes, rng: random.Random) -> bytes:
    """Return `payload` with some bytes changed, cut off, doubled or put in."""
    kind = rng.randrange(6)
    at = rng.randrange(len(payload) + 1)
    if kind == 0:
        return payload[:at]
    if kind == 1:
        return payload[:at] + rng.randbytes(rng.choice((1, 4, 100))) + payload[at:]
    if kind == 2:
        return payload + rng.randbytes(rng.choice((1, 20)))
    if kind == 3:
        return bytes([rng.randrange(256)]) + payload[1:]
    if kind == 4:
        return payload[:at] + payload[min(len(payload), at + rng.randrange(1, 9)) :]
    changed = bytearray(payload)
    for _ in range(rng.choice((1, 3, 30))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


assert len(_STAND_IN % 0) == _STAND_IN_BYTES
