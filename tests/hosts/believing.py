"""`python -m tests.hosts.believing`: the `holdfast` command with a planted bug.

A server that is to read its fence through a cache ends at its start. With this bug it believes its
mount, and `make hosts FENCE_READ=plain` must find what that costs.
"""

from __future__ import annotations

from typing import Final

from holdfast.cli.main import run
from tests.simulation.planted import believe_the_mount

MODULE: Final = "tests.hosts.believing"

if __name__ == "__main__":
    with believe_the_mount():
        run()
