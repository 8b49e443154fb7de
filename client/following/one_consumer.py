"""The place of the one task that may wait for the next change of a subscription."""

from __future__ import annotations

from types import TracebackType

from holdfast.protocol.errors import InvalidArgumentError


class OneConsumer:
    """Enter it to wait for changes and to ask for them. Two tasks within would take the same
    changes from the owner, and one of them would wait for ever."""

    __slots__ = ("_is_taken",)

    def __init__(self) -> None:
        self._is_taken = False

    def __enter__(self) -> None:
        """Raises InvalidArgumentError if another task is within."""
        if self._is_taken:
            reason = "another one waits for its next change: each task and thread needs its own"
            raise InvalidArgumentError(argument="subscription", reason=reason)
        self._is_taken = True

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_taken = False
