"""A batch: the requests of one turn of the loop, done in one transaction of the state file.

Requests in, reply fields or an error for each out, in order. Replies may leave once `execute`
returns, because all that they say is durable then (group commit: one sync for any number of
requests). When the transaction fails, records and requests are tried one by one. So on a full disk
those that only read are still served, and a request that raises an unexpected exception fails
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.coordinator.answering.records import Record, write_record
from holdfast.coordinator.answering.requests import (
    ReleaseAll,
    Request,
)
from holdfast.coordinator.answering.transaction import Reply, Transaction
from holdfast.coordinator.decisions.claims import ClaimBook
from holdfast.coordinator.decisions.member import MemberView
from holdfast.coordinator.decisions.tenant_limits import TenantLimits
from holdfast.coordinator.decisions.told_grants import ToldGrants
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.errors import (
    DeposedError,
    HoldfastError,
    StorageError,
    internal_error,
)


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """`records` are written before the requests are answered, which are judged by `members`."""

    records: Sequence[Record]
    requests: Sequence[Request]
    members: Sequence[MemberView]
    now_ms: int
    limits: TenantLimits = field(default_factory=TenantLimits)
    claims: ClaimBook = field(default_factory=ClaimBook)


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """`failure` says why the records are not durable. There is one reply for each request.
    `mishaps` are unexpected exceptions, each of which was answered too. `told_grants` are for the
    owners of stores, before the replies."""

    failure: StorageError | None
    replies: list[Reply]
    mishaps: Sequence[Exception] = ()
    told_grants: Sequence[ToldGrants] = ()


def execute(state: StateFile, batch: RequestBatch) -> BatchOutcome:
    """Execute a batch. Errors of the storage are returned in the outcome, not raised."""
    try:
        replies, told = _commit(state, batch, batch.records, batch.requests)
        return BatchOutcome(None, replies, told_grants=told)
    except DeposedError:
        raise
    except Exception:  # noqa: BLE001 (the request that it came from raises it again)
        return _one_by_one(state, batch)


def _one_by_one(state: StateFile, batch: RequestBatch) -> BatchOutcome:
    mishaps: list[Exception] = []
    failure: StorageError | None = None
    try:
        _commit(state, batch, batch.records, ())
    except StorageError as error:
        failure = error
    replies: list[Reply] = []
    told_grants: list[ToldGrants] = []
    for request in batch.requests:
        try:
            answers, told = _commit(state, batch, (), (request,))
            replies.extend(answers)
            told_grants.extend(told)
        except StorageError as error:
            # A server that ends may only be told so once that is recorded.
            replies.append(error)
        except HoldfastError:
            raise
        except Exception as error:  # noqa: BLE001 (it is this request's answer)
            mishaps.append(error)
            replies.append(internal_error(type(request).__name__, error))
        else:
            if failure is not None and isinstance(request, ReleaseAll):
                replies[-1] = failure
    return BatchOutcome(failure, replies, mishaps, told_grants)


def _commit(
    state: StateFile, batch: RequestBatch, records: Sequence[Record], requests: Sequence[Request]
) -> tuple[list[Reply], list[ToldGrants]]:
    with state.transaction():
        for record in records:
            write_record(state, record, batch.now_ms)
        transaction = Transaction(
            state, batch.members, batch.now_ms, batch.limits, batch.claims
        )
        replies = [transaction.answer(request) for request in requests]
    return replies, transaction.told_grants
