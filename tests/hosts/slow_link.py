"""A link of a host that delays and loses packets, in both directions: `async with slowed(...)`.

Kernels without netem cannot do that. So the host's end of the link moves from the bridge of its
network to a bridge of its own, and a process carries Ethernet frames between the two bridges, by a
TAP device on each:

    host ── veth ── bridge ── TAP ── this process ── TAP ── bridge of the network

    python -m tests.hosts.slow_link TAP TAP DELAY_SECONDS LOSS_RATIO SEED

The process says `ready` on stdout, and carries until it is ended by SIGTERM. It then says how many
frames it has carried and lost. Its TAP devices end with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast.cli.cluster.die_with_parent import tethered
from tests.hosts import network
from tests.hosts.network import Host
from tests.hosts.wire import Wire

TUN: Final = Path("/dev/net/tun")
_ROOT: Final = Path(__file__).resolve().parents[2]
_READY_SECONDS: Final = 30.0
_END_SECONDS: Final = 30.0
#: From linux/if_tun.h: TUNSETIFF, and IFF_TAP | IFF_NO_PI for whole frames and nothing else.
_SET_NAME: Final = 0x400454CA
_WHOLE_FRAMES: Final = 0x0002 | 0x1000
_FRAME_BYTES: Final = 65_536
#: Frames that are read in one turn, so that the other direction is not kept waiting.
_FRAMES_A_TURN: Final = 64


@asynccontextmanager
async def slowed(
    host: Host,
    name: str,
    *,
    delay_seconds: float = 0.0,
    loss_ratio: float = 0.0,
    seed: int = 0,
) -> AsyncIterator[None]:
    """Slow a host's link to the network `name` around the body. Raises RuntimeError if frames could
    not be carried all the time, or if there were none."""
    taps = network.tap_names(host, name)
    carrying = (*taps, str(delay_seconds), str(loss_ratio), str(seed))
    process = await asyncio.create_subprocess_exec(
        *tethered([sys.executable, "-m", "tests.hosts.slow_link", *carrying]),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=_ROOT,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_READY_SECONDS):
            ready = await process.stdout.readline()
        if ready == b"ready\n":
            network.detour(host, name)
            try:
                yield
            finally:
                network.end_detour(host, name)
                ended_early = process.returncode is not None
                if not ended_early:
                    process.terminate()
        async with asyncio.timeout(_END_SECONDS):
            counts, errors = await process.communicate()
        if ready != b"ready\n" or ended_early or process.returncode != 0:
            said = errors.decode(errors="replace").strip()
            raise RuntimeError(f"frames of {host.name} could not be carried: {said}")
        if any(line.startswith(b"0 ") for line in counts.splitlines()):
            raise RuntimeError(f"no frames of {host.name} were carried: {counts.decode()}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Tap:
    """A TAP device, and the wire that carries what comes out of it."""

    def __init__(self, name: str, wire: Wire) -> None:
        self.wire = wire
        self.carried_count = 0
        self._fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        # struct ifreq has 40 bytes.
        fcntl.ioctl(self._fd, _SET_NAME, struct.pack("16sH22x", name.encode(), _WHOLE_FRAMES))
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def carry_to(self, other: Tap) -> None:
        """Begin to carry what comes out of this device into the other one."""
        self._loop.add_reader(self._fd, self._read, other)

    def _read(self, other: Tap) -> None:
        for _ in range(_FRAMES_A_TURN):
            try:
                frame = os.read(self._fd, _FRAME_BYTES)
            except BlockingIOError:
                break
            self.wire.put(frame, self._loop.time())
        self._deliver(other)

    def _deliver(self, other: Tap) -> None:
        for frame in self.wire.due(self._loop.time()):
            os.write(other._fd, frame)
            self.carried_count += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_at = self.wire.next_at
        if next_at is not None:
            self._timer = self._loop.call_at(next_at, self._deliver, other)


async def carry(names: Sequence[str], delay_seconds: float, loss_ratio: float, seed: int) -> None:
    """Carry frames between two TAP devices until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    one, other = (
        Tap(name, Wire(delay_seconds, loss_ratio, seed + number))
        for number, name in enumerate(names)
    )
    # A device takes frames only while it is up.
    for name in names:
        network.run("ip", "link", "set", name, "up")
    one.carry_to(other)
    other.carry_to(one)
    print("ready", flush=True)
    await ended.wait()
    for tap in (one, other):
        print(f"{tap.carried_count} carried, {tap.wire.lost_count} lost", flush=True)


if __name__ == "__main__":
    delay_text, loss_text, seed_text = sys.argv[3:]
    asyncio.run(carry(sys.argv[1:3], float(delay_text), float(loss_text), int(seed_text)))
