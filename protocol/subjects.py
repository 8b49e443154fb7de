"""The NATS subjects of holdfast, in one place.

`hf` is the prefix (configurable), and a tenant is the token after it, so plain NATS permissions
isolate tenants: a client of tenant `acme` may publish `hf.acme.coord.>` and `hf.acme.srv.>`, and
`hf.acme.destroy.>` where it may destroy its stores, and subscribe `hf.acme.chg.>` and the inboxes
of its tenant, `_INBOX.acme.>`. The token `_`, which no tenant can be named, holds what servers and
the coordinator say among themselves, and what operators ask. Whoever asks on subjects of a tenant
takes the replies on an inbox of that tenant, whoever it is: servers reply nowhere else, or a
request could send a reply to somebody who did not ask. """

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.protocol.limits import MAX_SUBJECT_BYTES
from holdfast.protocol.names import StoreId, StoreKind, check_store

DEFAULT_NATS: Final = "nats://127.0.0.1:4222"
DEFAULT_PREFIX: Final = "hf"
#: The token that stands where a tenant would in the cluster's own subjects.
CLUSTER_TENANT: Final = "_"
_KIND_OF_LETTER: Final = {kind.letter: kind for kind in StoreKind}
#: By the kind as a number. A member of the enum would have to be looked up for each subject.
_LETTERS: Final = {int(kind): kind.letter for kind in StoreKind}


#: What can be published to: no wildcards, no spaces, nothing but ASCII.
_CONCRETE: Final = re.compile(r"[!-)+-=?-~]+")


def inboxes_of(tenant: str) -> str:
    """What the subjects of all inboxes of a tenant start with; a dot and the rest follow."""
    return f"_INBOX.{tenant}"


@dataclass(frozen=True, slots=True)
class Subjects:
    """Builds and parses the subjects under one prefix."""

    prefix: str = DEFAULT_PREFIX

    # Clients to the coordinator
    def coordinator(self, tenant: str, verb: str) -> str:
        """`resolve`, `suspect`, `servers` or `stores`, asked by a client of `tenant`."""
        return f"{self.prefix}.{tenant}.coord.{verb}"

    def coordinator_pattern(self) -> str:
        return f"{self.prefix}.*.coord.*"

    # Clients to persist servers
    def server(self, tenant: str, server: str) -> str:
        """Where a frame of operations for `server` goes."""
        return f"{self.prefix}.{tenant}.srv.{server}"

    def server_pattern(self, server: str) -> str:
        return f"{self.prefix}.*.srv.{server}"

    def destroy(self, tenant: str, server: str) -> str:
        """Where a client asks `server` to destroy a store of its tenant. A subject of its own, so
        that permissions tell it from reads and writes."""
        return f"{self.prefix}.{tenant}.destroy.{server}"

    def destroy_pattern(self, server: str) -> str:
        return f"{self.prefix}.*.destroy.{server}"

    # Persist servers to everyone
    def changes(self, store: StoreId) -> str:
        """Where every change of `store` is broadcast."""
        return f"{self.prefix}.{store[0]}.chg.{_LETTERS[store[1]]}.{store[2]}"

    def changes_start(self, tenant: str, kind: int) -> str:
        """What the change subjects of all stores of a kind start with; a name or pattern
        follows."""
        return f"{self.prefix}.{tenant}.chg.{_LETTERS[kind]}."

    # Servers, operators and coordinator
    def heartbeat(self) -> str:
        return f"{self.prefix}._.hb"

    def cluster(self, verb: str) -> str:
        """`register`, `open`, `created`, `release` or `vacate`, asked by a persist server; `drain`
        or `undrain`, asked by an operator."""
        return f"{self.prefix}._.coord.{verb}"

    def control(self, server: str) -> str:
        """Commands of the coordinator to one server."""
        return f"{self.prefix}._.ctl.{server}"

    def operator(self, server: str) -> str:
        """What operators ask of one server."""
        return f"{self.prefix}._.ops.{server}"

    def may_answer(self, subject: str, reply: str) -> bool:
        """Tell if a request on `subject` may be answered on `reply`: only on an inbox of the tenant
        in whose name it is asked.

        A request names its reply subject freely, and servers may publish what a tenant may not: a
        reply on another tenant's inbox would pass for the answer to a request of that tenant's, and
        one on a change subject for a change.
        """
        inboxes = inboxes_of(self.tenant_of(subject))
        return (
            reply.startswith(f"{inboxes}.")
            and len(reply) <= MAX_SUBJECT_BYTES
            and _CONCRETE.fullmatch(reply) is not None
            and not reply.startswith(f"{self.prefix}.")
        )

    def tenant_of(self, subject: str) -> str:
        """The tenant token of any subject under this prefix."""
        return subject[len(self.prefix) + 1 :].split(".", 1)[0]

    def store_of(self, subject: str) -> StoreId:
        """The store whose change subject this is. Raises InvalidNameError or KeyError."""
        tenant, _, letter, name = subject[len(self.prefix) + 1 :].split(".", 3)
        return StoreId(tenant, _KIND_OF_LETTER[letter], check_store(name))
