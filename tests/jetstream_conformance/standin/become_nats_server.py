"""Be a nats-server: `python become_nats_server.py SOCKET ARGUMENT ...`.

A test that starts and ends `nats-server` must start and end the real one, with all that makes it a
JetStream. So this program asks the stand-in, which begins to start a cluster and a gateway, and
then runs the real server and passes its signals on. If it is asked to end, the gateway ends first,
as in `holdfast up`, so that clients hear of it. If it is killed, the server is killed with it. The
stand-in may hand it another stderr, to hold lines back.

It runs as a plain script without site packages, because it precedes each start of a server.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from types import FrameType

_MAX_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1
#: How long the end of the gateway may take.
_END_SECONDS = 2.0
_PASSED_ON = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(socket_file: str, arguments: list[str]) -> None:
    """Ask, and run the server until it ends. Only returns by an exception or an exit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(socket_file)
        question = {"pid": os.getpid(), "arguments": arguments}
        socket.send_fds(asked, [json.dumps(question).encode()], [2])
        answer, descriptors, _flags, _address = socket.recv_fds(asked, _MAX_BYTES, 1)
    if not answer:
        sys.exit("the stand-in of nats-server has ended")
    command = json.loads(answer)
    if "error" in command:
        sys.exit(f"nats-server: {command['error']}")
    for descriptor in descriptors:
        os.dup2(descriptor, 2)
    program, arguments = command["program"], ["nats-server", *command["arguments"]]
    if not command["is_jetstream"]:
        os.execv(program, arguments)
    # A signal that comes before it can be passed on waits.
    handled = (signal.SIGTERM, signal.SIGINT, *_PASSED_ON)
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    libc = ctypes.CDLL(None)
    parent = os.getpid()
    server = os.fork()
    if not server:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
            os.execv(program, arguments)
        os._exit(1)

    def end(number: int, frame: FrameType | None) -> None:
        _end_gateway(socket_file)
        os.kill(server, number)

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(server, number)

    for number in handled:
        signal.signal(number, pass_on if number in _PASSED_ON else end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    _, status = os.waitpid(server, 0)
    sys.exit(max(os.waitstatus_to_exitcode(status), 0))


def _end_gateway(socket_file: str) -> None:
    """Have the gateway end, and wait until it has."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
            asked.settimeout(_END_SECONDS)
            asked.connect(socket_file)
            socket.send_fds(asked, [json.dumps({"ends": os.getpid()}).encode()], [])
            asked.recv(1)
    except OSError:
        # The stand-in ends too.
        pass


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
