"""Coordinators as processes: one at a time, a standby that takes over, one that was deposed."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.errors import DeposedError
from holdfast.shared_fs.authority.term import TermFile
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import Layout, open_layout
from tests.support.coordinator_peers import Asker, Cluster
from tests.support.nats_server import NatsServer
from tests.support.process import Process
from tests.support.waiting import eventually, until

_numbers = itertools.count(1)


def started(nats: NatsServer, layout: Layout, *options: str, part: str = "coordinator") -> Process:
    """Start a part, to be ended with the body."""
    arguments = ["--data", str(layout.root), "--nats", nats.url, *options]
    log_file = layout.root.with_name(f"{part}-{next(_numbers)}.log")
    return Process(f"holdfast.{part}.__main__", arguments, log_file)


def test_a_server_and_a_coordinator_with_another_data_folder_end_with_a_clear_error(
    nats: NatsServer, layout: Layout, tmp_path: Path
) -> None:
    stray = open_layout(tmp_path / "stray", Disk())
    with started(nats, layout) as coordinator:
        coordinator.wait_for_log("coordinator.started")
        for part, *options in (("persist", "--name", "s1"), ("coordinator",)):
            with started(nats, stray, *options, part=part) as process:
                assert process.wait() == 1
                assert "belongs to cluster" in process.log and "--prefix" in process.log
    # One life, not one after the other.
    assert len([each for each in stray.server("s1").iterdir() if each.is_dir()]) == 1


def test_a_server_that_waits_for_a_coordinator_ends_at_once_when_it_is_asked_to(
    nats: NatsServer, layout: Layout
) -> None:
    with started(nats, layout, "--name", "s1", part="persist") as server:
        server.wait_for_log("server.waiting")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_second_coordinator_is_refused_in_one_line(nats: NatsServer, layout: Layout) -> None:
    with started(nats, layout) as first:
        first.wait_for_log("coordinator.started")
        with started(nats, layout, "--log-level", "error") as second:
            assert second.wait() == 1
        assert second.log.count("\n") == 1
        assert "already running" in second.log
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
    assert not (layout.coordinator / "state.db-wal").exists()


@contextlib.contextmanager
def coordinator_and_standby(nats: NatsServer, layout: Layout) -> Iterator[tuple[Process, Process]]:
    with started(nats, layout) as first:
        first.wait_for_log("coordinator.started")
        with started(nats, layout, "--standby") as standby:
            standby.wait_for_log("coordinator.standing_by")
            yield first, standby


async def successor_of(first: Process, client: Asker) -> None:
    """Kill `first`; return once another answers."""
    first.kill()

    async def answers() -> bool:
        try:
            return bool((await client.ask("servers"))["term"] == 2)
        except (NoRespondersError, BusTimeoutError):
            return False

    await eventually(answers, "the standby answers")


def heard_of(client: Asker, *servers: str) -> Callable[[], Awaitable[bool]]:
    """Return whether the coordinator has heard heartbeats of just these servers."""

    async def heard() -> bool:
        rows = await client.servers()
        return set(rows) == set(servers) and all(row.open_stores == 7 for row in rows.values())

    return heard


def owner_is(client: Asker, name: str, server: str) -> Callable[[], Awaitable[bool]]:
    """Return whether a coordinator answers that a store is `server`'s."""

    async def is_owner() -> bool:
        try:
            return bool((await client.owner(name))[0] == server)
        except (NoRespondersError, BusTimeoutError):
            return False

    return is_owner


async def test_a_standby_takes_over_with_a_higher_term_and_the_same_owners(
    nats: NatsServer, layout: Layout
) -> None:
    with coordinator_and_standby(nats, layout) as (first, standby):
        async with Cluster(nats, layout) as cluster:
            server, client = await cluster.server("a"), await cluster.client()
            assert await client.settled_owner("one") == ["a", "1", 1]
            await successor_of(first, client)
            assert await client.owner("one") == ["a", "1", 1]
            assert server.fence_is_open
        standby.signal(signal.SIGINT)
        assert standby.wait() == 0


async def test_a_server_that_is_killed_with_its_coordinator_is_found_out_by_the_standby_at_once(
    nats: NatsServer, layout: Layout
) -> None:
    with coordinator_and_standby(nats, layout) as (first, standby):
        async with Cluster(nats, layout) as cluster:
            server, client = await cluster.server("a"), await cluster.client()
            assert await client.settled_owner("one") == ["a", "1", 1]
            await cluster.server("b")
            await eventually(heard_of(client, "a", "b"), "heartbeats were heard")
            await server.kill()
            await successor_of(first, client)
            await eventually(owner_is(client, "one", "b"), "the store is b's")
        standby.signal(signal.SIGTERM)
        standby.wait()
        log = standby.log
        assert "reason=its process has ended" in log
        assert "reason=silent" not in log


