"""Which tests have to run in one process, when several processes run them (`--dist loadgroup`).

All of `tests/spark` have one Spark session and one cluster, all of `tests/conformance` have one
cluster, and the tests of a file with a fixture of its module have that; a second process would
start another. All others go wherever there is room.

xdist knows groups by marks, which it adds to the names of tests; with pytest 9.2 these stay as they
were.

And Ctrl-C means what it means on a terminal: a shell starts what it puts into the background with
that signal ignored, which all children would inherit.
"""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support.effort import examples
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]

settings.register_profile("effort", max_examples=examples(100))
settings.load_profile("effort")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class GroupScheduling(LoadScopeScheduling):
    """Gives each group to one process, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = path.rpartition("/")[0]
        if folder in ("tests/spark", "tests/conformance"):
            return folder
        return path if _shares_a_fixture(path) else nodeid


@cache
def _shares_a_fixture(path: str) -> bool:
    return 'scope="module"' in (ROOT / path).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.option.dist == "loadgroup" else None
