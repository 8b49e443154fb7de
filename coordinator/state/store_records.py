"""The recorded stores: the owner and the epoch of each, and what is known of its file.

At most one page of them is in memory at a time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.coordinator.state.cluster_record import ClusterRecord, Execute
from holdfast.coordinator.state.promised_stores import PromisedStores
from holdfast.coordinator.state.server_records import IncarnationState, ServerRecords
from holdfast.protocol.control import Owner, StoreInfo, StoreState, StoreTotals
from holdfast.protocol.limits import PAGE_BYTES
from holdfast.protocol.names import StoreId, StoreKind


class TenantUse(NamedTuple):
    """What a tenant has: its stores, and their bytes as far as servers have told them."""

    streams: int
    kvs: int
    bytes: int


class StoreRow(NamedTuple):
    """What is recorded of a store.

    `server` and `incarnation` are empty after the store was released by itself. An
    owner that ended is still named.
    """

    server: str
    incarnation: str
    owner_ended: bool
    epoch: int
    state: int
    #: The revision at which the store went cold; None for a hot store.
    cold: int | None = None
    #: True if clients were only told of it: no server has asked for it, and it is not in the file.
    promised: bool = False
    #: If the store is durable, its file together with the logs has at least this revision.
    revision: int = 0


# The primary keys serve all of these.
_STORE: Final = """SELECT i.server, i.incarnation, i.state, s.epoch, s.state, s.cold, s.revision
    FROM stores AS s LEFT JOIN incarnations AS i ON i.id = s.owner
    WHERE s.tenant = ? AND s.kind = ? AND s.name = ?"""
_ASSIGN: Final = """INSERT INTO stores(tenant, kind, name, owner, epoch, state)
    VALUES (?1, ?2, ?3, (SELECT id FROM incarnations WHERE server = ?4 AND incarnation = ?5),
        ?6, 0)
    ON CONFLICT DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch"""
_RAISE_STATE: Final = """UPDATE stores SET state = ?4
    WHERE tenant = ?1 AND kind = ?2 AND name = ?3 AND state < ?4"""
_SET_COLD: Final = f"""UPDATE stores SET cold = ?4, state = {StoreState.DURABLE:d}
    WHERE tenant = ?1 AND kind = ?2 AND name = ?3"""
_SET_HOT: Final = """UPDATE stores SET cold = NULL
    WHERE tenant = ? AND kind = ? AND name = ? AND cold < ?"""
_RAISE_REVISION: Final = """UPDATE stores SET revision = ?4
    WHERE tenant = ?1 AND kind = ?2 AND name = ?3 AND revision < ?4"""
_FOUND_COLD: Final = f"""INSERT INTO stores(tenant, kind, name, owner, epoch, state, cold)
    VALUES (?, ?, ?, 0, ?, {StoreState.DURABLE:d}, ?)
    ON CONFLICT DO UPDATE SET state = excluded.state, cold = excluded.cold
    WHERE state < excluded.state"""
_FOUND: Final = """INSERT INTO stores(tenant, kind, name, owner, epoch, state)
    VALUES (?, ?, ?, 0, ?, ?)
    ON CONFLICT DO UPDATE SET state = excluded.state WHERE state < excluded.state"""
#: The epoch stays, so the next store of this name gets a higher one.
_SET_DELETED: Final = f"""UPDATE stores SET owner = 0, cold = NULL, revision = 0, bytes = NULL,
        count = NULL, changed = NULL, state = {StoreState.UNKNOWN:d}
    WHERE tenant = ? AND kind = ? AND name = ?"""
_FOUND_DELETED: Final = f"""INSERT INTO stores(tenant, kind, name, owner, epoch, state)
    VALUES (?, ?, ?, 0, ?, {StoreState.UNKNOWN:d})
    ON CONFLICT DO UPDATE SET epoch = max(epoch, excluded.epoch)"""
_RELEASE: Final = "UPDATE stores SET owner = 0 WHERE tenant = ? AND kind = ? AND name = ?"
_FORGET: Final = "DELETE FROM stores WHERE tenant = ? AND kind = ? AND name = ?"
_PAGE: Final = """SELECT s.name, coalesce(i.server, ''), coalesce(i.incarnation, ''), s.epoch,
        s.state, s.cold IS NOT NULL, s.bytes, s.count, s.changed
    FROM stores AS s LEFT JOIN incarnations AS i ON i.id = s.owner AND i.state <> 'released'
    WHERE s.tenant = ?1 AND s.kind = ?2 AND s.name >= ?3 AND s.name < ?4
        AND (s.name > ?5 OR (s.name = ?5 AND ?6))
        AND s.state <> 0
    ORDER BY s.name LIMIT ?7"""
# Skips from tenant to tenant with one lookup in the primary key
# each, however many stores they have.
_TENANTS: Final = """WITH RECURSIVE found(tenant) AS (
        SELECT min(tenant) FROM stores WHERE tenant > ?1
        UNION ALL
        SELECT (SELECT min(tenant) FROM stores WHERE tenant > found.tenant) FROM found
        WHERE found.tenant IS NOT NULL LIMIT ?2)
    SELECT tenant FROM found WHERE tenant IS NOT NULL"""
# The triggers keep the sums, so these cost the same for any number of stores.
_SET_TOTALS: Final = f"""UPDATE stores SET bytes = ?4, count = ?5, changed = ?6
    WHERE tenant = ?1 AND kind = ?2 AND name = ?3 AND state <> {StoreState.UNKNOWN:d}
        AND (bytes, count, changed) IS NOT (?4, ?5, ?6)"""
_USE: Final = "SELECT streams, kvs, bytes FROM tenants WHERE tenant = ?"
#: Above every character of a name, hence an upper bound for all names with a prefix.
_LAST_CHARACTER: Final = "\U0010ffff"


class StoreRecords:
    """Reads and writes the records of the stores, always within a transaction."""

    def __init__(
        self,
        execute: Execute,
        cluster: ClusterRecord,
        servers: ServerRecords,
        promised: PromisedStores,
    ) -> None:
        self._execute = execute
        self._cluster = cluster
        self._servers = servers
        self._promised = promised

    def get(self, store: StoreId) -> StoreRow | None:
        """Return what is recorded of a store, or promised."""
        for server, incarnation, owner_state, epoch, state, cold, revision in self._execute(
            _STORE, store
        ):
            ended = owner_state != IncarnationState.PRESENT
            row = StoreRow(server or "", incarnation or "", ended, epoch, state, cold)
            return row._replace(revision=revision)
        owner = self._promised.get(store)
        if owner is None:
            return None
        known = self._servers.get(owner.server, owner.incarnation)
        ended = known is None or known[0] is not IncarnationState.PRESENT
        unknown = int(StoreState.UNKNOWN)
        return StoreRow(*owner[:2], ended, owner.epoch, unknown, promised=True)

    def promise(self, store: StoreId, owner: Owner) -> None:
        """Remember for a while which owner clients are sent to, for a
        store that nobody has opened."""
        self._promised.add(store, owner)

    def assign(self, store: StoreId, owner: Owner) -> None:
        """Record the owner, a known incarnation. What is known of the file stays."""
        self._promised.discard(store)
        self._execute(_ASSIGN, (*store, owner.server, owner.incarnation, owner.epoch))

    def found(self, store: StoreId, epoch: int, state: StoreState) -> None:
        """Record that a store's file was found, made in `epoch`. Its owner stays."""
        self._execute(_FOUND, (*store, epoch, int(state)))

    def found_cold(self, store: StoreId, epoch: int, revision: int) -> None:
        """Record that the bucket has a store, unless a file of it was found."""
        self._execute(_FOUND_COLD, (*store, epoch, revision))

    def found_deleted(self, store: StoreId, epoch: int) -> None:
        """Record that the bucket marks a store as deleted in `epoch`."""
        self._execute(_FOUND_DELETED, (*store, epoch))

    def raise_state(self, store: StoreId, state: int) -> None:
        """Record a later StoreState; it never goes back."""
        self._execute(_RAISE_STATE, (*store, int(state)))

    def raise_revision(self, store: StoreId, revision: int) -> None:
        """Record that a store is durable up to a revision; it never goes back."""
        self._execute(_RAISE_REVISION, (*store, revision))

    def set_totals(self, store: StoreId, totals: StoreTotals) -> None:
        """Record what a store holds."""
        self._execute(_SET_TOTALS, (*store, *totals))

    def use(self, tenant: str) -> TenantUse:
        """Return what a tenant has."""
        for row in self._execute(_USE, (tenant,)):
            return TenantUse(*row)
        return TenantUse(0, 0, 0)

    def set_cold(self, store: StoreId, revision: int) -> None:
        """Record that the bucket has all of a store up to a revision, so
        that its file may be removed."""
        self._execute(_SET_COLD, (*store, revision))

    def set_hot(self, store: StoreId, revision: int) -> None:
        """Record that a store's file must exist, if `revision` is above the one that went cold."""
        self._execute(_SET_HOT, (*store, revision))

    def set_deleted(self, store: StoreId) -> None:
        """Record that a store was deleted and has no owner."""
        self._execute(_SET_DELETED, store)

    def release(self, store: StoreId) -> None:
        """Record that nobody owns the store. Epoch and state stay."""
        self._promised.discard(store)
        self._execute(_RELEASE, store)

    def forget(self, store: StoreId, epoch: int) -> None:
        """Delete the row of a store that does not exist and has no owner; keep only its epoch."""
        self._execute(_FORGET, store)
        self._cluster.forget_epoch(epoch)

    def page(
        self,
        tenant: str,
        kind: int | None,
        prefix: str,
        after: tuple[str, int] | None,
        limit: int,
    ) -> tuple[list[StoreInfo], tuple[str, int] | None]:
        """Return one page in order of (name, kind), and what to pass as `after` for the next page.

        A page has at most `limit` rows and PAGE_BYTES. Each kind is one range of the primary key.
        """
        found: list[StoreInfo] = []
        for each in StoreKind if kind is None else (StoreKind(kind),):
            last_name, last_kind = after if after is not None else ("", 0)
            # If both kinds have a store of one name, the higher kind comes second.
            bounds = (prefix, prefix + _LAST_CHARACTER, last_name, each > last_kind, limit + 1)
            rows = self._execute(_PAGE, (tenant, int(each), *bounds))
            found.extend(
                StoreInfo._make((int(each), *row[:4], StoreState(row[4]), bool(row[5]), *row[6:]))
                for row in rows
            )
        found.sort(key=lambda info: (info.name, info.kind))
        page: list[StoreInfo] = []
        size_bytes = 0
        for info in found:
            size_bytes += len(info.name) + len(info.server) + len(info.incarnation) + 48
            if len(page) == limit or size_bytes > PAGE_BYTES:
                return page, (page[-1].name, page[-1].kind)
            page.append(info)
        return page, None

    def tenants(self, after: str, limit: int) -> tuple[list[str], str | None]:
        """Return the names above `after` of tenants that have or had stores, in order.

        At most `limit`; also returns what to pass as `after` for the next page.
        """
        found = [str(row[0]) for row in self._execute(_TENANTS, (after, limit + 1))]
        if len(found) > limit:
            return found[:limit], found[limit - 1]
        return found, None
