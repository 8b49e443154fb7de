"""Control messages: what clients, servers and the coordinator say outside the hot path.

Each is a msgpack map (`frames.encode_control`); unknown fields are ignored, so either side may be
newer. A refusal is `{"error": code, "fields": {...}}` and is raised by `frames.decode_control`.

Clients to the coordinator, on `hf.<tenant>.coord.<verb>`:

    resolve   {stores: [[kind, name], ...]} -> {term, owners: [owner | error, ...]}
              owner is [server, incarnation, epoch], error is [nil, code, fields], in order
    suspect   {server, incarnation} -> {alive}          probed, and fenced if dead, before the reply
    servers   {} -> {term, servers: [ServerInfo, ...]}
    stores    {kind | nil, prefix, after, limit} -> {stores: [StoreInfo, ...], next | nil}
              in order of (name, kind); `after` and `next` are [name, kind] or nil

Operators to the coordinator, on `hf._.coord.<verb>`, where no tenant's permissions reach:

    drain     {server} -> {term, incarnation}           gets no new stores, releases what it has
    undrain   {server} -> {term, incarnation}           takes stores again
    tenants   {after} -> {tenants: [name, ...], next | nil}
              those that have or had stores, in order; `after` is the last `next`, or empty

Persist servers to the coordinator, on `hf._.coord.<verb>`:

    register  {server, incarnation} -> {term}   before anything else in an incarnation's life
    open      {server, incarnation, stores: [[tenant, kind, name, create, known_epoch], ...]}
              -> {term, grants: [grant | error, ...]}
              grant is [epoch, state, state_before, cold, revision], see StoreState;
              a grant's epoch is above `known_epoch`, what the server found on disk
              (or nil); `state_before` is as it was before this request; `cold` is left
              out, or the revision at which the store was left to the bucket (0 also of a store of
              which a coordinator that lost its state does not know yet if it is in the bucket), or
              nil; `revision` is left out, or what its file and the logs have reached at least: less
              is an older file
    adopt     {server, incarnation, stores: [[tenant, kind, name], ...]} -> as open
              those that exist, and that nobody owns any more, are the asker's
    created   {server, incarnation, stores: [[tenant, kind, name, revision], ...]} -> {term}
              their files are durable at that revision; from now on a missing file is damage, and
              what was cold at a lower revision is hot
    closed    {server, incarnation, stores: [[tenant, kind, name, epoch, revision], ...]} -> {term}
              their files were closed, durable, at that revision; with another epoch than the
              store's it changes nothing. May come late, or never
    cold      {server, incarnation, stores: [[tenant, kind, name, epoch, revision], ...]}
              -> {term, cold: [bool, ...]}              a verified snapshot in the bucket has all of
              it; true if it is recorded, so that the file may go
    deleted   {server, incarnation, stores: [[tenant, kind, name, epoch], ...]}
              -> {term, deleted: [bool, ...]}
              nothing of it counts any more, nobody owns it;
              true if it is recorded. Its next owner has a higher epoch
    release   {server, incarnation,
               stores: [[tenant, kind, name, epoch, nothing, revision], ...] | nil} -> {term}
              closed and checkpointed; with an epoch only if that is still the store's; with
              `nothing` there is no file and no record of it, and the coordinator keeps nothing
              either; `revision`, unless it is nil or left out, is as in `closed`;
              nil releases all and ends the incarnation
    vacate    {server, incarnation, number} -> {term}   it has nothing open: all of its stores are
              released, and it lives on. A number that was used already changes nothing

Heartbeats, published on `hf._.hb` without a reply; `state` is a ServerPhase:

    {server, incarnation, state, open_stores, log_bytes, operations_per_second, snapshot_backlog,
     bucket_requests, cluster, loop_seconds}

Everything that servers ask and that the coordinator answers or commands has `cluster`, the id of
the cluster that the speaker is of (`shared_fs/bucket/cluster_id.py`), unless it does not know it
yet. What is of another cluster is refused with OtherClusterError. `cluster {} -> {term}`, asked on
the same subjects as `register`, asks for nothing else: a coordinator that starts does so.

The coordinator to a server, on `hf._.ctl.<server>`. A command of a lower `term` than the highest
that the server has heard is refused with DeposedError:

    probe     {command: "probe", term} -> {server, incarnation, state, term}
    register  {command: "register", term} -> the same   "I do not know you": register again
    drain     {command: "drain", term, incarnation} -> the same
    undrain   {command: "undrain", term, incarnation} -> the same

Operators to a server, on the same subject:

    snapshot  {command: "snapshot", stores: [[tenant, kind, name], ...] | nil}
              -> the same and {snapshots}
              so many stores, nil being all that it has open, go to the bucket soon;
              the manifests tell when they have
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import LOOP_STALL_SECONDS, MAX_INTEGER, MAX_NAME_BYTES
from holdfast.protocol.names import check_server


class StoreState(IntEnum):
    """What is known of a store's file when a server is granted the store."""

    #: It was never written.
    UNKNOWN = 0
    #: A server was allowed to create it. Its file may not exist yet; it may be in a log only.
    CREATED = 1
    #: Its file has been durable: if it is missing now, data is lost.
    DURABLE = 2


