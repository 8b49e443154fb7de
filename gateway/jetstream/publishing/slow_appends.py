"""Appends that take several requests: large values, and messages with which a schedule goes."""

from __future__ import annotations

import logging
from typing import Any

from holdfast.client.handles.serving import ServingStream
from holdfast.client.handles.serving_wire import Appended, NewMessage
from holdfast.gateway.jetstream.api import errors
from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.publishing.schedules import is_schedule
from holdfast.protocol.errors import HoldfastError, internal_error
from holdfast.protocol.limits import MAX_VALUE_BYTES
from holdfast.protocol.messages import Durability

logger = logging.getLogger("holdfast.gateway")


def is_slow(append: NewMessage, stopped_schedule: str) -> bool:
    """Return whether an append takes several requests. `stopped_schedule` is the subject of a
    schedule that goes with it, or ""."""
    return bool(stopped_schedule) or len(append.value) > MAX_VALUE_BYTES


async def append_slowly(store: ServingStream, append: NewMessage, stopped_schedule: str) -> Any:
    """Append, and return `(result, 0, durability)` as owners answer: an Appended, or the ApiError
    or HoldfastError that refused it."""
    try:
        if stopped_schedule:
            stored = await _append_and_stop(store, append, stopped_schedule)
        else:
            stored = await _append_large(store, append)
    except HoldfastError as error:
        return error, 0, None
    except Exception as error:
        # It costs this message; those behind it go on.
        logger.exception("jetstream.publish_failed stream=%s", store.name)
        return internal_error("a publish", error), 0, None
    return stored, 0, Durability.DEFAULT


async def _append_and_stop(
    store: ServingStream, append: NewMessage, scheduler: str
) -> Appended | ApiError:
    last = await store.last(scheduler)
    if last is not None and not is_schedule(last.headers):
        return errors.schedule_scheduler_invalid()
    packer = store.packer
    operations = [packer.append_operation(append)]
    if last is not None:
        operations.append(packer.delete_operation([last.seq]))
    stored, *_ = await store.batch(operations)
    assert isinstance(stored, Appended)
    return stored


async def _append_large(store: ServingStream, append: NewMessage) -> Appended:
    subject, value, headers, msg_id, expected_last_seq, ttl_seconds, options = append
    return await store.append(
        subject,
        value,
        headers,
        msg_id=msg_id,
        expected_last_seq=expected_last_seq,
        ttl_seconds=ttl_seconds,
        options=options,
    )
