"""Other clusters that use the same prefix, which is a mistake of an operator.

- A coordinator does not start while the coordinator of another cluster answers.
- If two active ones meet, the one that has been active for longer stays. If the lead is not clear,
  the one whose cluster has the lower id stays. Both come to the same result.
- Heartbeats from servers of other clusters are ignored; each such server is logged once.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.coordinator.life import Life
from holdfast.protocol.control import Heartbeat
from holdfast.protocol.errors import OtherClusterError, UnavailableError
from holdfast.protocol.frames import cluster_of, encode_control
from holdfast.protocol.limits import PROBE_TIMEOUT_SECONDS

logger = logging.getLogger("holdfast.coordinator")

#: If two clusters' coordinators meet, the one with a lead of at least this much stays.
CLEAR_LEAD_SECONDS: Final = 5.0
#: How many servers of other clusters are logged.
MAX_STRANGERS: Final = 64


class OtherClusters:
    """All clusters but this one."""

    def __init__(self, life: Life, cluster: str) -> None:
        """`cluster` is the id of this cluster."""
        self.cluster = cluster
        self._life = life
        self._strangers: set[str] = set()

    async def refuse(self) -> None:
        """Raise OtherClusterError if the coordinator of another cluster answers here."""
        payload = encode_control(cluster=self.cluster)
        subject = self._life.subjects.cluster("cluster")
        try:
            answer = await self._life.bus.request(subject, payload, PROBE_TIMEOUT_SECONDS)
        except UnavailableError as error:
            logger.debug("coordinator.alone reason=%s", error)
            return
        found = cluster_of(answer)
        if found is not None and found != self.cluster:
            raise self._error("the coordinator that is running", found)

    def rival(
        self, cluster: object, active_seconds: float, own_seconds: float
    ) -> OtherClusterError | None:
        """Return why this coordinator, active for `own_seconds`, must end; None if it stays.

        The other coordinator says that it has been active for `active_seconds`.
        """
        if type(cluster) is not str or not cluster or cluster == self.cluster:
            return None
        if not active_seconds > 0:
            return None
        lead_seconds = own_seconds - active_seconds
        if abs(lead_seconds) < CLEAR_LEAD_SECONDS:
            stays = self.cluster < cluster
        else:
            stays = lead_seconds > 0
        return None if stays else self._error("another coordinator, which stays,", cluster)

    def is_stranger(self, heartbeat: Heartbeat) -> bool:
        """Tell whether a server belongs to another cluster."""
        if not heartbeat.cluster or heartbeat.cluster == self.cluster:
            return False
        if heartbeat.server not in self._strangers and len(self._strangers) < MAX_STRANGERS:
            self._strangers.add(heartbeat.server)
            logger.warning(
                "coordinator.stranger server=%s cluster=%s expected=%s",
                heartbeat.server,
                heartbeat.cluster,
                self.cluster,
            )
        return True

    def _error(self, who: str, found: str) -> OtherClusterError:
        return OtherClusterError(
            who=f"{who} on prefix {self._life.subjects.prefix!r}",
            found=found,
            expected=f"{self.cluster} of {self._life.storage.layout.root}",
        )
