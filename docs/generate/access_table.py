"""Writes the tables of docs/access.md: who may publish and subscribe what in NATS, and who may ask
what of servers and the coordinator.

    python docs/generate/access_table.py [--check]

The cells come from the permissions that the code gives to a token or a user, and from what servers
check. Tests try each of them on a real nats-server and a cluster. `--check` writes nothing, and
exits with 1 if the page differs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.coordinator.answering.bookmarks import Bookmarks
from holdfast.coordinator.answering.parsing import parse
from holdfast.coordinator.answering.requests import ResolveRequest
from holdfast.coordinator.answering.restricting import restricted
from holdfast.gateway.auth.nats_configuration import AUTH_PERMISSIONS, SYSTEM_PERMISSIONS
from holdfast.protocol import frames
from holdfast.protocol.access.grants import KnownRights, TokenGrant
from holdfast.protocol.access.nats_permissions import (
    NatsPermissions,
    permissions_of,
    reports_permissions,
    servers_permissions,
)
from holdfast.protocol.access.rights import (
    ALL_RIGHTS,
    RIGHT_OF_OPERATION,
    RIGHT_OF_WORD,
    Right,
)
from holdfast.protocol.access.tokens import EVERY_TENANT, Token
from holdfast.protocol.errors import NotAllowedError
from holdfast.protocol.frames import encode_control
from holdfast.protocol.serving.grant_book import Claim, GrantBook
from holdfast.protocol.subjects import DEFAULT_PREFIX

PAGE: Final = Path(__file__).parents[2] / "docs" / "access.md"
#: Ids of the token that is looked at, and of another one of the same tenant.
OWN, OTHER = "a" * 32, "b" * 32
TENANT: Final = "acme"
#: What the tokens of the table are for.
PATTERN: Final = "project.*"


@dataclass(frozen=True)
class Deed:
    """Something that a connection tries in NATS. `{own}` and `{other}` in the subject are ids."""

    says: str
    action: str
    subject: str

    def of(self, own: str, other: str) -> str:
        """Return the subject for these ids."""
        return self.subject.format(own=own, other=other)


#: Each deed is tried by each holder.
DEEDS: Final = (
    Deed("ask the coordinator, in its own name", "publish", "hf.acme.coord.resolve.{own}"),
    Deed("... in another's name", "publish", "hf.acme.coord.resolve.{other}"),
    Deed("... in nobody's name", "publish", "hf.acme.coord.resolve"),
    Deed("ask a server, in its own name", "publish", "hf.acme.srv.s1.{own}"),
    Deed("... in another's name", "publish", "hf.acme.srv.s1.{other}"),
    Deed("... in nobody's name", "publish", "hf.acme.srv.s1"),
    Deed("destroy a store, in its own name", "publish", "hf.acme.destroy.s1.{own}"),
    Deed("... in another's name", "publish", "hf.acme.destroy.s1.{other}"),
    Deed("fork a store, in its own name", "publish", "hf.acme.fork.s1.{own}"),
    Deed("... in another's name", "publish", "hf.acme.fork.s1.{other}"),
    Deed("ask about stores of another tenant", "publish", "hf.zoo.coord.stores.{own}"),
    Deed("read and write stores of another tenant", "publish", "hf.zoo.srv.s1.{own}"),
    Deed("destroy a store of another tenant", "publish", "hf.zoo.destroy.s1.{own}"),
    Deed("drain a server", "publish", "hf._.coord.drain"),
    Deed("move a store to another server", "publish", "hf._.coord.move"),
    Deed("move stores by load", "publish", "hf._.coord.rebalance"),
    Deed("back up, restore, delete, purge stores", "publish", "hf._.ops.s1"),
    Deed("tell the audit log something, in its own name", "publish", "hf._.audit.{own}"),
    Deed("... in another's name", "publish", "hf._.audit.{other}"),
    Deed("... as a server", "publish", "hf._.audit"),
    Deed("ask for the audit log", "publish", "hf._system.srv.s1.{own}"),
    Deed("write it as a server", "publish", "hf._.own.s1._system"),
    Deed("register as a server", "publish", "hf._.coord.register"),
    Deed("... naming its token: servers refuse it", "publish", "hf._.coord.register.{own}"),
    Deed("tell the coordinator what a part counts", "publish", "hf._.coord.report"),
    Deed("send a server's heartbeats", "publish", "hf._.hb"),
    Deed("pass for the coordinator", "publish", "hf._.ctl.s1"),
    Deed("announce a change that is none", "publish", "hf.acme.chg.s.project.x"),
    Deed("answer in a server's place", "publish", "_INBOX.acme.{other}.1"),
    Deed("answer another tenant", "publish", "_INBOX.zoo.{other}.1"),
    Deed("answer an operator", "publish", "_INBOX._.{other}.1"),
    Deed("let somebody in to NATS", "publish", "$SYS._INBOX.x.1"),
    Deed("list all connections", "publish", "$SYS.REQ.SERVER.PING.CONNZ"),
    Deed("close a connection", "publish", "$SYS.REQ.SERVER.N1.KICK"),
    Deed("reload the configuration of nats-server", "publish", "$SYS.REQ.SERVER.N1.RELOAD"),
    Deed("follow a store that matches", "subscribe", "hf.acme.chg.s.project.x"),
    Deed("follow all stores that match", "subscribe", "hf.acme.chg.k.project.*"),
    Deed("follow kvs that match without values", "subscribe", "hf.acme.chg.m.project.*"),
    Deed("follow another store", "subscribe", "hf.acme.chg.s.secret"),
    Deed("follow everything", "subscribe", "hf.acme.chg.s.>"),
    Deed("follow another tenant", "subscribe", "hf.zoo.chg.s.project.x"),
    Deed("follow the audit log", "subscribe", "hf._system.chg.s.audit"),
    Deed("hear what is told to it", "subscribe", "hf._.audit"),
    Deed("hear its own answers", "subscribe", "_INBOX.acme.{own}.>"),
    Deed("hear another's answers", "subscribe", "_INBOX.acme.{other}.>"),
    Deed("hear the whole tenant's answers", "subscribe", "_INBOX.acme.>"),
    Deed("hear another tenant's answers", "subscribe", "_INBOX.zoo.{other}.>"),
    Deed("hear its own answers as an operator", "subscribe", "_INBOX._.{own}.>"),
    Deed("hear another operator's answers", "subscribe", "_INBOX._.{other}.>"),
    Deed("hear what others ask servers", "subscribe", "hf.acme.srv.>"),
    Deed("hear what others ask the coordinator", "subscribe", "hf.acme.coord.>"),
    Deed("hear servers and operators", "subscribe", "hf._.>"),
    Deed("hear who logs in", "subscribe", "$SYS.REQ.USER.AUTH"),
    Deed("hear who comes and goes", "subscribe", "$SYS.ACCOUNT.HOLDFAST.CONNECT"),
    Deed("hear everything", "subscribe", ">"),
)


#: The columns of users with nkeys: the auth service has one for each of its two NATS accounts, and
#: tells what it counts as a third, as gateways of many tenants do.
_BY_NKEY: Final = {
    "servers": servers_permissions(DEFAULT_PREFIX),
    "auth service": AUTH_PERMISSIONS,
    "auth service, system account": SYSTEM_PERMISSIONS,
    "reports": reports_permissions(DEFAULT_PREFIX),
}


def token_of(holder: str) -> Token | None:
    """Return the token of a column; None for those that log in with an nkey."""
    if holder in _BY_NKEY:
        return None
    is_operator = holder == "operator"
    rights = ALL_RIGHTS if is_operator else RIGHT_OF_WORD[holder]
    tenant = EVERY_TENANT if is_operator else TENANT
    stores = (">",) if is_operator else (PATTERN,)
    return Token(OWN, "cluster", tenant, stores, Right(rights), 0)


#: The columns: tokens with one right each, and the others.
HOLDERS: Final = (*RIGHT_OF_WORD, "operator", *_BY_NKEY)


def permissions(holder: str) -> NatsPermissions:
    """Return the permissions of a column."""
    token = token_of(holder)
    return _BY_NKEY[holder] if token is None else permissions_of(token, DEFAULT_PREFIX)


def may(holder: str, deed: Deed) -> bool:
    """Tell whether a holder may do a deed."""
    allowed = permissions(holder)
    patterns = allowed.publish if deed.action == "publish" else allowed.subscribe
    return any(covers(pattern, deed.of(OWN, OTHER)) for pattern in patterns)


def covers(pattern: str, subject: str) -> bool:
    """Tell whether whatever matches `subject`, which may have wildcards, matches `pattern`."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, token in enumerate(wanted):
        if token == ">":
            return len(given) > position
        if position >= len(given) or given[position] == ">":
            return False
        if token not in ("*", given[position]):
            return False
    return len(wanted) == len(given)


