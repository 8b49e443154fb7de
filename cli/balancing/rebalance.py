"""`holdfast rebalance`: move stores until all servers do about the same."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import click

from holdfast.cli.deeds import operating_user
from holdfast.cli.operator_connection import OperatorConnection
from holdfast.cli.progress import CountingProgress
from holdfast.cli.render import print_json, print_table, size
from holdfast.cli.settings import Settings, client_command
from holdfast.client.wire.router import LoadOfServer, Rebalance, Router
from holdfast.protocol.errors import UnavailableError
from holdfast.protocol.names import StoreKind

_POLL_SECONDS: Final = 0.5


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and move nothing.")
@client_command
def rebalance(settings: Settings, dry_run: bool) -> None:
    """Move busy stores until all servers do about the same.

    Loads are those of the last ten seconds. No data moves, and clients go on; each moved store
    pauses for some milliseconds. Ctrl-C ends the wait, not the run.
    """
    started_at = time.monotonic()
    before, after = asyncio.run(_rebalance(settings, dry_run))
    if settings.json:
        seconds = time.monotonic() - started_at
        print_json(rebalance_report(before, after, dry_run=dry_run, seconds=seconds))
        return
    _print_servers(before if dry_run else after)
    if dry_run:
        print_table(
            ("store", "tenant", "from", "to", "load"),
            [
                (move.store.name, move.store.tenant, move.source, move.target, f"{move.load:,.0f}")
                for move in before.moves
            ],
            right=("load",),
        )
        click.echo(f"{len(before.moves):,} stores would be moved")
    else:
        failed = f", {after.failed:,} could not be moved" if after.failed else ""
        click.echo(f"{after.moved:,} stores moved{failed}")


def _print_servers(told: Rebalance) -> None:
    print_table(
        ("server", "load", "operations/s", "bytes/s", "open"),
        [
            (
                each.server,
                f"{each.load:,.0f}",
                f"{each.operations:,.0f}",
                size(round(each.bytes)),
                f"{each.open_stores:,}",
            )
            for each in told.servers
        ],
        right=("load", "operations/s", "bytes/s", "open"),
    )


async def _rebalance(settings: Settings, dry_run: bool) -> tuple[Rebalance, Rebalance]:
    """Return what the coordinator said first and last."""
    async with OperatorConnection(settings) as router:
        first = last = await router.rebalance(dry_run=dry_run, by=operating_user())
        if dry_run:
            return first, last
        with _Progress(enabled=not settings.json) as progress:
            while last.running:
                progress.show(last)
                await asyncio.sleep(_POLL_SECONDS)
                last = await _look(router, settings.timeout)
    return first, last


async def _look(router: Router, timeout_seconds: float) -> Rebalance:
    """Return how a run is getting on. Raises UnavailableError if no coordinator answers within
    `timeout_seconds`. A run ends with its coordinator; what it has moved stays moved."""
    give_up_at = time.monotonic() + timeout_seconds
    while True:
        try:
            return await router.rebalance(dry_run=True)
        except UnavailableError:
            if time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(_POLL_SECONDS)


def rebalance_report(
    before: Rebalance, after: Rebalance, *, dry_run: bool, seconds: float
) -> dict[str, object]:
    """Return what the command prints with `--json`, from what the coordinator said first and
    last."""
    report: dict[str, object] = {
        "dry_run": dry_run,
        "servers": [_server_row(each) for each in before.servers],
        "imbalance": round(before.imbalance, 3),
    }
    if dry_run:
        report["moves"] = [
            {
                "tenant": move.store.tenant,
                "kind": StoreKind(move.store.kind).word,
                "name": move.store.name,
                "from": move.source,
                "to": move.target,
                "load": round(move.load, 1),
            }
            for move in before.moves
        ]
    else:
        report |= {
            "after": [_server_row(each) for each in after.servers],
            "imbalance_after": round(after.imbalance, 3),
            "moved": after.moved,
            "failed": after.failed,
            "seconds": round(seconds, 3),
        }
    return report


def _server_row(each: LoadOfServer) -> dict[str, object]:
    return {
        "server": each.server,
        "load": round(each.load, 1),
        "operations_per_second": round(each.operations, 1),
        "bytes_per_second": round(each.bytes, 1),
        "open_stores": each.open_stores,
    }


class _Progress(CountingProgress):
    """How many stores have moved: a line when the number changes, or a bar on a terminal."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__(enabled=enabled)
        self._enabled = enabled
        self._last: int | None = None
        if self.bars is not None:
            self._bar = self.bars.add_task("moving stores", total=None)

    def show(self, told: Rebalance) -> None:
        """Say how far the run is."""
        if self.bars is not None:
            total = told.moved + len(told.moves)
            self.bars.update(self._bar, total=total, completed=told.moved)
        elif self._enabled and told.moved != self._last:
            click.echo(f"{told.moved:,} stores moved", err=True)
        self._last = told.moved
