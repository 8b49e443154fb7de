"""`python -m holdfast.coordinator`: one coordinator process, until SIGTERM or SIGINT.

Exit codes: 0 stopped as asked, 1 cannot run (one line on stderr says why), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.coordinator.service import Coordinator
from holdfast.protocol.bus_nats import connect_nats
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.names import check_store
from holdfast.protocol.subjects import DEFAULT_PREFIX
from holdfast.shared_fs.disk import Disk
from holdfast.shared_fs.layout import open_layout

try:
    import uvloop
except ImportError:
    _new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    _new_event_loop = uvloop.new_event_loop


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a coordinator and return the exit code. Raises SystemExit(2) for wrong usage."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
    )
    try:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            runner.run(_run(options))
    except HoldfastError as error:
        print(f"holdfast coordinator: {error}", file=sys.stderr)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        # A signal that came before there was anything to finish.
        return 0
    return 0


async def _run(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def on_signals(stop: Callable[[], object]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)

    on_signals(task.cancel)
    disk = Disk()
    layout = await asyncio.to_thread(open_layout, options.data, disk)
    bus = await connect_nats(options.nats, name="holdfast-coordinator")
    try:
        coordinator = Coordinator(bus, layout, disk, prefix=options.prefix, standby=options.standby)
        on_signals(coordinator.stop)
        await coordinator.run()
    finally:
        await bus.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast coordinator",
        description="Says which persist servers live and which of them owns which store.",
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="the root of the shared file system"
    )
    parser.add_argument("--nats", default="nats://127.0.0.1:4222", help="default: %(default)s")
    parser.add_argument(
        "--prefix", type=_prefix, default=DEFAULT_PREFIX, help="of all subjects; default: hf"
    )
    parser.add_argument(
        "--standby", action="store_true", help="wait until the running coordinator ends"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="default: %(default)s",
    )
    return parser


def _prefix(text: str) -> str:
    try:
        return check_store(text)
    except HoldfastError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no subject prefix") from error


if __name__ == "__main__":
    sys.exit(main())
