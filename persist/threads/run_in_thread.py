"""The type of what runs blocking functions for the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class RunInThread(Protocol):
    """Runs a blocking function outside the loop's thread (in a simulation: inside it)."""

    def __call__(self, function: Callable[[], Any], /) -> Awaitable[Any]: ...
