"""Reads and changes the configuration of a store, for streams and kvs alike."""

from __future__ import annotations

from typing import Any, Final

from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.frames import CONFIG, CONFIGURE, pack
from holdfast.protocol.messages import Durability
from holdfast.protocol.store_config import DEFAULT_CONFIG, ConfigSettings, StoreConfig

_PACKED_CONFIG: Final = pack([CONFIG])


async def configure(
    link: Link,
    key: StoreKey,
    settings: ConfigSettings,
    timeout_seconds: float | None,
    *,
    serving_epoch: int | None = None,
) -> StoreConfig:
    """Change the settings that `settings` names, and return the whole new configuration."""
    answer = await _change(link, key, settings, timeout_seconds, serving_epoch)
    return _from_wire(answer[1])


async def begin_serving(
    link: Link,
    key: StoreKey,
    settings: ConfigSettings,
    timeout_seconds: float | None,
    *,
    serving_epoch: int | None,
    only_unused: bool,
) -> int:
    """Change settings, of which `serving_epoch` is one, and return the revision of the change."""
    answer = await _change(
        link, key, settings, timeout_seconds, serving_epoch, only_unused=only_unused
    )
    revision = answer[0]
    if type(revision) is not int:
        raise MalformedFrameError(reason="a revision must be an integer")
    return revision


async def _change(
    link: Link,
    key: StoreKey,
    settings: ConfigSettings,
    timeout_seconds: float | None,
    serving_epoch: int | None,
    *,
    only_unused: bool = False,
) -> list[Any]:
    """Return `[revision, config]`."""
    checked = DEFAULT_CONFIG.changed(settings).to_wire()
    operation: list[Any] = [CONFIGURE, {name: checked.get(name) for name in settings}]
    if only_unused:
        operation += [serving_epoch, True]
    elif serving_epoch is not None:
        operation.append(serving_epoch)
    packed = pack(operation)
    # Not with the store's own durability: one that this server does not offer could not be undone.
    answer = await link.call(key, packed, True, int(Durability.SYNCED), timeout_seconds)
    changed: list[Any] = answer[0]
    return changed


async def config(link: Link, key: StoreKey, timeout_seconds: float | None) -> StoreConfig:
    """Return the configuration. A store that was never written has the default."""
    answer = await link.call(key, _PACKED_CONFIG, False, 0, timeout_seconds)
    return _from_wire(answer[0])


def _from_wire(wire: object) -> StoreConfig:
    if type(wire) is not dict:
        raise MalformedFrameError(reason="a configuration must be a map")
    return StoreConfig.from_wire(wire)
