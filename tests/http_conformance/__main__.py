"""`python -m tests.http_conformance`; see `make conformance-http`.

It starts a cluster and a gateway, installs the suite of durable streams at its locked version, and
runs it, and tests of ours with the official client library. Exit codes: 0 all tests passed; 1 one
has failed; 3 they did not run, because Node or its packages cannot be had.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.holdfast_up import running_up
from tests.support.http_gateway import running_http_gateway

FOLDER = Path(__file__).parent
#: The gateway is asked by tests that wait for an empty answer.
_LONG_POLL_SECONDS = "2"
#: The suite counts in real time; a busy machine is slower.
_TEST_MILLISECONDS = "30000"
#: Some tests allow half a second for the creation of a fork, before what they count has expired.
#: They run beside all others (`.ci/run`), which may take longer, so a test that fails is tried once
#: more.
_RETRIES = "1"
_INSTALL_SECONDS = 180


def main() -> int:
    """Run the suite, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.http_conformance")
    parser.add_argument("--only", metavar="TEXT", help="only tests whose names contain this")
    options = parser.parse_args()
    if shutil.which("npm") is None:
        return _did_not_run("Node is not found")
    if not (FOLDER / "node_modules" / "vitest").is_dir():
        install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            subprocess.run(install, cwd=FOLDER, check=True, timeout=_INSTALL_SECONDS)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return _did_not_run("npm cannot install it")
    command = ["npx", "vitest", "run", "--testTimeout", _TEST_MILLISECONDS, "--retry", _RETRIES]
    if options.only:
        command += ["-t", options.only]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_up(Path(folder) / "data", "--servers", "1") as cluster,
        running_http_gateway(
            cluster.nats, "--origin", "*", long_poll_seconds=_LONG_POLL_SECONDS
        ) as gateway,
    ):
        url = f"http://127.0.0.1:{gateway.port}"
        environment = {**os.environ, "GATEWAY_URL": url}
        return subprocess.run(command, cwd=FOLDER, env=environment, check=False).returncode


def _did_not_run(why: str) -> int:
    print(f"{why}: the suite of durable streams did not run", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main())
