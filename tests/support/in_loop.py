"""Fixtures whose beginning and end are coroutines: they share the event loop of their test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def entered(runner: asyncio.Runner, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Hold what `context` gives while a test runs in the same loop."""
    given = runner.run(context.__aenter__())
    try:
        yield given
    finally:
        runner.run(context.__aexit__(None, None, None))
