"""Garbage collection, where a run must be the same each time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Finalizers run when the last reference goes, never at a collector's whim; connections are
    closed then, too. The pages of a process that forks stay shared.

    What exists before the first run is never looked at again: it is the modules, for the most part,
    and going through those takes as long as a short run."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
