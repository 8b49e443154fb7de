"""The coordinator's commands to a server: to answer a probe, register again, drain, or
snapshot stores."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol import frames
from holdfast.protocol.errors import HoldfastError, MalformedFrameError, internal_error
from holdfast.protocol.limits import MAX_ARRAY_LENGTH
from holdfast.protocol.names import StoreId, StoreKind, check_store, check_tenant
from holdfast.protocol.serving.mishaps import Mishaps

logger = logging.getLogger("holdfast.persist")


class Commands:
    """Executes the coordinator's commands to one incarnation."""

    def __init__(
        self,
        life: Incarnation,
        coordination: Coordination,
        phase: LifePhase,
        request_snapshots: Callable[[list[StoreId] | None], int],
    ) -> None:
        """`request_snapshots` schedules snapshots of stores, or of all open ones, and
        returns how many."""
        self._server = life.server
        self._incarnation = life.id
        self._coordination = coordination
        self._phase = phase
        self._request_snapshots = request_snapshots
        self._mishaps = Mishaps(logger)

    def command(self, payload: bytes) -> bytes:
        """Execute a command and return the reply, whatever `payload` holds."""
        try:
            self._coordination.recognise(frames.cluster_of(payload, max_length=MAX_ARRAY_LENGTH))
            more = self._obey(frames.decode_control(payload, max_length=MAX_ARRAY_LENGTH))
        except HoldfastError as error:
            return frames.encode_control_error(error)
        except Exception as error:  # noqa: BLE001 (answered to this command)
            self._mishaps.note("server.command_failed", self._server, error)
            return frames.encode_control_error(internal_error("the command", error))
        return frames.encode_control(
            server=self._server,
            incarnation=self._incarnation,
            state=self._phase.now,
            term=self._coordination.term,
            **more,
        )

    def _obey(self, fields: Any) -> dict[str, object]:
        """Return what the reply says besides the usual fields."""
        self._coordination.hear(fields)
        match fields.get("command"):
            case "probe":
                pass
            case "register":
                self._coordination.register_again()
            case "drain" | "undrain" as command:
                # An order to another incarnation was for an earlier life.
                if fields.get("incarnation") == self._incarnation:
                    self._phase.set_draining(command == "drain")
            case "snapshot":
                return {"snapshots": self._request_snapshots(_stores(fields.get("stores")))}
            case unknown:
                raise MalformedFrameError(reason=f"unknown command {unknown!r:.80}")
        return {}


def _stores(rows: Any) -> list[StoreId] | None:
    """Return the stores that a command names. Raises InvalidNameError, MalformedFrameError."""
    if rows is None:
        return None
    if type(rows) is not list or any(type(row) is not list for row in rows):
        raise MalformedFrameError(reason="stores must be a list of [tenant, kind, name]")
    try:
        return [
            StoreId(check_tenant(tenant), StoreKind(kind), check_store(name))
            for tenant, kind, name in rows
        ]
    except (TypeError, ValueError) as error:
        raise MalformedFrameError(reason=f"stores: {error}") from error
