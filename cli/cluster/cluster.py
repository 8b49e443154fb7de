"""An embedded cluster: nats-server, a coordinator and persist servers on this machine.

`running_cluster` starts and supervises them while its body runs. `holdfast up`, the demo and the
integration tests use it. Each part is a process of its own, started by the same command that an
operator types. Under `data`:

    shared/    the shared file system of the coordinator and the persist servers
    bucket/    the bucket
    run/       lock, cluster.json (addresses and pids), one log file for each part

With tokens, an auth service runs too, and `run/nats.conf` makes nats-server ask it. With JetStream,
a gateway runs too, or on few cores each persist server is one, and `run/nats.conf` makes
nats-server listen for leafnode connections. With `http`, an HTTP gateway runs.

Invariants: a folder has one cluster. Nothing starts before the folder, the ports and the programs
are known to be fine. The gateways stop before the persist servers, these before the coordinator,
and the coordinator before nats-server. No process outlives the body, even if the body is cancelled,
and on Linux even if this process is killed.

`restart.py` decides when a part is restarted.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from holdfast.cli.advice import first_error
from holdfast.cli.cluster import http_part, jetstream_part
from holdfast.cli.cluster.cluster_access import ClusterAccess
from holdfast.cli.cluster.http_part import HttpAddress
from holdfast.cli.cluster.nats_binary import find_nats_server
from holdfast.cli.cluster.part import Part, Say
from holdfast.cli.cluster.ports import LOOPBACK, check_port, free_port
from holdfast.cli.master_keys import MasterKeyOptions
from holdfast.cli.settings import DEFAULT_TENANT
from holdfast.client.wire.router import Router
from holdfast.protocol.bus.bus import NoRespondersError
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import NatsLogin, variable
from holdfast.protocol.bus.nats_server_process import (
    nats_server_command,
    nats_server_environment,
    usable_cores,
)
from holdfast.protocol.bus.nats_url import without_passwords
from holdfast.protocol.control import ServerState
from holdfast.protocol.errors import (
    ConnectionFailedError,
    HoldfastError,
    LoginFailedError,
    StorageFailedError,
    UnavailableError,
)
from holdfast.protocol.frames import encode_control
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS
from holdfast.protocol.subjects import (
    CLUSTER_TENANT,
    DEFAULT_INBOXES,
    DEFAULT_PREFIX,
    Inboxes,
    Subjects,
)
from holdfast.shared_fs.disk.disk import Disk
from holdfast.shared_fs.disk.layout import open_layout
from holdfast.shared_fs.disk.privacy import private_files, tighten

DEFAULT_PORT: Final = 4222
MAX_SERVERS: Final = 64
#: The part that is not ours.
_NATS: Final = "nats-server"
_READY_SECONDS: Final = 60.0
_NATS_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.05


class ClusterExistsError(HoldfastError):
    """Another coordinator answers on the NATS system that this cluster was to join."""

    code = "cluster_exists"
    template = "a coordinator already answers on {url} with prefix {prefix!r}"


class NatsAwayError(HoldfastError):
    """The NATS system that this cluster was to join cannot be reached."""

    code = "nats_away"
    template = "cannot join NATS at {url}: {reason}"


class StartTimeoutError(HoldfastError):
    """The parts run but are not a working cluster in time."""

    code = "start_timeout"
    template = "the cluster is not ready after {timeout_seconds:g} s: {reason}"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What to start. `nats_url` names a running NATS system; without it, a nats-server starts on
    `port`, or on a free port if that is 0."""

    data: Path
    server_count: int = 2
    nats_url: str | None = field(default=None, repr=False)
    #: How to log in to `nats_url`.
    login: NatsLogin = field(default_factory=NatsLogin)
    inbox_prefix: str = DEFAULT_INBOXES
    port: int = DEFAULT_PORT
    prefix: str = DEFAULT_PREFIX
    verbose: bool = False
    #: The bucket for snapshots and cold stores. None keeps everything on the shared file system.
    bucket: str | None = None
    cold_after_seconds: float | None = None
    #: Dollars for the bucket's requests of all servers, in even shares.
    budget_per_day: float | None = None
    #: Where its persist servers find master keys.
    master_keys: MasterKeyOptions = field(default_factory=MasterKeyOptions)
    #: Set up tokens, unless the data has them already.
    auth: bool = False
    #: Serve JetStream's API.
    jetstream: bool = False
    #: The leafnode listener of `nats_url`.
    leafnodes_url: str | None = field(default=None, repr=False)
    #: Where an HTTP gateway listens; None starts none.
    http: HttpAddress | None = None
    #: Origins whose pages may use that gateway, beside its own; "*" for all.
    http_origins: Sequence[str] = ()


