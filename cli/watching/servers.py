"""`holdfast servers`: list the servers of a cluster, and forget dead ones."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from holdfast.cli.deeds import operating_user
from holdfast.cli.operator_connection import OperatorConnection
from holdfast.cli.render import print_json, print_table, size
from holdfast.cli.settings import Settings, client_command
from holdfast.cli.watching.looking import parts_of
from holdfast.protocol.control import ServerInfo, ServerState, missing_roles
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.monitoring.description import PartKind
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.work.roles import roles_shown


class NotLiveError(HoldfastError):
    """The coordinator does not count the server as live."""

    code = "not_live"
    template = "server {server!r} is not live, but {state}"


@click.command()
@click.option("--live", metavar="SERVER", help="List only SERVER, and fail if it is not live.")
@click.option("--forget", metavar="SERVER", help="Take a dead SERVER off the list.")
@click.option(
    "--reassign",
    is_flag=True,
    help="With --forget: also if it still owns stores; each gets a new owner when it is next used.",
)
@client_command
def servers(settings: Settings, live: str | None, forget: str | None, reassign: bool) -> None:
    """List the servers: state, load, last heartbeat.

    The coordinators, standbys and gateways are listed too.
    """
    if forget is not None and live is not None:
        raise click.UsageError("--forget and --live exclude each other")
    if reassign and forget is None:
        raise click.UsageError("--reassign needs --forget SERVER")
    if forget is not None:
        asyncio.run(_forget(settings, forget, reassign))
        if settings.json:
            print_json({"server": forget, "forgotten": True})
        else:
            click.echo(f"{forget} is no longer listed; it is listed again when it starts again")
        return
    found, parts = asyncio.run(_listed(settings, with_parts=live is None))
    if live is not None:
        found = [one for one in found if one.server == live]
        state = found[0].state if found else "unknown to the coordinator"
        if state != ServerState.LIVE:
            raise NotLiveError(server=live, state=state)
    if live is None:
        for role in missing_roles(found):
            click.echo(f"warning: no live server has the role {role}", err=True)
    if settings.json:
        report: dict[str, object] = {"servers": [one._asdict() for one in found]}
        print_json(report if live is not None else report | {"parts": list(map(part_row, parts))})
        return
    print_table(
        _COLUMNS,
        [*map(_part_cells, parts), *map(_cells, found)],
        right=("work", "stores", "open", "operations/s", "log", "to snapshot", "bucket/h"),
        states=("state",),
        optional=_OPTIONAL,
    )


_COLUMNS: Final = (
    *("part", "name", "state", "zone", "roles", "work", "heartbeat", "stores", "open"),
    *("operations/s", "log", "to snapshot", "bucket/h", "access", "host", "incarnation"),
)
#: What a narrow terminal leaves out, the first one first.
_OPTIONAL: Final = (
    *("incarnation", "host", "access", "bucket/h", "to snapshot", "log", "operations/s"),
    *("open", "work", "zone"),
)


def _cells(one: ServerInfo) -> tuple[str, ...]:
    return (
        "persist",
        one.server,
        one.state,
        one.zone,
        roles_shown(one.roles),
        f"{one.claims:,}",
        f"{one.heartbeat_age_seconds:.1f} s ago",
        f"{one.assigned_stores:,}",
        f"{one.open_stores:,}",
        f"{one.operations_per_second:,.0f}",
        size(one.log_bytes),
        f"{one.snapshot_backlog:,}",
        f"{one.bucket_requests:,}",
        "tokens" if one.asks_for_tokens else "open",
        "",
        one.incarnation,
    )


def _part_cells(part: PartStatistics) -> tuple[str, ...]:
    """The row of a part that owns no stores."""
    is_active = part.kind == PartKind.COORDINATOR
    state = "active" if is_active else "standby" if part.kind == PartKind.STANDBY else "live"
    heartbeat = f"{part.heartbeat_age_seconds:.1f} s ago"
    kind = "coordinator" if part.kind == PartKind.STANDBY else part.kind.replace("_", " ")
    return (kind, part.name, state, *[""] * 3, heartbeat, *[""] * 7, part.host, "")


def part_row(part: PartStatistics) -> dict[str, object]:
    """Return a part that owns no stores for JSON."""
    return {
        "kind": part.kind,
        "name": part.name,
        "host": part.host,
        "tenant": part.tenant,
        "started_at_ms": part.started_at_ms,
        "heartbeat_age_seconds": part.heartbeat_age_seconds,
    }


async def _forget(settings: Settings, server: str, reassign: bool) -> None:
    async with OperatorConnection(settings) as router:
        await router.forget(server, reassign=reassign, by=operating_user())


async def _listed(
    settings: Settings, *, with_parts: bool
) -> tuple[list[ServerInfo], list[PartStatistics]]:
    """Return the persist servers, and the other parts: the coordinators first."""
    async with settings.connect() as client:
        wait = settings.asking_seconds
        found = list(await client.servers(timeout_seconds=wait))
        parts = await parts_of(client, wait) if with_parts else []
    others = [part for part in parts if part.kind != PartKind.PERSIST]
    return found, sorted(others, key=lambda part: (part.kind, part.name))
