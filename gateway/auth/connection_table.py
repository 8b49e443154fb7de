"""Which connections each token has, on all nats-servers. Pure.

nats-server tells of each connection that comes and goes. A message may be lost, though, and a
nats-server that dies says nothing. So all are asked from time to time what connections they have,
and what they answer counts, except for what was heard while they were asked. A connection that is
wrongly missing here is found by the next listing, and one that is wrongly there ends with it: the
table errs for seconds, never for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.gateway.auth.system_account import ConnectionArrival, ConnectionPlace

#: How long a connection counts that was let in and that nobody has seen: longer than nats-server
#: waits for an answer. A client may give up in between.
EXPECTED_SECONDS: Final = 10.0
#: How long it is remembered that a connection has gone. An answer that was made just before it went
#: may come after the news.
_GONE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Entry:
    token: str
    heard_at: float
    #: None: let in, and not seen yet.
    started_at: float | None


class ConnectionTable:
    """The connections by token. `now` and other times are of one monotonic clock."""

    def __init__(self) -> None:
        self._entries: dict[ConnectionPlace, _Entry] = {}
        self._of_token: dict[str, set[ConnectionPlace]] = {}
        #: What has gone lately, with the time of that.
        self._gone: dict[ConnectionPlace, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def let_in(self, place: ConnectionPlace, token: str, now: float) -> None:
        """Count a connection that nats-server is about to accept."""
        if place not in self._entries:
            self._put(place, _Entry(token, now, None))

    def came(self, place: ConnectionPlace, arrival: ConnectionArrival, now: float) -> None:
        """Note that a connection is there."""
        if place not in self._gone:
            self._put(place, _Entry(arrival.token, now, arrival.started_at))

    def left(self, place: ConnectionPlace, now: float) -> None:
        """Note that a connection has gone; it never comes back."""
        self._remove(place)
        self._gone[place] = now

    def listed(
        self,
        found: Mapping[ConnectionPlace, ConnectionArrival],
        asked_at: float,
        *,
        token: str = "",
        incomplete: Collection[str] = (),
    ) -> None:
        """Note what the nats-servers listed when they were asked at `asked_at`: all connections, or
        those with `token`.

        Whatever they did not list has gone, also that of a nats-server that did not answer, except
        on `incomplete` ones.
        """
        for place, arrival in found.items():
            self.came(place, arrival, asked_at)
        for place in list(self._of_token.get(token, ()) if token else self._entries):
            entry = self._entries[place]
            kept_until = entry.heard_at + (EXPECTED_SECONDS if entry.started_at is None else 0.0)
            if place not in found and kept_until < asked_at and place.server not in incomplete:
                self._remove(place)
        for place in [each for each, at in self._gone.items() if at + _GONE_SECONDS < asked_at]:
            del self._gone[place]

    def tokens(self) -> Collection[str]:
        """Return the tokens that have connections."""
        return self._of_token.keys()

    def count(self, token: str, now: float, besides: ConnectionPlace) -> int:
        """Return how many connections a token has, not counting `besides`."""
        entries = self._entries
        return sum(
            1
            for place in self._of_token.get(token, ())
            if place != besides
            and (
                entries[place].started_at is not None
                or now < entries[place].heard_at + EXPECTED_SECONDS
            )
        )

    def places(self, token: str) -> list[ConnectionPlace]:
        """Return the connections of a token that are there, the oldest first. All auth services
        see them in the same order."""
        of_token = self._of_token.get(token, ())
        started = ((self._entries[place].started_at, place) for place in of_token)
        return [place for _, place in sorted((at, each) for at, each in started if at is not None)]

    def _put(self, place: ConnectionPlace, entry: _Entry) -> None:
        known = self._entries.get(place)
        if known is not None and known.token != entry.token:
            self._remove(place)
        self._entries[place] = entry
        self._of_token.setdefault(entry.token, set()).add(place)

    def _remove(self, place: ConnectionPlace) -> None:
        entry = self._entries.pop(place, None)
        if entry is None:
            return
        of_token = self._of_token[entry.token]
        of_token.discard(place)
        if not of_token:
            del self._of_token[entry.token]