def table() -> str:
    """Return the table."""
    lines = [f"| to | with NATS | {' | '.join(HOLDERS)} |", f"|---|---|{':-:|' * len(HOLDERS)}"]
    for deed in DEEDS:
        subject = deed.of("*own*", "*other*").replace("*own*", "OWN").replace("*other*", "OTHER")
        cells = " | ".join("yes" if may(holder, deed) else "·" for holder in HOLDERS)
        lines.append(f"| {deed.says} | {deed.action} `{subject}` | {cells} |")
    return "\n".join(lines) + "\n"


#: Of a store that the tokens with one right match.
STORE: Final = (1, "project.x")
#: What else has numbers in `frames.py`.
_OTHERS: Final = ("FIRST_", "VERB_")
_NAMES: Final = {
    number: name
    for name, number in vars(frames).items()
    if type(number) is int and number in RIGHT_OF_OPERATION and not name.startswith(_OTHERS)
}


@dataclass(frozen=True)
class Ask:
    """Something that a client asks: an operation on a store, or a verb. `body` is that of a verb's
    request."""

    says: str
    operation: int = 0
    verb: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)


#: Each is asked by each asker: all operations, the coordinator's verbs, and destroying.
ASKS: Final = (
    *(Ask(f"operation `{_NAMES[number]}`", number) for number in RIGHT_OF_OPERATION),
    Ask("destroy a store", verb="destroy", body={"job": "j", "store": [*STORE], "epoch": 9}),
    Ask("coordinator: `resolve`", verb="resolve", body={"stores": [[*STORE]]}),
    Ask("coordinator: `stores`", verb="stores", body={"kind": None, "prefix": "project"}),
    Ask("coordinator: `servers`", verb="servers"),
    Ask("coordinator: `statistics`", verb="statistics"),
    Ask(
        "coordinator: `report`",
        verb="report",
        body={
            "kind": "gateway_http",
            "name": "g1",
            "report": frames.encode({"started": 1, "host": "", "numbers": {}}),
        },
    ),
    Ask("coordinator: `suspect`", verb="suspect", body={"server": "s1", "incarnation": "x"}),
)
#: Tokens with one right each, one with all rights on other stores, and no valid token.
ASKERS: Final = (*RIGHT_OF_WORD, "other stores", "no token")


