"""One browser for all tests of this folder, which one process runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.browser import Browser, running_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser of this run."""
    with running_browser() as browser:
        yield browser
