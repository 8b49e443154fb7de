"""The suite `nats-io-node`: our own program over every public call of NATS' JavaScript clients.

It runs where there are Node and npm. The packages are installed from the lock file into the cache.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.jetstream_conformance.results import TestResult, read_junit
from tests.jetstream_conformance.server import running_server
from tests.jetstream_conformance.sources import CACHE, HERE, Missing
from tests.jetstream_conformance.suite import Suite, Surroundings, running_tests

NAME: Final = "nats-io-node"
_PROGRAM: Final = HERE / "node"
#: `node --test` has the reporter `junit` since then.
_MIN_NODE: Final = 20
_COUNT: Final = 58
#: What Node says of tests that do not match a pattern.
_NOT_SELECTED: Final = "test name does not match pattern"
_INSTALL_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class NodeSuite(Suite):
    """Made by `prepared`."""

    name: str
    source: str
    count: int
    node: str
    folder: Path

    async def attempt(
        self, around: Surroundings, tests: Sequence[str], only: str, number: int
    ) -> list[TestResult]:
        report = around.logs / f"{self.name}-{number}.xml"
        # Always all of them: one test looks which calls the others have made.
        select = [f"--test-name-pattern={only}"] if only else []
        command = [
            *(self.node, "--test", "--test-reporter=junit"),
            *(f"--test-reporter-destination={report}", *select, "all.mjs"),
        ]
        log = around.logs / f"{self.name}-{number}.log"
        async with running_server(around) as url:
            environment = around.environment(NATS_URL=url)
            async with running_tests(command, self.folder, environment) as output:
                log.write_bytes(await output.read())
        results = read_junit(report, number, lambda case: case.get("name") or "")
        return [each for each in results if each.reason != _NOT_SELECTED]


def prepared() -> NodeSuite:
    """Install what the program needs. Raises Missing."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Missing("it needs Node and npm")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    if int(version.stdout.strip().removeprefix("v").partition(".")[0]) < _MIN_NODE:
        raise Missing(f"it needs Node {_MIN_NODE}, and this is {version.stdout.strip()}")
    folder = installed(_PROGRAM, npm)
    for module in _PROGRAM.glob("*.mjs"):
        shutil.copy(module, folder)
    released = json.loads((_PROGRAM / "package.json").read_text())["dependencies"]
    return NodeSuite(NAME, f"clients {released['@nats-io/jetstream']}", _COUNT, node, folder)


def installed(source: Path, npm: str) -> Path:
    """Return a folder of the cache with the packages of a lock file. Raises Missing."""
    folder = CACHE / source.name
    lock = (source / "package-lock.json").read_bytes()
    stamp = folder / "installed.json"
    if stamp.exists() and stamp.read_bytes() == lock:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(source / file, folder)
    done = subprocess.run(
        [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise Missing(f"npm ci failed: {done.stderr.strip().splitlines()[-1:]}")
    stamp.write_bytes(lock)
    return folder
