"""Bookmarks: where a listing goes on that has found nothing to show yet.

A listing shows only stores that a token's patterns match, and reads a bounded number of rows for
each request. If it may show none of those, the next request has to begin behind the last of them,
whose name must not be told. So the place is sealed: with a key that this process alone has, for
one token. Pure but for the key. What was sealed before a failover cannot be opened, and the listing
begins again behind the last store that it has shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

if TYPE_CHECKING:
    from nacl.secret import SecretBox

#: Longer ones are none. A name has at most MAX_NAME_BYTES.
_MAX_BYTES: Final = 1024


class ListingPlace(NamedTuple):
    """A store, behind which a listing goes on."""

    name: str
    kind: int


class Bookmarks:
    """Those of one coordinator. Only one that asks for tokens needs them, and has PyNaCl."""

    def __init__(self) -> None:
        self._made: SecretBox | None = None

    def sealed(self, token_id: str, place: tuple[str, int]) -> bytes:
        """Return the bookmark of a place, for listings of one token."""
        return bytes(self._box.encrypt(msgpack.packb([token_id, *place])))

    def opened(self, token_id: str, bookmark: bytes) -> ListingPlace | None:
        """Return the place, or None for what this coordinator has not sealed for this token."""
        if len(bookmark) > _MAX_BYTES:
            return None
        from nacl.exceptions import CryptoError

        try:
            owner, name, kind = msgpack.unpackb(self._box.decrypt(bookmark))
        except (CryptoError, ValueError):
            return None
        return ListingPlace(name, kind) if owner == token_id else None

    @property
    def _box(self) -> SecretBox:
        if self._made is None:
            from nacl.secret import SecretBox
            from nacl.utils import random

            self._made = SecretBox(random(SecretBox.KEY_SIZE))
        return self._made
