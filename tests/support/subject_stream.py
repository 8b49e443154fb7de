"""A stream whose messages have subjects: what is written to it, and what it has."""

from __future__ import annotations

from typing import Any

from holdfast.protocol import frames
from holdfast.protocol.header_block import HeaderBlock
from tests.support.ticked_store import Bench

BLOCK = HeaderBlock.of({"Nats-Msg-Id": "id-1", "a": "1"}).block


def append(
    subject: Any = None,
    value: Any = b"v",
    *,
    headers: Any = None,
    msg_id: Any = None,
    ttl_seconds: Any = None,
    serving_epoch: Any = None,
    **options: Any,
) -> list[Any]:
    operation = [frames.APPEND, value, headers, msg_id, None, ttl_seconds]
    return [*operation, subject, serving_epoch, options or None]


def fill(bench: Bench, *names: str) -> None:
    for name in names:
        assert bench.do(*append(name))[0] == bench.store.last_seq


def there(bench: Bench) -> list[Any]:
    rows = bench.read(frames.GET_MESSAGES)[0]
    return [row[5] if len(row) > 5 else None for row in rows]


def changes_of(bench: Bench) -> list[Any]:
    return [change for tick in bench.broadcasts for change in tick]
