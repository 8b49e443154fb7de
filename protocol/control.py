"""Control messages: everything that clients, servers and the coordinator say outside the hot path.

Each is a msgpack map (`frames.encode_control`). Unknown fields are ignored, so either side may be
newer. A refusal is `{"error": code, "fields": {...}}`; `frames.decode_control` raises it.

Clients to the coordinator, on `hf.<tenant>.coord.<verb>`:

    resolve   {stores: [[kind, name], ...], zone} -> {term, owners: [owner | error, ...]}
              owner is [server, incarnation, epoch], error is [nil, code, fields]; in order.
              `zone` is that of the client (`work/zones.py`), and may be left out: a store without
              an owner goes to a server of the zone of its last one, or else of this one
    suspect   {server, incarnation} -> {alive}          probed, and fenced if dead, before the reply
    servers   {} -> {term, servers: [ServerInfo, ...]}
    stores    {kind | nil, prefix, after, limit} -> {stores: [StoreInfo, ...], next | nil}
              in order of (name, kind); `after` and `next` are [name, kind] or nil

    statistics  {after} -> {term, parts: [[kind, name, tenant, incarnation, age, report], ...],
                            next | nil}
              what each part told last, `age` seconds ago, as `monitoring/telling.py` has it; kind
              is a PartKind. `after` is the last `next`, or nil
    report    {kind, name, report} -> {term}    a gateway tells about itself

Operators to the coordinator, on `hf._.coord.<verb>`, which no tenant may publish to:

    drain     {server} -> {term, incarnation}           it gets no new stores and releases its own
    undrain   {server} -> {term, incarnation}           it takes stores again
    forget    {server, reassign} -> {term, incarnation} a dead server is no longer listed. Refused
              while it is recorded as the owner of stores, unless `reassign` gives these up
    move      {tenant, kind, name, server} -> {term, owner: [server, incarnation, epoch], moving}
              this server is to own the store. `moving`: its owner has been told to hand it over,
              and soon does, unless a job has the store
    rebalance {dry_run} -> {term, servers: [[server, load, operations, bytes, open_stores], ...],
               moves: [[tenant, kind, name, from, to, load], ...], imbalance, running, moved,
               failed}
              what the servers do, a second, and the moves after which none has more than
              `imbalance` times the mean load. Unless `dry_run`, a run begins that makes such moves
              until there are none. `running`: one is under way. `moved` and `failed`: what the last
              one did
    tenants   {after} -> {tenants: [name, ...], next | nil}
              those that have or had stores, in order; `after` is the last `next`, or empty. Also
              `use`, for each [streams, kvs, bytes, quota, open_stores, uploads]: what it has, what
              it may use, and what servers hold of it, if that is limited
    tenant    {tenant} -> {term, use, rates: [[server, operations, bytes], ...]}
              the same of one; if it has a quota, what was lately asked of each server, a second

Persist servers to the coordinator, on `hf._.coord.<verb>`:

    register  {server, incarnation, roles, zone} -> {term, time, roles}
              an incarnation is a member from now on, and may own stores if it has the role for
              that. `roles` (`work/roles.py`), here and in heartbeats: left out, it has all. In the
              answer, those that the coordinator knows. `zone`, here and in heartbeats, may be left
              out
    prove     {server, incarnation, number} -> {term, number}
              the number is durable beside the fence, with the term: a server that reads less there
              has a mount that lies. Before `register`, and now and then. An answer without a
              number means that there is no such file, as in a bucket
    seal      {server, incarnation} -> {term, logs: [[server, incarnation], ...]}
              these are fenced and have left a log, and their logs are sealed: a server that does
              not see the seals has a mount that shows something older. An answer without `logs`
              means that there are no such files, as in a bucket
    open      {server, incarnation, stores: [[tenant, kind, name, create, known_epoch], ...]}
              -> {term, grants: [grant | error, ...], ended}
              `ended` changes whenever an incarnation has ended in this term. It may be left out.
              grant is [epoch, state, state_before, cold, revision]; for the states see StoreState.
              `epoch` is above `known_epoch`, which is what the server found on disk, or nil.
              `state_before` is the state before this request.
              `cold` is the revision at which the store went cold; nil or left out if it is hot. It
              is also 0 if a coordinator that lost its state does not know yet whether the bucket
              has the store.
              `revision`, which may be left out, is the least that the file and the logs have
              reached; a lower one means an older file.
    adopt     {server, incarnation, stores: [[tenant, kind, name], ...]} -> as open
              grants those that exist and have no owner any more
              Earlier versions ask this; later ones claim work, and tend stores
    claim     {server, incarnation, offers: [work, ...], gives_back: [[work, epoch], ...]}
              -> {term, claims: [[work, epoch], ...], wanted: [work, ...]}
              the server offers to do this cold work (`work/cold_work.py`). `claims` is all that it
              has from now on; it gives back what is `wanted` once it is done with that
    tend      {server, incarnation, stores: [[tenant, kind, name, work, epoch], ...]}
              -> {term, stores: [[epoch, owned] | nil, ...]}
              which of these stores the server owns; and which of the others it may work on, since
              they have no owner, and it has the claim `work` in this epoch. For the former
              `work` may be nil. A store keeps its epoch, until it has another owner
    caches    {zone} -> {term, caches: [server, ...], archives: [server, ...]}
              the live servers of that zone, or without one, that keep blocks of snapshots, and
              those that read the archive for others
    created   {server, incarnation, stores: [[tenant, kind, name, revision, bytes], ...]} -> {term}
              their files are durable at that revision. From now on a missing file is damage, and
              a store that went cold at a lower revision is hot. `bytes` is the size of the content,
              nil or left out if it is not known
    closed    {server, incarnation, stores: [[tenant, kind, name, epoch, revision, bytes], ...]}
              -> {term}    their files were closed, durable, at that revision. Changes nothing if
              the epoch is not the store's. May come late, or never
    owners    {stores: [[tenant, kind, name], ...]} -> as `resolve`
              for servers of a cluster that asks for tokens, since they have none
    cold      {server, incarnation, stores: [[tenant, kind, name, epoch, revision, work, claim],
               ...]} -> {term, cold: [bool, ...]}
              a verified snapshot in the bucket has all of the store; true if that is recorded, so
              that the file may be removed. `work` and the epoch of its claim may be left out. With
              them, also of a store that has had no owner since the epoch that `tend` told
    deleted   {server, incarnation, stores: [[tenant, kind, name, epoch], ...]}
              -> {term, deleted: [bool, ...]}
              the store is deleted and has no owner; true if that is recorded. The next owner of
              the name has a higher epoch
    release   {server, incarnation,
               stores: [[tenant, kind, name, epoch, nothing, revision, bytes], ...] | nil,
               to} -> {term}
              the stores are closed and checkpointed. With an epoch, only if it is still the
              store's. `to`, which may be left out, names the server that is to own them from now
              on; if it takes no stores, nobody owns them. With `nothing` there is no file and no
              record of the store, and the coordinator keeps none either. `revision`, unless nil or
              left out, is as in `closed`. nil releases all stores and ends the incarnation
    vacate    {server, incarnation, number} -> {term}   nothing is open: all stores are released,
              and the incarnation lives on. A number that was used already changes nothing
    usage     {server, incarnation, stores: [[tenant, kind, name, epoch, bytes], ...],
               tenants: [[tenant, operations, bytes, open_stores, uploads], ...]}
              -> {term, tenants: {tenant: [bytes, share, byte_share], ...},
                  elsewhere: {tenant: [open_stores, uploads], ...}}
              the sizes of open stores, and what was asked of the server, a second, and is held by
              it, where tenants have quotas. The answer tells what each tenant has in the cluster,
              the server's shares of its rates, and what other servers hold

Heartbeats, published on `hf._.hb` without a reply; `state` is a ServerPhase:

    {server, incarnation, state, open_stores, log_bytes, operations_per_second, snapshot_backlog,
     bucket_requests, cluster, loop_seconds, asks_for_tokens, roles, zone, given_up, report}

`report` is what the server counts (`monitoring/telling.py`), in every second heartbeat. Standbys
tell theirs in some of the messages to themselves. `given_up` is how many requests by which it gives
up stores (`release`, `deleted`, `cold`, `vacate`) the server has begun; nil, or left out, while one
of them is under way.

Every request of a server, and every answer and command of the coordinator, has the field `cluster`:
the id of the sender's cluster (`shared_fs/bucket/cluster_id.py`), unless the sender does not know
it yet. A message of another cluster is refused with OtherClusterError. `cluster {} -> {term}`, on
the same subjects as `register`, only asks for that id; a coordinator sends it at its start.

Servers to a server with the role `cache`, on `hf._.blk.<server>`:

    {key, start, length, ahead} -> {part}
              a part of one block of a snapshot or pack, shorter at the object's end. `ahead` is how
              much the asker wants from `start` on
    {drop: key}    what it told of this object was wrong

Owners to a server with the role `archive`, on `hf._.arc.<server>`:

    {table, tenant, name, messages, age_ms} -> {bodies: [[value, headers], ...]}
              values and headers of archived messages of one stream, as a read of the archive finds
              them, in the order of the request: as many as fit, at least one. `messages` has for
              each seq, revision, time, size and checksum, 8 bytes little-endian each. `age_ms`: the
              version of the table that is read must have been looked up no longer ago

The coordinator to a server, on `hf._.ctl.<server>`. A command with a lower `term` than the highest
that the server has heard is refused with DeposedError:

    probe     {command: "probe", term} -> {server, incarnation, state, term}
    register  {command: "register", term} -> the same   "I do not know you": register again
    drain     {command: "drain", term, incarnation} -> the same
    undrain   {command: "undrain", term, incarnation} -> the same
    load      {command: "load", term, limit} -> the same and {operations, bytes, open_stores,
               stores: [[tenant, kind, name, epoch, operations, bytes], ...]}
              what it was asked for lately, a second, and the busiest of its open stores, at most
              `limit`, the busiest first. Earlier versions refuse this, and the next
    move      {command: "move", term, incarnation, to, stores: [[tenant, kind, name, epoch], ...]}
              -> the same and {moving}
              it hands these stores over, and releases them to the server `to`
    granted   {command: "granted", term, incarnation, given_up, ended,
               stores: [[tenant, kind, name, epoch, revision], ...]}, without an answer
              the coordinator has just named it as the owner of these stores, which are durable and
              hot, and grants them as `open` would. Void unless `given_up` is what the server would
              tell in a heartbeat. Only told to those that tell that

Operators to a server, on the same subject:

    snapshot  {command: "snapshot", stores: [[tenant, kind, name], ...] | nil}
              -> the same and {snapshots}
              this many stores will soon be snapshotted; nil stands for all open ones. The
              manifests show when they are done
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import (
    LOAD_BYTES,
    LOAD_OPEN_STORES,
    LOOP_STALL_SECONDS,
    MAX_INTEGER,
    MAX_NAME_BYTES,
)
from holdfast.protocol.names import StoreId, check_server
from holdfast.protocol.work.roles import ALL_ROLES, NEEDED_ROLES, Role, Roles, roles_of_wire
from holdfast.protocol.work.zones import NOWHERE, zone_of_wire

#: What operators ask of the coordinator on the cluster's own subjects. All else there is for
#: servers.
OPERATOR_VERBS: Final = (
    "drain",
    "undrain",
    "forget",
    "move",
    "rebalance",
    "tenants",
    "tenant",
)
#: Those that change nothing.
LISTING_VERBS: Final = ("tenants", "tenant")
#: Gateways tell what they count in the name of a tenant; those of many tenants, and the auth
#: service, on the cluster's own subject.
REPORT_VERB: Final = "report"


class StoreState(IntEnum):
    """What is known of a store's file when a server is granted the store."""

    #: It was never written.
    UNKNOWN = 0
    #: A server was allowed to create it. Its file may not exist yet, or may be in a log only.
    CREATED = 1
    #: Its file has been durable: if it is missing now, data is lost.
    DURABLE = 2


