"""Garbage collection, where a run must be the same each time."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Finalizers run when the last reference goes, never at a collector's whim; connections are
    closed then, too. The pages of a process that forks stay shared."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
