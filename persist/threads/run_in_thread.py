"""The type of whatever runs blocking functions for the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class RunInThread(Protocol):
    """Runs a blocking function outside the loop's thread (or, in a simulation, inside)."""

    def __call__(self, function: Callable[[], Any], /) -> Awaitable[Any]: ...
