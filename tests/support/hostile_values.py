"""What a hostile client may put where a value belongs: every type that msgpack carries, and its
extremes."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from holdfast.protocol import frames
from tests.hostile.mutation import Packed, pack


def nested(depth: int, opening: bytes = b"\x91") -> Packed:
    """Return arrays (or, opened by `\\x81\\xa1k`, maps) in each other."""
    return Packed(opening * depth + b"\xc0")


DEEP: Final = [nested(17), nested(400), nested(1000), nested(500, b"\x81\xa1k"), nested(2000)]
NUMBERS: Final = [
    0, -1, 1, 2, 3, 4095, 4096, 4097, 1 << 31, 1 << 32, (1 << 53) + 1, (1 << 62) - 1, 1 << 62,
    (1 << 63) - 2, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31) - 1, -(1 << 63),
]  # fmt: skip
ODD: Final = [
    None, True, False, 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, float("inf"), float("-inf"),
    float("nan"),
    "", "a", "\x00", "k" * 5000, "\U0010ffff" * 80, "{0}{x!r:>9}", "stored", "old", b"", b"v",
    bytes(16),
    bytes(600), [], [[]], [None], {}, {"": ""}, {"a": {"a": {}}}, {b"k": b"v"}, list(range(5000,
    9200)),
    Packed(b"\xc1"), Packed(b"\xd4\x05x"), Packed(b"\xd6\xff\x00\x00\x00\x01"),
    Packed(b"\xd7\xff" + b"\xff" * 8),
    Packed(b"\xc7\x00\x07"), Packed(b"\xa2\xc3\x28"), Packed(b"\xa3\xed\xa0\x80"),
    Packed(b"\x82\xa1a\x01\xa1a\x02"),
    Packed(b"\x81\x91\x01\x02"), Packed(b"\x81\x01\x02"), Packed(b"\xdd\xff\xff\xff\xff"),
    Packed(b"\xcb\x7f\xf8"),
    Packed(b"\xdf\x00\x00\x00\x01\xc0\xc0"),
]  # fmt: skip

scalars = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(ODD), st.integers(-3, 9))
values = st.one_of(
    scalars,
    st.sampled_from(DEEP),
    st.lists(scalars, max_size=6),
    st.lists(st.lists(scalars, max_size=5), max_size=3),
    st.dictionaries(st.text(max_size=3), scalars, max_size=3),
    st.dictionaries(
        st.sampled_from(
            ["max_messages", "max_bytes", "max_age_seconds", "max_message_bytes", "discard",
             "max_messages_per_second", "max_bytes_per_second", "durability", "description",
             "dedupe_window_seconds", "archive_after_seconds", "ack_wait_seconds", "max_deliveries",
             "max_ack_pending"]
        ),
        scalars,
        max_size=3,
    ),
)  # fmt: skip


def payload(value: Any) -> bytes:
    """Return a payload of the bus."""
    return bytes([frames.PROTOCOL_VERSION]) + pack(value)
