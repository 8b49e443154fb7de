"""Callbacks of whoever uses a connection: an exception in one is logged, and stops nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec

logger = logging.getLogger("holdfast.gateway")

P = ParamSpec("P")


def call(callback: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call `callback`, and log what it raises."""
    try:
        callback(*args, **kwargs)
    except Exception:
        logger.exception("gateway.callback_failed")


def call_all(callbacks: list[Callable[P, None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call each of `callbacks`, in order; those that are added meanwhile are called too."""
    for callback in callbacks:
        call(callback, *args, **kwargs)
