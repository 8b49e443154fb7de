"""`connect`: how a client comes to be, from what the application says and the environment has."""

from __future__ import annotations

import ssl
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from holdfast.client.connection import Client
from holdfast.client.following.follower import Follower
from holdfast.client.wire.link import Link
from holdfast.client.wire.operations import check_patience, check_timeout
from holdfast.protocol.access.own_token import OwnToken, TokenLike, own_token
from holdfast.protocol.bus.bus import Bus
from holdfast.protocol.bus.bus_nats import connect_nats
from holdfast.protocol.bus.login import NatsLogin, StrPath, TlsFiles, retried
from holdfast.protocol.bus.nats_url import parse_url, without_passwords
from holdfast.protocol.direct import place
from holdfast.protocol.direct.caller_bus import CallerBus
from holdfast.protocol.direct.messages import NUMBER_BYTES
from holdfast.protocol.direct.pipe import DirectPipe
from holdfast.protocol.errors import ConnectionFailedError, HoldfastError, InvalidArgumentError
from holdfast.protocol.limits import OPERATION_TIMEOUT_SECONDS
from holdfast.protocol.names import check_tenant
from holdfast.protocol.subjects import DEFAULT_NATS, DEFAULT_PREFIX, Inboxes, Subjects
from holdfast.protocol.work.zones import own_zone

_DEFAULT_TENANT: Final = "default"


class _Asked(NamedTuple):
    """What `connect` was asked for, checked."""

    nats: str
    tenant: str
    subjects: Subjects
    inboxes: Inboxes
    timeout_seconds: float
    name: str
    bus: Bus | None
    compression: bool
    login: NatsLogin
    token: OwnToken | None
    wait_seconds: float | None
    zone: str
    direct: Path | None


class Connecting:
    """The result of `connect`: use it with `async with`, or `await` it and close the
    client yourself.
    """

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._client is not None
        await self._client.close()

    async def _open(self) -> Client:
        asked = self._asked
        bus, token, subjects = asked.bus, asked.token, asked.subjects
        if bus is None:
            bus = await connect_nats(
                asked.nats,
                name=asked.name,
                login=asked.login,
                inboxes=asked.inboxes,
                wait_seconds=asked.wait_seconds,
            )
            if asked.direct is not None:
                bus = _direct(bus, asked.direct, subjects, token)
        if token is not None:

            def move() -> None:
                bus.move_inboxes(token.inboxes(asked.inboxes))

            token.on_renewed = move
            move()
            subjects = replace(subjects, grant=token.id)
        link = Link(
            bus,
            subjects,
            asked.tenant,
            asked.timeout_seconds,
            compression=asked.compression,
            token=token,
            zone=asked.zone,
        )
        follower = Follower(link)
        client = Client(link, follower, owns_bus=asked.bus is None)
        try:
            await link.open(follower)
        except BaseException:
            await client.close()
            raise
        return client


