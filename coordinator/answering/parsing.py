"""Requests of peers, parsed: wire messages in, checked requests out.

Whatever arrives becomes a request or a HoldfastError, never another exception. A wrong name among
many fails alone, in its own slot; a message of the wrong shape is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from holdfast.coordinator.answering.requests import (
    Adopt,
    AskedRate,
    ClaimWork,
    Closed,
    ClosedStore,
    ColdStore,
    Cool,
    Created,
    CreatedStore,
    DeletedRequest,
    Drain,
    Forget,
    HeldClaim,
    Identify,
    ListHelpers,
    ListServers,
    ListStatistics,
    ListStores,
    ListTenants,
    MoveStore,
    Open,
    OpenStore,
    OpenStoreTotals,
    Prove,
    RebalanceRequest,
    Register,
    ReleaseAll,
    ReleasedStore,
    ReleaseRequest,
    Request,
    ResolveRequest,
    Seal,
    ShowTenant,
    StoreToTend,
    SuspectRequest,
    TellStatistics,
    Tend,
    UsageRequest,
    Vacate,
)
from holdfast.coordinator.decisions.part_book import PartKey
from holdfast.protocol.access.audit_event import shown
from holdfast.protocol.control import OPERATOR_VERBS, REPORT_VERB, StoreTotals
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    InvalidNameError,
    OtherClusterError,
    TooLargeError,
    UnknownOperationError,
)
from holdfast.protocol.frames import decode_control
from holdfast.protocol.limits import (
    MAX_ARRAY_LENGTH,
    MAX_FRAME_OPERATIONS,
    MAX_NAME_BYTES,
    PAGE_ROWS,
)
from holdfast.protocol.monitoring.description import GATEWAYS, PartKind
from holdfast.protocol.names import StoreId, StoreKind, check_server, check_store, check_tenant
from holdfast.protocol.subjects import CLUSTER_TENANT
from holdfast.protocol.work.cold_work import MAX_WORK_BYTES, MAX_WORKS
from holdfast.protocol.work.roles import roles_of_wire
from holdfast.protocol.work.zones import zone_of_wire

_Slot = TypeVar("_Slot")


def parse(tenant: str, verb: str, payload: bytes, cluster: str = "") -> Request:
    """Return the request. Raises RequestError or ProtocolError, whatever `payload` holds, also if
    the peer belongs to another cluster than `cluster`.

    Servers and operators use the cluster's own token, which cannot be the name of a tenant. Clients
    of a tenant can only use the verbs of clients.
    """
    if tenant == CLUSTER_TENANT:
        parser = _CLUSTER_VERBS.get(verb) or _OPERATOR_VERBS.get(verb)
    else:
        check_tenant(tenant)
        parser = _CLIENT_VERBS.get(verb)
    if parser is None:
        raise UnknownOperationError(operation=verb[:MAX_NAME_BYTES])
    fields = decode_control(payload, max_length=MAX_ARRAY_LENGTH)
    asker = fields.get("cluster")
    if cluster and asker not in (None, "", cluster) and parser is not _identify:
        who = f"server {fields.get('server')}"[:MAX_NAME_BYTES]
        raise OtherClusterError(who=who, found=str(asker)[:MAX_NAME_BYTES], expected=cluster)
    return parser(tenant, fields)


def _resolve(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> StoreId:
        kind, name = item[:2]
        return _store(tenant, kind, name)

    return ResolveRequest(tuple(_slots(fields, 2, slot)), zone_of_wire(fields))


def _owners(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> StoreId:
        return _store(*item[:3])

    return ResolveRequest(tuple(_slots(fields, 3, slot)), zone_of_wire(fields))


def _suspect(tenant: str, fields: Mapping[str, Any]) -> Request:
    return SuspectRequest(*_peer(fields))


def _servers(tenant: str, fields: Mapping[str, Any]) -> Request:
    return ListServers()


def _stores(tenant: str, fields: Mapping[str, Any]) -> Request:
    kind = fields.get("kind")
    prefix = fields.get("prefix") or ""
    after = fields.get("after")
    limit = fields.get("limit") or PAGE_ROWS
    if kind is not None:
        kind = _kind(kind)
    if type(prefix) is not str or not prefix.isascii():
        raise InvalidArgumentError(argument="prefix", reason="it must be the start of a store name")
    if after is not None:
        if type(after) is not list or len(after) < 2 or type(after[0]) is not str:
            raise InvalidArgumentError(argument="after", reason="it must be nil or [name, kind]")
        if not after[0].isascii():
            raise InvalidArgumentError(argument="after", reason="its name must be a store name")
        after = (after[0], _kind(after[1]))
    if type(limit) is not int or limit < 1:
        raise InvalidArgumentError(argument="limit", reason="it must be a number from 1 on")
    bookmark = fields.get("bookmark")
    if bookmark is not None and type(bookmark) is not bytes:
        raise InvalidArgumentError(argument="bookmark", reason="it must be nil or bytes")
    return ListStores(tenant, kind, prefix, after, min(limit, PAGE_ROWS), bookmark)


def _statistics(tenant: str, fields: Mapping[str, Any]) -> Request:
    after = fields.get("after")
    if after is None:
        return ListStatistics(None)
    if type(after) is not list or len(after) != 3 or not all(type(each) is str for each in after):
        raise InvalidArgumentError(argument="after", reason="it must be nil or the last `next`")
    return ListStatistics(PartKey(*after))


def _report(tenant: str, fields: Mapping[str, Any]) -> Request:
    return _told(fields, GATEWAYS, tenant)


def _report_of_cluster(tenant: str, fields: Mapping[str, Any]) -> Request:
    return _told(fields, GATEWAYS | {PartKind.AUTH}, "")


def _told(fields: Mapping[str, Any], kinds: Collection[PartKind], tenant: str) -> TellStatistics:
    kind, report = fields.get("kind"), fields.get("report")
    if kind not in tuple(kinds):
        raise InvalidArgumentError(argument="kind", reason="only gateways tell about themselves")
    if type(report) is not bytes:
        raise InvalidArgumentError(argument="report", reason="it must be bytes")
    return TellStatistics(PartKey(str(kind), check_server(fields.get("name", "")), tenant), report)


def _drain(tenant: str, fields: Mapping[str, Any]) -> Request:
    return Drain(check_server(fields.get("server", "")), True, shown(fields.get("by") or ""))


def _undrain(tenant: str, fields: Mapping[str, Any]) -> Request:
    return Drain(check_server(fields.get("server", "")), False, shown(fields.get("by") or ""))


def _forget(tenant: str, fields: Mapping[str, Any]) -> Request:
    reassign = fields.get("reassign", False)
    if type(reassign) is not bool:
        raise InvalidArgumentError(argument="reassign", reason="it must be true or false")
    return Forget(check_server(fields.get("server", "")), reassign, shown(fields.get("by") or ""))


def _move(tenant: str, fields: Mapping[str, Any]) -> Request:
    store = _store(*(fields.get(name) for name in ("tenant", "kind", "name")))
    return MoveStore(store, check_server(fields.get("server", "")), shown(fields.get("by") or ""))


def _rebalance(tenant: str, fields: Mapping[str, Any]) -> Request:
    dry_run = fields.get("dry_run", False)
    if type(dry_run) is not bool:
        raise InvalidArgumentError(argument="dry_run", reason="it must be true or false")
    return RebalanceRequest(dry_run, shown(fields.get("by") or ""))


def _tenants(tenant: str, fields: Mapping[str, Any]) -> Request:
    after = fields.get("after") or ""
    if type(after) is not str or not after.isascii():
        raise InvalidArgumentError(
            argument="after", reason="it must be the name of a tenant, or empty"
        )
    return ListTenants(after)


def _register(tenant: str, fields: Mapping[str, Any]) -> Request:
    return Register(*_peer(fields), roles_of_wire(fields.get("roles")), zone_of_wire(fields))


def _prove(tenant: str, fields: Mapping[str, Any]) -> Request:
    return Prove(*_peer(fields), _count(fields))


def _seal(tenant: str, fields: Mapping[str, Any]) -> Request:
    return Seal(*_peer(fields))


def _open(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> OpenStore:
        store_tenant, kind, name, create = item[:4]
        return OpenStore(_store(store_tenant, kind, name), bool(create), _epoch(item[4:]))

    return Open(*_peer(fields), tuple(_slots(fields, 4, slot)))


def _created(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> CreatedStore:
        return CreatedStore(_store(*item[:3]), _number("revision", item[3:]), _totals(item[4:]))

    return Created(*_peer(fields), tuple(_all_slots(fields, 3, slot)))


def _adopt(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> StoreId:
        return _store(*item[:3])

    return Adopt(*_peer(fields), tuple(_all_slots(fields, 3, slot)))


def _claim(tenant: str, fields: Mapping[str, Any]) -> Request:
    offers, gives_back = fields.get("offers"), fields.get("gives_back")
    for name, value in (("offers", offers), ("gives_back", gives_back)):
        if type(value) is not list or len(value) > MAX_WORKS:
            raise InvalidArgumentError(argument=name, reason=f"it must list up to {MAX_WORKS}")
    given = [_held(each) for each in gives_back or () if type(each) is list]
    if len(given) != len(gives_back or ()) or None in given:
        raise InvalidArgumentError(argument="gives_back", reason="each must be [work, epoch]")
    works = frozenset(map(_work, offers or ()))
    return ClaimWork(*_peer(fields), works, tuple(each for each in given if each is not None))


def _tend(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> StoreToTend:
        return StoreToTend(_store(*item[:3]), _held(item[3:]))

    return Tend(*_peer(fields), tuple(_all_slots(fields, 3, slot)))


def _held(rest: list[Any]) -> HeldClaim | None:
    """Return the claim of `[work, epoch]`; None if it is left out."""
    if not rest or rest[0] is None:
        return None
    epoch = _number("claim", rest[1:])
    if epoch is None:
        raise InvalidArgumentError(argument="claim", reason="its epoch must be a number")
    return HeldClaim(_work(rest[0]), epoch)


def _work(name: Any) -> str:
    if type(name) is not str or not 0 < len(name) <= MAX_WORK_BYTES or not name.isascii():
        raise InvalidArgumentError(argument="work", reason="it must be the name of a work")
    return name


def _closed(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> ClosedStore:
        return ClosedStore(*_store_at(item), _totals(item[5:]))

    return Closed(*_peer(fields), tuple(_all_slots(fields, 5, slot)))


def _cold(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> ColdStore:
        return ColdStore(*_store_at(item), _held(item[5:]))

    return Cool(*_peer(fields), tuple(_all_slots(fields, 5, slot)))


def _release(tenant: str, fields: Mapping[str, Any]) -> Request:
    if "stores" in fields and fields["stores"] is None:
        return ReleaseAll(*_peer(fields))

    def slot(item: list[Any]) -> ReleasedStore:
        epoch, revision = _epoch(item[3:]), _number("revision", item[5:])
        nothing, totals = item[4:5] == [True], _totals(item[6:])
        return ReleasedStore(_store(*item[:3]), epoch, nothing, revision, totals)

    to = fields.get("to") or ""
    released = tuple(_all_slots(fields, 3, slot))
    return ReleaseRequest(*_peer(fields), released, check_server(to) if to else "")


def _deleted(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> ReleasedStore:
        epoch = _epoch(item[3:])
        if epoch is None:
            raise InvalidArgumentError(argument="stores", reason="the epoch must be a number")
        return ReleasedStore(_store(*item[:3]), epoch)

    return DeletedRequest(*_peer(fields), tuple(_all_slots(fields, 4, slot)))


def _vacate(tenant: str, fields: Mapping[str, Any]) -> Request:
    return Vacate(*_peer(fields), _count(fields))


def _usage(tenant: str, fields: Mapping[str, Any]) -> Request:
    def slot(item: list[Any]) -> OpenStoreTotals:
        epoch, totals = _number("epoch", item[3:]), _totals(item[4:])
        if epoch is None or totals is None:
            raise InvalidArgumentError(argument="stores", reason="epoch and bytes must be numbers")
        return OpenStoreTotals(_store(*item[:3]), epoch, totals)

    tenants = fields.get("tenants")
    if type(tenants) is not list or len(tenants) > MAX_FRAME_OPERATIONS:
        raise InvalidArgumentError(argument="tenants", reason="it must be a list of tenants")
    rates = tuple(map(_asked_rate, tenants))
    return UsageRequest(*_peer(fields), tuple(_all_slots(fields, 5, slot)), rates)


def _asked_rate(item: Any) -> AskedRate:
    if type(item) is not list or len(item) < 3 or not all(map(_is_rate, item[1:3])):
        raise InvalidArgumentError(
            argument="tenants", reason="each must be [name, operations, bytes]"
        )
    held = item[3:5]
    if not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in held):
        raise InvalidArgumentError(
            argument="tenants", reason="open stores and uploads must be numbers"
        )
    return AskedRate(check_tenant(item[0]), float(item[1]), float(item[2]), *held)


def _is_rate(number: Any) -> bool:
    return type(number) in (int, float) and 0 <= number < _MAX_NUMBER


def _tenant(tenant: str, fields: Mapping[str, Any]) -> Request:
    return ShowTenant(check_tenant(fields.get("tenant", "")))


def _identify(tenant: str, fields: Mapping[str, Any]) -> Request:
    return Identify()


def _helpers(tenant: str, fields: Mapping[str, Any]) -> Request:
    return ListHelpers(zone_of_wire(fields))


def _peer(fields: Mapping[str, Any]) -> tuple[str, str]:
    server = check_server(fields.get("server", ""))
    incarnation = fields.get("incarnation", "")
    try:
        # Both are names of folders, so they have the same grammar.
        return server, check_server(incarnation)
    except InvalidNameError as error:
        raise InvalidNameError(
            what="incarnation", name=str(incarnation)[:MAX_NAME_BYTES], reason=error.reason
        ) from error


def _all_slots(
    fields: Mapping[str, Any], width: int, slot: Callable[[list[Any]], _Slot]
) -> list[_Slot]:
    """Return what `_slots` does, but raise the first error among them."""
    found: list[_Slot] = []
    for item in _slots(fields, width, slot):
        if isinstance(item, HoldfastError):
            raise item
        found.append(item)
    return found


def _slots(
    fields: Mapping[str, Any], width: int, slot: Callable[[list[Any]], _Slot]
) -> list[_Slot | HoldfastError]:
    items = fields.get("stores")
    if type(items) is not list:
        raise InvalidArgumentError(argument="stores", reason="it must be a list of stores")
    if len(items) > MAX_FRAME_OPERATIONS:
        raise TooLargeError(what="number of stores", size=len(items), limit=MAX_FRAME_OPERATIONS)
    found: list[_Slot | HoldfastError] = []
    for item in items:
        if type(item) is not list or len(item) < width:
            raise InvalidArgumentError(
                argument="stores", reason=f"each must be a list of at least {width}"
            )
        try:
            found.append(slot(item))
        except HoldfastError as error:
            found.append(error)
    return found


def _store(tenant: Any, kind: Any, name: Any) -> StoreId:
    return StoreId(check_tenant(tenant), _kind(kind), check_store(name))


def _store_at(item: list[Any]) -> tuple[StoreId, int, int]:
    epoch, revision = _number("epoch", item[3:]), _number("revision", item[4:])
    if epoch is None or revision is None:
        raise InvalidArgumentError(argument="stores", reason="epoch and revision must be numbers")
    return _store(*item[:3]), epoch, revision


def _count(fields: Mapping[str, Any]) -> int:
    number = fields.get("number")
    if type(number) is not int or not 0 < number < _MAX_NUMBER:
        raise InvalidArgumentError(argument="number", reason="it must be a number from 1 on")
    return number


def _epoch(rest: list[Any]) -> int | None:
    return _number("epoch", rest)


def _totals(rest: list[Any]) -> StoreTotals | None:
    """Return the totals of `[bytes, count, time]`; None without the bytes."""
    size_bytes = _number("bytes", rest)
    if size_bytes is None:
        return None
    return StoreTotals(size_bytes, _number("count", rest[1:]), _number("time", rest[2:]))


def _number(what: str, rest: list[Any]) -> int | None:
    number = rest[0] if rest else None
    if number is not None and (type(number) is not int or not 0 <= number < _MAX_NUMBER):
        raise InvalidArgumentError(argument=what, reason="it must be a number from 0 on, or nil")
    return number


def _kind(kind: Any) -> int:
    if type(kind) is not int or kind not in _KINDS:
        raise InvalidArgumentError(argument="kind", reason="it must be 1 (stream) or 2 (kv)")
    return kind


#: Numbers of peers are below this: SQLite can store them, and has room to count further.
_MAX_NUMBER: Final = 1 << 62
_KINDS: Final = frozenset(int(kind) for kind in StoreKind)
_Parser = Callable[[str, Mapping[str, Any]], Request]
_CLIENT_VERBS: Final[dict[str, _Parser]] = {
    "resolve": _resolve,
    "suspect": _suspect,
    "servers": _servers,
    "stores": _stores,
    "statistics": _statistics,
    REPORT_VERB: _report,
}
_OPERATOR_VERBS: Final[dict[str, _Parser]] = dict(
    zip(
        OPERATOR_VERBS,
        (_drain, _undrain, _forget, _move, _rebalance, _tenants, _tenant),
        strict=True,
    )
)
_CLUSTER_VERBS: Final[dict[str, _Parser]] = {
    "register": _register,
    "prove": _prove,
    "seal": _seal,
    "open": _open,
    "adopt": _adopt,
    "claim": _claim,
    "tend": _tend,
    "owners": _owners,
    "created": _created,
    "closed": _closed,
    "cold": _cold,
    "deleted": _deleted,
    "release": _release,
    "vacate": _vacate,
    "usage": _usage,
    "caches": _helpers,
    "cluster": _identify,
    REPORT_VERB: _report_of_cluster,
}
