"""A nats-server that takes leafnodes, for tests of the JetStream gateway.

with running_leaf_nats(tmp_path) as (nats, leaf_url):
    ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from holdfast.cli.cluster.ports import free_port
from tests.support.nats_server import NatsServer, running_nats_server


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
