"""Parameters of requests on streams and kvs, checked. Everything wrong raises ProblemError."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from holdfast.gateway.http.problems import ProblemError

_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_TAG: Final = re.compile(r'(?:W/)?"([0-9]{1,18})"', re.ASCII)


def number(parameters: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    """Return a whole number, or None if it is not given."""
    text = parameters.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or int(text) < least:
        raise invalid(f"{name} must be a whole number from {least} on")
    return int(text)


def seconds(parameters: Mapping[str, str], name: str) -> float | None:
    """Return a number of seconds above 0, or None if it is not given."""
    text = parameters.get(name)
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError as error:
        raise invalid(f"{name} must be a number of seconds") from error
    if not math.isfinite(found) or found <= 0:
        raise invalid(f"{name} must be above 0")
    return found


def expected(headers: Mapping[str, str]) -> int | None:
    """Return the revision that `If-Match` names, 0 for `If-None-Match: *`, None without both."""
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    if none_match is not None:
        if none_match.strip() != "*" or match is not None:
            raise invalid("of a write, If-None-Match can only be *, and without If-Match")
        return 0
    if match is None:
        return None
    found = _TAG.fullmatch(match.strip())
    if found is None:
        raise invalid('If-Match must be one revision in quotes, such as "17"')
    return int(found[1])


def tag(revision: int) -> str:
    """Return the entity tag of a revision."""
    return f'"{revision}"'


def names(raw_path: bytes, start: str) -> tuple[str, str | None]:
    """Return the store that a path names behind `start`, and what follows it, percent-decoded: the
    whole rest, so a key may contain slashes."""
    path = raw_path.partition(b"?")[0]
    if not path.startswith(start.encode()):
        raise ProblemError(404, "not_found", "there is nothing at this path")
    store, slash, rest = path[len(start) :].partition(b"/")
    try:
        name = unquote_to_bytes(store).decode()
        key = unquote_to_bytes(rest).decode() if slash else None
    except UnicodeDecodeError as error:
        raise invalid("the path is not UTF-8") from error
    if not name:
        raise ProblemError(404, "not_found", "the path names no store")
    return name, key


def invalid(detail: str) -> ProblemError:
    """Return the refusal of a request that is wrong."""
    return ProblemError(400, "invalid_request", detail)
