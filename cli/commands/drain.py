"""`holdfast drain` and `holdfast undrain`: empty a server, and let it take stores."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import click

from holdfast.cli.deeds import operating_user
from holdfast.cli.operator_connection import OperatorConnection
from holdfast.cli.progress import CountingProgress
from holdfast.cli.render import print_json
from holdfast.cli.settings import Settings, client_command
from holdfast.client.wire.router import Router
from holdfast.protocol.control import ServerInfo, ServerState
from holdfast.protocol.errors import HoldfastError, UnavailableError

_POLL_SECONDS: Final = 0.2


class DrainCalledOffError(HoldfastError):
    """Somebody has undrained the server in the meantime."""

    code = "drain_called_off"
    template = "somebody has undrained server {server!r}: it takes stores again"


@click.command()
@click.argument("server")
@client_command
def drain(settings: Settings, server: str) -> None:
    """Move all stores away from SERVER while clients continue.

    SERVER keeps running without stores until you undrain or restart it. Ctrl-C ends the wait, not
    the drain.
    """
    report = asyncio.run(_drain(settings, server))
    if settings.json:
        print_json(report)
    else:
        click.echo(
            f"{server} is empty: {report['stores']:,} stores released in {report['seconds']:.1f} s"
        )


@click.command()
@click.argument("server")
@client_command
def undrain(settings: Settings, server: str) -> None:
    """Let a drained SERVER take stores again."""
    asyncio.run(_undrain(settings, server))
    if settings.json:
        print_json({"server": server, "state": ServerState.LIVE.value})
    else:
        click.echo(f"{server} takes stores again")


async def _undrain(settings: Settings, server: str) -> None:
    async with OperatorConnection(settings) as router:
        await router.drain(server, undo=True, by=operating_user())


async def _drain(settings: Settings, server: str) -> dict[str, object]:
    started_at = time.monotonic()
    async with OperatorConnection(settings) as router:
        await router.drain(server, by=operating_user())
        with _Progress(server, enabled=not settings.json) as progress:
            while True:
                left = await _stores_left(router, server, settings.timeout)
                progress.show(left)
                if not left:
                    break
                await asyncio.sleep(_POLL_SECONDS)
    return {
        "server": server,
        "state": ServerState.DRAINING.value,
        "stores": progress.total,
        "seconds": round(time.monotonic() - started_at, 3),
    }


async def _stores_left(router: Router, server: str, timeout_seconds: float) -> int:
    """Return how many stores a draining server has. Raises DrainCalledOffError, and
    UnavailableError if no coordinator answers within `timeout_seconds`."""
    info = await _look(router, server, timeout_seconds)
    if info is None or info.state == ServerState.DEAD:
        # It has stopped, so it has released everything.
        return 0
    if info.state == ServerState.LIVE:
        raise DrainCalledOffError(server=server)
    return max(info.assigned_stores, info.open_stores)


async def _look(router: Router, server: str, timeout_seconds: float) -> ServerInfo | None:
    give_up_at = time.monotonic() + timeout_seconds
    while True:
        try:
            servers = await router.servers()
        except UnavailableError:
            # The next coordinator continues with the drain.
            if time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return next((one for one in servers if one.server == server), None)


class _Progress(CountingProgress):
    """How many stores are left: a bar on a terminal, a line when the number changes elsewhere."""

    def __init__(self, server: str, *, enabled: bool) -> None:
        super().__init__(enabled=enabled)
        self._server = server
        self._enabled = enabled
        self._last: int | None = None
        self.total = 0
        if self.bars is not None:
            self._bar = self.bars.add_task(f"draining {server}", total=None)

    def show(self, left: int) -> None:
        """Say that `left` stores are still there."""
        self.total = max(self.total, left)
        if self.bars is not None:
            self.bars.update(self._bar, total=self.total, completed=self.total - left)
        elif self._enabled and left != self._last:
            click.echo(f"{self._server}: {left:,} stores left", err=True)
        self._last = left
