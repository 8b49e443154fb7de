"""Answers requests about a store other than reads and writes.

Operators list, take and restore snapshots of a store, fork and delete it. Applications fork and
destroy stores of their tenant. A request names its job (`job_table.py`), which `versions.py`,
`forking.py` or `deleting.py` carries out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from holdfast.persist.access.frame_access import FrameAccess
from holdfast.persist.jobs.deleting import DeletionJobs
from holdfast.persist.jobs.erasure import ErasureJobs
from holdfast.persist.jobs.forking import ForkJobs, ForkPoint
from holdfast.persist.jobs.job_table import JobTable, Report
from holdfast.persist.jobs.purging import PurgeJobs
from holdfast.persist.jobs.reencrypting import ReencryptJobs
from holdfast.persist.jobs.versions import VersionJobs
from holdfast.persist.recovery.point_in_time import RestoreTarget
from holdfast.protocol import frames
from holdfast.protocol.access.audit_event import (
    AUDIT_STORE,
    AuditAction,
    AuditOutcome,
    shown,
    shown_store,
)
from holdfast.protocol.access.rights import Right
from holdfast.protocol.errors import (
    HoldfastError,
    InvalidArgumentError,
    NotAllowedError,
    UnavailableError,
    internal_error,
)
from holdfast.protocol.limits import MAX_ARRAY_LENGTH, MAX_INTEGER, MAX_SWEPT_STORES
from holdfast.protocol.names import (
    StoreId,
    StoreKind,
    check_key,
    check_store,
    check_tenant,
)
from holdfast.protocol.serving.audit_trail import NO_AUDIT, Audit, note_refusal
from holdfast.protocol.serving.mishaps import Mishaps
from holdfast.shared_fs.erasure.sought import Sought

logger = logging.getLogger("holdfast.persist")

#: Begins a job. A job that is cancelled before it runs has made no coroutine.
Work = Callable[[], Coroutine[Any, Any, Report]]
#: The jobs of operators that the audit log has, by their verbs. The others only read.
_ACTIONS: Final = {
    "backup": AuditAction.STORE_BACKED_UP,
    "restore": AuditAction.STORE_RESTORED,
    "delete": AuditAction.STORE_DELETED,
    "purge": AuditAction.STORE_PURGED,
    "reencrypt": AuditAction.STORE_REENCRYPTED,
    "fork": AuditAction.STORE_FORKED,
}
#: Of a request to fork: it is kept in the manifest.
_MAX_REQUEST_LENGTH: Final = 64
#: The verbs that may name a tenant, or several stores. What they do, another one has decided.
_SWEEPS: Final = frozenset(["sweep", "sweep_stores", "remains"])


class BucketJobs(NamedTuple):
    """The jobs that need a bucket; None without one."""

    versions: VersionJobs | None
    forks: ForkJobs | None


class ErasingJobs(NamedTuple):
    """The jobs after which what was there before is void, and those that remove it."""

    purges: PurgeJobs
    reencryption: ReencryptJobs
    erasure: ErasureJobs


class Administrator:
    """Answers what operators and applications ask of one incarnation."""

    def __init__(
        self,
        server: str,
        deletions: DeletionJobs,
        bucket_jobs: BucketJobs,
        erasing: ErasingJobs,
        audit: Audit = NO_AUDIT,
    ) -> None:
        self._server = server
        self._deletions = deletions
        self._versions, self._forks = bucket_jobs
        self._purges, self._reencryption, self._erasure = erasing
        self._audit = audit
        self._jobs = JobTable(server)
        self._mishaps = Mishaps(logger)

    def command(self, payload: bytes, asker: str = "") -> bytes:
        """Start a job, or report on it, and return the reply, whatever `payload` holds. `asker` is
        the id of the operator's token, if there is one."""

        def answer() -> Report:
            fields = frames.decode_control(payload, max_length=MAX_ARRAY_LENGTH)
            return self._jobs.answer("", fields.get("job"), lambda: self._audited(fields, asker)())

        return self._replied(answer)

    def destroy(self, tenant: str, payload: bytes, access: FrameAccess | None = None) -> bytes:
        """Start to destroy a store for an application of `tenant`, or report on that, and return
        the reply, whatever `payload` holds. Without `access`, everything is allowed."""

        def answer() -> Report:
            fields = frames.decode_control(payload, max_length=MAX_ARRAY_LENGTH)
            store, epoch = _named(tenant, fields, "store"), _integer(fields, "epoch")
            grant = "" if access is None else access.grant.id
            if access is not None:
                try:
                    access.check(Right.DESTROY, store)
                except NotAllowedError as error:
                    note_refusal(self._audit, tenant, grant, error)
                    raise
            if epoch is None:
                raise InvalidArgumentError(
                    argument="epoch", reason="it must be the epoch of the store's head"
                )

            def destroy() -> Coroutine[Any, Any, Report]:
                tell = partial(
                    self._audit.note,
                    AuditAction.STORE_DESTROYED,
                    token=grant,
                    tenant=tenant,
                    store=shown_store(store.kind, store.name),
                )
                return _told(partial(self._deletions.destroy, store, epoch), tell)

            return self._jobs.answer(tenant, fields.get("job"), destroy)

        return self._replied(answer)

    def fork(self, tenant: str, payload: bytes, access: FrameAccess | None = None) -> bytes:
        """Start to fork a store for an application of `tenant`, or to prepare that, or report on
        it, and return the reply, whatever `payload` holds. Without `access`, everything is
        allowed."""

        def answer() -> Report:
            fields = frames.decode_control(payload, max_length=MAX_ARRAY_LENGTH)
            parent = _named(tenant, fields, "parent")
            # It is missing in a request to prepare.
            store = _named(tenant, fields, "store") if "store" in fields else None
            grant = "" if access is None else access.grant.id
            if access is not None:
                try:
                    access.check(Right.READ, parent)
                    if store is not None:
                        access.check(Right.WRITE, store)
                except NotAllowedError as error:
                    note_refusal(self._audit, tenant, grant, error)
                    raise
            if store is None:
                prepare = partial(self._with_forks().prepare, parent)
                return self._jobs.answer(tenant, fields.get("job"), prepare)
            work = self._fork(store, parent, fields)
            tell = partial(
                self._audit.note,
                AuditAction.STORE_FORKED,
                token=grant,
                tenant=tenant,
                store=shown_store(store.kind, store.name),
            )
            details = {"parent": shown(parent.name)}
            return self._jobs.answer(tenant, fields.get("job"), lambda: _told(work, tell, details))

        return self._replied(answer)

    async def stop(self) -> None:
        """Cancel the jobs that run."""
        await self._jobs.stop()

    def _replied(self, answer: Callable[[], Report]) -> bytes:
        """Return the reply with an answer, or with the error that it raises."""
        try:
            return frames.encode_control(**answer())
        except HoldfastError as error:
            return frames.encode_control_error(error)
        except Exception as error:  # noqa: BLE001 (the reply carries it)
            self._mishaps.note("operator.job_failed", self._server, error)
            return frames.encode_control_error(internal_error("the job", error))

    def _audited(self, fields: Mapping[str, Any], asker: str) -> Work:
        """Return the job that is asked for; the audit log gets how it ends, if it changes
        anything."""
        work = self._work(fields)
        if fields.get("verb") in _SWEEPS:
            return work
        action = _ACTIONS.get(str(fields.get("verb")))
        store = _store(fields.get("store"))
        is_backup = action is AuditAction.STORE_BACKED_UP
        # A backup of the audit log that went into it would never be complete.
        if action is None or fields.get("dry_run") or (is_backup and store == AUDIT_STORE):
            return work
        details: dict[str, Any] = {}
        if action is AuditAction.STORE_RESTORED:
            details = {name: fields[name] for name in ("time", "revision") if fields.get(name)}
            if fields.get("source") is not None:
                details["source"] = shown(str(_store(fields["source"])))
        if action is AuditAction.STORE_FORKED:
            details = {"parent": shown(_store(fields.get("parent")).name)}
        tell = partial(
            self._audit.note if is_backup else self._audit.record,
            action,
            token=asker,
            user=shown(fields.get("by") or ""),
            tenant=store.tenant,
            store=shown_store(store.kind, store.name),
        )
        return partial(_told, work, tell, details)

    def _work(self, fields: Mapping[str, Any]) -> Work:
        if fields.get("verb") == "remains":
            return partial(self._erasure.remains, _sought(fields))
        if fields.get("verb") == "sweep":
            return partial(self._erasure.sweep, _sought(fields))
        if fields.get("verb") == "sweep_stores":
            return partial(self._erasure.sweep, _sought_of_stores(fields))
        store = _store(fields.get("store"))
        match fields.get("verb"):
            case "versions":
                return partial(self._with_bucket().versions, store)
            case "backup":
                return partial(self._with_bucket().backup, store)
            case "restore":
                target = RestoreTarget(_integer(fields, "time"), _integer(fields, "revision"))
                target.check()
                source = fields.get("source")
                return partial(
                    self._with_bucket().restore,
                    store,
                    store if source is None else _store(source),
                    target,
                    nearest=bool(fields.get("nearest")),
                    dry_run=bool(fields.get("dry_run")),
                )
            case "prepare":
                return partial(self._with_forks().prepare, store)
            case "fork":
                return self._fork(store, _store(fields.get("parent")), fields)
            case "delete":
                return partial(self._deletions.delete, store)
            case "purge":
                place = _place(store, fields)
                if place is None:
                    return partial(self._purges.store, store)
                return partial(self._purges.value, store, place)
            case "reencrypt":
                with_archived = bool(fields.get("with_archived"))
                return partial(self._reencryption.reencrypt, store, with_archived=with_archived)
            case unknown:
                raise InvalidArgumentError(argument="verb", reason=f"{unknown!r:.80} is unknown")

    def _fork(self, store: StoreId, parent: StoreId, fields: Mapping[str, Any]) -> Work:
        seq, revision = _integer(fields, "seq"), _integer(fields, "revision")
        point = ForkPoint(seq, revision, _integer(fields, "least") or 0)
        point.check(parent)
        request = fields.get("request")
        if type(request) is not str or not 1 <= len(request) <= _MAX_REQUEST_LENGTH:
            raise InvalidArgumentError(argument="request", reason="it must be a short text")
        return partial(self._with_forks().fork, store, parent, point, request)

    def _with_bucket(self) -> VersionJobs:
        if self._versions is None:
            raise self._without_bucket()
        return self._versions

    def _with_forks(self) -> ForkJobs:
        if self._forks is None:
            raise self._without_bucket()
        return self._forks

    def _without_bucket(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            argument="--bucket", reason=f"server {self._server!r} was started without one"
        )


