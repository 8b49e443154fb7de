"""Hosts as network namespaces, and what can go wrong between them.

Every host has two links, `nats` and `storage`, each to a bridge in the namespace of this process,
so each network can be cut without the other. A link is pulled at the bridge's end, like a cable:
the host keeps its address and reaches itself. All functions block for milliseconds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: The networks, by the name of the links: the first three numbers of their addresses.
NATS: Final = "nats"
STORAGE: Final = "storage"
_NETWORKS: Final = {NATS: "10.77.1", STORAGE: "10.77.2"}
ROUTE_PORT: Final = 6222


@dataclass(frozen=True, slots=True)
class Host:
    """One host; `number` is the last one of its addresses."""

    name: str
    number: int

    def address(self, network: str) -> str:
        return f"{_NETWORKS[network]}.{self.number}"

    def command(self, *command: str) -> list[str]:
        """Return the command that runs `command` on this host, under the same pid."""
        # Not `ip netns exec`: it has mounts of its own, so that nobody would see what is mounted.
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *command]


def run(*command: str) -> str:
    """Run a command, and return what it says. Raises RuntimeError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {said}")
    return done.stdout


def build(hosts: Sequence[Host]) -> None:
    """Make the networks, with this process on both."""
    for network, numbers in _NETWORKS.items():
        run("ip", "link", "add", network, "type", "bridge")
        run("ip", "address", "add", f"{numbers}.1/24", "dev", network)
        run("ip", "link", "set", network, "up")
    for host in hosts:
        run("ip", "netns", "add", host.name)
        run("ip", "-n", host.name, "link", "set", "lo", "up")
        for network in _NETWORKS:
            port = _port(host, network)
            add = f"ip link add {port} type veth peer name {network} netns {host.name}"
            run(*add.split())
            run("ip", "link", "set", port, "master", network)
            run("ip", "link", "set", port, "up")
            address = f"{host.address(network)}/24"
            run("ip", "-n", host.name, "address", "add", address, "dev", network)
            run("ip", "-n", host.name, "link", "set", network, "up")


def pull(host: Host, network: str) -> None:
    """Cut a host off a network: packets are lost, nothing is closed."""
    run("ip", "link", "set", _port(host, network), "down")


def plug(host: Host, network: str) -> None:
    """Connect it again."""
    run("ip", "link", "set", _port(host, network), "up")


def tap_names(host: Host, network: str) -> tuple[str, str]:
    """Return the names of the TAP devices of a detour: at the host's end, and at the network's."""
    port = _port(host, network)
    return f"{port}-in", f"{port}-out"


def detour(host: Host, network: str) -> None:
    """Let the packets of a link pass through two TAP devices, which exist."""
    near, far = tap_names(host, network)
    bridge = _detour_bridge(host, network)
    run("ip", "link", "add", "name", bridge, "type", "bridge")
    run("ip", "link", "set", bridge, "up")
    run("ip", "link", "set", near, "master", bridge)
    run("ip", "link", "set", far, "master", network)
    run("ip", "link", "set", _port(host, network), "master", bridge)


def end_detour(host: Host, network: str) -> None:
    """Undo `detour`."""
    run("ip", "link", "set", _port(host, network), "master", network)
    run("ip", "link", "delete", _detour_bridge(host, network))


def part(one: Host, other: Host) -> None:
    """Lose all packets of NATS's between two hosts."""
    for host, peer in ((one, other), (other, one)):
        run("ip", "-n", host.name, "route", "add", "blackhole", f"{peer.address(NATS)}/32")


def join(one: Host, other: Host) -> None:
    """Undo `part`."""
    for host, peer in ((one, other), (other, one)):
        run("ip", "-n", host.name, "route", "delete", "blackhole", f"{peer.address(NATS)}/32")


def close_route(one: Host, other: Host) -> int:
    """Close the connections between the nats-servers of two hosts, and return how many there were.
    NATS opens them again after a second, unless the hosts are parted."""
    chosen = ["(", "sport", "=", f":{ROUTE_PORT}", "or", "dport", "=", f":{ROUTE_PORT}", ")"]
    count = 0
    for host, peer in ((one, other), (other, one)):
        # It prints those that it closed, and may complain of one that was closed already.
        closing = host.command("ss", "-K", "-H", "-t", "dst", peer.address(NATS), *chosen)
        done = subprocess.run(closing, capture_output=True, text=True, check=False)
        count += len(done.stdout.splitlines())
    return count


def _port(host: Host, network: str) -> str:
    return f"{network}-{host.name}"


def _detour_bridge(host: Host, network: str) -> str:
    return f"{_port(host, network)}-by"
