"""The NATS permissions that follow from a token: the first of the layers that hold alone.

A token's holder may publish only to subjects that end in the token's id, so servers know from the
subject whose rights to check; it may subscribe to the changes of the stores that it may read, and
to inboxes of its own. Pure: the callout gives these permissions to a connection, and
`holdfast nats-config` writes them down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.protocol.access.rights import ALL_RIGHTS, Right
from holdfast.protocol.access.tokens import Token, split_pattern
from holdfast.protocol.control import LISTING_VERBS, OPERATOR_VERBS, REPORT_VERB
from holdfast.protocol.names import StoreKind
from holdfast.protocol.subjects import CLUSTER_TENANT, DEFAULT_INBOXES, Subjects, inboxes_of

#: The pattern that all stores match.
EVERY_STORE: Final = ">"
#: The token of the inboxes of those who only tell what they count.
REPORTS_INBOX: Final = "reports"


@dataclass(frozen=True, slots=True)
class NatsPermissions:
    """Subjects that a connection may publish and subscribe to, and nothing else."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions_of(token: Token, prefix: str, inboxes: str = DEFAULT_INBOXES) -> NatsPermissions:
    """Return what the holder of `token` may do in a cluster on `prefix`, whose inboxes all begin
    with `inboxes`."""
    subjects = Subjects(prefix, token.id)
    tenant = token.tenant  # `*`, which is also NATS's wildcard, for an operator
    publish = [subjects.server(tenant, "*"), subjects.coordinator(tenant, "*")]
    if Right.DESTROY in token.rights:
        publish.append(subjects.destroy(tenant, "*"))
    if Right.READ | Right.WRITE in token.rights:
        publish.append(subjects.fork(tenant, "*"))
    subscribe = [f"{inboxes_of(tenant, token.id, inboxes)}.>"]
    if Right.READ in token.rights:
        for pattern in token.stores:
            kinds, plain = split_pattern(pattern)
            subscribe += [f"{subjects.changes_start(tenant, kind)}{plain}" for kind in kinds]
            if StoreKind.KV in kinds:
                subscribe.append(f"{subjects.meta_changes_start(tenant)}{plain}")
    if token.is_operator:
        # Nobody checks these again: they name no token.
        if _may_do_everything(token):
            publish += [subjects.cluster(verb) for verb in OPERATOR_VERBS]
            publish += [subjects.operator("*"), subjects.audit()]
        elif Right.LIST in token.rights:
            publish += [subjects.cluster(verb) for verb in LISTING_VERBS]
        # Replies to an operator's requests go to the cluster's inboxes.
        subscribe.append(f"{inboxes_of(CLUSTER_TENANT, token.id, inboxes)}.>")
    return NatsPermissions(tuple(publish), tuple(subscribe))


def _may_do_everything(token: Token) -> bool:
    return token.rights == ALL_RIGHTS and EVERY_STORE in token.stores


def reports_permissions(prefix: str, inboxes: str = DEFAULT_INBOXES) -> NatsPermissions:
    """Return what a part needs that has no other rights, to tell the coordinator what it counts."""
    own = inboxes_of(CLUSTER_TENANT, REPORTS_INBOX, inboxes)
    return NatsPermissions((Subjects(prefix).cluster(REPORT_VERB),), (f"{own}.>",))


def servers_permissions(prefix: str, inboxes: str = DEFAULT_INBOXES) -> NatsPermissions:
    """Return what persist servers and coordinators need. They may answer every inbox."""
    return NatsPermissions(
        (f"{prefix}.>", f"{inboxes}.>"),
        (
            f"{prefix}._.>",
            f"{prefix}.*.coord.>",
            f"{prefix}.*.srv.>",
            f"{prefix}.*.destroy.>",
            f"{prefix}.*.fork.>",
            f"{inboxes}.>",
        ),
    )
