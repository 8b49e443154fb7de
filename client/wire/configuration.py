"""The configuration of a store, asked for and changed: the same for streams and kvs."""

from __future__ import annotations

from typing import Final

from holdfast.client.wire.link import Link
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol.errors import MalformedFrameError
from holdfast.protocol.frames import CONFIG, CONFIGURE, pack
from holdfast.protocol.messages import Durability
from holdfast.protocol.store_config import DEFAULT_CONFIG, ConfigSettings, StoreConfig

_PACKED_CONFIG: Final = pack([CONFIG])


async def configure(
    link: Link, key: StoreKey, settings: ConfigSettings, timeout_seconds: float | None
) -> StoreConfig:
    """Change what `settings` names, and return the whole configuration as it is then."""
    checked = DEFAULT_CONFIG.changed(settings).to_wire()
    packed = pack([CONFIGURE, {name: checked.get(name) for name in settings}])
    # Not at the store's own level: one that this server does not offer could not be taken back.
    answer = await link.call(key, packed, True, int(Durability.SYNCED), timeout_seconds)
    return _from_wire(answer[0][1])


async def config(link: Link, key: StoreKey, timeout_seconds: float | None) -> StoreConfig:
    """Return the configuration; of a store that was never written, the default."""
    answer = await link.call(key, _PACKED_CONFIG, False, 0, timeout_seconds)
    return _from_wire(answer[0])


def _from_wire(wire: object) -> StoreConfig:
    if type(wire) is not dict:
        raise MalformedFrameError(reason="a configuration is a map")
    return StoreConfig.from_wire(wire)