class ServerPhase(StrEnum):
    """The phase of an incarnation, as its server tells it: on the wire `state`."""

    RUNNING = "running"
    #: Opens nothing, releases what it has, and stays.
    DRAINING = "draining"
    #: The same, on its way to the end of this incarnation.
    STOPPING = "stopping"


class ServerState(StrEnum):
    """The state of a server, according to the coordinator."""

    #: Heartbeats arrive; gets new work.
    LIVE = "live"
    #: Asked to leave: keeps what it owns until released, gets no new work.
    DRAINING = "draining"
    #: Silent or suspected; being probed. Keeps what it owns, gets no new work.
    SUSPECT = "suspect"
    #: Its incarnation is fenced; what it owned goes elsewhere when next resolved.
    DEAD = "dead"


class Owner(NamedTuple):
    """Who serves a store."""

    server: str
    incarnation: str
    epoch: int


class Grant(NamedTuple):
    """The coordinator's leave to open a store."""

    epoch: int
    state: int
    #: As it was before the grant, which may be the one to create the store.
    state_before: int = StoreState.CREATED
    #: The revision at which it went cold; None of a hot one, whose file must be there.
    cold: int | None = None
    #: What its file, with what the logs have beyond, has reached at least: less is an older file.
    revision: int = 0


class ServerInfo(NamedTuple):
    """A persist server as the coordinator knows it: one row of `holdfast servers`."""

    server: str
    incarnation: str
    #: A ServerState: live, draining, suspect or dead.
    state: str
    heartbeat_age_seconds: float
    #: Stores that it owns.
    assigned_stores: int
    #: Those of them that are open.
    open_stores: int
    operations_per_second: float
    #: The size of its commit log, on the shared file system.
    log_bytes: int
    #: Stores that wait for a snapshot.
    snapshot_backlog: int = 0
    #: Requests to the bucket in the last hour.
    bucket_requests: int = 0


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
    #: Its file may be in the bucket alone.
    cold: bool = False


class Heartbeat(NamedTuple):
    """What a server says of itself twice a second."""

    server: str
    incarnation: str
    state: str = ServerPhase.RUNNING
    open_stores: int = 0
    log_bytes: int = 0
    operations_per_second: float = 0.0
    snapshot_backlog: int = 0
    bucket_requests: int = 0
    #: The id of its cluster; empty from a server that does not know it yet.
    cluster: str = ""
    #: For how long its event loop has not turned; 0 of one that does.
    loop_seconds: float = 0.0

    @property
    def hangs(self) -> bool:
        """It says itself that it has served nobody for too long to count as alive."""
        return self.loop_seconds > LOOP_STALL_SECONDS

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> Heartbeat:
        """Return the heartbeat in `fields`. Raises InvalidNameError, InvalidArgumentError."""
        state = fields.get("state", ServerPhase.RUNNING)
        if type(state) is not str or len(state) > MAX_NAME_BYTES:
            raise InvalidArgumentError(argument="state", reason="a word is wanted")
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
        )


def _cluster(value: object) -> str:
    if type(value) is not str or len(value) > MAX_NAME_BYTES:
        raise InvalidArgumentError(argument="cluster", reason="an id is wanted")
    return value


def _load(fields: Mapping[str, Any], name: str) -> int | float:
    """Return a number of a heartbeat, 0 if it is left out: one that can be listed and compared."""
    value = fields.get(name, 0)
    if type(value) not in (int, float) or not 0 <= value <= MAX_INTEGER:
        raise InvalidArgumentError(argument=name, reason="a number from 0 on is wanted")
    number: int | float = value
    return number
