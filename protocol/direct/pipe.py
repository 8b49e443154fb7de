"""A pipe: messages in order between a client and a server of the same host, until it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class DirectPipe(ABC):
    """One end of a pipe.

    Messages that arrive before `start`, or in the turn of the loop of it, wait. The other end, or
    nothing at all, may have taken what was sent before a pipe ended.
    """

    #: Whether the other end is in the same event loop.
    is_here = False

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether it has ended, by either end."""

    @abstractmethod
    def start(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """Call `take` with each message, and `ended` once, if the pipe ends otherwise than by
        `close` of this end. What `take` raises costs that message."""

    @abstractmethod
    def change(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        """Call these instead from now on."""

    @abstractmethod
    def send(self, *parts: bytes) -> bool:
        """Send a message, which may be given in parts. Return False if the pipe has ended, or
        ends because the other end takes too little: then nothing of it arrives."""

    @abstractmethod
    def close(self) -> None:
        """End it, once what was sent has left if that can be at once. Idempotent."""
