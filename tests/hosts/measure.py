"""What the faults of hosts cost, from a history: pauses on the host and elsewhere, and answers of
servers that were fenced. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.hosts.cluster import Fencing
from tests.hosts.network import Host
from tests.hosts.tormentor import Cut
from tests.support.checking.facts import name_of_store
from tests.support.checking.history import History, Operation, Outcome, Store
from tests.torture.faults import Fault
from tests.torture.measure import Pause, pauses_of

#: What happens this long after a fault is put down to it, unless another one has come.
TAIL_SECONDS: Final = 15.0


class Cost(NamedTuple):
    """What one fault cost: the longest pause of a store for clients on the host that was hit, and
    for the others, and who was fenced for what, until the next fault."""

    fault: Fault
    until: float
    there_seconds: float
    elsewhere_seconds: float
    fenced: tuple[Fencing, ...]


def host_of(operation: Operation) -> str:
    """Return the name of the host whose client this was; "" of one that is on none."""
    name = operation.client.rpartition("-")[0]
    return name.partition(".")[2]


def costs(
    history: History, faults: Sequence[Fault], fencings: Sequence[Fencing], hosts: Iterable[Host]
) -> list[Cost]:
    """Return what each fault cost, in order."""
    names = [host.name for host in hosts]
    by_host = {name: _pauses(history, name) for name in names}
    found = []
    for number, fault in enumerate(faults):
        ends_at = fault.until + TAIL_SECONDS
        if number + 1 < len(faults):
            ends_at = min(ends_at, faults[number + 1].at)
        there = [name for name in names if name in fault.target]
        longest = {
            name: max(
                (each.seconds for each in by_host[name] if fault.at <= each.ended_at <= ends_at),
                default=0.0,
            )
            for name in names
        }
        fenced = tuple(each for each in fencings if fault.at <= each.at <= ends_at)
        found.append(
            Cost(
                fault,
                ends_at,
                max((longest[name] for name in there), default=0.0),
                max((longest[name] for name in names if name not in there), default=0.0),
                fenced,
            )
        )
    return found


def zombie_answers(
    history: History, cuts: Sequence[Cut], fencings: Sequence[Fencing], hosts: Mapping[str, Host]
) -> list[str]:
    """Return the answers of fenced servers, as sentences.

    The clients of a host that is cut off reach its own server alone. So what one of them began
    after a coordinator had said that this server is fenced, and was answered before the host was
    joined again, was answered by a server that may answer nothing.
    """
    found = []
    for cut in cuts:
        fenced_at = min(
            (
                each.at
                for each in fencings
                if hosts[each.server] is cut.host and cut.at <= each.at <= cut.until
            ),
            default=None,
        )
        if fenced_at is None:
            continue
        for one in history.operations:
            if (
                host_of(one) == cut.host.name
                and one.outcome is Outcome.OK
                and one.returned is not None
                and fenced_at < one.invoked
                and one.returned < cut.until
            ):
                late_ms = (one.returned - fenced_at) * 1000
                found.append(
                    f"{name_of_store(one.store)}: zombie: {one.label} of {one.client} was "
                    f"answered {late_ms:.0f} ms after its server was fenced"
                )
    return found


def _pauses(history: History, host: str) -> list[Pause]:
    """Return all pauses of all stores, as the clients of one host had them."""
    by_store: dict[Store, list[Operation]] = defaultdict(list)
    for operation in history.operations:
        if host_of(operation) == host:
            by_store[operation.store].append(operation)
    return [
        pause for store, each in by_store.items() for pause in pauses_of(name_of_store(store), each)
    ]
