"""Serves the document at `/v1/openapi.json`. It is built once."""

from __future__ import annotations

import hashlib
import json

from holdfast.gateway.http.asgi import Receive, Scope, Send, answer, encoded, headers_of
from holdfast.gateway.http.openapi.document import PATH, document
from holdfast.gateway.http.problems import ProblemError

__all__ = ["PATH", "OpenApiEndpoint"]


class OpenApiEndpoint:
    """Answers requests for the document."""

    def __init__(self) -> None:
        self._body = json.dumps(document(), separators=(",", ":")).encode()
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:16]}"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ProblemError."""
        if scope["method"] not in ("GET", "HEAD"):
            raise ProblemError(405, "method_not_allowed", scope["method"], {"Allow": "GET, HEAD"})
        fields = {"ETag": self._tag, "Cache-Control": "no-cache"}
        if headers_of(scope).get("if-none-match") == self._tag:
            await answer(send, 304, encoded(fields))
            return
        fields["Content-Type"] = "application/openapi+json;version=3.1"
        await answer(send, 200, encoded(fields), self._body)
