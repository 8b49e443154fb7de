"""A pull request: read, checked, and let wait. The order of the checks is nats-server's."""

from __future__ import annotations

from typing import Final

from holdfast.gateway.jetstream.api.headers import StatusError
from holdfast.gateway.jetstream.api.requests.pull_requests import PullRequest
from holdfast.gateway.jetstream.consumers import statuses
from holdfast.gateway.jetstream.consumers.deliveries import Deliveries
from holdfast.gateway.jetstream.consumers.effects import Status
from holdfast.gateway.jetstream.consumers.ledger import NEVER
from holdfast.gateway.jetstream.consumers.pulls import Pull, Pulls

#: A full queue of requests is searched for those that have ended at most so often.
_SWEEP_MS: Final = 1000
#: More heartbeats than these help nobody, and hundreds of requests may want them.
_LEAST_HEARTBEAT_MS: Final = 20


def take(deliveries: Deliveries, inbox: str, body: bytes, now: int) -> None:
    """Let a request wait, or refuse it."""
    try:
        request = PullRequest.parse(body)
        request.check(deliveries.settings.config)
    except StatusError as error:
        refused = error.block
    else:
        assert deliveries.pulls is not None
        refused = _take(deliveries, deliveries.pulls, inbox, request, now)
    if refused:
        deliveries.out.append(Status(inbox, refused))


def _take(
    deliveries: Deliveries, pulls: Pulls, inbox: str, request: PullRequest, now: int
) -> bytes:
    """Let a request wait; return the status that refuses it, or b""."""
    pin = pulls.pin
    if pin.id and request.id == pin.id:
        pin.extend(now)
    elif pin.id and request.id:
        return statuses.PIN_MISMATCH
    if pulls.full and now - pulls.swept_at >= _SWEEP_MS:
        deliveries.sweep(now)
    if request.no_wait:
        available = deliveries.backlog.pending + len(deliveries.ledger.queue)
        if not available and not request.expires:
            return statuses.NO_MESSAGES
        if available:
            deliveries.sweep(now)
            if available < pulls.wanted:
                return statuses.REQUESTS_PENDING
    if pulls.full:
        # A client with heartbeats notices by itself. It would ask again at once if it were told.
        return b"" if request.idle_heartbeat else statuses.EXCEEDED_MAX_WAITING
    pull = _pull(inbox, request, now)
    pulls.add(pull)
    if pull.expires_at <= now:
        deliveries.sweep(now)
    return b""


def _pull(inbox: str, request: PullRequest, now: int) -> Pull:
    pull = Pull(inbox, request.batch)
    pull.bytes_left = max(0, request.max_bytes)
    pull.expires_at = now + request.expires_ms if request.expires else NEVER
    if request.idle_heartbeat:
        pull.heartbeat_ms = max(_LEAST_HEARTBEAT_MS, request.idle_heartbeat_ms)
        pull.heartbeat_at = now + pull.heartbeat_ms
    pull.no_wait = request.no_wait
    pull.group, pull.pin_id, pull.priority = request.group, request.id, request.priority
    pull.min_pending, pull.min_ack_pending = request.min_pending, request.min_ack_pending
    return pull
