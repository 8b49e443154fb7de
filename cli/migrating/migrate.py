"""`holdfast migrate jetstream`: copy the streams of a JetStream into a tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.progress import TaskID

from holdfast.cli.advice import EXIT_FAILED
from holdfast.cli.commands.parts import needed_server_packages
from holdfast.cli.progress import CountingProgress
from holdfast.cli.render import print_json, print_table, size
from holdfast.cli.settings import Settings, client_command
from holdfast.protocol.bus.login import NatsLogin, variable
from holdfast.protocol.bus.nats_url import url_of_arguments, without_passwords
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.subjects import Inboxes

if TYPE_CHECKING:
    from holdfast.cli.migrating.copying import Copied
    from holdfast.cli.migrating.plan import StreamPlan
    from holdfast.cli.migrating.source import JetStreamSource

_CONNECT_SECONDS = 10.0
_SOURCE = "source"


@click.group()
def migrate() -> None:
    """Copy data of other systems into holdfast."""


def _url(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse a password that every user of the machine could read."""
    source = context.get_parameter_source(_SOURCE)
    if source is click.core.ParameterSource.ENVIRONMENT:
        return value
    try:
        return url_of_arguments(value, "SOURCE", variable(_SOURCE))
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error.fields["reason"]), context, parameter) from error


@migrate.command()
@click.argument(_SOURCE, envvar=variable(_SOURCE), callback=_url)
@click.argument("streams", metavar="[STREAM...]", nargs=-1)
@click.option(
    "--source-creds",
    type=click.Path(exists=True, dir_okay=False),
    help="A NATS credentials file for SOURCE.",
)
@click.option("--source-domain", default="", help="A JetStream domain of SOURCE.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be copied.")
@click.option(
    "--hold",
    is_flag=True,
    help="Copy, but let no gateway serve the copies yet. Run it again to bring them up to date.",
)
@client_command
def jetstream(
    settings: Settings,
    source: str,
    streams: tuple[str, ...],
    source_creds: str | None,
    source_domain: str,
    dry_run: bool,
    hold: bool,
) -> None:
    """Copy streams, KV buckets and object stores of the JetStream at SOURCE, a NATS URL.

    Messages keep their seqs, subjects, headers and times, gaps stay, and durable consumers continue
    after what they have acknowledged. Each message is read back and compared. If it is interrupted,
    run it again to resume. Nothing is changed at SOURCE; stop its publishers before the last run.
    """
    with needed_server_packages():
        from holdfast.gateway.jetstream.wire import client_connection  # noqa: F401 (is it there?)
    given = _Given(source, source_creds, source_domain, streams, hold)
    rows, failed = asyncio.run(_planned(settings, given) if dry_run else _copied(settings, given))
    if settings.json:
        print_json({"source": without_passwords(source), "dry_run": dry_run, "streams": rows})
    else:
        _print(rows)
    if failed:
        click.get_current_context().exit(EXIT_FAILED)


class _Given:
    """What the command was asked for."""

    def __init__(
        self, source: str, creds: str | None, domain: str, streams: Sequence[str], hold: bool
    ) -> None:
        self.source = source
        self.creds = creds
        self.domain = domain
        self.streams = streams
        self.hold = hold

    @property
    def shown(self) -> str:
        """Where the streams come from, as an interrupted run remembers it."""
        shown = without_passwords(self.source)
        return f"{shown} domain {self.domain}" if self.domain else shown


@asynccontextmanager
async def _source(given: _Given) -> AsyncIterator[JetStreamSource]:
    from holdfast.cli.migrating.source import JetStreamSource
    from holdfast.gateway.jetstream.wire.client_connection import connect_client

    client = await connect_client(
        given.source,
        name="holdfast-migrate",
        login=NatsLogin(credentials=given.creds),
        inboxes=Inboxes.parse(None, "default", "hf"),
        timeout_seconds=_CONNECT_SECONDS,
    )
    try:
        yield JetStreamSource(client, given.domain)
    finally:
        await client.close()


