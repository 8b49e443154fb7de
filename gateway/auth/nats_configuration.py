"""The configuration of a nats-server that holds users to their rights, each line explained.

With the callout, nats-server asks the auth service about everyone who connects with a token, so the
configuration need not change with the tokens. Without it, the configuration names a user for each
token, and must be written anew when tokens are created or revoked. Servers and the coordinator have
a user of their own in both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from holdfast.gateway.auth.system_account import (
    INBOXES,
    LIST_ALL,
    came,
    close_one,
    left,
    list_one,
)
from holdfast.protocol.access.nats_permissions import (
    NatsPermissions,
    permissions_of,
    reports_permissions,
    servers_permissions,
)
from holdfast.protocol.access.tokens import Token, read_token
from holdfast.protocol.limits import MIN_PAYLOAD_BYTES
from holdfast.protocol.subjects import DEFAULT_INBOXES
from holdfast.shared_fs.access.key_folder import (
    AUTH_FILE,
    REPORTS_FILE,
    SERVERS_FILE,
    SYSTEM_FILE,
    PublicKeys,
)

#: The NATS account of servers and clients.
CLUSTER_ACCOUNT: Final = "HOLDFAST"
#: The NATS account of the auth service alone.
AUTH_ACCOUNT: Final = "AUTH"
#: nats-server's own account, in which it tells of connections.
SYSTEM_ACCOUNT: Final = "$SYS"
#: Where nats-server asks the auth service.
CALLOUT_SUBJECT: Final = "$SYS.REQ.USER.AUTH"
#: How long nats-server waits for an answer to that: longer than its default of 2 s, so that clients
#: which connect while the only auth service restarts are not refused.
LOGIN_SECONDS: Final = 5
#: What the auth service may do: hear those requests, and answer them.
AUTH_PERMISSIONS: Final = NatsPermissions(("$SYS._INBOX.>",), (CALLOUT_SUBJECT,))

#: What it may do in the system account, and nothing else there: list connections, hear of them, and
#: close them. Answers come to inboxes of that account, which nobody else is in.
SYSTEM_PERMISSIONS: Final = NatsPermissions(
    (LIST_ALL, list_one("*"), close_one("*")),
    (came(CLUSTER_ACCOUNT), left(CLUSTER_ACCOUNT), f"{INBOXES}.>"),
)
#: Subscriptions of one connection. A client needs one for each store or pattern that it follows; a
#: nats-server needs a few hundred bytes for each.
MAX_SUBSCRIPTIONS: Final = 100_000

_HEAD: Final = f"""\
# The largest message: holdfast needs 1 MiB.
max_payload: {MIN_PAYLOAD_BYTES}
# The longest line from a client: a token travels in the first one.
max_control_line: 4096
# Subscriptions of one connection, so that none fills the memory of nats-server. A client needs one
# for each store or pattern that it follows: raise this if one follows more stores one by one.
max_subscriptions: {MAX_SUBSCRIPTIONS}
# Close a connection whose host is silent after 3 of these. Until then it counts for its token.
ping_interval: "10s"
ping_max: 2
"""


def callout_configuration(keys: PublicKeys, prefix: str, inboxes: str = DEFAULT_INBOXES) -> str:
    """Return the configuration for a NATS whose clients' tokens the auth service checks."""
    nkeys = [keys.servers, keys.auth, *filter(None, (keys.system, keys.reports))]
    return f"""\
# nats-server for holdfast. It asks `holdfast auth serve` what the holder of a token may do.
{_HEAD}
accounts {{
  # Servers and clients of holdfast.
  {CLUSTER_ACCOUNT} {{
    users = [
      # Persist servers and the coordinator log in with {SERVERS_FILE}. The permissions are: publish
      # everything of the cluster and answer every inbox; hear all requests.
      {_user({"nkey": keys.servers}, servers_permissions(prefix, inboxes))}
{_reporters(keys.reports, prefix, inboxes, " " * 6)}
    ]
  }}
  # The auth service alone, so that no client hears what nats-server asks, or answers in its place.
  {AUTH_ACCOUNT} {{
    users = [
      # The auth service logs in with {AUTH_FILE}. It may hear who connects, and answer nats-server.
      {_user({"nkey": keys.auth}, AUTH_PERMISSIONS)}
    ]
  }}
{_system_account(keys.system)}
}}

authorization {{
  # Seconds that a client waits for the auth service before it is refused.
  timeout: {LOGIN_SECONDS}
  auth_callout {{
    # The key that signs the answers; others do not count.
    issuer: "{keys.account}"
    # The account in which nats-server asks.
    account: "{AUTH_ACCOUNT}"
    # Users that log in with their nkeys, without the auth service. Everybody else needs a token.
    auth_users: {json.dumps(nkeys)}
    # Questions and answers are encrypted for this key, because they contain tokens.
    xkey: "{keys.callout}"
  }}
}}
"""


