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

from holdfast.protocol.access.nats_permissions import (
    NatsPermissions,
    permissions_of,
    servers_permissions,
)
from holdfast.protocol.access.tokens import Token, read_token
from holdfast.protocol.limits import MIN_PAYLOAD_BYTES
from holdfast.shared_fs.access.key_folder import AUTH_FILE, SERVERS_FILE, PublicKeys

#: The NATS account of servers and clients.
CLUSTER_ACCOUNT: Final = "HOLDFAST"
#: The NATS account of the auth service alone.
AUTH_ACCOUNT: Final = "AUTH"
#: Where nats-server asks the auth service.
CALLOUT_SUBJECT: Final = "$SYS.REQ.USER.AUTH"
#: How long nats-server waits for an answer to that: longer than its default of 2 s, so that clients
#: which connect while the only auth service restarts are not refused.
LOGIN_SECONDS: Final = 5
#: What the auth service may do: hear those requests, and answer them.
AUTH_PERMISSIONS: Final = NatsPermissions(("$SYS._INBOX.>",), (CALLOUT_SUBJECT,))

_HEAD: Final = f"""\
# The largest message: holdfast needs 1 MiB.
max_payload: {MIN_PAYLOAD_BYTES}
# The longest line from a client: a token travels in the first one.
max_control_line: 4096
"""


def callout_configuration(keys: PublicKeys, prefix: str) -> str:
    """Return the configuration for a NATS whose clients' tokens the auth service checks."""
    return f"""\
# nats-server for holdfast. It asks `holdfast auth serve` what the holder of a token may do.
{_HEAD}
accounts {{
  # Servers and clients of holdfast.
  {CLUSTER_ACCOUNT} {{
    users = [
      # Persist servers and the coordinator log in with {SERVERS_FILE}. The permissions are: publish
      # everything of the cluster and answer every inbox; hear all requests.
      {_user({"nkey": keys.servers}, servers_permissions(prefix))}
    ]
  }}
  # The auth service alone, so that no client hears what nats-server asks, or answers in its place.
  {AUTH_ACCOUNT} {{
    users = [
      # The auth service logs in with {AUTH_FILE}. It may hear who connects, and answer nats-server.
      {_user({"nkey": keys.auth}, AUTH_PERMISSIONS)}
    ]
  }}
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
    auth_users: ["{keys.servers}", "{keys.auth}"]
    # Questions and answers are encrypted for this key, because they contain tokens.
    xkey: "{keys.callout}"
  }}
}}
"""


def static_configuration(servers_nkey: str, prefix: str, tokens: Iterable[str]) -> str:
    """Return the configuration for a NATS that knows each of `tokens`, which are verified texts.

    The user of a token is its id, the password the token itself: the text contains secrets.
    """
    users = "\n".join(
        f"    # {_in_words(read_token(text))}\n"
        f"    {_user(_login(text), permissions_of(read_token(text), prefix))}"
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
    {_user({"nkey": servers_nkey}, servers_permissions(prefix))}
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
