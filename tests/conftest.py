"""How tests that are coroutines run, and which tests have to run in one process.

A test that is a coroutine runs in an event loop of its own, or in that of the fixture `runner` if a
fixture of it needs the loop too. Without `runner`, a fixture may be an async context manager: it is
entered in the loop of the test, which gets what it yields.

When several processes run the tests (`--dist loadgroup`), some belong together: all of
`tests/spark` have one Spark session and one cluster, all of `tests/conformance` have one cluster,
all of `tests/browser` one browser, and the tests of a file with a fixture of its module have that;
a second process would start another. All others go wherever there is room.

xdist knows groups by marks, which it adds to the names of tests; with pytest 9.2 these stay as they
were.

The collector of garbage leaves out what was imported and collected: a quarter of a million objects
that stay.

And Ctrl-C means what it means on a terminal: a shell starts what it puts into the background with
that signal ignored, which all children would inherit.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.effort import examples

ROOT = Path(__file__).parents[1]
#: Less than pytest's own: the traceback then tells which `await` hangs.
DEADLINE_SECONDS = 90

#: A busy machine is slow, and no test judges time.
settings.register_profile(
    "effort",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("effort")

# Until all tests are collected; nothing is garbage before.
gc.disable()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of a test and of its fixtures."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    runner = pyfuncitem.funcargs.get("runner")

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), AsyncExitStack() as stack:
            for name, value in given.items():
                if runner is None and isinstance(value, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            await test(**given)

    (asyncio.run if runner is None else runner.run)(main())
    return True


class GroupScheduling(LoadScopeScheduling):
    """Gives each group to one process, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = path.rpartition("/")[0]
        if folder in ("tests/spark", "tests/conformance", "tests/browser"):
            return folder
        return path if _shares_a_fixture(path) else nodeid


@cache
def _shares_a_fixture(path: str) -> bool:
    return 'scope="module"' in (ROOT / path).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.option.dist == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has no parameters with this effort, instead of skipping it."""
    empty = [item for item in items if any(map(_says_it_is_empty, item.iter_markers("skip")))]
    if empty:
        config.hook.pytest_deselected(items=empty)
        items[:] = [item for item in items if item not in empty]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    gc.freeze()
    gc.enable()


def _says_it_is_empty(mark: pytest.Mark) -> bool:
    return "empty parameter set" in mark.kwargs.get("reason", "")
