"""The coordinator's commands to a server: to answer a probe, register again, drain, tell its load,
hand over stores, keep grants of stores, or snapshot stores."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.peers.coordination import Coordination
from holdfast.protocol import frames
from holdfast.protocol.control import ServerLoad
from holdfast.protocol.errors import HoldfastError, MalformedFrameError, internal_error
from holdfast.protocol.limits import MAX_ARRAY_LENGTH, MAX_HOT_STORES, MAX_MOVING_STORES
from holdfast.protocol.names import StoreId, StoreKind, check_server, check_store, check_tenant
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
        tell_load: Callable[[int], ServerLoad],
        move: Callable[[list[tuple[StoreId, int]], str], int],
        open_ahead: Callable[[StoreId], None],
    ) -> None:
        """`request_snapshots` schedules snapshots of stores, or of all open ones, and returns how
        many. `tell_load` returns this server's load, with at most so many of its busiest stores.
        `move` schedules the handing over of stores of these epochs to a server, and returns how
        many wait. `open_ahead` opens a store that was granted before anybody uses it."""
        self._server = life.server
        self._incarnation = life.id
        self._coordination = coordination
        self._phase = phase
        self._request_snapshots = request_snapshots
        self._tell_load = tell_load
        self._move = move
        self._open_ahead = open_ahead
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
            case "load":
                return self._load(fields.get("limit"))
            case "move":
                stores = _stores_at(fields.get("stores"))
                to = check_server(fields.get("to", ""))
                if fields.get("incarnation") == self._incarnation:
                    return {"moving": self._move(stores, to)}
                return {"moving": 0}
            case "granted":
                if fields.get("incarnation") == self._incarnation:
                    granted = self._coordination.early_grants.hear(fields)
                    # A client that asks for one store is about to use it.
                    if len(granted) == 1:
                        self._open_ahead(granted[0])
            case "snapshot":
                return {"snapshots": self._request_snapshots(_stores(fields.get("stores")))}
            case unknown:
                raise MalformedFrameError(reason=f"unknown command {unknown!r:.80}")
        return {}

    def _load(self, limit: Any) -> dict[str, object]:
        if type(limit) is not int or not 0 <= limit <= MAX_HOT_STORES:
            raise MalformedFrameError(reason=f"limit must be a number up to {MAX_HOT_STORES}")
        load = self._tell_load(limit)
        return {
            "operations": load.operations,
            "bytes": load.bytes,
            "open_stores": load.open_stores,
            "stores": [
                [*hot.store, hot.epoch, hot.operations, hot.bytes] for hot in load.hot
            ],
        }


def _stores_at(rows: Any) -> list[tuple[StoreId, int]]:
    """Return the stores that a command names, with epochs. Raises as `_stores`."""
    if type(rows) is not list or any(type(row) is not list or len(row) < 4 for row in rows):
        raise MalformedFrameError(reason="stores must be a list of [tenant, kind, name, epoch]")
    stores = _stores([row[:3] for row in rows]) or []
    epochs = [row[3] for row in rows]
    if len(rows) > MAX_MOVING_STORES or any(type(epoch) is not int for epoch in epochs):
        raise MalformedFrameError(reason="stores must be few, and epochs numbers")
    return list(zip(stores, epochs, strict=True))


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
