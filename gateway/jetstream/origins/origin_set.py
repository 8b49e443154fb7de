"""All origins of one stream: its mirror's, or those of its sources."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.gateway.jetstream.origins.copier import CopyingStream, OriginCopier
from holdfast.gateway.jetstream.origins.directory import OriginDirectory


class OriginSet:
    """What one stream copies while it is served by this gateway."""

    def __init__(self, stream: CopyingStream, directory: OriginDirectory) -> None:
        self._stream = stream
        self._directory = directory
        self._copiers: list[OriginCopier] = []

    def begin(self) -> None:
        """Copy by the stream's configuration. Nothing can be stored in a sealed stream."""
        config = self._stream.config
        if self._copiers or config.sealed:
            return
        self._copiers = [
            OriginCopier(self._stream, source, self._directory) for source in config.origins
        ]
        for copier in self._copiers:
            copier.begin()

    async def end(self, *, drain: bool) -> None:
        """Copy no more: see `OriginCopier.end`. If this is cancelled, call it again."""
        await asyncio.gather(*(each.end(drain=drain) for each in self._copiers))
        self._copiers = []

    async def infos(self) -> list[dict[str, Any]]:
        """Return what STREAM.INFO tells of each origin, in the order of the configuration."""
        return list(await asyncio.gather(*(each.info() for each in self._copiers)))
