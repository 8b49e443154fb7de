"""What tokens allowed in a history, and whether more than that was done.

- **Rights.** Nobody was answered, or followed, what their token does not allow. That nothing of it
  was stored follows from `History.complete`: what somebody may not do has no unknown outcome.
- **Revocation.** No server admitted a request with a token 5 s after that was revoked, by a clock
  that cannot be set; nor was what was asked later done.
- **Expiry.** Nor after it expired, but for how far clocks were behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.protocol.access.rights import NO_RIGHTS, Right

if TYPE_CHECKING:
    from tests.support.checking.history import History, Operation

#: How long a server may still admit what has a revoked token.
REVOKED_SECONDS: Final = 5.0
#: What is planned for a time comes this much later at the most: an instant of the loop.
_INSTANT_SECONDS: Final = 1e-3


class Admission(NamedTuple):
    """A server, or a coordinator, began to do what a request with a token asks. `at` is in the
    seconds of the run."""

    server: str
    subject: str
    token: str
    at: float


@dataclass(slots=True)
class KnownToken:
    """A token that a client was given."""

    client: str
    #: In seconds since 1970.
    expires_at: int | None
    #: When its revocation was on disk, in the seconds of the run.
    revoked_at: float | None = None
    #: What was asked after this position, with nothing but this token, is refused everywhere.
    dead_from: int | None = None


def right_needed(operation: Operation) -> Right:
    """Return the right that an operation needs."""
    return Right.WRITE if operation.changes else Right.READ


def check_grants(history: History) -> Iterator[str]:
    """Yield what was done that no token allowed."""
    for operation in history.operations:
        if operation.returned is None or operation.outcome != "ok":
            continue
        who = f"{operation.action} of {operation.client}"
        if not history.may_do(operation):
            yield f"{who} was answered, without the right to {right_needed(operation).words[0]}"
        token = history.tokens.get(operation.token)
        if token is None or token.dead_from is None or operation.invoked < token.dead_from:
            continue
        if operation.token == operation.token_at_return:
            yield f"{who} was answered, asked {REVOKED_SECONDS:g} s after its token was revoked"
    for following in history.followings:
        if following.changes and not Right.READ & history.rights.get(following.client, Right.READ):
            yield f"{following.follower} of {following.client} was told, and may not read"
    yield from _check_admissions(history)


def _check_admissions(history: History) -> Iterator[str]:
    for admission in history.admissions:
        what = f"{admission.server} admitted {admission.subject} at {admission.at:.2f} s"
        token = history.tokens.get(admission.token)
        if token is None:
            yield f"{what}, and nobody was given such a token"
            continue
        if history.rights.get(token.client) == NO_RIGHTS:
            yield f"{what}, with a token that is worth nothing"
        revoked_at, expires_at = token.revoked_at, token.expires_at
        if revoked_at is not None and admission.at > revoked_at + REVOKED_SECONDS:
            yield f"{what}, though its token was revoked at {revoked_at:.2f} s"
        if expires_at is not None:
            seconds = admission.at + history.epoch_seconds - expires_at
            if seconds > history.clocks_behind_seconds + _INSTANT_SECONDS:
                yield f"{what}, {seconds:.2f} s after its token expired"
