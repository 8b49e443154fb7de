"""Ask the owner of a store to do a job for an operator, and wait until it is done.

The command polls the owner with the name of the job (`persist/jobs/administration.py`), so replies
may get lost. If the owner dies or hands the store over, the next owner starts the job again.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

import click

from holdfast.cli.console import PipeConsole
from holdfast.cli.deeds import deed, not_told, operating_user
from holdfast.cli.render import JsonObject
from holdfast.cli.settings import Settings
from holdfast.client.wire.router import Router
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.limits import CONTROL_TIMEOUT_SECONDS
from holdfast.protocol.names import StoreId, StoreKind, check_store
from holdfast.protocol.serving.audit_trail import tell_recorder

_POLL_SECONDS: Final = 0.1
#: How many jobs of one command are under way: half of what a server runs at once.
_PARALLEL: Final = 128
_MILLISECONDS: Final = re.compile(r"[0-9]{12,14}")

KIND_OPTION: Final = click.option(
    "--kind",
    type=click.Choice(["stream", "kv"]),
    help="Needed if a stream and a kv share the name.",
)
ALL_OPTION: Final = click.option(
    "--all", "every", is_flag=True, help="All stores of the tenant of --tenant."
)
ALL_TENANTS_OPTION: Final = click.option(
    "--all-tenants", is_flag=True, help="All stores of every tenant."
)
BUCKET_OPTION: Final = click.option(
    "--bucket",
    required=True,
    metavar="URL",
    help="The bucket of the servers: file:///FOLDER or s3://NAME/PREFIX[?endpoint=URL].",
)


def check_choice(names: tuple[str, ...], every: bool, all_tenants: bool) -> None:
    """Raises UsageError unless exactly one of names, --all and --all-tenants is given."""
    if (bool(names), every, all_tenants).count(True) != 1:
        raise click.UsageError("name stores, or give --all or --all-tenants")


def failure_row(store: StoreId, error: HoldfastError) -> JsonObject:
    """Return that a job failed for one of several stores, as JSON."""
    return {
        "tenant": store.tenant,
        "name": store.name,
        "error": error.code,
        "message": str(error),
    }


def print_failures(failures: Sequence[JsonObject]) -> None:
    """Print on stderr for which of several stores a job failed, and why."""
    for failure in failures:
        click.echo(f"{failure['tenant']} {failure['name']}: {failure['message']}", err=True)


class Moment(click.ParamType[int]):
    """A time as people write it, or milliseconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if _MILLISECONDS.fullmatch(text):
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r}: write 2026-11-21T10:30:00, with +00:00 or in local time", param, ctx
            )
        return int(moment.astimezone(UTC).timestamp() * 1000)