async def _plans(settings: Settings, given: _Given, source: JetStreamSource) -> list[StreamPlan]:
    """Return the plans of the streams that are wanted. Raises SourceError, InvalidArgumentError."""
    from holdfast.cli.migrating.plan import plan_stream
    from holdfast.cli.migrating.source import SourceError

    try:
        reserved = (f"{settings.prefix}.>",)
        plans = [plan_stream(info, reserved) for info in await source.streams()]
    except ValueError as error:
        raise SourceError(source=given.shown, reason=str(error)) from error
    names = {plan.name for plan in plans}
    for wanted in given.streams:
        if wanted not in names:
            reason = f"{given.shown} has no stream {wanted!r}"
            raise InvalidArgumentError(argument="STREAM", reason=reason)
    return [plan for plan in plans if not given.streams or plan.name in given.streams]


async def _planned(settings: Settings, given: _Given) -> tuple[list[dict[str, Any]], bool]:
    from holdfast.cli.migrating.target import opened_target

    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(_source(given))
        client = await stack.enter_async_context(settings.connect())
        target = await stack.enter_async_context(opened_target(client, given.shown))
        rows = []
        for plan in await _plans(settings, given, source):
            refusal = plan.refusal or target.reason_against(plan)
            rows.append(_row(plan, "would be refused" if refusal else "would be copied", refusal))
    return rows, any(row["error"] for row in rows)


async def _copied(settings: Settings, given: _Given) -> tuple[list[dict[str, Any]], bool]:
    from holdfast.cli.migrating.copying import Copier
    from holdfast.cli.migrating.target import opened_target

    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(_source(given))
        client = await stack.enter_async_context(settings.connect())
        target = await stack.enter_async_context(opened_target(client, given.shown))
        plans = await _plans(settings, given, source)
        progress = stack.enter_context(_Progress(plans, enabled=not settings.json))
        copier = Copier(source, target, hold=given.hold, progress=progress.copied)
        done = [await copier.copy(plan) for plan in plans]
    return [_copied_row(each) for each in done], any(each.error is not None for each in done)


class _Progress(CountingProgress):
    """A bar of messages, of all streams."""

    def __init__(self, plans: Sequence[StreamPlan], *, enabled: bool) -> None:
        super().__init__(enabled=enabled, text="{task.description:<24.24}")
        self._task: TaskID | None = None
        if self.bars is not None:
            total = sum(plan.state.messages for plan in plans)
            self._task = self.bars.add_task("copying", total=total)

    def copied(self, stream: str, count: int) -> None:
        if self.bars is not None and self._task is not None:
            self.bars.update(self._task, advance=count, description=stream)


def _copied_row(done: Copied) -> dict[str, Any]:
    if done.error is not None:
        return _row(done.plan, "failed", str(done.error))
    state = "copied, and served" if done.is_served else "copied, held"
    notes = ["messages came while it was copied"] * done.is_moving
    return {
        **_row(done.plan, state, "", notes),
        "copied": done.messages,
        "consumers": done.consumers,
    }


def _row(plan: StreamPlan, state: str, error: str, notes: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "stream": plan.name,
        "kind": plan.kind,
        "state": state,
        "messages": plan.state.messages,
        "bytes": plan.state.bytes,
        "copied": 0,
        "consumers": plan.consumer_count,
        "notes": [*plan.notes, *notes],
        "error": error,
    }


def _print(rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        ("stream", "kind", "messages", "bytes", "consumers", "state"),
        [
            (
                row["stream"],
                row["kind"],
                f"{row['messages']:,}",
                size(row["bytes"]),
                row["consumers"],
                row["state"],
            )
            for row in rows
        ],
        right=("messages", "bytes", "consumers"),
        states=("state",),
    )
    for row in rows:
        for note in (*row["notes"], *([row["error"]] * bool(row["error"]))):
            click.echo(f"{row['stream']}: {note}", err=True)
