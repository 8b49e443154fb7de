"""What goes wrong in a run: faults, one after the other and over each other, as the seed says.

Each fault harms and, by itself, heals what it harmed. So a run that waits for all of them to end is
whole again, but for nodes whose supervisor is about to start them.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from holdfast.persist.write_path import checkpointing
from holdfast.protocol.limits import SILENCE_SECONDS
from holdfast.shared_fs.disk import commit_log
from holdfast.shared_fs.disk.layout import Layout
from tests.simulation.doomed import DoomedStream
from tests.simulation.expiring import ExpiringKeys
from tests.simulation.moving import MovingOperator
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import ROOT, Node, ServerNode
from tests.simulation.stranger import Stranger
from tests.simulation.token_faults import TokenFaults

Fault = Callable[[], Awaitable[None]]

#: Seconds from the start until the first fault: the cluster is up and has data.
_FIRST_SECONDS: Final = 1.5
#: Between faults from outside.
_OTHER_PAUSE_SECONDS: Final = 3.0
#: Between faults of tokens.
_TOKEN_PAUSE_SECONDS: Final = 1.5
#: Files with a flipped bit in one run: each is watched for long.
_MAX_FLIPPED: Final = 2
#: How long a survey of the few stores there are takes at the most, with its coordinator's start.
_SURVEY_SECONDS: Final = 3.0
#: How long a standby takes at the most to succeed a coordinator whose mount hangs, if nothing else
#: goes wrong.
_SUCCESSION_SECONDS: Final = 7.0


class Nemesis:
    """Harms one cluster."""

    def __init__(self, simulation: Simulation, only: str | None = None) -> None:
        """With `only`, the name of a fault, there is no other."""
        self._simulation = simulation
        self._chance: random.Random = simulation.chance("nemesis")
        faults: list[tuple[Fault, int]] = [
            (self._kill_server, 4),
            (self._pause_server, 4),
            (self._overtake, 3),
            (self._isolate, 2),
            (self._disconnect, 2),
            (self._kill_coordinator, 2),
            (self._pause_coordinator, 1),
            (self._cut_power_of_host, 3),
            (self._cut_all_power, 2),
            (self._restart_bus, 1),
            (self._break_disk, 2),
            (self._stop_server, 2),
            (self._storm, 1),
            (self._slow_disk, 1),
        ]
        if simulation.bucket is not None:
            faults += [
                (self._crash_in_bucket, 4),
                (self._crash_on_disk, 3),
                (self._stop_in_bucket, 2),
                (self._bucket_away, 2),
                (self._slow_bucket, 1),
            ]
        self._token_faults = (
            TokenFaults(simulation, simulation.office) if simulation.office is not None else None
        )
        # Each run has its own mixture, so that some are dominated by one kind.
        self._faults = [fault for fault, _ in faults]
        self._weights = [weight * self._chance.choice((0, 1, 1, 3)) for _, weight in faults]
        self._weights[0] += 1
        if only is not None:
            of_tokens = getattr(self._token_faults, only, None)
            self._faults = [of_tokens or getattr(self, f"_{only}")]
            self._weights = [1]
        self._pause_seconds = self._chance.choice((0.7, 1.5, 3.0))
        #: Of what comes from outside: drawn by itself, so that it moves nothing of the others.
        self._other_chance: random.Random = simulation.chance("nemesis from outside")
        others: list[tuple[Fault, int]] = [
            (self._deafen, 2),
            (self._restore_state, 1),
            (self._stranger, 4),
            (self._leap_of_clock, 1),
        ]
        # Most runs have none or one of them.
        self._others = [fault for fault, _ in others]
        self._other_weights = [
            weight * self._other_chance.choice((0, 0, 0, 1)) for _, weight in others
        ]
        if (
            simulation.bucket is not None
            or simulation.office is not None
            or simulation.history.ack_wait_seconds
        ):
            # What is judged there by the clocks of owners needs clocks that are nearly right.
            self._other_weights[-1] = 0
        # Whether there are any is drawn by itself too. Snapshots of them are not judged.
        flips: list[tuple[Fault, int]] = [(self._flip_bit, 2)]
        has_flips = simulation.bucket is None and simulation.chance("flips").random() < 0.1
        self._others += [fault for fault, _ in flips]
        self._other_weights += [weight * has_flips for _, weight in flips]
        lies: list[tuple[Fault, int]] = [(self._lying_mount, 2)]
        has_lies = simulation.chance("lies").random() < 0.1
        self._others += [fault for fault, _ in lies]
        self._other_weights += [weight * has_lies for _, weight in lies]
        has_stops = simulation.chance("stops of the storage").random() < 0.1
        self._others.append(self._stop_storage)
        self._other_weights.append(has_stops)
        lags: list[tuple[Fault, int]] = [(self._old_logs, 2)]
        has_lags = simulation.chance("old logs").random() < 0.1
        self._others += [fault for fault, _ in lags]
        self._other_weights += [weight * has_lags for _, weight in lags]
        ages: list[tuple[Fault, int]] = [(self._old_files, 2)]
        has_ages = simulation.chance("old files").random() < 0.1
        self._others += [fault for fault, _ in ages]
        self._other_weights += [weight * has_ages for _, weight in ages]
        hangs: list[tuple[Fault, int]] = [(self._hang_mount_of_coordinator, 1)]
        has_hangs = simulation.chance("hangs of a mount").random() < 0.1
        self._others += [fault for fault, _ in hangs]
        self._other_weights += [weight * has_hangs for _, weight in hangs]
        # Moves harm nobody, so they go on beside all else.
        moves: list[tuple[Fault, int]] = [(self._move_stores, 6)]
        has_moves = simulation.chance("moves").random() < 0.2
        self._others += [fault for fault, _ in moves]
        self._other_weights += [weight * has_moves for _, weight in moves]
        self._alone = only is not None
        if self._alone:
            self._other_weights = []
        self._stranger_itself = Stranger(simulation)
        self._leap_count = 0
        self._operator: MovingOperator | None = None
        self._doomed: list[DoomedStream] = []

    async def run(self, until: float) -> None:
        """Harm until the time `until`; return when everything has healed."""
        await asyncio.sleep(_FIRST_SECONDS)
        async with asyncio.TaskGroup() as tasks:
            if any(self._other_weights):
                tasks.create_task(self._run_others(until))
            if self._token_faults is not None and not self._alone:
                tasks.create_task(self._run_token_faults(until, self._token_faults))
            await self._harm(
                until, self._chance, self._faults, self._weights, self._pause_seconds, tasks
            )
        for doomed in [] if self._simulation.history.failures else self._doomed:
            await doomed.judge()

    async def _run_others(self, until: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            await self._harm(
                until,
                self._other_chance,
                self._others,
                self._other_weights,
                _OTHER_PAUSE_SECONDS,
                tasks,
            )

    async def _run_token_faults(self, until: float, faults: TokenFaults) -> None:
        functions, weights = zip(*faults.all, strict=True)
        async with asyncio.TaskGroup() as tasks:
            await self._harm(until, faults.chance, functions, weights, _TOKEN_PAUSE_SECONDS, tasks)

    async def _harm(
        self,
        until: float,
        chance: random.Random,
        faults: Sequence[Fault],
        weights: Sequence[int],
        pause_seconds: float,
        tasks: asyncio.TaskGroup,
    ) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            fault = chance.choices(faults, weights)[0]
            tasks.create_task(self._run_one(fault))
            await asyncio.sleep(chance.expovariate(1 / pause_seconds))

    async def _run_one(self, fault: Fault) -> None:
        name = getattr(fault, "__name__", "").lstrip("_")
        self._simulation.trace.add(f"fault {name}")
        await fault()
        self._simulation.trace.add(f"fault {name} is over")

    def _server(self) -> ServerNode:
        return self._chance.choice(self._simulation.servers)

    # --- processes -------------------------------------------------------------------------------
    async def _kill_server(self) -> None:
        server = self._server()
        server.kill()
        await asyncio.sleep(self._chance.choice((0.05, 0.5, 4.0)))
        server.start()

    async def _stop_server(self) -> None:
        server = self._server()
        server.stop()
        await asyncio.sleep(self._chance.uniform(0.5, 6.0))

    async def _pause_server(self) -> None:
        await self._pause(self._server(), self._chance.uniform(0.3, 9.0))

    async def _overtake(self) -> None:
        """Pause a server until others have its stores, and kill one of those as it wakes."""
        zombie = self._server()
        heir = self._chance.choice(
            [each for each in self._simulation.servers if each is not zombie]
        )
        pausing = asyncio.create_task(self._pause(zombie, self._chance.uniform(2.5, 6.0)))
        await asyncio.sleep(self._chance.uniform(3.0, 6.5))
        heir.kill(power=self._chance.random() < 0.5)
        if heir.running is False and self._simulation.may_cut_power():
            self._simulation.files.power_cut({heir.name})
        await asyncio.sleep(self._chance.uniform(0.1, 3.0))
        heir.start()
        await pausing

    async def _kill_coordinator(self) -> None:
        coordinator = self._chance.choice(self._simulation.coordinators)
        coordinator.kill()
        await asyncio.sleep(self._chance.choice((0.1, 2.0, 6.0)))
        coordinator.start()

    async def _pause_coordinator(self) -> None:
        coordinator = self._chance.choice(self._simulation.coordinators)
        await self._pause(coordinator, self._chance.uniform(0.5, 6.0))

    async def _pause(self, node: Node, seconds: float) -> None:
        process = node.process
        assert process is not None
        self._simulation.trace.add(f"pause {process.name}")
        process.pause()
        await asyncio.sleep(seconds)
        self._simulation.trace.add(f"resume {process.name}")
        process.resume()

    # --- hosts -----------------------------------------------------------------------------------
    async def _cut_power_of_host(self) -> None:
        if not self._simulation.may_cut_power():
            return
        node = self._chance.choice(self._simulation.nodes)
        node.kill(power=True)
        self._simulation.files.power_cut({node.name})
        await asyncio.sleep(self._chance.choice((0.2, 1.0, 5.0)))
        node.start()

    async def _cut_all_power(self) -> None:
        if not self._simulation.may_cut_power():
            return
        nodes = self._simulation.nodes
        for node in nodes:
            node.kill(power=True)
        self._simulation.files.power_cut({node.name for node in nodes}, file_server=True)
        await asyncio.sleep(self._chance.choice((0.2, 2.0)))
        for node in nodes:
            node.start()
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))

    async def _break_disk(self) -> None:
        weather, host = self._simulation.weather, self._server().name
        kinds, number = self._chance.choice(
            (
                ({"write"}, errno.ENOSPC),
                ({"write", "create"}, errno.ENOSPC),
                ({"sync"}, errno.EIO),
                ({"write", "sync", "truncate"}, errno.EIO),
                ({"read"}, errno.EIO),
            )
        )
        weather.failing[host] = frozenset(kinds), number, self._chance.choice((0.05, 0.5, 1.0))
        await asyncio.sleep(self._chance.uniform(0.05, 2.0))
        weather.failing.pop(host, None)

    async def _stop_storage(self) -> None:
        """Stop the file server for a while: all who use it hang, and nobody is fenced for that."""
        simulation, loop = self._simulation, asyncio.get_running_loop()
        if simulation.storage_stops_until > loop.time():
            return
        seconds = self._other_chance.uniform(3.0, 9.0)
        simulation.storage_stops_until = loop.time() + seconds
        running = [
            (node, node.process) for node in simulation.servers if node.process and node.running
        ]
        await asyncio.gather(
            *(self._pause(node, seconds) for node, _ in running), asyncio.sleep(seconds)
        )
        if self._alone:
            # As long as those need who are fenced in the wake of it.
            await asyncio.sleep(2 * SILENCE_SECONDS)
            for node, process in running:
                if node.process is not process:
                    simulation.fail(f"{process.name} ended since the storage stopped for all")

    async def _hang_mount_of_coordinator(self) -> None:
        """Let the mount of the active coordinator hang, and kill a server meanwhile."""
        simulation, chance, loop = self._simulation, self._other_chance, asyncio.get_running_loop()
        active = simulation.active_coordinator()
        if active is None or simulation.mounts_hang_until:
            return
        seconds = chance.uniform(4.0, 10.0)
        before = simulation.term()
        simulation.mounts_hang_until[active.name] = loop.time() + seconds
        server = chance.choice(simulation.servers)
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        server.kill()
        server.start_later(chance.uniform(0.1, seconds))
        await asyncio.sleep(_SUCCESSION_SECONDS)
        if self._alone and simulation.term() == before:
            simulation.fail("no standby succeeded a coordinator whose mount hangs")
        await asyncio.sleep(chance.uniform(0.0, 3.0))
        simulation.mounts_hang_until.clear()

    async def _slow_disk(self) -> None:
        hosts, host = self._simulation.weather.slow_hosts, self._server().name
        hosts.add(host)
        await asyncio.sleep(self._chance.uniform(0.5, 4.0))
        hosts.discard(host)

    async def _lying_mount(self) -> None:
        """Start a server whose mount caches its fence, and pause it long enough to be fenced."""
        chance = self._other_chance
        server = chance.choice(self._simulation.servers)
        server.kill()
        server.mount_lies = True
        server.start_later(0.05)
        await asyncio.sleep(chance.uniform(1.0, 4.0))
        if server.running:
            await self._pause(server, chance.uniform(2.5, 6.0))
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        server.mount_lies = False
        server.disk.cached = None

    async def _old_logs(self) -> None:
        """Let the mount of a server lag behind while another one writes on, ends, and is taken
        over."""
        chance = self._other_chance
        behind, ends = chance.sample(self._simulation.servers, 2)
        disk = behind.disk
        if behind.running:
            disk.remember_logs(Layout(ROOT))
        await asyncio.sleep(chance.uniform(0.3, 2.0))
        ends.kill()
        # Either it shows the truth in time, or the takeover is refused.
        await asyncio.sleep(chance.choice((0.5, 2.0, 14.0)))
        disk.forget_logs()
        ends.start()

    async def _old_files(self) -> None:
        """Let the mount of a server lag behind with files of stores, while another one writes on,
        hands over or dies: if it dies, then after a time without writes, in which it lets go from
        its log what is in durable files."""
        chance, cut_off = self._other_chance, self._simulation.cut_off
        commit_log.LOG_SEGMENT_BYTES, checkpointing._QUIET_SEGMENTS = 128, 0  # type: ignore[misc]
        behind, ends = chance.sample(self._simulation.servers, 2)
        disk = behind.disk
        if behind.running:
            disk.remember_stores(Layout(ROOT), keeps_showing=chance.random() < 0.3)
        await asyncio.sleep(chance.uniform(0.5, 4.0))
        if chance.random() < 0.3:
            ends.stop()
        else:
            name = ends.bus.name
            cut_off.add(name)
            await asyncio.sleep(chance.uniform(0.5, SILENCE_SECONDS))
            ends.kill()
            cut_off.discard(name)
        # Either it shows the truth in time, or the takeover is refused.
        await asyncio.sleep(chance.choice((0.5, 2.0, 6.0)))
        disk.forget_stores()
        ends.start()

    # --- the bucket ------------------------------------------------------------------------------
    async def _crash_in_bucket(self) -> None:
        """Have whoever makes one of the next calls of the bucket die: before its effect or
        after."""
        self._simulation.crash_in_bucket = self._chance.randint(1, 60)
        await asyncio.sleep(self._chance.uniform(0.5, 4.0))
        self._simulation.crash_in_bucket = 0

    async def _crash_on_disk(self) -> None:
        """Have whoever makes one of the next changes of a file in a thread die before it."""
        self._simulation.crash_on_disk = self._chance.randint(1, 60)
        await asyncio.sleep(self._chance.uniform(0.5, 4.0))
        self._simulation.crash_on_disk = 0

    async def _stop_in_bucket(self) -> None:
        """Stop a server that is about to publish a snapshot, until others have the store."""
        seconds = self._chance.uniform(3.0, 8.0)
        self._simulation.stop_in_bucket_seconds = seconds
        # Whoever comes to it in this time is stopped.
        await asyncio.sleep(4.0)
        self._simulation.stop_in_bucket_seconds = 0.0
        await asyncio.sleep(seconds)

    async def _bucket_away(self) -> None:
        """Let nobody reach the bucket, or not one host."""
        bucket, simulation = self._simulation.bucket, self._simulation
        assert bucket is not None
        hosts = {node.name for node in simulation.nodes}
        if self._chance.random() < 0.5:
            hosts = {self._chance.choice(sorted(hosts))}
        bucket.weather.away |= hosts
        await asyncio.sleep(self._chance.uniform(0.3, 6.0))
        bucket.weather.away -= hosts

    async def _slow_bucket(self) -> None:
        bucket = self._simulation.bucket
        assert bucket is not None
        bucket.weather.slow = self._chance.choice((5.0, 30.0))
        await asyncio.sleep(self._chance.uniform(0.5, 4.0))
        bucket.weather.slow = 1.0

    # --- the bus ---------------------------------------------------------------------------------
    async def _isolate(self) -> None:
        """Let nothing through to or from a node, which nobody is told."""
        node = self._chance.choice(self._simulation.nodes)
        name, cut_off = node.bus.name, self._simulation.cut_off
        if name in cut_off:
            return
        cut_off.add(name)
        await asyncio.sleep(self._chance.uniform(0.5, 6.0))
        if node.bus.name != name or node.running:
            cut_off.discard(name)

    async def _disconnect(self) -> None:
        """Take away a connection, which both sides are told."""
        simulation = self._simulation
        bus = self._chance.choice(
            [node.bus for node in simulation.nodes] + [client.bus for client in simulation.clients]
        )
        bus.drop()
        await asyncio.sleep(self._chance.choice((0.1, 1.0, 4.0)))
        bus.come_back()

    async def _restart_bus(self) -> None:
        self._simulation.network.drop_all()
        await asyncio.sleep(self._chance.choice((0.05, 0.5, 3.0)))
        self._simulation.network.return_all()

    async def _storm(self) -> None:
        loss, weather = self._chance.choice((0.05, 0.3)), self._simulation.weather
        weather.loss += loss
        await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        weather.loss -= loss

    # --- from outside ----------------------------------------------------------------------------
    async def _stranger(self) -> None:
        """Have another tenant send messages of any bytes for a while."""
        for _ in range(self._other_chance.choice((1, 5, 10))):
            await self._stranger_itself.send()
            await asyncio.sleep(self._other_chance.uniform(0.01, 0.2))

    async def _deafen(self) -> None:
        """Let nothing through to a connection, which it is not told, and everything from it."""
        simulation, chance = self._simulation, self._other_chance
        bus = chance.choice(
            [node.bus for node in simulation.nodes + simulation.coordinators]
            + [client.bus for client in simulation.clients]
        )
        name, deaf = bus.name, simulation.deaf
        deaf.setdefault(name, asyncio.get_running_loop().time())
        await asyncio.sleep(chance.uniform(0.5, 9.0))
        deaf.pop(name, None)

    async def _restore_state(self) -> None:
        """Put the coordinator's state from before a server left in the place of today's.

        Not after a power cut, nor is power cut until the survey that follows is done: a file that
        was never durable and is torn is refused once the state that knew of it is lost
        (docs/reliability.md, Known gaps).
        """
        simulation = self._simulation
        if simulation.power_was_cut or simulation.state_is_being_restored:
            return
        if simulation.office is not None and simulation.office.weather.is_bad:
            # A coordinator does not start without the registry, nor does the survey.
            return
        simulation.state_is_being_restored = True
        try:
            await self._restore_older_state()
            await asyncio.sleep(_SURVEY_SECONDS)
        finally:
            simulation.state_is_being_restored = False

    async def _restore_older_state(self) -> None:
        simulation, chance = self._simulation, self._other_chance
        folder = simulation.layout.coordinator
        starts = chance.choice((("state.",), ("state.", "term")))
        backup = simulation.files.copies(folder, simulation.files.names(folder, starts))
        if not any(name.endswith(".db") for name in backup):
            return
        server = chance.choice(simulation.servers)
        if chance.random() < 0.5:
            server.stop()
        else:
            server.kill()
            server.start_later(0.5)
        await asyncio.sleep(chance.uniform(0.5, 8.0))
        for coordinator in simulation.coordinators:
            coordinator.kill()
        simulation.trace.add(f"the state of {sorted(backup)} is put back")
        names = simulation.files.names(folder, starts)
        simulation.files.put_back(folder, names, backup)
        simulation.may_fence_the_healthy = True
        await asyncio.sleep(chance.choice((0.05, 0.5, 2.0)))
        for coordinator in simulation.coordinators:
            coordinator.start()

    async def _move_stores(self) -> None:
        """Have an operator move stores for a while."""
        chance = self._other_chance
        if self._operator is None:
            self._operator = MovingOperator(self._simulation)
        for _ in range(chance.choice((1, 10, 30))):
            await self._operator.ask(chance)
            await asyncio.sleep(chance.expovariate(5.0))

    async def _leap_of_clock(self) -> None:
        """Let the clocks of all servers be far ahead for a while; half of the time servers start
        so."""
        self._leap_count += 1
        name = f"expiring.{self._leap_count}"
        expiring = ExpiringKeys(self._simulation, name, all_may_leap=self._alone)
        await expiring.run(self._other_chance)

    async def _flip_bit(self) -> None:
        """Flip a bit in the file of an open store, and see what becomes of the store and its
        server."""
        if len(self._doomed) == _MAX_FLIPPED or self._simulation.history.failures:
            return
        doomed = DoomedStream(self._simulation, f"doomed.{len(self._doomed) + 1}")
        self._doomed.append(doomed)
        await doomed.run(self._other_chance)