def _reporters(nkey: str | None, prefix: str, inboxes: str, indent: str) -> str:
    if nkey is None:
        lines = [
            f"# The keys have no {REPORTS_FILE}: the auth service, and gateways of many tenants,",
            "# tell nobody what they count. `holdfast auth init` adds it; then write this anew.",
        ]
    else:
        lines = [
            f"# The auth service and gateways log in with {REPORTS_FILE}, to tell the coordinator",
            "# what they count. It permits nothing else.",
            _user({"nkey": nkey}, reports_permissions(prefix, inboxes)),
        ]
    return "\n".join(indent + line for line in lines)


def _system_account(nkey: str | None) -> str:
    if nkey is None:
        return f"""\
  # The keys have no {SYSTEM_FILE}: connections of tokens are not counted, and those of revoked ones
  # stay open. `holdfast auth init` adds it; then write this file anew."""
    return f"""\
  # nats-server's own account, which no client is in.
  {SYSTEM_ACCOUNT} {{
    users = [
      # The auth service logs in here with {SYSTEM_FILE}. It may list connections, hear who comes
      # and goes, and close connections: of revoked tokens, or beyond the limit of a token.
      {_user({"nkey": nkey}, SYSTEM_PERMISSIONS)}
    ]
  }}"""


def static_configuration(
    keys: PublicKeys, prefix: str, tokens: Iterable[str], inboxes: str = DEFAULT_INBOXES
) -> str:
    """Return the configuration for a NATS that knows each of `tokens`, which are verified texts.

    The user of a token is its id, the password the token itself: the text contains secrets.
    """
    users = "\n".join(
        f"    # {_in_words(read_token(text))}\n"
        f"    {_user(_login(text), permissions_of(read_token(text), prefix, inboxes))}"
        for text in tokens
    )
    return f"""\
# nats-server for holdfast, without an auth service. This file contains secrets: chmod 600.
# Write it anew after you have created or revoked a token, then: nats-server --signal reload
{_HEAD}
authorization {{
  users = [
    # Persist servers and the coordinator log in with {SERVERS_FILE}. The permissions are: publish
    # everything of the cluster and answer every inbox; hear all requests.
    {_user({"nkey": keys.servers}, servers_permissions(prefix, inboxes))}
{_reporters(keys.reports, prefix, inboxes, " " * 4)}
    # The holder of a token logs in with its id as user, and with the token as password. It may ask
    # servers in its own name, hear changes of stores that it may read, and its own inboxes.
{users}
  ]
}}
"""


def _login(text: str) -> Mapping[str, str]:
    return {"user": read_token(text).id, "password": text}


def _in_words(token: Token) -> str:
    who = "An operator" if token.is_operator else f"Tenant {token.tenant}"
    holder = f" ({ascii(token.subject)[1:-1]})" if token.subject else ""
    return f"{who}{holder}: {', '.join(token.rights.words)} {' '.join(token.stores)}"


def _user(login: Mapping[str, str], permissions: NatsPermissions) -> str:
    named = ", ".join(f"{name}: {json.dumps(value)}" for name, value in login.items())
    publish, subscribe = _listed(permissions.publish), _listed(permissions.subscribe)
    return (
        f"{{{named}, permissions: {{publish: {{allow: {publish}}}, "
        f"subscribe: {{allow: {subscribe}}}}}}}"
    )


def _listed(subjects: Sequence[str]) -> str:
    # Without a list, NATS permits everything.
    assert subjects
    return json.dumps(list(subjects))
