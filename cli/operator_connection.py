"""An operator's connection: to the coordinator's subjects that no tenant may publish to."""

from __future__ import annotations

from types import TracebackType

from holdfast.cli.settings import Settings
from holdfast.client.wire.router import Router


class OperatorConnection:
    """A router to the coordinator, for as long as the body runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __aenter__(self) -> Router:
        settings = self._settings
        self._bus = await settings.connect_bus()
        return Router(self._bus, settings.subjects, settings.tenant)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._bus.close()