class TokensExcludeJetStreamError(HoldfastError):
    """The cluster asks for tokens, which clients of JetStream have not."""

    code = "tokens_exclude_jetstream"
    template = "the cluster in {data} asks for tokens, with which no client of JetStream logs in"


class Cluster:
    """A running embedded cluster. Made by `running_cluster`."""

    def __init__(self, options: ClusterOptions, say: Say) -> None:
        self.options = options
        self.nats_url = ""
        #: None in an open cluster.
        self.access = ClusterAccess.of(options.data / "shared", make=options.auth)
        if options.jetstream and self.access is not None:
            raise TokensExcludeJetStreamError(data=str(options.data))
        self.nats_server: Part | None = None
        self.auth: Part | None = None
        #: The JetStream gateway, if it is a part of its own.
        self.gateway: Part | None = None
        self.http: Part | None = None
        #: Where the HTTP gateway listens; None without one.
        self.http_address: HttpAddress | None = None
        #: The URLs of the monitors of its parts, by name.
        self.monitors: dict[str, str] = {}
        self._leafnodes_url = options.leafnodes_url
        self.coordinator: Part | None = None
        self.servers: list[Part] = []
        self._say = say
        self._run_directory = options.data / "run"
        self._failed: asyncio.Future[HoldfastError] = asyncio.get_running_loop().create_future()

    @property
    def shared(self) -> Path:
        """The folder that every persist server of this cluster works on."""
        return self.options.data / "shared"

    @property
    def parts(self) -> list[Part]:
        before = (self.nats_server, self.auth, self.coordinator)
        parts = (*before, *self.servers, self.gateway, self.http)
        return [part for part in parts if part is not None]

    def command_for_server(self, name: str) -> str:
        """The command line that adds the persist server `name` to this cluster. It leaves out a URL
        with a password: set HOLDFAST_NATS to it, as for this cluster."""
        nats = ["--nats", self.nats_url] if self.shown_nats_url == self.nats_url else []
        return shlex.join(
            [
                *("holdfast", "persist", "--name", name),
                *(*self._common_arguments(), *nats, *self.login_arguments(), *self._prefix()),
                *(*self._bucket(), *self._tiering()),
            ]
        )

    def login_arguments(self) -> list[str]:
        """The options with which commands log in to NATS: none for the cluster's own. A user and
        password are part of the URL."""
        options = self._login.to_options()
        if self.options.inbox_prefix != DEFAULT_INBOXES:
            options["inbox-prefix"] = self.options.inbox_prefix
        return [text for name, value in options.items() for text in (f"--{name}", value)]

    @property
    def _login(self) -> NatsLogin:
        """How servers log in to NATS."""
        if self.access is not None and self.options.nats_url is None:
            return NatsLogin(nkey=self.access.servers_nkey)
        return self.options.login

    @property
    def shown_nats_url(self) -> str:
        """The URL without passwords."""
        return without_passwords(self.nats_url)

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start everything and return once all of it works."""
        if self.options.http is not None:
            self.http_address = self.options.http.found_free()
        await self._start_nats(tasks)
        program = [sys.executable, "-P", "-m", "holdfast.cli"]
        log_level = "info" if self.options.verbose else "warning"
        common = [*self._common_arguments(), "--log-level", log_level]
        if self.access is not None and self.nats_server is not None:
            serve = ["auth", "serve", *self._common_arguments(), "--log-level", log_level]
            self.auth = self._part("auth", [*program, *serve])
            tasks.create_task(self._supervise(self.auth))
        common += self._bucket()
        direct: list[str] = []
        if self.options.jetstream:
            direct = ["--direct", str(self._run_directory / "direct")]
        in_servers = self.options.jetstream and jetstream_part.is_in_servers(usable_cores())
        serve = ["persist", *common, *direct, *["--jetstream"] * in_servers, *self._tiering()]
        self.coordinator = self._part("coordinator", [*program, "coordinator", *common])
        self.servers = [
            self._part(name, [*program, *serve, "--name", name])
            for name in (f"s{number + 1}" for number in range(self.options.server_count))
        ]
        tasks.create_task(self._supervise(self.coordinator))
        # The coordinator first: one without a state fences the servers that it finds running.
        await self._wait_until_live(set())
        for server in self.servers:
            tasks.create_task(self._supervise(server))
        if self.http_address is not None:
            arguments = ["--http", self.http_address.text, "--log-level", log_level]
            if self.access is not None:
                arguments.append("--require-token")
                if self.nats_server is not None:
                    # An own NATS has a user for this key; another one may not.
                    arguments += ["--reports-nkey", str(self.access.reports_nkey)]
            arguments += [f"--origin={origin}" for origin in self.options.http_origins]
            self.http = self._part(http_part.PART, [*program, "gateway", *arguments])
            tasks.create_task(self._supervise(self.http))
        await self.wait_until_live()
        if self.http_address is not None:
            listening = self.http_address.wait_until_it_listens()
            await self._until(listening, "the HTTP gateway does not listen")
        if self.options.jetstream:
            if not in_servers:
                arguments = ["--jetstream", *direct, "--log-level", log_level]
                self.gateway = self._part(jetstream_part.PART, [*program, "gateway", *arguments])
                tasks.create_task(self._supervise(self.gateway))
            await self._wait_for_jetstream()
        for part in self.parts:
            part.works()

    async def wait_until_live(self) -> None:
        """Return once the coordinator says that all servers are live. Raises StartTimeoutError."""
        await self._wait_until_live({part.name for part in self.servers})

    async def _wait_until_live(self, names: set[str]) -> None:
        reason = "no coordinator answers"
        try:
            async with (
                asyncio.timeout(_READY_SECONDS),
                self._router() as router,
            ):
                while not self._failed.done():
                    try:
                        servers = await router.servers(CONTROL_TIMEOUT_SECONDS)
                    except UnavailableError as error:
                        reason = str(error)
                    else:
                        live = {one.server for one in servers if one.state == ServerState.LIVE}
                        if names <= live:
                            return
                        reason = f"not live: {', '.join(sorted(names - live))}"
                    await asyncio.sleep(_POLL_SECONDS)
                raise self._failed.result()
        except TimeoutError as error:
            raise StartTimeoutError(timeout_seconds=_READY_SECONDS, reason=reason) from error

    async def _wait_for_jetstream(self) -> None:
        options = self.options
        inboxes = Inboxes.parse(options.inbox_prefix, DEFAULT_TENANT, options.prefix)
        waiting = jetstream_part.wait_for_jetstream(self.nats_url, self._login, inboxes)
        await self._until(waiting, "the gateway does not answer JetStream's API")

    async def _until(self, condition: Coroutine[None, None, None], reason: str) -> None:
        """Wait for what parts do when they are ready. Raises the failure of a part, or
        StartTimeoutError with what did not happen."""
        waiting = asyncio.create_task(condition)
        try:
            await asyncio.wait(
                (waiting, self._failed),
                timeout=_READY_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._failed.done():
                raise self._failed.result()
            if not waiting.done():
                raise StartTimeoutError(timeout_seconds=_READY_SECONDS, reason=reason)
            waiting.result()
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])

    @asynccontextmanager
    async def _router(self) -> AsyncIterator[Router]:
        """Ask the coordinator as servers do, with a token if it asks for one."""
        options = self.options
        with self.access.own_token() if self.access is not None else nullcontext() as token:
            grant = "" if token is None else token.id
            root = Inboxes.parse(options.inbox_prefix, CLUSTER_TENANT, options.prefix).root
            bus = await connect_nats(
                self.nats_url,
                name="holdfast-up",
                login=self._login,
                inboxes=Inboxes(root, DEFAULT_TENANT, grant),
            )
            try:
                yield Router(bus, Subjects(options.prefix, grant), DEFAULT_TENANT)
            finally:
                await bus.close()

    async def raise_failure(self) -> None:
        """Wait until a part has failed for good, and raise that."""
        raise await self._failed

    async def stop(self) -> None:
        """End all parts, in order."""
        gateways = [part for part in (self.gateway, self.http) if part is not None]
        for together in (gateways, self.servers):
            async with asyncio.TaskGroup() as stopping:
                for each in together:
                    stopping.create_task(each.stop())
        for part in (self.coordinator, self.auth, self.nats_server):
            if part is not None:
                await part.stop()
        (self._run_directory / "cluster.json").unlink(missing_ok=True)

    async def _start_nats(self, tasks: asyncio.TaskGroup) -> None:
        options = self.options
        if options.nats_url is not None:
            self.nats_url = options.nats_url
            await _refuse_second_coordinator(options)
            return
        program = find_nats_server()
        port = options.port or free_port()
        check_port(port)
        self.nats_url = f"nats://{LOOPBACK}:{port}"
        command = [str(program), "--addr", LOOPBACK, "--port", str(port)]
        if self.access is not None:
            configuration = self._run_directory / "nats.conf"
            inboxes = Inboxes.of_cluster(options.inbox_prefix, options.prefix)
            self.access.write_configuration(configuration, options.prefix, inboxes.root)
            command += ["--config", str(configuration)]
        if options.jetstream:
            configuration, leaf_port = self._run_directory / "nats.conf", free_port()
            jetstream_part.write_leafnodes(configuration, LOOPBACK, leaf_port)
            self._leafnodes_url = f"nats-leaf://{LOOPBACK}:{leaf_port}"
            command += ["--config", str(configuration)]
        command = nats_server_command(command, os.environ, usable_cores())
        self.nats_server = self._part(_NATS, command)
        tasks.create_task(self._supervise(self.nats_server))
        await _wait_for_nats(port)

    async def _supervise(self, part: Part) -> None:
        """Keep `part` running. Its failure ends the body; the other parts then stop in order."""
        try:
            await part.keep_running()
        except (HoldfastError, OSError) as error:
            if not self._failed.done():
                failure = error if isinstance(error, HoldfastError) else _as_failure(part, error)
                self._failed.set_result(failure)

    def _part(self, name: str, command: list[str]) -> Part:
        return Part(
            name,
            [*command, *self._monitor(name)],
            log_file=self._run_directory / f"{name}.log",
            say=self._say,
            # Not with `--nats`, because every user of the machine can read command lines.
            environment=self._environment(name),
            is_noise=self._is_noise if name == _NATS else lambda line: False,
            on_start=self._write_state,
        )

    def _monitor(self, part: str) -> list[str]:
        """Return the option by which a part of ours answers what it counts, on loopback."""
        if part == _NATS or find_spec("prometheus_client") is None:
            return []
        address = f"{LOOPBACK}:{free_port()}"
        self.monitors[part] = f"http://{address}"
        return ["--monitor", address]

    def _environment(self, part: str) -> dict[str, str]:
        if part == _NATS:
            return nats_server_environment(os.environ, usable_cores())
        login = self._login.to_options()
        if part == http_part.PART:
            login = http_part.login_of_gateway(login, with_tokens=self.access is not None)
        values = {
            "nats": self.nats_url,
            "prefix": self.options.prefix,
            "inbox-prefix": self.options.inbox_prefix,
            **login,
        }
        if self._leafnodes_url is not None:
            values["leafnodes"] = self._leafnodes_url
        return {variable(name): value for name, value in values.items()}

    def _is_noise(self, line: str) -> bool:
        """Return whether a line is below warning level. nats-server cannot log only warnings."""
        return not self.options.verbose and ("[INF]" in line or "[DBG]" in line)

    def _common_arguments(self) -> list[str]:
        return ["--data", str(self.shared)]

    def _bucket(self) -> list[str]:
        bucket = self.options.bucket
        return [] if bucket is None else ["--bucket", bucket]

    def _tiering(self) -> list[str]:
        options = self.options
        found: list[str] = []
        if options.cold_after_seconds is not None:
            found += ["--cold-after-seconds", str(options.cold_after_seconds)]
        if options.budget_per_day is not None:
            found += ["--budget-per-day", str(options.budget_per_day / options.server_count)]
        return [*found, *options.master_keys.arguments]

    def _prefix(self) -> list[str]:
        prefix = self.options.prefix
        return [] if prefix == DEFAULT_PREFIX else ["--prefix", prefix]

    def _write_state(self) -> None:
        """Write addresses and pids to cluster.json, for scripts and people."""
        state = {
            "pid": os.getpid(),
            "nats": self.shown_nats_url,
            "http": None if self.http_address is None else self.http_address.url,
            "monitors": self.monitors,
            "prefix": self.options.prefix,
            "shared": str(self.shared),
            "parts": {part.name: part.pid for part in self.parts},
        }
        path = self._run_directory / "cluster.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state, indent=2) + "\n")
        temporary.replace(path)


@asynccontextmanager
async def running_cluster(options: ClusterOptions, say: Say) -> AsyncIterator[Cluster]:
    """Run an embedded cluster around the body, which is cancelled if a part fails for good.

    `say` gets the lines that the parts log. Raises AlreadyRunningError, PortInUseError,
    HttpPortInUseError, MissingNatsServerError, NatsAwayError, ClusterExistsError, NewerFormatError,
    StorageError, PartFailedError, StartTimeoutError; and what the body raises.
    """
    with private_files():
        disk = Disk()
        for directory in ("shared", "bucket", "run"):
            disk.make_directory(options.data / directory)
            tighten(options.data / directory)
        lock = disk.lock(options.data / "run" / "lock", "a cluster")
        try:
            open_layout(options.data / "shared", disk)
            cluster = Cluster(options, say)
            try:
                async with asyncio.TaskGroup() as parts:
                    try:
                        async with asyncio.TaskGroup() as body:
                            watch = body.create_task(cluster.raise_failure())
                            await cluster.start(parts)
                            yield cluster
                            watch.cancel()
                    finally:
                        await cluster.stop()
            except BaseExceptionGroup as group:
                raise first_error(group) from None
        finally:
            lock.release()


def _as_failure(part: Part, error: OSError) -> HoldfastError:
    failure = StorageFailedError(reason=f"{part.name} cannot be started: {error}")
    failure.__cause__ = error
    return failure


async def _wait_for_nats(port: int) -> None:
    try:
        async with asyncio.timeout(_NATS_SECONDS):
            while True:
                if await _nats_answers(port):
                    return
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        raise StartTimeoutError(
            timeout_seconds=_NATS_SECONDS, reason=f"nats-server does not answer on port {port}"
        ) from error


async def _nats_answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    try:
        return (await reader.readline()).startswith(b"INFO ")
    except OSError:
        return False
    finally:
        writer.close()


async def _refuse_second_coordinator(options: ClusterOptions) -> None:
    """Refuse to start if another coordinator answers: each cluster would hear the other's parts."""
    url, prefix = options.nats_url, options.prefix
    assert url is not None
    try:
        inboxes = Inboxes.parse(options.inbox_prefix, CLUSTER_TENANT, prefix)
        bus = await connect_nats(url, name="holdfast-up", login=options.login, inboxes=inboxes)
    except LoginFailedError:
        raise
    except ConnectionFailedError as error:
        raise NatsAwayError(**error.fields) from error
    try:
        subject = Subjects(prefix).coordinator(DEFAULT_TENANT, "servers")
        await bus.request(subject, encode_control(), CONTROL_TIMEOUT_SECONDS, DEFAULT_TENANT)
    except NoRespondersError:
        return
    finally:
        await bus.close()
    raise ClusterExistsError(url=without_passwords(url), prefix=prefix)
