"""The token of this process: where it comes from, and what follows from it for a connection.

A token is text, the path of a file that has it, or a callable that returns it. Files and callables
are asked again for each connection, so a renewed token takes effect when NATS connects anew, as it
does when the old one expires. It is read here, never verified: the servers do that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from holdfast.protocol.access.tokens import TOKEN_VERSION, Token, read_token
from holdfast.protocol.errors import InvalidArgumentError, InvalidTokenError
from holdfast.protocol.subjects import Inboxes

#: The text of a token, the path of a file with it, or a callable that returns it.
TokenLike = str | os.PathLike[str] | Callable[[], str]

TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"
TOKEN_FILE_VARIABLE: Final = "HOLDFAST_TOKEN_FILE"


class OwnToken:
    """The token that a client presents to NATS and to the servers."""

    def __init__(self, read: Callable[[], str]) -> None:
        """Raises InvalidTokenError, and what `read` raises."""
        self._read = read
        self._text = read().strip()
        self.token: Token = read_token(self._text)
        self._is_unused = True
        self._is_presented = False
        #: Called when the token has another id than before.
        self.on_renewed: Callable[[], None] = _nobody

    @property
    def id(self) -> str:
        return self.token.id

    @property
    def text(self) -> str:
        """The text that was read last."""
        return self._text

    def tenant(self, given: str | None, otherwise: str) -> str:
        """Return the tenant whose stores are used: the token's, or with an operator's token the
        given one. Raises InvalidArgumentError if they contradict each other."""
        token = self.token
        if token.is_operator:
            return otherwise if given is None else given
        if given not in (None, token.tenant):
            reason = f"{given!r} contradicts the token, which is for {token.tenant!r}"
            raise InvalidArgumentError(argument="tenant", reason=reason)
        return token.tenant

    def inboxes(self, inboxes: Inboxes) -> Inboxes:
        """Return the part of `inboxes` that the holder may subscribe to."""
        own = f"{self.id}.{inboxes.own}" if inboxes.own else self.id
        return replace(inboxes, own=own, for_all=self.token.is_operator)

    def present(self) -> str:
        """Return the text for a connection that begins. Raises InvalidArgumentError, and what a
        callable raises."""
        self._is_presented = True
        if self._is_unused:
            self._is_unused = False
        else:
            self._renew()
        return self._text

    def nats_options(self) -> dict[str, Callable[[], str]]:
        """Return options of nats-py that present the token: as user and password, which an auth
        service takes and a NATS that has a user for each token; and as a token of NATS, which
        nats-py adds where an nkey or credentials say who this is."""
        return {"user": self._present_id, "password": self._presented, "token": self.present}

    def _present_id(self) -> str:
        self.present()
        return self.id

    def _presented(self) -> str:
        return self._text

    def reconnected(self) -> None:
        """Read the token anew, unless NATS was given it: a NATS with users of its own does not ask
        for it. Raises as `present` does."""
        if not self._is_presented:
            self._renew()
        self._is_presented = False

    def _renew(self) -> None:
        text = self._read().strip()
        if text != self._text:
            try:
                renewed, before = read_token(text), self.token
            except InvalidTokenError as error:
                raise InvalidArgumentError(argument="token", reason=str(error)) from error
            if renewed.id != before.id and (
                not before.subject or _holder(renewed) != _holder(before)
            ):
                reason = (
                    "a renewed token needs the issuer, the tenant and the subject of the first "
                    "one, or what is unanswered might be stored twice"
                )
                raise InvalidArgumentError(argument="token", reason=reason)
            self._text, self.token = text, renewed
            if renewed.id != before.id:
                self.on_renewed()


def own_token(
    given: TokenLike | None, environment: Mapping[str, str] = os.environ
) -> OwnToken | None:
    """Return the token that is given, or that the environment gives; None if there is none, or if
    `given` is a token of NATS's own. Raises InvalidArgumentError, InvalidTokenError."""
    if given is None:
        text, path = environment.get(TOKEN_VARIABLE), environment.get(TOKEN_FILE_VARIABLE)
        if text:
            return OwnToken(lambda: text)
        return OwnToken(_reader(path)) if path else None
    if isinstance(given, str):
        return OwnToken(lambda: given) if _is_ours(given) else None
    if not callable(given) and not isinstance(given, os.PathLike):
        reason = f"must be text, a path or a callable, not {type(given).__name__}"
        raise InvalidArgumentError(argument="token", reason=reason)
    if callable(given):
        first = given()
        return OwnToken(_first_then(first, given)) if _is_ours(first) else None
    return OwnToken(_reader(given))


def _reader(path: str | os.PathLike[str]) -> Callable[[], str]:
    def read() -> str:
        try:
            return Path(path).read_text("ascii")
        except (OSError, ValueError) as error:
            reason = f"{path} cannot be read: {getattr(error, 'strerror', None) or 'no text'}"
            raise InvalidArgumentError(argument="token", reason=reason) from error

    return read


def _first_then(first: str, following: Callable[[], str]) -> Callable[[], str]:
    known = [first]
    return lambda: known.pop() if known else following()


def _is_ours(text: str) -> bool:
    return text.strip().startswith(f"{TOKEN_VERSION}.")


def _holder(token: Token) -> tuple[str, str, str]:
    return token.issuer, token.tenant, token.subject


def _nobody() -> None:
    return None
