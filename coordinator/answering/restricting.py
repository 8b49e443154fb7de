"""Restricts a client's request to what its grant allows.

Pure. Stores on which the token has no right are refused in their slots of a `resolve`, before
anything is assigned or recorded, so nobody learns whether they exist. `stores` needs the right
`list`, and lists only stores whose names match the token's patterns. Everybody with a valid token
of the tenant may ask for servers and statistics, and report a server that does not answer; gateways
of other tenants are shown to operators only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from holdfast.coordinator.answering.bookmarks import Bookmarks
from holdfast.coordinator.answering.requests import (
    ListingSight,
    ListStatistics,
    ListStores,
    Request,
    ResolveRequest,
)
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.access.rights import Right
from holdfast.protocol.access.tokens import split_pattern
from holdfast.protocol.errors import HoldfastError, NotAllowedError
from holdfast.protocol.names import StoreId, literal_start


def restricted(request: Request, grant: TokenGrant, bookmarks: Bookmarks) -> Request:
    """Return the part of a request that is allowed. Raises NotAllowedError if none is."""
    if isinstance(request, ResolveRequest):
        return replace(request, stores=tuple(_slot(each, grant) for each in request.stores))
    if isinstance(request, ListStores):
        return _listing(request, grant, bookmarks)
    if isinstance(request, ListStatistics) and not grant.token.is_operator:
        return replace(request, tenant=grant.token.tenant)
    return request


def _slot(store: StoreId | HoldfastError, grant: TokenGrant) -> StoreId | HoldfastError:
    if isinstance(store, HoldfastError):
        return store
    return grant.unseen(store.kind, store.name) or store


def _listing(request: ListStores, grant: TokenGrant, bookmarks: Bookmarks) -> ListStores:
    if Right.LIST not in grant.token.rights:
        word = Right.LIST.words[0]
        raise NotAllowedError(
            action=word,
            subject=f"stores {request.prefix}".rstrip(),
            reason=f"the token does not allow {word}",
            missing=word,
        )
    # The names that the token sees share this start, so the others need not be read.
    plain = [split_pattern(pattern)[1] for pattern in grant.token.stores]
    start = _common_start([literal_start(each) for each in plain])
    prefix = start if start.startswith(request.prefix) else request.prefix
    begin: tuple[str, int] | None = None
    if request.bookmark is not None:
        begin = bookmarks.opened(grant.id, request.bookmark)
        if begin is not None and request.after is not None:
            begin = max(begin, request.after)
    sight = ListingSight(grant.matches, begin, partial(bookmarks.sealed, grant.id))
    return replace(request, prefix=prefix, sight=sight)


def _common_start(texts: Sequence[str]) -> str:
    """Return the start that all texts share: that of the first and the last in their order."""
    first, last = min(texts), max(texts)
    for index, character in enumerate(first):
        if not last.startswith(character, index):
            return first[:index]
    return first