async def _told(
    work: Work,
    tell: Callable[..., None],
    details: Mapping[str, Any] = MappingProxyType({}),
) -> Report:
    """Do `work`, and `tell` the audit log how it ended. It has not if whoever asked will ask again:
    because it was cancelled, or may succeed later."""
    try:
        report = await work()
    except UnavailableError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, HoldfastError) else type(error).__name__
        tell(outcome=AuditOutcome.FAILED, reason=reason, details=dict(details))
        raise
    told = {name: value for name, value in report.items() if type(value) is int}
    tell(outcome=AuditOutcome.DONE, details={**details, **told})
    return report


def _store(value: Any) -> StoreId:
    if type(value) is not list or len(value) < 3:
        raise InvalidArgumentError(
            argument="store", reason="it must be a list of tenant, kind and name"
        )
    tenant, kind, name = value[:3]
    if type(kind) is not int or kind not in tuple(StoreKind):
        raise InvalidArgumentError(argument="kind", reason="it must be 1 (stream) or 2 (kv)")
    return StoreId(check_tenant(tenant), int(kind), check_store(name))


def _named(tenant: str, fields: Mapping[str, Any], argument: str) -> StoreId:
    """Return a store of a tenant that a request of an application names."""
    named = fields.get(argument)
    if type(named) is not list:
        raise InvalidArgumentError(
            argument=argument, reason="it must be a list of kind and name"
        )
    return _store([tenant, *named])