class ServerPhase(StrEnum):
    """The phase of an incarnation, as its server reports it; on the wire it is `state`."""

    RUNNING = "running"
    #: Opens nothing, releases its stores, and keeps running.
    DRAINING = "draining"
    #: The same, before the end of this incarnation.
    STOPPING = "stopping"


class ServerState(StrEnum):
    """The state of a server, according to the coordinator."""

    #: Heartbeats arrive. It gets new stores.
    LIVE = "live"
    #: Asked to leave. It keeps its stores until it has released them, and gets no new ones.
    DRAINING = "draining"
    #: Silent or suspected, and being probed. It keeps its stores and gets no new ones.
    SUSPECT = "suspect"
    #: Its incarnation is fenced. Its stores get new owners when they are next resolved.
    DEAD = "dead"


class Owner(NamedTuple):
    """The server that serves a store."""

    server: str
    incarnation: str
    epoch: int


class Grant(NamedTuple):
    """The coordinator's permission to open a store."""

    epoch: int
    state: int
    #: The state before this grant, which may be the one that creates the store.
    state_before: int = StoreState.CREATED
    #: The revision at which it went cold; None if it is hot and its file must exist.
    cold: int | None = None
    #: The least revision of its file and the logs together; a lower one means an older file.
    revision: int = 0