async def test_a_stopped_coordinator_is_succeeded_and_says_nothing_when_it_wakes(
    nats: NatsServer, layout: Layout
) -> None:
    with coordinator_and_standby(nats, layout) as (first, standby):
        async with Cluster(nats, layout) as cluster:
            killed, client = await cluster.server("a"), await cluster.client()
            assert await client.settled_owner("one") == ["a", "1", 1]
            # The state that is copied has this.
            assert await killed.open("one", create=True) == [1, 1, 0]
            healthy = await cluster.server("b")
            await eventually(heard_of(client, "a", "b"), "heartbeats were heard")
            first.signal(signal.SIGSTOP)
            await killed.kill()
            # Its lock is held, its state file is locked, and nobody fences the dead server.
            await eventually(owner_is(client, "one", "b"), "the store is b's")
            assert (await client.ask("servers"))["term"] == 2
            names = {path.name for path in layout.coordinator.iterdir()}
            assert {"state.2.db", "lock"} <= names and "state.db" not in names
            told = first.log
            first.signal(signal.SIGCONT)
            await until(lambda: not first.running, "it has ended")
            assert first.wait() == 1
            assert healthy.fence_is_open
            assert await client.owner("one") == ["b", "1", 2]
        new_lines = first.log.removeprefix(told)
        assert "a coordinator of term 2 has replaced the coordinator of term 1" in new_lines
        assert "coordinator.fencing" not in new_lines and "Traceback" not in new_lines
        # The lock's name is the standby's: a third coordinator waits for it.
        with started(nats, layout, "--log-level", "error") as third:
            assert third.wait() == 1
            assert "already running" in third.log
        standby.signal(signal.SIGTERM)
        assert standby.wait() == 0
    assert "coordinator.succeeding term=2 deposed=1" in standby.log


async def test_a_deposed_coordinator_ends_and_fences_nobody(
    nats: NatsServer, layout: Layout
) -> None:
    with started(nats, layout) as deposed:
        deposed.wait_for_log("coordinator.started")
        async with Cluster(nats, layout) as cluster:
            server = await cluster.server("a")
            # As when the network file system had given its lock to another, which then died.
            TermFile(Disk(), layout.coordinator / "term").begin()
            server.mute = True
            await until(lambda: not deposed.running, "it has ended")
            assert server.fence_is_open
        assert deposed.wait() == 1
        assert "a coordinator of term 2 has replaced the coordinator of term 1" in deposed.log
        assert "Traceback" not in deposed.log


async def test_a_coordinator_that_a_server_knows_to_be_deposed_ends(
    nats: NatsServer, layout: Layout
) -> None:
    with started(nats, layout) as deposed:
        deposed.wait_for_log("coordinator.started")
        async with Cluster(nats, layout) as cluster:
            server = await cluster.server("a")
            server.refusal = DeposedError(term=1, newer_term=5)
            client = await cluster.client()
            with contextlib.suppress(NoRespondersError, BusTimeoutError):
                await client.suspect(server)
            await until(lambda: not deposed.running, "it has ended")
            assert server.fence_is_open
        assert deposed.wait() == 1
        assert "a coordinator of term 5 has replaced" in deposed.log


def test_a_standby_stops_when_asked(nats: NatsServer, layout: Layout) -> None:
    with started(nats, layout) as first:
        first.wait_for_log("coordinator.started")
        with started(nats, layout, "--standby") as standby:
            standby.wait_for_log("coordinator.standing_by")
            standby.signal(signal.SIGTERM)
            assert standby.wait() == 0


def test_a_standby_is_ready_while_it_could_take_over_and_goes_on_being_so_as_the_active_one(
    nats: NatsServer, layout: Layout
) -> None:
    with started(nats, layout) as first:
        first.wait_for_log("coordinator.started")
        with started(nats, layout, "--standby", "--monitor", "127.0.0.1:0") as standby:
            standby.wait_for_log("coordinator.standing_by")
            assert _readiness(standby) == (200, "ready\n")
            first.kill()
            standby.wait_for_log("coordinator.started")
            assert _readiness(standby) == (200, "ready\n")
            # Without NATS it hears nobody, and could do nothing.
            nats.kill()
            assert _settled_readiness(standby) == (
                503, "not ready: there is no connection to NATS\n"
            )


def _readiness(part: Process) -> tuple[int, str]:
    found = re.search(r"monitor\.listening host=(\S+) port=(\d+)", part.log)
    assert found
    connection = http.client.HTTPConnection(found[1], int(found[2]), timeout=20.0)
    with contextlib.closing(connection):
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def _settled_readiness(part: Process) -> tuple[int, str]:
    """What it answers once it has noticed."""
    found = _readiness(part)
    while found[0] == 200 and part.running:
        found = _readiness(part)
    return found


def test_what_cannot_run_says_why_in_one_line(nats: NatsServer, layout: Layout) -> None:
    nats.kill()
    with started(nats, layout, "--log-level", "error") as unreachable:
        assert unreachable.wait() == 1
    assert "cannot reach NATS" in unreachable.log.splitlines()[-1]
    assert "Traceback" not in unreachable.log
    with started(nats, layout, "--prefix", "a b") as wrong:
        assert wrong.wait() == 2
