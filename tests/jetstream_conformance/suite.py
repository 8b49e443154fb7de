"""What all suites have in common, and how one is run.

Tests that fail are run again by themselves, because some of them measure time. What passes then
counts, and the report says how many tries it took.
"""

from __future__ import annotations

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.jetstream_conformance.results import Outcome, TestResult

Say = Callable[[str], None]
#: A suite that hangs must end too.
_SUITE_SECONDS: Final = 1500.0
_LINE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`programs` has the `nats-server` that tests start; logs and reports go to `logs`."""

    programs: Path
    logs: Path
    say: Say
    #: Variables for the tests.
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self, **others: str) -> dict[str, str]:
        """Return the environment in which tests find that `nats-server`."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, **self.variables, **others}


class Suite(ABC):
    """Tests of somebody. `count` is how many there must be, so that none is lost quietly."""

    name: str
    source: str
    count: int

    @abstractmethod
    async def attempt(
        self, around: Surroundings, tests: Sequence[str], only: str, number: int
    ) -> list[TestResult]:
        """Run the tests with these ids, all if there are none; of all those that match `only`.
        This is try `number`. Raises SuiteFailedError."""


async def run_suite(
    suite: Suite, around: Surroundings, only: str, tries: int, expected_failures: Container[str]
) -> list[TestResult]:
    """Return the result of each test, after at most so many tries of those that should pass."""
    results = {each.test: each for each in await suite.attempt(around, [], only, 1)}
    for number in range(2, tries + 1):
        failed = [each.test for each in results.values() if each.outcome is Outcome.FAILED]
        wanted = [test for test in failed if test not in expected_failures]
        if not wanted:
            break
        around.say(f"{suite.name}: {len(wanted)} failed; try {number}")
        again = await suite.attempt(around, wanted, "", number)
        results |= {each.test: each for each in again if each.test in wanted}
    return sorted(results.values(), key=lambda each: each.test)


@asynccontextmanager
async def running_tests(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> AsyncIterator[asyncio.StreamReader]:
    """Run a runner of tests around the body, which reads its output and ends with it. What it has
    started and left behind is killed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=_LINE_BYTES,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_SUITE_SECONDS):
            yield process.stdout
            await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Progress:
    """Says from time to time how far a suite is."""

    def __init__(self, name: str, say: Say) -> None:
        self._name = name
        self._say = say
        self._done = 0
        self._failed = 0

    def ended(self, test: str, *, failed: bool) -> None:
        self._done += 1
        self._failed += failed
        if failed:
            self._say(f"{self._name}: {test} failed")
        elif self._done % 25 == 0:
            self._say(f"{self._name}: {self._done} done, {self._failed} failed")
