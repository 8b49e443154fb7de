"""What the holder of a token tries: every template, as it is or mutated, on every subject that it
can name. Pure, drawn from a seed.

A holder asks in its own name, in that of others and in nobody's; for its own tenant, for others and
for the cluster itself; and it subscribes to what is not its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from holdfast.protocol import frames
from holdfast.protocol.limits import MIN_PAYLOAD_BYTES
from holdfast.protocol.subjects import CLUSTER_TENANT
from tests.hostile import mutation, templates
from tests.hostile.templates import FORGED_VERBS, OPERATIONS, VERBS, World, numbered
from tests.hostile.tokens.holders import ELSEWHERE, Holder
from tests.hostile.tokens.office import OFFICE, PRIVATE
from tests.hostile.volley import KV, STREAM, Volley
from tests.support.raw_nats import publication

_MESSAGES: Final = 20
_VERSION: Final = b"\x01"
#: In place of an inbox: what is answered there has gone astray.
CANARY: Final = "canary"
#: The id of a token that never was.
NO_TOKEN: Final = "f" * 32
#: Where those are answered who name no token.
NOBODY: Final = "nobody"
#: How many groups a frame may have here. A group has operations of one number.
_GROUPS: Final = (1, 1, 1, 1, 4, 20)
_SUBSCRIPTION_NUMBERS: Final = range(100, 1_000_000)


class Attempts:
    """Makes the volleys of one holder."""

    def __init__(
        self,
        holder: Holder,
        others: Sequence[str],
        tenants: Sequence[str],
        rng: random.Random,
        *,
        behind_nats: bool,
    ) -> None:
        """`others` are ids of other tokens, `tenants` other tenants. With `behind_nats` it sends
        as a client would for which NATS has no permissions: only what servers have to refuse by
        themselves, hence never in another's name."""
        self._holder = holder
        self._others = others
        self._tenants = (OFFICE, OFFICE, OFFICE, holder.tenant, ELSEWHERE, *tenants)
        self._rng = rng
        self._behind_nats = behind_nats
        self._world = World(OFFICE, tenants[0])
        self._is_foreign = False
        self._sid = iter(_SUBSCRIPTION_NUMBERS)
        self._foreign_count = 0

    @property
    def world(self) -> World:
        """What it knows of the cluster."""
        return self._world

    def volley(self) -> Volley:
        """Return what to send next."""
        rng = self._rng
        sent: list[bytes] = []
        count = 0
        kinds = [self._frame] * 6 + [self._question] * 3 + [self._destroy]
        if not self._behind_nats:
            kinds += [self._of_the_cluster, self._forged_message, self._subscription]
        for _ in range(_MESSAGES):
            self._is_foreign = True
            data, operations = rng.choice(kinds)()
            if len(data) < MIN_PAYLOAD_BYTES:
                sent.append(data)
                count += operations
                self._foreign_count += operations if self._is_foreign else 0
        return Volley(b"".join(sent), count)

    def listening(self) -> Volley:
        """Return what to send first: a subscription to everything that is not its own."""
        subjects = _subjects_of_others(OFFICE, self._others[0])
        lines = [f"SUB {subject} {next(self._sid)}\r\n" for subject in subjects]
        self._foreign_count += len(lines)
        return Volley("".join(lines).encode(), len(lines))

    def take_foreign_count(self) -> int:
        """Return how many operations, since this was last asked, were for other tenants, in other
        names, or the cluster's own."""
        count, self._foreign_count = self._foreign_count, 0
        return count

    def _frame(self) -> tuple[bytes, int]:
        """Operations on stores of its own, of others and of the owner."""
        rng = self._rng
        writer = b"holder-%d" % rng.randrange(3)
        groups = [self._group() for _ in range(rng.choice(_GROUPS))]
        body: Any = [writer, numbered(groups, writer, self._world)]
        if rng.random() < 0.3:
            body = mutation.mutate(body, rng)
        elif rng.random() < 0.3:
            for group in groups:
                group[5] = mutation.mutate(group[5], rng)
        server = rng.choice((*self._world.servers, "nosuch"))
        count = sum(len(group[5]) if isinstance(group[5], list) else 1 for group in groups)
        return self._request("srv", server, body), max(1, count)

    def _group(self) -> list[Any]:
        rng = self._rng
        number = rng.choice(list(OPERATIONS))
        operations = [
            templates.operation(number, rng, self._world) for _ in range(rng.choice((1, 1, 2, 10)))
        ]
        if number == frames.GET_MESSAGES and rng.random() < 0.5:
            operations[0] = [number, 1, None, None, None, None]
        kind, name = self._store()
        counter = 0 if number >= frames.FIRST_READ else 1
        return [kind, name, counter, counter, rng.choice((0, 0, 1, 2)), operations]

    def _store(self) -> tuple[int, str]:
        rng = self._rng
        stores = rng.choice((self._holder.stores, self._holder.stores, PRIVATE, "read", "write"))
        known = ((STREAM, "notes"), (STREAM, "notes"), (KV, "keys"), (STREAM, "live"))
        kind, rest = rng.choice((*known, (KV, f"new-{rng.randrange(50)}")))
        if rng.random() < 0.05:
            return STREAM, f"torture.s{rng.randrange(4)}"
        return kind, f"{stores}.{rest}"

    def _question(self) -> tuple[bytes, int]:
        """What clients, servers and operators ask of the coordinator, as a tenant's."""
        rng = self._rng
        verb, body = self._asked()
        count = 1
        if verb == "stores":
            prefix = rng.choice(("", "", PRIVATE[:3], self._holder.stores))
            body = {"kind": None, "prefix": prefix, "after": None, "limit": rng.choice((1, 100))}
        elif verb == "resolve":
            body = {"stores": [list(self._store()) for _ in range(rng.choice((1, 20)))]}
            count = len(body["stores"])
        return self._request("coord", verb, self._mutated(body)), count

    def _asked(self) -> tuple[str, Any]:
        rng = self._rng
        verbs = VERBS if rng.random() < 0.7 else FORGED_VERBS
        verb = rng.choice(list(verbs))
        return verb, verbs[verb](rng, self._world)

    def _destroy(self) -> tuple[bytes, int]:
        rng = self._rng
        body = {
            "job": f"j{rng.randrange(1_000_000)}",
            "store": list(self._store()),
            "epoch": rng.choice((1, 1, 1, 2, 3)),
        }
        return self._request("destroy", rng.choice(self._world.servers), self._mutated(body)), 1

    def _of_the_cluster(self) -> tuple[bytes, int]:
        """What servers, the coordinator and operators say to each other."""
        rng, world = self._rng, self._world
        server = rng.choice(world.servers)
        kind = rng.randrange(6)
        if kind == 5:
            subject, body = "audit", {"events": [{"action": "nothing", "outcome": "allowed"}]}
        elif kind == 0:
            verb, body = self._asked()
            subject = f"coord.{verb}"
        elif kind == 1:
            subject, body = "hb", templates.heartbeat(rng, world)
        elif kind == 2:
            subject, body = f"ctl.{server}", {"command": rng.choice(("probe", "drain", "stores"))}
        elif kind == 3:
            subject = f"ops.{server}"
            body = {
                "job": f"j{rng.randrange(1_000_000)}",
                "verb": rng.choice(("delete", "delete", "versions", "backup", "restore")),
                "store": [OFFICE, *self._store()],
                "time": 0,
            }
        else:
            operations = [[frames.GET_MESSAGES, 1, None, None, None, None]]
            frame = frames.encode_request(b"w", [[*self._store(), 0, 0, 0, operations]])
            return self._sent(f"hf._.own.{server}.{OFFICE}", frame), 1
        return self._sent(f"hf._.{subject}", _VERSION + mutation.pack(body)), 1

    def _forged_message(self) -> tuple[bytes, int]:
        """Changes that never were, and answers to others."""
        rng = self._rng
        subject = rng.choice(
            (
                f"hf.{OFFICE}.chg.s.{PRIVATE}.live",
                f"hf.{OFFICE}.chg.k.{PRIVATE}.keys",
                f"_INBOX.{OFFICE}.{self._anyone()}.{CANARY}.{rng.randrange(100)}",
                f"_INBOX.{rng.choice(self._tenants)}.{CANARY}",
                f"_INBOX._.{self._anyone()}.{CANARY}",
                f"$SYS._INBOX.{CANARY}",
                "$SYS.REQ.USER.AUTH",
            )
        )
        return publication(subject.encode(), rng.randbytes(20)), 1

    def _subscription(self) -> tuple[bytes, int]:
        rng = self._rng
        subject = rng.choice(_subjects_of_others(rng.choice(self._tenants), self._anyone()))
        queue = rng.choice(("", "", "", " all"))
        return f"SUB {subject}{queue} {next(self._sid)}\r\n".encode(), 1

    def _anyone(self) -> str:
        """The id of another token, or a guess whose half is right."""
        rng = self._rng
        other = rng.choice(self._others)
        return rng.choice((other, other[:16] + rng.randbytes(8).hex()))

    def _mutated(self, body: Any) -> Any:
        return mutation.mutate(body, self._rng) if self._rng.random() < 0.3 else body

    def _request(self, place: str, last: str, body: Any) -> bytes:
        """Return a request of a client, mostly for its own tenant and in its own name."""
        rng = self._rng
        tenant, name = OFFICE, self._holder.id
        if rng.random() < 0.2:
            others = () if self._behind_nats else (CLUSTER_TENANT, "*")
            tenant = rng.choice((*self._tenants, *others))
        if rng.random() < 0.2:
            name = rng.choice(("", NO_TOKEN) if self._behind_nats else ("", self._anyone()))
        subject = f"hf.{tenant}.{place}.{last}" + (f".{name}" if name else "")
        self._is_foreign = name != self._holder.id or not self._is_its_own(tenant)
        return self._sent(subject, _VERSION + mutation.pack(body), tenant, name, place)

    def _is_its_own(self, tenant: str) -> bool:
        return tenant == self._holder.tenant or self._holder.is_operator

    def _sent(
        self, subject: str, payload: bytes, tenant: str = "_", name: str = "", place: str = "_"
    ) -> bytes:
        rng = self._rng
        # Servers answer on inboxes of the token that the request names, and on no others.
        if not self._behind_nats:
            name = self._holder.id
        reply = f"{inbox_of(tenant, name)}.{place}.{rng.randrange(1 << 30)}"
        # A refusal of who names no token may go to any inbox of the tenant.
        if name and rng.random() < 0.05:
            reply = f"_INBOX.{rng.choice(self._tenants)}.{self._anyone()}.{CANARY}"
        return publication(subject.encode(), payload, reply.encode())


def _subjects_of_others(tenant: str, anyone: str) -> tuple[str, ...]:
    """Return what nobody may hear but the token `anyone`, if that; and what some may."""
    return (
        *(f"_INBOX.{tenant}.{anyone}.>", f"_INBOX.{tenant}.>", f"_INBOX.*.{anyone}.>"),
        *(f"_INBOX.{tenant}.*.*", "_INBOX.>", f"_INBOX._.{anyone}.>", ">", "hf.>"),
        *(f"hf.{tenant}.chg.>", f"hf.{tenant}.chg.s.>", f"hf.{tenant}.chg.k.*.keys"),
        *(f"hf.{tenant}.chg.s.{PRIVATE}.live", f"hf.{tenant}.chg.s.{PRIVATE}.*"),
        *(f"hf.{tenant}.srv.>", f"hf.{tenant}.srv.*.{anyone}", f"hf.{tenant}.coord.>"),
        *("hf._.>", "hf._.hb", "hf.*.chg.s.*.live", "$SYS.>", "$SYS.REQ.USER.AUTH"),
    )


def inbox_of(tenant: str, token_id: str) -> str:
    """Return the start of the inboxes for answers to requests that name a token, or none."""
    return f"_INBOX.{tenant}.{token_id or NOBODY}"
