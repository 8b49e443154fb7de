"""Unexpected exceptions while serving a request: bugs, which must not stop the server.

The request is answered with `internal_error` and did nothing; the log has the reason and the
traceback. A peer that repeats such a request must not fill the disk with logs, so for each place in
the code only the 1st, 2nd, 4th, 8th, ... are logged.
"""

from __future__ import annotations

import logging
from types import TracebackType


class Mishaps:
    """The unexpected exceptions of one part of a process."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        #: By the place where they were raised, so bounded by the size of the code.
        self._counts: dict[tuple[type[BaseException], str, int], int] = {}

    def note(self, event: str, what: object, error: BaseException) -> None:
        """Log an unexpected exception from serving `what`."""
        key = (type(error), *_place(error.__traceback__))
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count & (count - 1) == 0:
            self._logger.error("%s what=%.200s count=%d", event, what, count, exc_info=error)


def _place(traceback: TracebackType | None) -> tuple[str, int]:
    """Return the file and line where the exception was raised."""
    if traceback is None:
        return "", 0
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
