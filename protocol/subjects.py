"""The NATS subjects of holdfast, in one place.

`hf` is the prefix (configurable), and the tenant is the token after it, so plain NATS permissions
isolate tenants. A client of tenant `acme` may publish `hf.acme.coord.>` and `hf.acme.srv.>`; also
`hf.acme.destroy.>` if it may destroy its stores, and `hf.acme.fork.>` if it may fork them. It may
subscribe to `hf.acme.chg.>` and to the inboxes of its tenant, `_INBOX.acme.>`. The token `_`, which
no tenant can have as its name, is for messages among servers and the coordinator, and for
operators' requests. A request on a tenant's subject must have its reply subject among that tenant's
inboxes, whoever sends it. Servers reply nowhere else; otherwise a request could send a reply to
somebody who did not ask. The first token of inboxes is configurable too; it is the same for all
parts of a cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from holdfast.protocol.errors import InvalidArgumentError, InvalidNameError
from holdfast.protocol.limits import MAX_NAME_BYTES, MAX_SUBJECT_BYTES
from holdfast.protocol.names import StoreId, StoreKind, check_store

DEFAULT_NATS: Final = "nats://127.0.0.1:4222"
DEFAULT_PREFIX: Final = "hf"
#: The token that stands in place of a tenant in the cluster's own subjects.
CLUSTER_TENANT: Final = "_"
#: The first token of all inboxes.
DEFAULT_INBOXES: Final = "_INBOX"
_KIND_OF_LETTER: Final = {kind.letter: kind for kind in StoreKind}
#: By the kind as a number: looking up a member of the enum for each subject would cost more.
_LETTERS: Final = {int(kind): kind.letter for kind in StoreKind}


#: The second tokens of subjects that may end in the id of a token.
_GRANTED: Final = frozenset(["coord", "destroy", "fork", "srv"])

#: The id of a token: see `access/tokens.py`.
_TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
#: What can be published to: no wildcards, no spaces, only ASCII.
_CONCRETE: Final = re.compile(r"[!-)+-=?-~]+")


def inboxes_of(tenant: str, grant: str = "", root: str = DEFAULT_INBOXES) -> str:
    """The start of the subjects of all inboxes of a tenant, or of those of the holder of a token;
    a dot and the rest follow."""
    return f"{root}.{tenant}.{grant}" if grant else f"{root}.{tenant}"


@dataclass(frozen=True, slots=True)
class Inboxes:
    """Where one connection gets replies: `<root>.<tenant>.>`, or a part of that.

    `own` are the tokens that this connection adds below its tenant: then other users of the tenant
    need not be permitted to subscribe there. Replies to requests in the name of another tenant, as
    servers and operators make them, come to all inboxes of that tenant.
    """

    root: str = DEFAULT_INBOXES
    tenant: str = CLUSTER_TENANT
    own: str = ""
    #: Whether `own` also holds for requests in the name of other tenants, as an operator's token
    #: requires.
    for_all: bool = False

    @classmethod
    def parse(cls, text: str | None, tenant: str, prefix: str = DEFAULT_PREFIX) -> Inboxes:
        """Return the inboxes that `text` names: `ROOT`, `ROOT.<tenant>` or `ROOT.<tenant>.OWN`.

        ROOT is a single token, so a mistyped tenant cannot pass for a part of it. Raises
        InvalidArgumentError.
        """
        if text is None:
            return cls(tenant=tenant)
        if not isinstance(text, str) or len(text) > MAX_NAME_BYTES or not _is_concrete(text):
            raise _no_inboxes("it must be tokens of printable ASCII, joined by dots")
        root, *below = text.split(".", 2)
        if below and below[0] != tenant:
            raise _no_inboxes(f"its second token must be {tenant!r}: servers reply to nobody else")
        if root == prefix.split(".", 1)[0]:
            raise _no_inboxes(f"it must not begin as the subjects of the cluster do, with {root!r}")
        return cls(root, tenant, below[1] if len(below) > 1 else "")

    @classmethod
    def of_cluster(cls, text: str | None, prefix: str = DEFAULT_PREFIX) -> Inboxes:
        """Return the inboxes of a server, which name the root of all: `text` is that one token.
        Raises InvalidArgumentError."""
        inboxes = cls.parse(text, CLUSTER_TENANT, prefix)
        if inboxes.own:
            raise _no_inboxes("a server takes one token, the first one of all inboxes")
        return inboxes

    def start(self, tenant: str) -> str:
        """The start of the inboxes for requests in the name of `tenant`; a dot and more follow."""
        own = self.own if self.for_all or tenant == self.tenant else ""
        return inboxes_of(tenant, own, self.root)


def _is_concrete(text: str) -> bool:
    return _CONCRETE.fullmatch(text) is not None and all(text.split("."))


def _no_inboxes(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(argument="inbox_prefix", reason=reason)


def granted(pattern: str) -> tuple[str, str]:
    """Return a pattern of clients' requests without and with the id of a token at the end."""
    return pattern, f"{pattern}.*"


