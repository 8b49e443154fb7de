"""`tests/utils.py` for nats.py's tests where the package index has only the tests themselves.

Written anew: just what `test_js.py` uses. It runs beside their tests, without anything of ours.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
import tempfile
import time
import unittest
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

_PORT = 4222
_HTTP_PORT = 8222
_READY_SECONDS = 30.0
#: What the tests of limits expect of their account.
_LIMITED = {
    "jetstream": {"domain": "test-domain"},
    "no_auth_user": "foo",
    "accounts": {
        "A": {
            "users": [{"user": "foo"}],
            "jetstream": {
                "max_mem": 64 << 20,
                "max_file": 32 << 20,
                "max_streams": 10,
                "max_consumers": 20,
                "max_ack_pending": 100,
                "memory_max_stream_bytes": 2048,
                "store_max_stream_bytes": 4096,
                "max_stream_bytes": True,
            },
        }
    },
}


class _Server:
    """A nats-server with JetStream, killed by `stop` and started again with the same store."""

    def __init__(self, configuration: dict[str, Any] | None = None) -> None:
        self.store_dir = tempfile.mkdtemp()
        self.proc: subprocess.Popen[bytes] | None = None
        self._options = ["-p", str(_PORT), "-m", str(_HTTP_PORT), "-a", "127.0.0.1"]
        self._options += ["-js", f"-sd={self.store_dir}"]
        self._home = Path(tempfile.mkdtemp())
        if configuration is not None:
            file = self._home / "limits.conf"
            file.write_text(json.dumps(configuration))
            self._options += ["--config", str(file)]

    def start(self) -> None:
        output = subprocess.DEVNULL
        self.proc = subprocess.Popen(["nats-server", *self._options], stdout=output, stderr=output)

    def until_ready(self) -> None:
        give_up_at = time.monotonic() + _READY_SECONDS
        while time.monotonic() < give_up_at:
            connection = http.client.HTTPConnection(f"127.0.0.1:{_HTTP_PORT}", timeout=5)
            try:
                connection.request("GET", "/varz")
                if connection.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            finally:
                connection.close()
        raise TimeoutError("nats-server is not ready")

    def stop(self) -> None:
        if self.proc is not None:
            self.proc.kill()
            self.proc.wait()

    def remove(self) -> None:
        self.stop()
        for folder in (self.store_dir, self._home):
            shutil.rmtree(folder, ignore_errors=True)


class SingleJetStreamServerTestCase(unittest.TestCase):
    """Each test has a server of its own."""

    configuration: dict[str, Any] | None = None

    def setUp(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server_pool = [_Server(self.configuration)]
        for server in self.server_pool:
            self.addCleanup(server.remove)
            server.start()
            server.until_ready()

    def tearDown(self) -> None:
        self.loop.close()


class SingleJetStreamServerLimitsTestCase(SingleJetStreamServerTestCase):
    configuration = _LIMITED


def async_test(test: Callable[..., Awaitable[None]], timeout: float = 5.0) -> Any:
    """Run a test in a loop of its own, for at most `timeout` seconds."""

    @wraps(test)
    def run(*arguments: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments), timeout))

    return run


async_long_test = partial(async_test, timeout=20.0)
