"""A plugin for pytest: nats-py's tests as applications that survive faults, with checks of ours.

Loaded beside their tests, without anything else of ours. While parts of the cluster are killed:

- Requests are tried again, as applications do it: publishes with a message id, so that the retry of
  what was stored already is recognised. A request that nobody listens to is tried again only when
  there was a fault a moment ago, because some tests count on that error.
- Before a test stops its server, all messages with ids are read. An acknowledged one that is at
  another place, and an id that a stream has twice, is written to a file: that is never excused.
  Streams that copy others have ids of theirs too, each once.

`HOLDFAST_FAULTS` names the file that is touched at each fault, `HOLDFAST_VIOLATIONS` the other.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.client import JetStreamContext

_MSG_ID = "Nats-Msg-Id"
_TRY_SECONDS = 1.0
_RETRY_SECONDS = 3.0
_PAUSE_SECONDS = 0.02
#: They compare headers or sizes, so their messages stay as they are.
_PLAIN_TESTS = frozenset(
    {
        "test_account_limits",
        "test_fetch_concurrent",
        "test_fetch_headers",
        "test_fetch_one",
        "test_jsm_get_delete_msg",
        "test_stream_management",
    }
)
#: Larger streams are checked in part.
_MAX_READ = 3000

_request = Client.request
_publish = JetStreamContext.publish
#: The messages that were acknowledged in this test: stream and seq, by id.
_acknowledged: dict[str, tuple[str, int]] = {}
_began_at = 0.0
_is_plain = False


def _last_fault_at() -> float:
    try:
        return Path(os.environ["HOLDFAST_FAULTS"]).stat().st_mtime
    except OSError:
        return 0.0


async def _patient_request(
    self: Client,
    subject: str,
    payload: bytes = b"",
    timeout: float = 0.5,  # noqa: ASYNC109 (the signature is theirs)
    old_style: bool = False,
    headers: dict[str, Any] | None = None,
) -> Any:
    is_safe = subject.startswith("$JS.API.") or _MSG_ID in (headers or {})
    give_up_at = time.monotonic() + timeout
    while True:
        left = give_up_at - time.monotonic()
        allowed = min(left, _TRY_SECONDS) if is_safe and left > _PAUSE_SECONDS else max(left, 0.001)
        try:
            return await _request(self, subject, payload, allowed, old_style, headers)
        except nats.errors.NoRespondersError:
            if time.time() - _last_fault_at() > _RETRY_SECONDS:
                raise
        except nats.errors.TimeoutError:
            if not is_safe or time.monotonic() >= give_up_at:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


async def _publish_once(self: JetStreamContext, *arguments: Any, **options: Any) -> Any:
    headers = options.get("headers")
    if _is_plain or (headers is None and len(arguments) > 4):
        return await _publish(self, *arguments, **options)
    msg_id = str(uuid.uuid4())
    if headers is None or _MSG_ID not in headers:
        options["headers"] = {**(headers or {}), _MSG_ID: msg_id}
    else:
        msg_id = headers[_MSG_ID]
    ack = await _publish(self, *arguments, **options)
    _acknowledged[msg_id] = (ack.stream, ack.seq)
    return ack


def pytest_configure(config: pytest.Config) -> None:
    Client.request = _patient_request
    JetStreamContext.publish = _publish_once


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _began_at, _is_plain
    _is_plain = item.name in _PLAIN_TESTS
    _acknowledged.clear()
    _began_at = time.time()
    owner = getattr(item, "cls", None)
    if owner is not None and not getattr(owner, "checks_at_the_end", False):
        owner.checks_at_the_end = True
        owner.tearDown = _checked(owner.tearDown, item)


def _checked(tear_down: Callable[[Any], None], item: pytest.Item) -> Callable[[Any], None]:
    def checked(self: Any) -> None:
        try:
            if _acknowledged and _last_fault_at() > _began_at:
                asyncio.run(asyncio.wait_for(_check(self.id()), 20))
        finally:
            tear_down(self)

    return checked


async def _check(test: str) -> None:
    """Read all that is stored, and note what must not be."""
    client = await nats.connect()
    try:
        names = (await _api(client, "STREAM.NAMES"))["streams"] or []
        #: By stream and id, the seq.
        stored: dict[tuple[str, str], int] = {}
        for name in names:
            state = (await _api(client, f"STREAM.INFO.{name}"))["state"]
            first = max(state["first_seq"], state["last_seq"] - _MAX_READ)
            for seq in range(max(1, first), state["last_seq"] + 1):
                answer = await _api(client, f"STREAM.MSG.GET.{name}", {"seq": seq})
                msg_id = _id_of(answer.get("message", {}))
                if msg_id is None:
                    continue
                if (name, msg_id) in stored:
                    at = stored[name, msg_id]
                    _violation(test, f"{msg_id} is stored twice: {name} {at} and {seq}")
                stored[name, msg_id] = seq
            if state.get("num_deleted", 0) == 0 and state["first_seq"] <= 1:
                _check_complete(test, name, state["last_seq"], stored)
        for msg_id, (name, seq) in _acknowledged.items():
            at = stored.get((name, msg_id), seq)
            if at != seq:
                _violation(test, f"{msg_id} was acknowledged at {name} {seq}, is at {at}")
    finally:
        await client.close()


def _check_complete(
    test: str, name: str, last_seq: int, stored: dict[tuple[str, str], int]
) -> None:
    """Nothing was ever removed from this stream, so all that was acknowledged is there."""
    for msg_id, (stream, seq) in _acknowledged.items():
        is_read = last_seq - _MAX_READ <= seq
        if stream == name and (seq > last_seq or (is_read and (name, msg_id) not in stored)):
            _violation(test, f"{msg_id} was acknowledged at {stream} {seq}, and is lost")


async def _api(client: Client, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    payload = json.dumps(body).encode() if body else b""
    answer = await client.request(f"$JS.API.{verb}", payload, timeout=15)
    result: dict[str, Any] = json.loads(answer.data)
    return result


def _id_of(message: dict[str, Any]) -> str | None:
    block = base64.b64decode(message.get("hdrs", "")).decode(errors="replace")
    for line in block.split("\r\n"):
        name, _, value = line.partition(":")
        if name == _MSG_ID:
            return value.strip()
    return None


def _violation(test: str, what: str) -> None:
    with Path(os.environ["HOLDFAST_VIOLATIONS"]).open("a") as file:
        file.write(f"{test}: {what}\n")
