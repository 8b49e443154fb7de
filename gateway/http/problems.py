"""Refusals as problem details (RFC 9457): what a request gets that cannot be served.

A `ProblemError` is raised anywhere below a route and answered in one place. Its `code` is stable
and is, for refusals by the cluster, the code of holdfast's own error. Nothing of ours leaks: an
unexpected exception becomes `internal_error` without its text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from holdfast.protocol.errors import (
    BusyError,
    DeniedError,
    HoldfastError,
    InvalidTokenError,
    LimitExceededError,
    NotAllowedError,
    NotFoundError,
    RateLimitedError,
    RequestError,
    StorageError,
    TooLargeError,
    UnavailableError,
    WrongLastSeqError,
    WrongRevisionError,
)

CONTENT_TYPE: Final = "application/problem+json"
#: The first match counts.
_STATUS: Final[tuple[tuple[type[HoldfastError], int], ...]] = (
    (InvalidTokenError, 401),
    (NotAllowedError, 403),
    (DeniedError, 403),
    (NotFoundError, 404),
    (WrongLastSeqError, 412),
    (WrongRevisionError, 412),
    (TooLargeError, 413),
    (LimitExceededError, 507),
    (RateLimitedError, 429),
    (BusyError, 503),
    (RequestError, 400),
    (UnavailableError, 503),
    (StorageError, 503),
    (HoldfastError, 502),
)


class ProblemError(Exception):
    """A request that is refused. `headers` go with the answer."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Return the problem details."""
        fields: dict[str, Any] = {
            "type": f"urn:holdfast:error:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        return json.dumps(fields).encode()


def problem_of(error: HoldfastError) -> ProblemError:
    """Return the problem that an error of the cluster is to a client."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    headers = {}
    if status in (429, 503):
        seconds = getattr(error, "retry_after_seconds", 1.0)
        headers["Retry-After"] = str(max(1, round(seconds)))
    return ProblemError(status, error.code, str(error), headers)
