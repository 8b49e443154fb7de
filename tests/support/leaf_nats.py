"""A nats-server that takes leafnodes, for tests of the JetStream gateway.

with running_leaf_nats(tmp_path) as (nats, leaf_url):
    ...
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.support.nats_server import NatsServer, running_nats_server


def free_port() -> int:
    """Return a port that nothing listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        return int(reserved.getsockname()[1])


@contextlib.contextmanager
def running_leaf_nats(
    directory: Path, *, leafnodes: str = "", configuration: str = "", options: tuple[str, ...] = ()
) -> Iterator[tuple[NatsServer, str]]:
    """Run a nats-server with a leafnode listener on loopback, and give the URL of that too.

    `leafnodes` is what else its block contains, `configuration` what else the file does.
    """
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "leafnodes.conf"
    file.write_text(f'leafnodes {{ listen: "127.0.0.1:{port}"\n{leafnodes}\n}}\n{configuration}\n')
    with running_nats_server(directory, "-c", str(file), *options) as nats:
        yield nats, f"nats-leaf://127.0.0.1:{port}"
