"""Requests that wait for a decision: servers that register, and clients that suspect a server.

Pure: the decisions of the membership go in, replies come out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from holdfast.coordinator.answering.replies import Replies
from holdfast.coordinator.answering.transaction import Reply
from holdfast.coordinator.decisions.member import ServerStanding
from holdfast.coordinator.decisions.membership import Membership
from holdfast.protocol.errors import FencedError, HoldfastError, UnavailableError
from holdfast.protocol.work.roles import Role

_Key = tuple[str, str]


class WaitingReplies:
    """The subjects to answer for each (server, incarnation)."""

    def __init__(self, replies: Replies, term: int, clock_ms: Callable[[], int]) -> None:
        self._replies = replies
        self._term = term
        self._clock_ms = clock_ms
        self._registering: dict[_Key, list[str]] = {}
        self._suspecting: dict[_Key, list[str]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def register(self, server: str, incarnation: str, reply_to: str) -> None:
        """Answer `reply_to` once it is decided whether the incarnation is admitted."""
        self._registering.setdefault((server, incarnation), []).append(reply_to)
        self._count += 1

    def suspect(self, server: str, incarnation: str, reply_to: str) -> None:
        """Answer `reply_to` once it is decided whether the incarnation is alive."""
        self._suspecting.setdefault((server, incarnation), []).append(reply_to)
        self._count += 1

    def settle(self, membership: Membership, unrecorded: Collection[_Key]) -> None:
        """Answer the requests that are decided. An incarnation is
        admitted only once it is recorded."""
        for key in tuple(self._registering):
            standing = membership.standing(*key)
            if standing is ServerStanding.PRESENT and key not in unrecorded:
                answer = {"term": self._term, "time": self._clock_ms(), "roles": list(Role)}
                self._answer(self._registering, key, answer)
            elif standing is ServerStanding.ENDED:
                error = FencedError(server=key[0], incarnation=key[1])
                self._answer(self._registering, key, error)
            elif standing is ServerStanding.UNKNOWN:
                reason = f"another incarnation of {key[0]!r} is joining"
                self._answer(self._registering, key, UnavailableError(reason=reason))
        for key in tuple(self._suspecting):
            if not membership.in_doubt(*key):
                alive = membership.standing(*key) is ServerStanding.PRESENT
                self._answer(self._suspecting, key, {"alive": alive})

    def recording_failed(self, server: str, incarnation: str, error: HoldfastError) -> None:
        """Fail the registration of an incarnation that was admitted but could not be recorded."""
        self._answer(self._registering, (server, incarnation), error)

    def fence_failed(self, server: str, incarnation: str, error: HoldfastError) -> None:
        """Fail the requests that waited for this fence; their senders may ask again."""
        for key in tuple(self._registering):
            if key[0] == server:
                self._answer(self._registering, key, error)
        self._answer(self._suspecting, (server, incarnation), error)

    def _answer(self, waiting: dict[_Key, list[str]], key: _Key, reply: Reply) -> None:
        for reply_to in waiting.pop(key, []):
            self._count -= 1
            self._replies.add(reply_to, reply)
