"""Messages, keys and configurations as the console shows them: bounded, whatever stores hold."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from holdfast.protocol.consumers import ConsumerInfo
from holdfast.protocol.control import StoreInfo
from holdfast.protocol.messages import Message
from holdfast.protocol.names import StoreKind
from holdfast.protocol.store_config import StoreConfig

#: Of a value, and of all headers of a message together, this much is shown.
PREVIEW_BYTES: Final = 2048
_MAX_HEADERS: Final = 32
_MAX_HEADER_CHARACTERS: Final = 256


def message_preview(message: Message) -> dict[str, Any]:
    """Return a message with the beginning of its value. `truncated` says whether there is more."""
    row: dict[str, Any] = {
        "seq": message.seq,
        "revision": message.revision,
        "time": message.time,
        "size_bytes": message.size_bytes,
    }
    if message.subject is not None:
        row["subject"] = message.subject
    if message.headers:
        row["headers"] = _headers(message.headers)
    if message.large is not None:
        return {**row, "truncated": True}
    if message.unreadable is not None:
        return {**row, "unreadable": str(message.unreadable), "truncated": True}
    return {**row, **_value(message.value)}


def store_row(store: StoreInfo) -> dict[str, Any]:
    """Return a store of the coordinator's list."""
    return {
        "kind": StoreKind(store.kind).word,
        "name": store.name,
        "server": store.server,
        "incarnation": store.incarnation,
        "epoch": store.epoch,
        "tier": "cold" if store.cold else "hot",
        "state": store.state.name.lower(),
    }


def config_row(config: StoreConfig) -> dict[str, Any]:
    """Return all settings of a store, and the names of those that differ from the default."""
    settings = asdict(config)
    settings["discard"] = config.discard.value
    settings["durability"] = config.durability.word
    return {"settings": settings, "changed": sorted(config.to_wire())}


def consumer_row(stream: str, consumer: ConsumerInfo) -> dict[str, Any]:
    """Return a consumer."""
    row = asdict(consumer)
    return {"stream": stream, **row}


def _value(value: bytes) -> dict[str, Any]:
    shown = value[:PREVIEW_BYTES]
    truncated = len(value) > PREVIEW_BYTES
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        # A character may be cut at the end.
        if not truncated or error.start < len(shown) - 3:
            return {"value_base64": base64.b64encode(shown[:256]).decode(), "truncated": truncated}
        text = shown[: error.start].decode()
    return {"value": text, "truncated": truncated}


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in headers.items():
        if len(found) == _MAX_HEADERS:
            break
        found[str(name)[:_MAX_HEADER_CHARACTERS]] = str(text)[:_MAX_HEADER_CHARACTERS]
    return found
