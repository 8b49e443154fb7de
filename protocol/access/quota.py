"""What a tenant may use: its quota, as operators set it and as peers tell it.

A field of None sets no limit. On the wire and in the registry a quota is a map of the fields that
are set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import MAX_INTEGER


class Quota(NamedTuple):
    """The limits of one tenant, over the whole cluster."""

    #: Stores that exist.
    max_stores: int | None = None
    #: The bytes of all its stores, as each store counts its own (`head`).
    max_bytes: int | None = None
    #: Operations a second, reads and writes together.
    max_rate: float | None = None
    #: Bytes of write operations a second, as they arrive.
    max_bytes_per_second: float | None = None
    #: Stores that servers have open at a time.
    max_open_stores: int | None = None
    #: Large values that are being written into open stores.
    max_uploads: int | None = None

    @property
    def limits_rates(self) -> bool:
        return self.max_rate is not None or self.max_bytes_per_second is not None

    @property
    def limits_use(self) -> bool:
        """True if it limits what servers hold at a time."""
        return self.max_open_stores is not None or self.max_uploads is not None

    def to_wire(self) -> dict[str, int | float]:
        """Return the fields that are set."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @classmethod
    def from_wire(cls, fields: Mapping[str, Any]) -> Quota:
        """Return the quota in `fields`, without those that only a newer version knows. Raises
        InvalidArgumentError."""
        known = {name: fields[name] for name in cls._fields if fields.get(name) is not None}
        for name, value in known.items():
            whole = name in _WHOLE
            if type(value) not in ((int,) if whole else (int, float)):
                raise InvalidArgumentError(argument=name, reason="it must be a number")
            if not (0 if whole else _LEAST_RATE) <= value <= MAX_INTEGER or math.isnan(value):
                least = "0" if whole else f"{_LEAST_RATE:g}"
                raise InvalidArgumentError(argument=name, reason=f"it must be {least} or more")
        return cls(**known)


NO_QUOTA = Quota()


class TenantInfo(NamedTuple):
    """What a tenant has and may have: one row of `holdfast tenants`."""

    tenant: str
    streams: int
    kvs: int
    #: As far as the servers have told them.
    bytes: int
    quota: Quota = NO_QUOTA
    #: As servers have lately told them, which they do for tenants with a quota. None: a coordinator
    #: of an earlier version does not say.
    open_stores: int | None = None
    uploads: int | None = None

    @classmethod
    def from_wire(cls, tenant: str, row: Sequence[Any]) -> TenantInfo:
        """Return what the coordinator tells of a tenant. Raises TypeError, ValueError,
        InvalidArgumentError."""
        streams, kvs, size_bytes, quota = row[:4]
        held = map(int, row[4:6])
        return cls(tenant, int(streams), int(kvs), int(size_bytes), Quota.from_wire(quota), *held)


_WHOLE = frozenset({"max_stores", "max_bytes", "max_open_stores", "max_uploads"})
#: A lower rate would let a tenant wait for minutes; who may do nothing needs no token.
_LEAST_RATE = 0.1
