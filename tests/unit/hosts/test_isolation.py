"""A tree of processes in namespaces of its own: nothing of it outlives its end, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.documents import ROOT

#: A daemon that nobody waits for, in a namespace of its own; then a word, and waiting.
PROGRAM = """
import subprocess, sys, time
from tests.hosts import network
from tests.hosts.isolation import run_isolated

def main():
    host = network.Host("h1", 11)
    network.build([host])
    daemon = host.command(sys.executable, "-c", "import time; time.sleep(300)")
    subprocess.Popen([*daemon, sys.argv[1]], start_new_session=True)
    print("built", flush=True)
    try:
        time.sleep(300)
    except KeyboardInterrupt:
        return 7

sys.exit(run_isolated(main))
"""
_DEADLINE_SECONDS = 30.0


def may_isolate() -> bool:
    """Tell whether this process may make namespaces, as root outside of a strict container may."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    trying = ["unshare", "--mount", "--net", "--pid", "--fork", "ip", "netns"]
    try:
        return subprocess.run(trying, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_namespaces = pytest.mark.skipif(not may_isolate(), reason="needs root, namespaces, and ip")


def processes_of(word: str) -> list[str]:
    """The command lines of all processes that name `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in command:
            found.append(command)
    return found


@contextmanager
def tree(word: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program around the body, which begins when its daemon runs."""
    command = [sys.executable, "-c", PROGRAM, word]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "built\n"
            yield process
        finally:
            process.kill()


@needs_namespaces
@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 7), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_nothing_outlives_it(number: signal.Signals, exit_code: int) -> None:
    word = f"isolated-{os.getpid()}-{number}"
    links = {path.name for path in Path("/sys/class/net").iterdir()}
    with tree(word) as process:
        # The process here, the first of the namespaces, the one that runs `main`, and the daemon,
        # which has no command line for a moment while it turns from `ip` into Python.
        give_up_at = time.monotonic() + _DEADLINE_SECONDS
        while len(running := processes_of(word)) < 4:
            assert time.monotonic() < give_up_at, running
            time.sleep(0.01)
        assert {path.name for path in Path("/sys/class/net").iterdir()} == links
        process.send_signal(number)
        assert process.wait(_DEADLINE_SECONDS) == exit_code
        give_up_at = time.monotonic() + _DEADLINE_SECONDS
        while left := processes_of(word):
            assert time.monotonic() < give_up_at, left
            time.sleep(0.01)
    assert not (Path("/run/netns") / "h1").exists()
