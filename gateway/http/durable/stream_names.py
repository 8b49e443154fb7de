"""Paths of durable streams, and the stores that they are in.

Each segment of a path is one token of a store's name, percent-encoded, behind the token `ds`. A
slash that the client has percent-encoded is part of its segment. So no two paths share a store, no
path leads out of `ds`, and a token of holdfast for `ds.chat.>` is one for the paths below `chat/`.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.gateway.http.problems import ProblemError
from holdfast.protocol.errors import InvalidNameError
from holdfast.protocol.names import check_store, quote

PREFIX: Final = "ds"
#: Where streams are, on every server of this protocol.
ROOT: Final = "/v1/stream/"
#: Reserved by the protocol for subscriptions, which this gateway does not have.
_RESERVED: Final = "__ds"
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def store_of(raw_path: bytes) -> str:
    """Return the name of the store for the path below ROOT, as it was sent. Raises ProblemError."""
    if _BAD_ESCAPE.search(raw_path):
        raise _invalid("a percent sign without two hexadecimal digits")
    tokens = [PREFIX]
    for segment in raw_path.split(b"/"):
        decoded = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), segment)
        try:
            text = decoded.decode()
        except UnicodeDecodeError as error:
            raise _invalid("not UTF-8") from error
        if text in ("", ".", ".."):
            raise _invalid("an empty segment, or one of dots alone")
        if not text.isprintable():
            raise _invalid("a control character")
        tokens.append(quote(text))
    if raw_path.split(b"/", 1)[0] == _RESERVED.encode():
        raise ProblemError(501, "not_implemented", "subscriptions are not implemented")
    try:
        return check_store(".".join(tokens))
    except InvalidNameError as error:
        raise _invalid(str(error)) from error


def store_of_url_path(path: str) -> str:
    """Return the name of the store for a path from the root of the server. Raises ProblemError."""
    if not path.startswith(ROOT):
        raise ProblemError(404, "not_found", f"streams are below {ROOT}")
    return store_of(path[len(ROOT) :].encode())


def _invalid(reason: str) -> ProblemError:
    return ProblemError(400, "invalid_name", f"this path names no stream: {reason}")
