"""Work that is done in threads of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def in_threads(*works: Callable[[], object]) -> None:
    """Do all of it at once, each in a thread of its own; raise what one of them raised."""
    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(work) for work in works]:
            done.result(30)
