"""The files of the console's page, as browsers get them.

The page at `/` is never kept without asking; what it refers to lies below `/console/DIGEST/`, where
the digest is that of all files together, and may be kept for ever. The page may load and ask
nothing but this gateway: its policy forbids everything else, also scripts and styles in the page
itself, so text of a store that got into it as HTML by some mistake would still do nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.gateway.http.asgi import Receive, Scope, Send, answer, encoded, headers_of
from holdfast.gateway.http.problems import ProblemError

#: Where the files lie that the page refers to.
ASSETS: Final = "/console/"
_FOLDER: Final = Path(__file__).parent / "pages"
_INDEX: Final = "index.html"
_PLACEHOLDER: Final = b"{{assets}}"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_SECURITY: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


class _File(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


class ConsolePage:
    """Answers requests for `/` and below `/console/`."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        found = {each.name: each.read_bytes() for each in sorted(folder.iterdir())}
        named = b"".join(name.encode() + b"\0" + body for name, body in found.items())
        digest = hashlib.sha256(named).hexdigest()[:16]
        #: Where the files of this version lie.
        self.assets = f"{ASSETS}{digest}"
        index = found.pop(_INDEX).replace(_PLACEHOLDER, self.assets.encode())
        self._files = {
            f"{self.assets}/{name}".encode(): _File(body, _kept_headers(name))
            for name, body in found.items()
        }
        tag = f'"{hashlib.sha256(index).hexdigest()[:16]}"'
        fields = {"Content-Type": _TYPES[".html"], "Cache-Control": "no-cache", "ETag": tag}
        self._files[b"/"] = _File(index, {**_SECURITY, **fields})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises ProblemError."""
        path = scope["raw_path"].partition(b"?")[0]
        found = self._files.get(path)
        if found is None:
            raise ProblemError(404, "not_found", "there is nothing at this path")
        if scope["method"] not in ("GET", "HEAD"):
            raise ProblemError(
                405, "method_not_allowed", "it can only be read", {"Allow": "GET, HEAD"}
            )
        tag = found.headers.get("ETag")
        if tag is not None and headers_of(scope).get("if-none-match") == tag:
            await answer(send, 304, encoded(dict(found.headers)))
        else:
            await answer(send, 200, encoded(dict(found.headers)), found.body)


def _kept_headers(name: str) -> Mapping[str, str]:
    content_type = _TYPES[Path(name).suffix]
    kept = "public, max-age=31536000, immutable"
    return {**_SECURITY, "Content-Type": content_type, "Cache-Control": kept}
