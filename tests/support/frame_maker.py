"""What a client does for those who gather: it asks them before its frames, and again for more."""

from __future__ import annotations

from typing import Any

from holdfast.client.wire.link import Gather


class FrameMaker:
    """Makes frames when it is told to. Operations that are submitted otherwise wait for these."""

    #: Whether the owner works in the process of this client.
    is_beside_owner = False

    def __init__(self) -> None:
        #: The operations of each frame.
        self.frames: list[list[Any]] = []
        self._gathering: list[Gather] = []
        self._submitted: list[Any] = []

    def before_sending(self, gather: Gather) -> None:
        assert gather not in self._gathering, "it gathers already"
        self._gathering.append(gather)

    def submit(self, operation: Any) -> None:
        """Let an operation leave with the next frame."""
        self._submitted.append(operation)

    def send(self) -> None:
        """Make the frames of a turn."""
        more = True
        while more:
            gathering, self._gathering = self._gathering, []
            again = [gather for gather in gathering if gather()]
            self._gathering[:0] = again
            more = bool(again)
            if self._submitted:
                self.frames.append(self._submitted)
                self._submitted = []

    def take_frames(self) -> list[list[Any]]:
        """Return the frames that were made, and forget them."""
        frames, self.frames = self.frames, []
        return frames
