"""The operation that configures a store.

Pure but for lookups in the store's file. Some settings exclude others, or depend on what the store
holds; what a single value may be is checked in `protocol/store_config.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from holdfast.persist.operations.arguments import check_serving_epoch, padded
from holdfast.persist.store.store import Store
from holdfast.protocol.errors import (
    DeniedError,
    DeposedWriterError,
    InvalidArgumentError,
    WrongRevisionError,
)
from holdfast.protocol.limits import MAX_EPHEMERAL_STORE_BYTES
from holdfast.protocol.messages import Durability
from holdfast.protocol.store_config import DEFAULT_CONFIG, OF_KVS, OF_STREAMS, StoreConfig


def configure(store: Store, operation: list[Any]) -> list[Any]:
    """Change the configuration. Return the revision, and what the configuration is now."""
    _, wanted, serving_epoch, only_unused = padded(operation, 4)
    if type(wanted) is not dict:
        raise InvalidArgumentError(argument="config", reason="must be a map of settings")
    check_serving_epoch(store, serving_epoch)
    if only_unused:
        _check_unused(store, is_served=serving_epoch is not None)
    config = store.config.changed(wanted)
    if not store.is_stream and (foreign := OF_STREAMS & wanted.keys()):
        raise InvalidArgumentError(argument=min(foreign), reason="only streams have this setting")
    if store.is_stream and (foreign := OF_KVS & wanted.keys()):
        raise InvalidArgumentError(argument=min(foreign), reason="only kvs have this setting")
    if "serving_epoch" in wanted:
        _check_raised(store.config.serving_epoch, config.serving_epoch)
    if store.config.chain and not config.chain:
        raise DeniedError(setting="chain", action="end the chain")
    if config.first_seq != store.config.first_seq:
        _check_first_seq(store, config.first_seq)
    if config.ephemeral or store.config.ephemeral:
        config = _ephemeral(store, config)
    elif config.durability is Durability.MEMORY:
        reason = "only the writes of an ephemeral store are kept in memory alone"
        raise InvalidArgumentError(argument="durability", reason=reason)
    if config != store.config:
        store.configure(config)
    return [store.revision, config.to_wire()]


def _check_unused(store: Store, *, is_served: bool) -> None:
    """Raise WrongRevisionError if anybody has used a stream. With `is_served`, its configuration
    does not count: it is that of the gateway that serves it."""
    if not store.is_stream:
        raise InvalidArgumentError(argument="only_unused", reason="only streams can be asked that")
    config = store.config
    if (
        store.last_seq >= config.first_seq
        or (config != DEFAULT_CONFIG and not is_served)
        or len(store.cursors)
        or store.consumers.by_id
    ):
        raise WrongRevisionError(key=store.id.name, expected=0, actual=store.revision)


def _check_raised(before: int | None, after: int | None) -> None:
    """Raise DeposedWriterError unless a serving epoch grows."""
    if before is not None and (after is None or after <= before):
        raise DeposedWriterError(serving_epoch=after, actual=before)


def _check_first_seq(store: Store, first_seq: int) -> None:
    if store.last_seq != store.config.first_seq - 1 or first_seq < store.config.first_seq:
        reason = f"this stream has had seqs up to {store.last_seq}"
        raise InvalidArgumentError(argument="first_seq", reason=reason)


def _ephemeral(store: Store, config: StoreConfig) -> StoreConfig:
    """Return the configuration of an ephemeral store, or of one that is to be ephemeral, with its
    default limit. Raises DeniedError, InvalidArgumentError."""
    if not config.ephemeral:
        raise DeniedError(setting="ephemeral", action="keep what it holds: destroy the store")
    if not store.config.ephemeral and _holds_something(store):
        reason = "only an empty store can become ephemeral, and this one holds something"
        raise InvalidArgumentError(argument="ephemeral", reason=reason)
    for name in _ONLY_DURABLE:
        if getattr(config, name) != getattr(DEFAULT_CONFIG, name):
            reason = "an ephemeral store is in memory alone, and cannot have this setting"
            raise InvalidArgumentError(argument=name, reason=reason)
    if config.durability not in (Durability.DEFAULT, Durability.MEMORY):
        reason = f"an ephemeral store has no level {config.durability.word}"
        raise InvalidArgumentError(argument="durability", reason=reason)
    if config.max_bytes is None:
        return replace(config, max_bytes=MAX_EPHEMERAL_STORE_BYTES)
    if config.max_bytes > MAX_EPHEMERAL_STORE_BYTES:
        reason = f"an ephemeral store holds at most {MAX_EPHEMERAL_STORE_BYTES} bytes"
        raise InvalidArgumentError(argument="max_bytes", reason=reason)
    return config


def _holds_something(store: Store) -> bool:
    """Tell if becoming ephemeral would lose anything."""
    if store.count or store.contents.staged() or store.keeps_history:
        return True
    return store.is_stream and bool(store.consumers.by_id or len(store.cursors))


#: They concern what is durable, or who else serves the stream.
_ONLY_DURABLE: Final = ("archive_after_seconds", "chain", "serving_epoch")