class ServerInfo(NamedTuple):
    """A persist server as the coordinator knows it: one row of `holdfast servers`."""

    server: str
    incarnation: str
    #: A ServerState: live, draining, suspect or dead.
    state: str
    heartbeat_age_seconds: float
    #: The number of stores that it owns.
    assigned_stores: int
    #: The number of them that are open.
    open_stores: int
    operations_per_second: float
    #: The size of its commit log, on the shared file system.
    log_bytes: int
    #: Stores that wait for a snapshot.
    snapshot_backlog: int = 0
    #: Requests to the bucket in the last hour.
    bucket_requests: int = 0
    #: False if it is open: it serves clients without a token.
    asks_for_tokens: bool = False
    #: What it is there for: each a Role.
    roles: Sequence[str] = tuple(Role)
    #: How many pieces of cold work it has claimed.
    claims: int = 0
    #: Where it runs; empty if it tells no zone.
    zone: str = NOWHERE


def missing_roles(servers: Iterable[ServerInfo]) -> list[Role]:
    """Return the needed roles that no live server has, unless no server lives at all."""
    living = [each.roles for each in servers if each.state == ServerState.LIVE]
    return [role for role in NEEDED_ROLES if living and not any(role in each for each in living)]


class StoreLoad(NamedTuple):
    """What an open store was asked for lately, a second."""

    store: StoreId
    operations: float
    bytes: float
    epoch: int = 0

    @property
    def load(self) -> float:
        """Its load; see `load_of`."""
        return load_of(self.operations, self.bytes)


