"""Lists stores, as the coordinator knows them."""

from __future__ import annotations

from holdfast.cli.settings import Settings
from holdfast.protocol.control import StoreInfo
from holdfast.protocol.names import StoreKind


async def list_stores(
    settings: Settings, kind: StoreKind | None, prefix: str, limit: int | None
) -> list[StoreInfo]:
    """Return the stores of one kind, or of both if `kind` is None, in order of their names."""
    found: list[StoreInfo] = []
    async with settings.connect() as client:
        wait = settings.asking_seconds
        async for one in client.stores(kind=kind, prefix=prefix, timeout_seconds=wait):
            if limit is not None and len(found) >= limit:
                break
            found.append(one)
    return found
