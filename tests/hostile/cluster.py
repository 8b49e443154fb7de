"""The cluster that is attacked: nats-server with a user for each tenant, as docs/operations.md has
it, or with an auth service.

Two persist servers and two coordinators, one of them a standby, under the user that servers have;
each tenant has the permissions of a tenant and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.hostile.tokens.access import Access
from tests.support.supervised_cluster import PROGRAM, Parts

SERVERS: Final = ("s1", "s2")
#: The tenant that attacks, and the one that must not notice.
HOSTILE: Final = "evil"
VICTIM: Final = "victim"
#: `permissions` of docs/operations.md. Publishing is granted a little wider than there: `>` for
#: `*`.
_CONFIGURATION: Final = """
max_payload: 1048576
authorization {
  users = [
    {user: "holdfast", password: "secret", permissions: {
      publish: ["hf.>", "_INBOX.>"]
      subscribe: ["hf._.>", "hf.*.coord.*", "hf.*.srv.*", "hf.*.destroy.*", "_INBOX.>"]
    }}
%s
  ]
}
"""
_USER: Final = """    {user: "%(tenant)s", password: "secret", permissions: {
      publish: ["hf.%(tenant)s.coord.>", "hf.%(tenant)s.srv.>", "hf.%(tenant)s.destroy.>"]
      subscribe: ["hf.%(tenant)s.chg.>", "_INBOX.%(tenant)s.>"]
    }}"""


def parts_with_tokens(data: Path, access: Access, program: Sequence[str] = PROGRAM) -> Parts:
    """Return the parts of a cluster that asks for tokens, as `holdfast up --auth` composes it."""
    configuration = data / "nats.conf"
    configuration.write_text(access.configuration)
    options = ["--config", str(configuration)]
    return Parts(data, SERVERS, options, servers_nkey=access.nkey, program=program)


def attacked_parts(data: Path) -> Parts:
    """Return the parts of the cluster, to be run in `data`."""
    data.mkdir(parents=True, exist_ok=True)
    configuration = data / "nats.conf"
    users = "\n".join(_USER % {"tenant": tenant} for tenant in (HOSTILE, VICTIM))
    configuration.write_text(_CONFIGURATION % users)
    return Parts(data, SERVERS, ["--config", str(configuration)], "holdfast:secret@")


def url_of(parts: Parts, tenant: str) -> str:
    """Return what a client of `tenant` connects to."""
    return f"nats://{tenant}:secret@{parts.nats_address}"