@dataclass(frozen=True, slots=True)
class Subjects:
    """Builds and parses the subjects under one prefix, and knows the root of all inboxes.

    The requests of a client that has a token end in `grant`, the token's id: NATS lets only the
    holder publish there, and servers know from it what to check. Without a token nothing follows.
    """

    prefix: str = DEFAULT_PREFIX
    grant: str = ""
    inboxes: str = DEFAULT_INBOXES

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for what is no prefix."""
        try:
            check_store(self.prefix)
        except InvalidNameError as error:
            # Any name of a store is good as the start of a subject.
            reason = f"{self.prefix!r:.80} is not {error.fields['reason']}".partition(";")[0]
            raise InvalidArgumentError(argument="prefix", reason=reason) from None

    # Clients to the coordinator
    def coordinator(self, tenant: str, verb: str) -> str:
        """`resolve`, `suspect`, `servers` or `stores`, asked by a client of `tenant`."""
        return self._granted(f"{self.prefix}.{tenant}.coord.{verb}")

    def coordinator_pattern(self) -> str:
        return f"{self.prefix}.*.coord.*"

    # Clients to persist servers
    def server(self, tenant: str, server: str) -> str:
        """The subject of operation frames for `server`."""
        return self._granted(f"{self.prefix}.{tenant}.srv.{server}")

    def server_pattern(self, server: str) -> str:
        return f"{self.prefix}.*.srv.{server}"

    def server_of(self, subject: str) -> str:
        """The server whose operation frames go on `subject`, or nothing."""
        if not subject.startswith(f"{self.prefix}."):
            return ""
        tokens = subject[len(self.prefix) + 1 :].split(".")
        return tokens[2] if 3 <= len(tokens) <= 4 and tokens[1] == "srv" else ""

    def own(self, server: str, tenant: str) -> str:
        """The subject of operation frames that another server sends to `server`, for stores of
        `tenant`. No client may publish there, so no token is asked for."""
        return f"{self.prefix}._.own.{server}.{tenant}"

    def own_pattern(self, server: str) -> str:
        return f"{self.prefix}._.own.{server}.*"

    def destroy(self, tenant: str, server: str) -> str:
        """The subject on which a client asks `server` to destroy a store of its tenant.

        It is separate, so that permissions can distinguish it from reads and writes.
        """
        return self._granted(f"{self.prefix}.{tenant}.destroy.{server}")

    def destroy_pattern(self, server: str) -> str:
        return f"{self.prefix}.*.destroy.{server}"

    def fork(self, tenant: str, server: str) -> str:
        """The subject on which a client asks `server` to fork a store of its tenant."""
        return self._granted(f"{self.prefix}.{tenant}.fork.{server}")

    def fork_pattern(self, server: str) -> str:
        return f"{self.prefix}.*.fork.{server}"

    # Persist servers to everyone
    def changes(self, store: StoreId) -> str:
        """The subject on which every change of `store` is broadcast."""
        return f"{self.prefix}.{store[0]}.chg.{_LETTERS[store[1]]}.{store[2]}"

    def changes_start(self, tenant: str, kind: int) -> str:
        """The start of the change subjects of all stores of a kind; a name or pattern follows."""
        return f"{self.prefix}.{tenant}.chg.{_LETTERS[kind]}."

    def meta_changes(self, kv: StoreId) -> str:
        """The subject on which the changes of a kv are broadcast without values, while somebody
        wants them."""
        return f"{self.meta_changes_start(kv[0])}{kv[2]}"

    def meta_changes_start(self, tenant: str) -> str:
        """The start of these subjects for all kvs; a name or pattern follows."""
        return f"{self.prefix}.{tenant}.chg.m."

    # Servers, operators and coordinator
    def heartbeat(self) -> str:
        return f"{self.prefix}._.hb"

    def cluster(self, verb: str) -> str:
        """Requests of servers (`register`, `open`, `created`, `release`, `vacate`) and of operators
        (`drain`, `undrain`)."""
        return f"{self.prefix}._.coord.{verb}"

    def control(self, server: str) -> str:
        """The subject of the coordinator's commands to one server."""
        return f"{self.prefix}._.ctl.{server}"

    def blocks(self, server: str) -> str:
        """The subject of other servers' requests to a cache of blocks."""
        return f"{self.prefix}._.blk.{server}"

    def archive(self, server: str) -> str:
        """The subject of owners' requests to a server that reads the archive for them."""
        return f"{self.prefix}._.arc.{server}"

    def operator(self, server: str) -> str:
        """The subject of operators' requests to one server."""
        return f"{self.prefix}._.ops.{server}"

    def audit(self) -> str:
        """The subject on which servers tell the recorder what happened, and operators, in the name
        of their token, what they did."""
        return f"{self.prefix}._.audit{f'.{self.grant}' if self.grant else ''}"

    def is_audit(self, subject: str) -> bool:
        """Tell whether somebody tells the recorder something on `subject`."""
        return f"{subject}.".startswith(f"{self.prefix}._.audit.")

    def may_answer(self, subject: str, reply: str) -> bool:
        """Tell whether a request on `subject` may be answered on `reply`.

        It may, if `reply` is an inbox of the tenant whose subject it is, and of the holder of
        the token that it names. A request names
        its reply subject freely, and servers may publish where a tenant may not. So a
        reply on another tenant's inbox would pass for an answer to that tenant, and one
        on a change subject for a change.
        """
        return (
            reply.startswith(_inboxes_of_asker(self.prefix, self.inboxes, subject))
            and len(reply) <= MAX_SUBJECT_BYTES
            and _CONCRETE.fullmatch(reply) is not None
            and not reply.startswith(f"{self.prefix}.")
        )

    def _granted(self, subject: str) -> str:
        return f"{subject}.{self.grant}" if self.grant else subject

    def tenant_of(self, subject: str) -> str:
        """The tenant token of any subject under this prefix."""
        return subject[len(self.prefix) + 1 :].split(".", 1)[0]

    def verb_of(self, subject: str) -> str:
        """The verb of a request to the coordinator."""
        return subject[len(self.prefix) + 1 :].split(".", 3)[2]

    def grant_of(self, subject: str) -> str:
        """The id of the token that a client's request on `subject` names, or nothing."""
        tokens = subject[len(self.prefix) + 1 :].split(".")
        if len(tokens) == 4 and tokens[1] in _GRANTED:
            return tokens[3]
        return tokens[2] if len(tokens) == 3 and tokens[:2] == [CLUSTER_TENANT, "audit"] else ""

    def asker_of(self, reply: str) -> str:
        """The id of the token in whose inbox a reply goes, or nothing. For a request on which NATS
        lets only operators publish, this is the asker as it says itself."""
        tokens = reply.split(".")
        return tokens[2] if len(tokens) > 4 and _TOKEN_ID.fullmatch(tokens[2]) else ""

    def store_of(self, subject: str) -> StoreId:
        """The store whose change subject this is. Raises InvalidNameError or KeyError."""
        tenant, _, letter, name = subject[len(self.prefix) + 1 :].split(".", 3)
        return StoreId(tenant, _KIND_OF_LETTER[letter], check_store(name))


@lru_cache(1024)
def _inboxes_of_asker(prefix: str, root: str, subject: str) -> str:
    """Return the start of the inboxes of whoever may publish on `subject`. Few of many requests
    have a subject of their own."""
    subjects = Subjects(prefix)
    return f"{inboxes_of(subjects.tenant_of(subject), subjects.grant_of(subject), root)}."
