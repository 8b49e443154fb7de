"""No call tries for longer than owners know its retries."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client import connect
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MAX_OPERATION_TIMEOUT_SECONDS

TOO_LONG = MAX_OPERATION_TIMEOUT_SECONDS + 1


@pytest.mark.parametrize("seconds", [TOO_LONG, 0, -1, float("inf"), float("nan"), True, "5"])
async def test_a_call_that_could_outlive_its_outcome_is_refused_before_anything_is_sent(
    seconds: Any,
) -> None:
    network = MemoryNetwork()
    sent = []
    network.taps.append(lambda sender, message: sent.append(message))
    async with connect(bus=network.connect("c"), tenant="acme") as hf:
        stream, kv = hf.stream("s"), hf.kv("k")
        for call in (
            stream.append(b"v", timeout_seconds=seconds),
            stream.append_many([b"v"], timeout_seconds=seconds),
            stream.set(1, b"v", timeout_seconds=seconds),
            stream.get(1, timeout_seconds=seconds),
            kv.set("k", b"v", timeout_seconds=seconds),
            kv.delete("k", timeout_seconds=seconds),
        ):
            with pytest.raises(InvalidArgumentError, match="at most 300"):
                await call
    assert sent == []


@pytest.mark.parametrize("seconds", [TOO_LONG, 0, float("nan")])
def test_so_is_a_client_with_such_a_timeout(seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="at most 300"):
        connect(tenant="acme", timeout_seconds=seconds)