class ConnectedOwners:
    """Asks owners, over one connection."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        self._subjects = settings.subjects
        self._router = Router(bus, self._subjects, settings.tenant)

    @property
    def tenant(self) -> str:
        """The tenant of the stores."""
        return self._settings.tenant

    @property
    def timeout_seconds(self) -> float:
        """How long to wait for an owner, or a server, that cannot be reached."""
        return self._settings.timeout

    async def find(self, name: str, kind: str | None) -> StoreId:
        """Return the store of that name. Raises NotFoundError, or InvalidArgumentError for two."""
        check_store(name)
        wanted = None if kind is None else int(StoreKind[kind.upper()])
        found = [
            StoreId(self._settings.tenant, info.kind, info.name)
            async for info in self._router.stores(wanted, name)
            if info.name == name
        ]
        if not found:
            raise NotFoundError(what="store", name=name)
        if len(found) > 1:
            raise InvalidArgumentError(argument="--kind", reason=f"{name!r} is a stream and a kv")
        return found[0]

    async def all(self, kind: str | None) -> list[StoreId]:
        """Return every store of the tenant."""
        wanted = None if kind is None else int(StoreKind[kind.upper()])
        return [
            StoreId(self._settings.tenant, info.kind, info.name)
            async for info in self._router.stores(wanted, "")
        ]

    async def of_every_tenant(self) -> AsyncIterator[ConnectedOwners]:
        """Yield a ConnectedOwners for each tenant."""
        async for tenant in self._router.tenants():
            yield ConnectedOwners(self._bus, replace(self._settings, tenant=tenant))

    @property
    def router(self) -> Router:
        """Asks the coordinator."""
        return self._router

    async def ask(self, store: StoreId, verb: str, **fields: object) -> Mapping[str, Any]:
        """Have a store's owner do a job, and return its report, with the owner as `server`.

        Raises the error that the job ends with. Waits up to the timeout of the settings for an
        owner that cannot be reached or is busy.
        """
        return await self._ask(partial(self._owner, store), verb, {**fields, "store": list(store)})

    async def ask_each(
        self, stores: Sequence[StoreId], verb: str
    ) -> AsyncIterator[tuple[StoreId, Mapping[str, Any] | HoldfastError]]:
        """Have the owners of stores do a job for each, many at once, and yield the reports, or the
        errors that jobs end with, in the order of the stores."""
        slots = asyncio.Semaphore(_PARALLEL)

        async def one(store: StoreId) -> Mapping[str, Any] | HoldfastError:
            async with slots:
                fields = {"store": list(store)}
                try:
                    return await self._ask(partial(self._owner, store), verb, fields, shown=False)
                except HoldfastError as error:
                    return error

        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(one(store)) for store in stores]
            for store, task in zip(stores, asked, strict=True):
                yield store, await task

    async def ask_server(self, server: str, verb: str, **fields: object) -> Mapping[str, Any]:
        """Have one server do a job, as `ask`."""

        async def find() -> str:
            return server

        return await self._ask(find, verb, fields)

    async def _ask(
        self,
        find: Callable[[], Awaitable[str]],
        verb: str,
        fields: Mapping[str, Any],
        *,
        shown: bool = True,
    ) -> Mapping[str, Any]:
        give_up_at = time.monotonic() + self._settings.timeout
        job = secrets.token_hex(8)
        server = ""
        about = fields["store"][2] if fields.get("store") else str(fields.get("tenant", ""))
        with _Spinner(f"{verb} {about}", enabled=shown and not self._settings.json) as working:
            while True:
                try:
                    # Only once, because asking for the owner of a deleted store assigns one.
                    server = server or await find()
                    reply = await self._ask_once(server, job, verb, fields)
                except UnavailableError:
                    if time.monotonic() > give_up_at:
                        raise
                    # That job is over; the next try is another one.
                    job, server = secrets.token_hex(8), ""
                else:
                    if reply.get("done"):
                        return {**reply, "server": server}
                    working()
                    give_up_at = time.monotonic() + self._settings.timeout
                await asyncio.sleep(_POLL_SECONDS)

    async def tell_audit(self, action: AuditAction, **fields: Any) -> None:
        """Tell the audit log what this command did. Without an answer, say so on stderr."""
        deliver = tell_recorder(self._bus, self._subjects)
        try:
            await deliver([deed(action, **fields)])
        except HoldfastError as error:
            not_told(error)

    async def _owner(self, store: StoreId) -> str:
        [owner] = await self._router.resolve([(store.kind, store.name)])
        if isinstance(owner, HoldfastError):
            raise owner
        return owner.server

    async def _ask_once(
        self, server: str, job: str, verb: str, fields: Mapping[str, object]
    ) -> Mapping[str, Any]:
        payload = encode_control(job=job, verb=verb, by=operating_user(), **fields)
        subject = self._subjects.operator(server)
        return decode_control(await self._bus.request(subject, payload, CONTROL_TIMEOUT_SECONDS))


@asynccontextmanager
async def connected_owners(settings: Settings) -> AsyncIterator[ConnectedOwners]:
    """Connect around the body."""
    bus = await settings.connect_bus()
    try:
        yield ConnectedOwners(bus, settings)
    finally:
        await bus.close()


class _Spinner:
    """Shows on a terminal what the command waits for, if that takes a while."""

    def __init__(self, text: str, *, enabled: bool) -> None:
        console = PipeConsole(stderr=True, markup=False, highlight=False)
        self._status = console.status(text) if enabled and console.is_terminal else None

    def __enter__(self) -> Self:
        return self

    def __call__(self) -> None:
        if self._status is not None:
            self._status.start()

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()