def asker_token(asker: str) -> Token | None:
    """Return the token of a column of the second table."""
    if asker == "no token":
        return None
    if asker == "other stores":
        return Token(OWN, "cluster", TENANT, ("secret.*",), ALL_RIGHTS, 0)
    return token_of(asker)


def may_ask(asker: str, ask: Ask) -> bool:
    """Tell whether servers do what is asked."""
    token = asker_token(asker)
    if token is None:
        refused = GrantBook[None]().look(Claim(TENANT, "", "a subject"), 0.0, 0.0)
        return not isinstance(refused, NotAllowedError)
    grant = TokenGrant(token, KnownRights(), 0.0)
    if ask.operation:
        return grant.refusal(*STORE, [[ask.operation]]) is None
    if ask.verb == "destroy":
        return grant.lacks(Right.DESTROY, *STORE) is None
    try:
        request = parse(TENANT, ask.verb, encode_control(**ask.body))
        allowed = restricted(request, grant, Bookmarks())
    except NotAllowedError:
        return False
    return not isinstance(allowed, ResolveRequest) or not isinstance(
        allowed.stores[0], NotAllowedError
    )


def checks_table() -> str:
    """Return the second table."""
    lines = [f"| what is asked | {' | '.join(ASKERS)} |", f"|---|{':-:|' * len(ASKERS)}"]
    for ask in ASKS:
        cells = " | ".join("yes" if may_ask(asker, ask) else "·" for asker in ASKERS)
        lines.append(f"| {ask.says} | {cells} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the tables as the code has them."""
    text, end = PAGE.read_text(), "<!-- end -->\n"
    for name, made in (("", table()), (", checks", checks_table())):
        start = f"<!-- generated by docs/generate/access_table.py{name} -->\n"
        pattern = re.compile(f"(?<={re.escape(start)}).*?(?={re.escape(end)})", re.DOTALL)
        text, count = pattern.subn(lambda _, made=made: f"\n{made}\n", text)  # type: ignore[misc]
        assert count == 1, "the page has the marks of each table once"
    return text


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it, and return the exit code."""
    text = page()
    if "--check" in arguments:
        if PAGE.read_text() != text:
            print("docs/access.md differs: run make generate", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
