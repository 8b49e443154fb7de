"""Tests that are coroutines run in a loop of their own, together with what they are given.

A fixture may be an async context manager: it is entered in the loop of the test, which gets what it
yields."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

from tests.support.faulty_vfs import FaultyVfs


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(_run(pyfuncitem.obj, given))
    return True


async def _run(test: Any, given: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        for name, value in given.items():
            if isinstance(value, AbstractAsyncContextManager):
                given[name] = await stack.enter_async_context(value)
        await test(**given)


@pytest.fixture
def vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyVfs]:
    # apsw reports what a VFS method raises twice: as SQLite's error, and as unraisable.
    monkeypatch.setattr(sys, "unraisablehook", lambda *details: None)
    monkeypatch.setattr(sys, "excepthook", lambda *details: None)
    vfs = FaultyVfs()
    yield vfs
    vfs.heal()
    vfs.unregister()
