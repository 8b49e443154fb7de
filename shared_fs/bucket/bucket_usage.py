"""Counters of a bucket's requests, by the classes that providers charge for."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from enum import StrEnum


class RequestClass(StrEnum):
    """The class of a request. Each part, the beginning and the end of
    a large upload count as a put."""

    PUT = "put"
    GET = "get"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tries and bytes of bodies. Failed tries are included, since they are charged too."""

    put_count: int = 0
    get_count: int = 0
    head_count: int = 0
    list_count: int = 0
    delete_count: int = 0
    failed_count: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def __sub__(self, earlier: Usage) -> Usage:
        """Return what was counted after `earlier`."""
        return Usage(
            *(getattr(self, one.name) - getattr(earlier, one.name) for one in fields(self))
        )


class BucketUsage:
    """Counters that any number of threads may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys((one.name for one in fields(Usage)), 0)

    def add(
        self,
        request: RequestClass,
        *,
        sent_bytes: int = 0,
        received_bytes: int = 0,
        failed: bool = False,
    ) -> None:
        """Count one try."""
        with self._lock:
            self._counts[f"{request}_count"] += 1
            self._counts["failed_count"] += failed
            self._counts["sent_bytes"] += sent_bytes
            self._counts["received_bytes"] += received_bytes

    def total(self) -> Usage:
        """Return everything counted so far."""
        with self._lock:
            return Usage(**self._counts)
