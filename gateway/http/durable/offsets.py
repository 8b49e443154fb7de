"""Offsets: where a reader of a durable stream is; and the cursors of live reads.

An offset is two numbers of sixteen digits, so that offsets sort as text: a zero, and the seq of the
next message. `-1` means the beginning, `now` the end. A fork uses the offsets of its source.

Cursors are numbers that never come twice to one reader, so that no cache between gateway and reader
can answer for ever with what it has.
"""

from __future__ import annotations

import random
import re
from enum import StrEnum
from typing import Final

from holdfast.gateway.http.problems import ProblemError

_DIGITS: Final = 16
_FIRST: Final = "0" * _DIGITS
_OFFSET: Final = re.compile(rf"{_FIRST}_([0-9]{{{_DIGITS}}})", re.ASCII)

#: 2024-10-09T00:00:00Z, in milliseconds; and how long one number lasts. Both are the protocol's.
_EPOCH_MS: Final = 1_728_432_000_000
_INTERVAL_MS: Final = 20_000
#: The protocol advances a number that came already by 1 to 3600 seconds.
_MAX_STEPS: Final = 3_600_000 // _INTERVAL_MS
_CURSOR: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class OffsetWord(StrEnum):
    """The offsets that are words."""

    BEGINNING = "-1"
    END = "now"


def offset_text(seq: int) -> str:
    """Return the offset of the reader whose next message is `seq`."""
    return f"{_FIRST}_{seq:0{_DIGITS}d}"


def parse_offset(text: str) -> int | OffsetWord:
    """Return the seq of the next message, or an OffsetWord. Raises ProblemError."""
    if text in (OffsetWord.BEGINNING, OffsetWord.END):
        return OffsetWord(text)
    found = _OFFSET.fullmatch(text)
    if found is None:
        raise ProblemError(400, "invalid_offset", "the offset is not one that this server gave")
    return int(found[1])


def next_cursor(given: str | None, now_ms: int) -> str:
    """Return the cursor of an answer to a reader that has `given`, if any."""
    now = (now_ms - _EPOCH_MS) // _INTERVAL_MS
    if given is None or not _CURSOR.fullmatch(given) or int(given) < now:
        return str(now)
    return str(int(given) + random.randint(1, _MAX_STEPS))
