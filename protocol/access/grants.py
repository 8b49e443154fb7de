"""A grant: what a verified token allows, as a server looks at it, frame by frame.

Pure. Whoever uses a grant has found it in the grant book (`grant_book.py`), which says that it is
neither expired nor revoked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from holdfast.protocol.access.rights import AUDITED, Right, mask_needed, numbers_within
from holdfast.protocol.access.tokens import Token
from holdfast.protocol.errors import NotAllowedError
from holdfast.protocol.limits import MAX_KNOWN_RIGHTS
from holdfast.protocol.names import StoreKind

#: What operators may do with the stores of the system tenant.
RIGHTS_ON_SYSTEM: Final = Right.READ | Right.LIST | Right.CONFIGURE
#: What an error says is missing if the token itself is.
A_TOKEN: Final = "a token"
_NO_PATTERN: Final = "no pattern of the token matches it"
#: The length of a bound writer id. Nobody finds a writer id that gives another's.
_WRITER_BYTES: Final = 16
#: The writers of one grant whose bound ids are known; a client has one.
_MAX_WRITERS: Final = 16


class KnownRights:
    """Bounds how many stores grants know their rights on: all grants share the room."""

    def __init__(self) -> None:
        self._count = 0
        #: The masks that have some, by name of store.
        self._filled: list[dict[str, int]] = []

    def __len__(self) -> int:
        return self._count

    def keep(self, masks: dict[str, int], name: str, mask: int) -> None:
        """Put `mask` into `masks`. If there is no room, all grants forget theirs first."""
        if self._count >= MAX_KNOWN_RIGHTS:
            for each in self._filled:
                each.clear()
            self._filled.clear()
            self._count = 0
        if not masks:
            self._filled.append(masks)
        masks[name] = mask
        self._count += 1


class TokenGrant:
    """What one token allows."""

    __slots__ = (
        "_holder_key",
        "_known",
        "_on_system",
        "_writers",
        "allowed",
        "expires_at",
        "id",
        "loaded_at",
        "masks",
        "token",
    )

    def __init__(self, token: Token, known: KnownRights, loaded_at: float) -> None:
        self.id = token.id
        self.token = token
        #: The numbers of the operations that it allows where it has rights at all.
        self.allowed = numbers_within(token.rights)
        #: Its rights on stores, by kind and name, as far as they were asked for: so patterns are
        #: compared once for each store. 0: none.
        self.masks: dict[int, dict[str, int]] = {int(kind): {} for kind in StoreKind}
        #: Seconds since 1970.
        self.expires_at = math.inf if token.expires_at is None else float(token.expires_at)
        self.loaded_at = loaded_at
        self._known = known
        self._holder_key = _holder_key(token)
        self._writers: dict[bytes, bytes] = {}
        self._on_system: TokenGrant | None = None

    def on_system(self) -> TokenGrant:
        """Return what an operator's token allows on the stores of the system tenant: servers write
        the audit log, and nobody else does."""
        if self._on_system is None:
            token = replace(self.token, rights=self.token.rights & RIGHTS_ON_SYSTEM)
            # What is known of rights is kept by id, and the same id has other rights here.
            self._on_system = TokenGrant(token, KnownRights(), self.loaded_at)
        return self._on_system

    def bound_writer(self, writer: bytes) -> bytes:
        """Return the writer id that stores know for a writer of this holder. Nobody else can get
        it, so nobody can answer for another's writer, or make its groups stale. It is the same for
        all tokens of one issuer and subject, so a renewed token goes on with its groups."""
        bound = self._writers.get(writer)
        if bound is None:
            if len(self._writers) >= _MAX_WRITERS:
                self._writers.clear()
            bound = blake2b(writer, key=self._holder_key, digest_size=_WRITER_BYTES).digest()
            self._writers[writer] = bound
        return bound

    def lacking(self, kind: int, name: str, operations: Sequence[Sequence[Any]]) -> int:
        """Return 0 if the operations may be done on a store and are nothing for the audit log;
        otherwise what `refused` takes."""
        return mask_needed(operations) & ~self._mask(kind, name)

    def refused(self, lacking: int, kind: int, name: str) -> NotAllowedError | None:
        """Return why operations may not be done that are `lacking` something, or None if they may,
        and the audit log is to have them."""
        missing = Right(lacking & ~AUDITED)
        return self._lacks(missing, kind, name) if missing else None

    def refusal(
        self, kind: int, name: str, operations: Sequence[Sequence[Any]]
    ) -> NotAllowedError | None:
        """Return why the operations may not be done on a store, or None if they may."""
        return self.refused(self.lacking(kind, name, operations), kind, name)

    def lacks(self, right: Right, kind: int, name: str) -> NotAllowedError | None:
        """Return why a store may not be used so, or None if it may."""
        if right & self._mask(kind, name) == right:
            return None
        return self._lacks(right, kind, name)

    def unseen(self, kind: int, name: str) -> NotAllowedError | None:
        """Return why a store may not be used at all, or None if it may be in some way."""
        if self.sees(kind, name):
            return None
        return NotAllowedError(
            action="use", subject=_shown(kind, name), reason=_NO_PATTERN, missing="any right on it"
        )

    def sees(self, kind: int, name: str) -> bool:
        """Tell whether it has any right on a store."""
        return self._mask(kind, name) != 0

    def _mask(self, kind: int, name: str) -> int:
        masks = self.masks.get(kind)
        if masks is None:
            return 0
        mask = masks.get(name)
        if mask is None:
            mask = int(self.token.rights_on(kind, name))
            self._known.keep(masks, name, mask)
        return mask

    def matches(self, kind: int, name: str) -> bool:
        """Tell the same of one store among many: without remembering it."""
        return bool(self.token.rights_on(kind, name))

    def _lacks(self, lacking: Right, kind: int, name: str) -> NotAllowedError:
        words = ", ".join(lacking.words)
        matched = self.sees(kind, name)
        reason = f"the token does not allow {words}" if matched else _NO_PATTERN
        return NotAllowedError(
            action=words, subject=_shown(kind, name), reason=reason, missing=words
        )


def _shown(kind: int, name: str) -> str:
    return f"{StoreKind(kind).word} {name}" if kind in tuple(StoreKind) else name


def no_token(subject: str, reason: str) -> NotAllowedError:
    """Return the refusal of a request on `subject` that has no valid token."""
    return NotAllowedError(action="use", subject=subject, reason=reason, missing=A_TOKEN)


def _holder_key(token: Token) -> bytes:
    """Return the key of a token's holder: its issuer and subject, or its id without a subject."""
    if token.subject:
        # Neither an issuer nor a subject has a zero byte, so no two holders give the same text.
        holder = f"subject\0{token.issuer}\0{token.subject}"
    else:
        holder = f"id\0{token.id}"
    return blake2b(holder.encode(), digest_size=32).digest()