class ServerLoad(NamedTuple):
    """What a server was asked for lately, a second, and the busiest of its open stores."""

    server: str
    incarnation: str
    operations: float
    bytes: float
    open_stores: int
    hot: tuple[StoreLoad, ...] = ()
    zone: str = NOWHERE

    @property
    def load(self) -> float:
        """Its load; see `load_of`."""
        return load_of(self.operations, self.bytes, self.open_stores)


def load_of(operations: float, size_bytes: float, open_stores: int = 0) -> float:
    """Return a load in operations a second: what `operations` and `size_bytes` a second, and so
    many open stores, take of a server. See LOAD_BYTES and LOAD_OPEN_STORES."""
    return operations + size_bytes / LOAD_BYTES + open_stores / LOAD_OPEN_STORES


class StoreTotals(NamedTuple):
    """What an owner tells of the content of a store. Servers of earlier versions tell the bytes
    alone."""

    bytes: int
    #: Of messages, or of keys.
    message_count: int | None = None
    #: Of the last change, in milliseconds since the epoch.
    time: int | None = None


class StoreInfo(NamedTuple):
    """A store as the coordinator knows it: one row of `holdfast stores`."""

    #: A StoreKind.
    kind: int
    name: str
    #: Its owner, or its last one.
    server: str
    incarnation: str
    epoch: int
    state: StoreState
    #: True if its file may be in the bucket only.
    cold: bool = False
    #: The bytes of its content, as an owner told: when it made, closed or released the store, and
    #: within about a minute of a change while it is open. None if none did. Coordinators of
    #: earlier versions do not tell.
    bytes: int | None = None
    #: The same for the number of its messages, or keys, and the time of its last change in
    #: milliseconds since the epoch.
    message_count: int | None = None
    time: int | None = None


