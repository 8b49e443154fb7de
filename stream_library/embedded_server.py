"""A persist server without a cluster around it, in one event loop.

    network   `bus_memory.py`: nothing leaves the process
    grants    `own_grants.py`, in the place of a coordinator
    server    `persist/service.py`, as in a cluster with a shared disk
    requests  what the library asks of it

If the server ends by itself, because it was fenced or its disk failed, everything that waits is
answered with TakenOverError, and so is everything that comes. The simulator runs this part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.persist.options import Machine, ServerOptions
from holdfast.persist.service import PersistServer
from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.tier.tier_policy import TierPolicy
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import MIB
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import ReadsKeys
from holdfast.stream_library.errors import StreamClosedError, TakenOverError
from holdfast.stream_library.own_grants import OwnGrants
from holdfast.stream_library.requests import StreamRequests
from holdfast.stream_library.sole_use import SoleUse

#: The name of the server, which is that of a folder below `servers/`.
SERVER: Final = "stream-library"
#: What one message of the network within the process may have: a batch, and what is around it.
_MAX_PAYLOAD_BYTES: Final = 8 * MIB


class EmbeddedServer:
    """One server. Make it in its loop, and `run` it once."""

    def __init__(
        self,
        use: SoleUse,
        tenant: str,
        bucket: Bucket | None = None,
        policy: TierPolicy | None = None,
        *,
        keys: ReadsKeys | None = None,
        masters: Mapping[str, MasterKey] | None = None,
        machine: Machine | None = None,
        incarnation: str | None = None,
    ) -> None:
        """`keys` tells which tenants are encrypted. Without the master key that wraps their keys,
        their streams are refused. `machine` and `incarnation` are a simulation's own."""
        machine = machine or Machine()
        subjects, network = Subjects(), MemoryNetwork(max_payload_bytes=_MAX_PAYLOAD_BYTES)
        run_in_thread: RunInThread = machine.run_in_thread or asyncio.to_thread
        self._use = use
        self._grants = OwnGrants(
            use,
            network.connect("grants"),
            subjects,
            SERVER,
            has_bucket=bucket is not None,
            run_in_thread=run_in_thread,
        )
        self.requests = StreamRequests(network.connect("library"), subjects, tenant, SERVER)
        self._server = PersistServer(
            network.connect("persist"),
            use.layout,
            use.disk,
            SERVER,
            ServerOptions(
                subjects=subjects,
                tier_policy=policy or TierPolicy(),
                keys=keys,
                master_keys=masters or {},
            ),
            incarnation=incarnation,
            bucket=bucket,
            machine=machine,
        )
        #: Set once requests are answered.
        self.ready = asyncio.Event()
        #: Why nothing can be asked any more, once that is so.
        self.ended: HoldfastError = StreamClosedError(stream="every stream of this library")

    def stop(self) -> None:
        """Ask for a clean end."""
        self._server.stop()

    async def run(self, on_end: Callable[[HoldfastError], None] | None = None) -> None:
        """Serve until `stop`. `on_end` is called with the error for all that comes then.

        Raises FencedError, StorageError, or whatever ended it.
        """
        await self._grants.begin()
        await self.requests.begin()
        folder = str(self._use.layout.root)
        try:
            await self._server.run(self.ready)
        except HoldfastError as error:
            self.ended = TakenOverError(folder=folder, reason=str(error))
            raise
        except Exception as error:
            self.ended = TakenOverError(folder=folder, reason=f"its server ended by {error!r}")
            raise
        finally:
            self.requests.end(self.ended)
            # What waits for an answer has it before the loop ends.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if on_end is not None:
                on_end(self.ended)
            await self._grants.end()
