"""A slowed link carries everything, and only while it is slowed; one that loses carries less."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.hosts.slow_link import TUN
from tests.support.documents import ROOT
from tests.unit.hosts.test_isolation import may_isolate

#: An echo on a host; what is sent there comes back, whatever is done to its link.
PROGRAM = """
import asyncio, sys, time
from tests.hosts import network
from tests.hosts.isolation import run_isolated
from tests.hosts.slow_link import slowed

HOST = network.Host("h1", 11)
ECHO = '''
import socket
listener = socket.create_server(("10.77.1.11", 9000))
print("listening", flush=True)
connection, _ = listener.accept()
while data := connection.recv(65536):
    connection.sendall(data)
'''
DATA = bytes(range(256)) * 500

async def main():
    network.build([HOST])
    echo = await asyncio.create_subprocess_exec(
        *HOST.command(sys.executable, "-c", ECHO), stdout=asyncio.subprocess.PIPE
    )
    await echo.stdout.readline()
    reader, writer = await asyncio.open_connection("10.77.1.11", 9000)

    async def seconds():
        began_at = time.monotonic()
        writer.write(DATA)
        assert await reader.readexactly(len(DATA)) == DATA
        return time.monotonic() - began_at

    await seconds()
    async with slowed(HOST, network.NATS, delay_seconds=0.05):
        # Not before it has gone there and come back.
        assert await seconds() >= 0.1
    await seconds()
    async with slowed(HOST, network.NATS, loss_ratio=0.05, seed=3):
        await seconds()
    await seconds()
    writer.close()
    await echo.wait()
    print("echoed")
    return 0

sys.exit(run_isolated(lambda: asyncio.run(main())))
"""


@pytest.mark.skipif(
    not may_isolate() or not TUN.exists(), reason=f"needs root, namespaces, ip and {TUN}"
)
def test_what_is_sent_over_a_slowed_link_arrives_late_and_whole() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "echoed\n"), done.stderr