class Heartbeat(NamedTuple):
    """What a server publishes about itself twice a second."""

    server: str
    incarnation: str
    state: str = ServerPhase.RUNNING
    open_stores: int = 0
    log_bytes: int = 0
    operations_per_second: float = 0.0
    snapshot_backlog: int = 0
    bucket_requests: int = 0
    #: The id of its cluster; empty if the server does not know it yet.
    cluster: str = ""
    #: How long its event loop has been stuck; 0 if it runs.
    loop_seconds: float = 0.0
    #: Whether it refuses clients without a token.
    asks_for_tokens: bool = False
    roles: Roles = ALL_ROLES
    zone: str = NOWHERE
    #: How many requests by which it gives up stores it has begun, if all are answered; else None.
    given_up: int | None = None

    @property
    def hangs(self) -> bool:
        """True if the server reports that its loop has been stuck for too long to count as
        alive."""
        return self.loop_seconds > LOOP_STALL_SECONDS

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> Heartbeat:
        """Return the heartbeat in `fields`. Raises InvalidNameError, InvalidArgumentError."""
        state = fields.get("state", ServerPhase.RUNNING)
        if type(state) is not str or len(state) > MAX_NAME_BYTES:
            raise InvalidArgumentError(argument="state", reason="it must be a short text")
        return cls(
            server=check_server(fields.get("server", "")),
            incarnation=check_server(fields.get("incarnation", "")),
            state=state,
            open_stores=int(_load(fields, "open_stores")),
            log_bytes=int(_load(fields, "log_bytes")),
            operations_per_second=float(_load(fields, "operations_per_second")),
            snapshot_backlog=int(_load(fields, "snapshot_backlog")),
            bucket_requests=int(_load(fields, "bucket_requests")),
            cluster=_cluster(fields.get("cluster", "")),
            loop_seconds=float(_load(fields, "loop_seconds")),
            asks_for_tokens=_flag(fields, "asks_for_tokens"),
            roles=roles_of_wire(fields.get("roles")),
            zone=zone_of_wire(fields),
            given_up=_count(fields.get("given_up")),
        )


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    """Return whether something holds; it does not if it is left out."""
    value = fields.get(name, False)
    if type(value) is not bool:
        raise InvalidArgumentError(argument=name, reason="it must be true or false")
    return value


def _count(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise InvalidArgumentError(argument="given_up", reason="it must be a number from 0 on")
    return value


def _cluster(value: object) -> str:
    if type(value) is not str or len(value) > MAX_NAME_BYTES:
        raise InvalidArgumentError(argument="cluster", reason="it must be a short text")
    return value


def _load(fields: Mapping[str, Any], name: str) -> int | float:
    """Return a number of a heartbeat that can be listed and compared; 0 if it is left out."""
    value = fields.get(name, 0)
    if type(value) not in (int, float) or not 0 <= value <= MAX_INTEGER:
        raise InvalidArgumentError(argument=name, reason="it must be a number from 0 on")
    number: int | float = value
    return number
