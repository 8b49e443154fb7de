"""Subject transforms: a subject that matches a pattern becomes another one (ADR-30).

The destination has literal tokens and functions of the wildcards of the source: `$1` and
`{{wildcard(1)}}`, `{{partition(10,1,2)}}`, `{{split(1,-)}}`, `{{splitFromLeft(1,3)}}`,
`{{splitFromRight(1,3)}}`, `{{sliceFromLeft(1,3)}}`, `{{sliceFromRight(1,3)}}`, `{{left(1,3)}}`,
`{{right(1,3)}}` and `{{random(5)}}`. A last `>` of both takes over the rest. Wildcards count
from 1. What the functions return, the hash of partitions included, is what nats-server returns, so
that a stream keeps its subjects when it moves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.gateway.jetstream.api import names
from holdfast.protocol.limits import MAX_MESSAGE_SUBJECT_BYTES

_FUNCTION: Final = re.compile(r"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}")
#: Functions are longer than what they make.
_MAX_DESTINATION_BYTES: Final = 4 * MAX_MESSAGE_SUBJECT_BYTES
_MAX_INT32: Final = (1 << 31) - 1
#: Makes one token, or several joined by dots, of the tokens of a subject.
_Part = Callable[[Sequence[str]], str]


class TransformError(ValueError):
    """A source or destination that is no transform; the text says why, as nats-server says it."""


class SubjectTransform:
    """One checked transform. An empty source is `>`. Raises TransformError."""

    def __init__(self, source: str, destination: str) -> None:
        source = source or ">"
        tokens = destination.split(".")
        if not names.is_subject(source) or not _is_destination(destination):
            raise TransformError("invalid subject")
        if "*" in tokens or (tokens[-1] == ">") != source.endswith(">"):
            raise TransformError("invalid subject")
        self.source: Final = source
        self.destination: Final = destination
        wildcards = [at for at, token in enumerate(source.split(".")) if token == "*"]
        self._rest_at: Final = len(source.split(".")) - 1 if tokens[-1] == ">" else None
        kept = tokens if self._rest_at is None else tokens[:-1]
        self._parts: Final = [_part(token, wildcards) for token in kept]
        self._matches_all: Final = source == ">"

    def apply(self, subject: str) -> str | None:
        """Return what a literal subject becomes, None if the source does not match it."""
        if not self._matches_all and not names.is_subset(subject, self.source):
            return None
        tokens = subject.split(".")
        made = [part(tokens) for part in self._parts]
        if self._rest_at is not None:
            made += tokens[self._rest_at :]
        return ".".join(made)


def check_transform(source: str, destination: str) -> None:
    """Raise TransformError unless clients may ask for this transform. What it makes is bounded too,
    since a destination can name a long token many times."""
    if (
        len(source.encode()) > MAX_MESSAGE_SUBJECT_BYTES
        or len(destination.encode()) > _MAX_DESTINATION_BYTES
    ):
        raise TransformError("invalid subject")
    SubjectTransform(source, destination)


def _is_destination(destination: str) -> bool:
    # Functions contain spaces and parentheses, so only the tokens themselves are looked at.
    tokens = destination.split(".")
    return "" not in tokens and ">" not in tokens[:-1]


def _part(token: str, wildcards: Sequence[int]) -> _Part:
    """Return what makes the part of a destination's token. `wildcards` are their positions."""
    if len(token) > 1 and token[0] == "$" and _number(token[1:]) is not None:
        return _take(_position(token, token[1:], wildcards))
    if len(token) <= 4 or not (token.startswith("{{") and token.endswith("}}")):
        return lambda tokens: token
    match = _FUNCTION.fullmatch(token)
    name = match[1].lower() if match else ""
    arguments = re.split(r",\s*", match[2]) if match else []
    if name == "wildcard":
        if arguments == [""]:
            raise _not_enough(token)
        if len(arguments) > 1:
            raise _too_many(token)
        return _take(_position(token, arguments[0], wildcards))
    if name == "partition":
        buckets = _integer(token, arguments[0])
        positions = [_position(token, each, wildcards) for each in arguments[1:]]
        return lambda tokens: _partition(tokens, positions, buckets)
    if name == "random":
        if len(arguments) != 1:
            raise _not_enough(token)
        ceiling = _integer(token, arguments[0])
        return lambda tokens: str(random.randrange(max(ceiling, 1)))
    if name not in ("split", *_SLICERS):
        raise TransformError(f"invalid mapping destination: unknown function in {token}")
    if len(arguments) < 2:
        raise _not_enough(token)
    if len(arguments) > 2:
        raise _too_many(token)
    at = _position(token, arguments[0], wildcards)
    if name == "split":
        delimiter = arguments[1]
        if not delimiter or " " in delimiter or "." in delimiter:
            raise _invalid_argument(token)
        return lambda tokens: ".".join(filter(None, tokens[at].split(delimiter))) or tokens[at]
    size, slicer = _integer(token, arguments[1]), _SLICERS[name]
    return lambda tokens: slicer(tokens[at], size) if 0 < size < len(tokens[at]) else tokens[at]


def _take(at: int) -> _Part:
    return lambda tokens: tokens[at]


def _partition(tokens: Sequence[str], positions: Sequence[int], buckets: int) -> str:
    key = "".join(tokens[at] for at in positions) if positions else ".".join(tokens)
    if buckets == 0:
        return "0"
    # FNV-1a of 32 bits.
    digest = 0x811C9DC5
    for byte in key.encode():
        digest = ((digest ^ byte) * 0x01000193) & 0xFFFFFFFF
    return str(digest % buckets)


def _slices_from_left(token: str, size: int) -> str:
    return ".".join(token[at : at + size] for at in range(0, len(token), size))


def _slices_from_right(token: str, size: int) -> str:
    first = len(token) % size
    slices = [token[at : at + size] for at in range(first, len(token), size)]
    return ".".join([token[:first], *slices] if first else slices)


_SLICERS: Final[dict[str, Callable[[str, int], str]]] = {
    "splitfromleft": lambda token, size: f"{token[:size]}.{token[size:]}",
    "splitfromright": lambda token, size: f"{token[:-size]}.{token[-size:]}",
    "slicefromleft": _slices_from_left,
    "slicefromright": _slices_from_right,
    "left": lambda token, size: token[:size],
    "right": lambda token, size: token[-size:],
}


def _position(token: str, argument: str, wildcards: Sequence[int]) -> int:
    index = _number(argument.strip(" "))
    if index is None:
        raise _invalid_argument(token)
    if not 1 <= index <= len(wildcards):
        raise TransformError(
            f"invalid mapping destination: wildcard index out of range in {token}: [{index}]"
        )
    return wildcards[index - 1]


def _integer(token: str, argument: str) -> int:
    value = _number(argument.strip(" "))
    if value is None or not 0 <= value <= _MAX_INT32:
        raise _invalid_argument(token)
    return value


def _number(text: str) -> int | None:
    if len(text) > 20 or not re.fullmatch(r"[+-]?[0-9]+", text):
        return None
    return int(text)


def _not_enough(token: str) -> TransformError:
    return TransformError(
        f"invalid mapping destination: not enough arguments passed to the function in {token}"
    )


def _too_many(token: str) -> TransformError:
    return TransformError(
        f"invalid mapping destination: too many arguments passed to the function in {token}"
    )


def _invalid_argument(token: str) -> TransformError:
    return TransformError(
        "invalid mapping destination: function argument is invalid or in the wrong format in "
        f"{token}"
    )
