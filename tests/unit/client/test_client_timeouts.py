"""No call tries for longer than owners know its retries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.client import connect
from holdfast.protocol.bus.bus_memory import MemoryNetwork
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MAX_OPERATION_TIMEOUT_SECONDS

TOO_LONG = MAX_OPERATION_TIMEOUT_SECONDS + 1


@pytest.mark.parametrize("timeout", [TOO_LONG, 0, -1, float("inf"), float("nan"), True, "5"])
def test_a_call_that_could_outlive_its_outcome_is_refused_before_anything_is_sent(
    timeout: Any,
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        sent = []
        network.taps.append(lambda sender, message: sent.append(message))
        async with connect(bus=network.connect("c"), tenant="acme") as hf:
            stream, kv = hf.stream("s"), hf.kv("k")
            for call in (
                stream.append(b"v", timeout_seconds=timeout),
                stream.append_many([b"v"], timeout_seconds=timeout),
                stream.set(1, b"v", timeout_seconds=timeout),
                stream.get(1, timeout_seconds=timeout),
                kv.set("k", b"v", timeout_seconds=timeout),
                kv.delete("k", timeout_seconds=timeout),
            ):
                with pytest.raises(InvalidArgumentError, match="at most 300"):
                    await call
        assert sent == []

    asyncio.run(main())


@pytest.mark.parametrize("timeout", [TOO_LONG, 0, float("nan")])
def test_so_is_a_client_with_such_a_timeout(timeout: float) -> None:
    with pytest.raises(InvalidArgumentError, match="at most 300"):
        connect(tenant="acme", timeout_seconds=timeout)
