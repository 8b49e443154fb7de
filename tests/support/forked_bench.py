"""Benchmarks of this process whose servers are forked and not started, since no number is judged.

with forked_servers():
    works = measured(idle, tmp_path)
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from holdfast.bench import processes
from holdfast.bench.harness import Work
from holdfast.bench.options import BenchOptions
from holdfast.cli.cluster.die_with_parent import tethered
from holdfast.cli.cluster.nats_binary import find_nats_server
from tests.support.process import Process

_FORKED = ("holdfast.coordinator", "holdfast.persist")


class _Forked:
    """As much of a Popen as the benchmarks need."""

    def __init__(self, module: str, arguments: Sequence[str], output: Path) -> None:
        process = Process(f"{module}.__main__", arguments, output)
        self.pid = process.pid
        self.poll = process.poll
        self.terminate = process.terminate
        self.kill = process.kill
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float = 60.0) -> int:
        return self._process.wait(timeout)


def _popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes] | _Forked:
    module = command[command.index("-m") + 1] if "-m" in command else ""
    if module not in _FORKED:
        return subprocess.Popen(command, **options)
    arguments = command[command.index(module) + 1 :]
    return _Forked(module, arguments, Path(options["stdout"].name))


@contextmanager
def forked_servers() -> Iterator[None]:
    """Fork each coordinator and persist server that a benchmark starts around the body."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": _popen})
    with patch.object(processes, "subprocess", forking):
        yield


def quick_options(directory: Path, *only: str) -> BenchOptions:
    """The options of a benchmark as small as can be, or of some of its works."""
    return BenchOptions(
        find_nats_server(), directory, rounds=1, quick=True, only=only, tethered=tethered
    )


def measured(benchmark: Any, directory: Path) -> tuple[Work, ...]:
    """Run a benchmark and return its works: every side has figures, all of it is JSON, every figure
    with a target was measured, it can be shown, and nothing is left behind."""
    report = benchmark.run(quick_options(directory))
    for work in json.loads(json.dumps(report.to_json()))["works"]:
        for side in work["sides"].values():
            assert side["figures"]
            assert len(side["rounds"]) == 1
        assert all(target["measured"] is not None for target in work["targets"])
    assert benchmark.table(report).rows
    assert list(directory.iterdir()) == []
    works: tuple[Work, ...] = report.works
    return works
