"""How long a gateway reads nothing from its publishers, so that more of what they send gathers.

Pure. A client that writes each message by itself, as nats-py's `publish_async` does, costs a
gateway a wake-up for each, and its owner a tick for a few: so the gateway reads from time to time
and takes what has gathered in the socket. A client that waits for its answers loses by that. Both
look the same while messages are unanswered; what tells them apart is what comes next:

- Pieces of more than a few messages are not worth waiting for, so there is no rest after them.
- After some of the rests the next piece is awaited without one. If it comes before everything is
  answered, publishers go on without their answers, and the rests become longer. Else they wait,
  and the rests become shorter.
"""

from __future__ import annotations

from typing import Final

#: Fewer unanswered messages are a few publishers that wait for each answer: to gather would only
#: delay them.
MANY: Final = 3
#: A piece of so many messages costs its wake-up nearly once for each.
FEW: Final = 2
#: Several times the cost of a wake-up.
MIN_REST_SECONDS: Final = 0.0005
#: A publisher of 20,000 messages a second, of which 1,000 may be unanswered, sends 80 in this time.
#: Others that share the connection may wait for as long.
MAX_REST_SECONDS: Final = 0.004
#: One of so many rests is followed by a look at what publishers do.
RESTS_UNTIL_LOOK: Final = 4


class ReadingPace:
    """The rests of one connection."""

    __slots__ = ("_is_looking", "_is_resting", "_received", "_rests_left", "rest_seconds")

    def __init__(self) -> None:
        #: That of the next rest.
        self.rest_seconds = MIN_REST_SECONDS
        #: The messages received until the last piece.
        self._received = 0
        self._is_resting = False
        self._rests_left = RESTS_UNTIL_LOOK
        #: The present piece came without a rest before, and tells what publishers do.
        self._is_looking = False

    def after_piece(self, received: int, unanswered: int) -> float:
        """Return how long to rest after a piece. `received` counts all messages so far."""
        size, self._received = received - self._received, received
        if self._is_looking:
            self._is_looking = False
            if unanswered > size:
                self.rest_seconds = min(MAX_REST_SECONDS, 2 * self.rest_seconds)
            else:
                # All that came before was answered before more came.
                self.rest_seconds = max(MIN_REST_SECONDS, self.rest_seconds / 2)
        if unanswered < MANY:
            self._is_resting = False
            return 0.0
        if self._is_resting:
            self._rests_left -= 1
            if not self._rests_left:
                self._rests_left = RESTS_UNTIL_LOOK
                self._is_resting, self._is_looking = False, True
                return 0.0
        elif size > FEW:
            return 0.0
        self._is_resting = True
        return self.rest_seconds
