"""How long a published message stays: the header `Nats-TTL`."""

from __future__ import annotations

from typing import Final

from holdfast.gateway.jetstream.api.times import SECOND, parse_duration

#: Escapes `max_age` too.
NEVER: Final = -1
_MAX_DIGITS: Final = 18


def message_ttl(text: str) -> int | None:
    """Return the seconds that a ttl says, NEVER for `never`, None if it is none.

    It is a Go duration of at least a second, cut to seconds, or a number of seconds.
    """
    if text.lower() == "never":
        return NEVER
    try:
        duration = parse_duration(text)
    except ValueError:
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            return int(text)
        return None
    return duration // SECOND if duration >= SECOND else None
