"""Records that the coordinator makes itself, of servers and of stores that it found."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.coordinator.decisions.events import (
    RecordDead,
    RecordLive,
)
from holdfast.coordinator.state.lost_state import SurveyedStore
from holdfast.coordinator.state.server_records import IncarnationState
from holdfast.coordinator.state.state_file import StateFile
from holdfast.protocol.names import StoreId


@dataclass(frozen=True, slots=True)
class RecordFound:
    """Stores whose files the survey found."""

    stores: tuple[SurveyedStore, ...]


@dataclass(frozen=True, slots=True)
class RecordFoundCold:
    """Stores that the survey found in the bucket's manifests, with epoch and revision. The revision
    of a deleted store is None."""

    stores: tuple[tuple[StoreId, int, int | None], ...]


@dataclass(frozen=True, slots=True)
class RecordSurveyed:
    """The survey of the files is done; with `with_manifests`, that of the bucket too."""

    with_manifests: bool = False


Record = RecordLive | RecordDead | RecordFound | RecordFoundCold | RecordSurveyed


def write_record(state: StateFile, record: Record, now_ms: int) -> None:
    """Write a record in the open transaction. Raises StorageError."""
    match record:
        case RecordLive(server, incarnation):
            state.servers.add(server, incarnation, now_ms)
        case RecordDead(server, incarnation, _, released):
            ended = IncarnationState.RELEASED if released else IncarnationState.DEAD
            state.servers.end(server, incarnation, ended, now_ms)
            if released:
                state.servers.set_drain(server, False)
        case RecordFound(stores):
            for found in stores:
                state.stores.found(*found)
        case RecordFoundCold(stores_found):
            for store, epoch, revision in stores_found:
                if revision is None:
                    state.stores.found_deleted(store, epoch)
                else:
                    state.stores.found_cold(store, epoch, revision)
        case RecordSurveyed(with_manifests):
            state.cluster.set_surveying(False)
            if with_manifests:
                state.cluster.set_manifests_surveyed()