def _place(store: StoreId, fields: Mapping[str, Any]) -> int | str | None:
    """Return the seq or the key that a request names; None if it is about the whole store."""
    seq, key = _integer(fields, "seq"), fields.get("key")
    if seq is not None and key is None and store.kind == StoreKind.STREAM:
        return seq
    if key is not None and seq is None and store.kind == StoreKind.KV:
        return check_key(str(key))
    if key is None and seq is None:
        return None
    raise InvalidArgumentError(argument="key", reason="a stream has seqs, and a kv has keys")


def _sought(fields: Mapping[str, Any]) -> Sought:
    """Return what a request looks for: a store up to an epoch, or all of a tenant."""
    if fields.get("store") is None:
        return Sought(check_tenant(str(fields.get("tenant"))))
    store = _store(fields.get("store"))
    return Sought(check_tenant(store.tenant), {store: _integer(fields, "epoch") or 0})


def _sought_of_stores(fields: Mapping[str, Any]) -> Sought:
    """Return what a request looks for: some stores of a tenant, each up to an epoch."""
    tenant, found = check_tenant(str(fields.get("tenant"))), {}
    rows = fields.get("stores")
    if type(rows) is not list or not 0 < len(rows) <= MAX_SWEPT_STORES:
        reason = f"it must be a list of 1 to {MAX_SWEPT_STORES} stores"
        raise InvalidArgumentError(argument="stores", reason=reason)
    for row in rows:
        if type(row) is not list or len(row) != 3:
            reason = "each must be a list of kind, name and epoch"
            raise InvalidArgumentError(argument="stores", reason=reason)
        found[_store([tenant, *row[:2]])] = _integer({"epoch": row[2]}, "epoch") or 0
    return Sought(tenant, found)


def _integer(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= MAX_INTEGER):
        raise InvalidArgumentError(argument=name, reason="it must be a number from 0 on")
    return value
