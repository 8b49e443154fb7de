"""One run: the torture of `tests.torture`, with its parts and clients on hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.client import Client
from tests.hosts import network
from tests.hosts.cluster import HOSTS, Fencing, HostsParts, url_of
from tests.hosts.faults import HostFault
from tests.hosts.file_systems import FILE_SYSTEMS
from tests.hosts.file_systems.network_file_system import STORAGE_HOST
from tests.hosts.file_systems.witness import Testimony
from tests.hosts.file_systems.witnesses import Witnesses
from tests.hosts.measure import zombie_answers
from tests.hosts.slow_link import slowed
from tests.hosts.tormentor import HostsTormentor
from tests.support.supervised_cluster import ClientProcess, SupervisedParts
from tests.torture.recording import EXPECTED_ERRORS
from tests.torture.run import Result, Strikes, Torture
from tests.torture.worker import Task

#: Of the clients of one host. The keeper of a host that is cut off goes on with the stores of the
#: server there, and newcomers elsewhere bring the same stores to another server.
_OPERATIONS_PER_SECOND: Final = {"keeper": 150.0, "newcomer": 75.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is tried."""

    file_system: str = "local"
    fence_read: str = "auto"
    delay_ms: float = 0.0
    kinds: Sequence[HostFault] = ()


@dataclass(frozen=True, slots=True)
class HostsResult:
    """What one run found, whom it fenced, and what the file system itself has kept."""

    torture: Result
    fencings: list[Fencing]
    testimonies: list[Testimony]


class HostsTorture(Torture):
    """One run in the folder `data`."""

    def __init__(
        self, data: Path, seed: int, seconds: float, say: Callable[[str], None], options: Options
    ) -> None:
        super().__init__(data, seed, seconds, say)
        self._options = options
        self._file_system = FILE_SYSTEMS[options.file_system](data, HOSTS)
        self._hosts_parts = HostsParts(data, self._file_system, options.fence_read)
        self._witnesses = Witnesses(data, self._file_system, HOSTS)
        self._hosts_tormentor: HostsTormentor | None = None
        if self._file_system.has_server:
            # A file system that is away refuses. That nothing was stored is not said.
            self.expected_errors = EXPECTED_ERRORS | {"storage_failed"}

    async def run_on_hosts(self) -> HostsResult:
        """Build the hosts, run, and return what was found."""
        network.build((STORAGE_HOST, *HOSTS))
        await self._file_system.start()
        self._say(f"{self._options.file_system} is mounted on {len(HOSTS)} hosts")
        async with AsyncExitStack() as around:
            if self._file_system.has_server:
                await around.enter_async_context(self._witnesses.writing())
            if self._options.delay_ms:
                delay_seconds = self._options.delay_ms / 1000
                for host in HOSTS:
                    await around.enter_async_context(
                        slowed(host, network.NATS, delay_seconds=delay_seconds)
                    )
            result = await self.run()
        fencings = self._hosts_parts.fencings
        assert self._hosts_tormentor is not None
        cuts = self._hosts_tormentor.cuts
        result.violations += zombie_answers(result.history, cuts, fencings, self._hosts_parts.hosts)
        return HostsResult(result, fencings, self._witnesses.testimonies)

    def parts(self) -> SupervisedParts:
        return self._hosts_parts

    def tormentor(self, parts: SupervisedParts, client: Client) -> Strikes:
        self._hosts_tormentor = HostsTormentor(
            self._hosts_parts,
            self._file_system,
            client,
            self._seed,
            self._say,
            self._options.kinds,
        )
        return self._hosts_tormentor

    def writers(self, parts: SupervisedParts) -> list[ClientProcess[Task]]:
        # A typist takes every error for a fault, also the refusal of a file system that is away.
        typists = [] if self._file_system.has_server else self.typists(parts)
        return typists + [
            self.client_process(
                parts,
                role,
                f"{role}.{host.name}",
                nats=url_of(host),
                prefix=host.command(),
                operations_per_second=per_second,
            )
            for host in HOSTS
            for role, per_second in _OPERATIONS_PER_SECOND.items()
        ]