def connect(
    nats: str = DEFAULT_NATS,
    *,
    tenant: str | None = None,
    token: TokenLike | None = None,
    prefix: str = DEFAULT_PREFIX,
    timeout_seconds: float = OPERATION_TIMEOUT_SECONDS,
    name: str = "holdfast-client",
    bus: Bus | None = None,
    compression: bool = True,
    credentials: StrPath | None = None,
    nkey: StrPath | None = None,
    tls: TlsFiles | ssl.SSLContext | None = None,
    inbox_prefix: str | None = None,
    wait_seconds: float | None = None,
    zone: str | None = None,
    direct: StrPath | None = None,
    **nats_options: Any,
) -> Connecting:
    """Connect to NATS: `async with connect(...) as hf:`, or `hf = await connect(...)`.

    - `nats` is a URL, or several joined by commas. User and password in it are percent-encoded.
    - `tenant` is the tenant whose stores the client uses: by default that of the token, or
      `default`.
    - `token` says what the client may do: the text of a token, the path of a file with it, or a
      callable that returns it. A file or a callable is asked again when the client reconnects, so
      it can renew the token; both must have the same subject. Without it, the environment may
      have one: see docs/access.md. NATS gets the token too, unless it gets a user and a password.
      Text of another form is a token of NATS alone.
    - `prefix` is the subject prefix of the cluster.
    - `timeout_seconds` bounds each operation with all its retries, unless the call has its own. It
      is at most 300.
    - `name` is the name of the connection that NATS shows.
    - `bus` replaces the connection to NATS; `Client.close` does not close it.
    - `compression`: values above 1 KiB are compressed with zstd if that saves at least an eighth,
      if the extra `compression` is installed, and if the cluster says that all readers know it.
      With False nothing is compressed, but compressed values can still be read.
    - `credentials` is the path of a NATS credentials file, `nkey` of a file with the seed of an
      nkey. They need the extra `auth`, and other users must not be able to open them.
    - `tls` refuses a connection that is not encrypted. TlsFiles names the files of CAs and of a
      client certificate; an SSLContext can do more.
    - `inbox_prefix` restricts replies to a part of the tenant's inboxes, for example
      `_INBOX.<tenant>.<user>`, or replaces `_INBOX`, as all parts of the cluster must do.
    - `wait_seconds` keeps trying for so long if NATS cannot be reached, or does not accept this
      process yet; `float("inf")` for ever. By default the first failure counts.
    - `zone` is where this process runs, such as an availability zone: new stores that it asks for
      first go to servers of that zone. By default the environment says it: see
      docs/operations.md.
    - `direct` is the folder in which persist servers of this host listen (`holdfast persist
      --direct`), for the same user. Operations go to them directly, which spares the hops through
      NATS; everything else goes over NATS, and so do operations while a server cannot be reached
      directly.
    - `nats_options` are other options of nats-py's `connect` for identity and security: `user`,
      `password`, `nkeys_seed_str`, `tls_hostname` and similar ones.
      `connect_timeout` is the number of seconds after which connecting is given up, 5 by default.

    Raises InvalidNameError, InvalidArgumentError and InvalidTokenError at once; when it is entered
    or awaited, ConnectionFailedError if NATS cannot be reached, LoginFailedError if NATS and this
    process do not accept each other, InvalidArgumentError for a file that cannot be used.

        async with connect("nats://127.0.0.1:4222", tenant="acme") as hf:
            await hf.stream("project.42.patches").append(b"...")
    """
    check_timeout(timeout_seconds)
    check_patience("wait_seconds", wait_seconds)
    if not isinstance(compression, bool):
        reason = f"must be True or False, not {compression!r:.80}"
        raise InvalidArgumentError(argument="compression", reason=reason)
    for argument, text in (("nats", nats), ("name", name)):
        if not isinstance(text, str):
            reason = f"must be text, not {type(text).__name__}"
            raise InvalidArgumentError(argument=argument, reason=reason)
    own = _own(token, nats)
    if own is not None and "password" not in nats_options and parse_url(nats).user is None:
        nats_options |= {name: retried(each) for name, each in own.nats_options().items()}
    elif own is None and token is not None:
        nats_options["token"] = token
    if own is not None:
        tenant = own.tenant(tenant, _DEFAULT_TENANT)
    tenant = check_tenant(_DEFAULT_TENANT if tenant is None else tenant)
    return Connecting(
        _Asked(
            nats,
            tenant,
            Subjects(prefix),
            Inboxes.parse(inbox_prefix, tenant, prefix),
            timeout_seconds,
            name,
            bus,
            compression,
            NatsLogin(credentials=credentials, nkey=nkey, tls=tls, options=nats_options),
            own,
            wait_seconds,
            own_zone(zone),
            None if direct is None else place.check_folder(direct, "direct"),
        )
    )


def _direct(bus: Bus, folder: Path, subjects: Subjects, token: OwnToken | None) -> Bus:
    """Return a bus that reaches persist servers of this host directly."""

    async def dial(server: str) -> DirectPipe | None:
        return place.dial(folder, server, bus.max_payload_bytes + NUMBER_BYTES)

    return CallerBus(bus, subjects, dial, lambda: "" if token is None else token.text)


def _own(token: TokenLike | None, nats: str) -> OwnToken | None:
    try:
        return own_token(token)
    except HoldfastError:
        raise
    except Exception as error:
        reason = f"the callable of the token raised {type(error).__name__}: {error}"
        raise ConnectionFailedError(url=without_passwords(nats), reason=reason) from error
