"""How the files of a table are divided, which is fixed in the table's metadata.

    by groups of tenants    tenant_group=<n>/...                 the default of a new table
    by tenant and date      tenant=<tenant>/date=<date>/...      as earlier versions have made them

With groups, `tenant` and `date` are columns inside of the files, and a run adds some files for each
group, however many tenants there are. A tenant is in one group: the CRC-32 of its name, modulo
their number. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.protocol.errors import InvalidArgumentError

GROUP_COLUMN: Final = "tenant_group"
#: The property of the table's metadata that says how many groups there are.
GROUPS_PROPERTY: Final = "holdfast.tenantGroups"
#: Of a new table: a query of one tenant reads a sixteenth of the table, and a run of few changes
#: writes at most as many small files.
DEFAULT_TENANT_GROUPS: Final = 16
MAX_TENANT_GROUPS: Final = 1024
_BY_TENANT: Final = ("tenant", "date")


class UnknownLayoutError(ValueError):
    """The metadata say nothing that this version knows."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """`tenant_groups` is the number of groups; 0 for a folder for each tenant and date."""

    tenant_groups: int = DEFAULT_TENANT_GROUPS

    def __post_init__(self) -> None:
        """Check the number. Raises InvalidArgumentError."""
        if not 0 <= self.tenant_groups <= MAX_TENANT_GROUPS:
            reason = f"must be 0 to {MAX_TENANT_GROUPS}"
            raise InvalidArgumentError(argument="tenant_groups", reason=reason)

    @property
    def is_grouped(self) -> bool:
        return self.tenant_groups > 0

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return (GROUP_COLUMN,) if self.is_grouped else _BY_TENANT

    @property
    def properties(self) -> dict[str, str]:
        """What the table's metadata have to say of it."""
        return {GROUPS_PROPERTY: str(self.tenant_groups)} if self.is_grouped else {}

    def group_of(self, tenant: str) -> int:
        """Return the group of a tenant; 0 if there are none."""
        return zlib.crc32(tenant.encode()) % self.tenant_groups if self.is_grouped else 0

    def order(self, tenant: str) -> tuple[int, str]:
        """Return the sort key of tenants in which a task writes them."""
        return self.group_of(tenant), tenant

    def folder(self, tenant: str) -> str:
        """Return the folder below which all files with rows of a tenant are."""
        if self.is_grouped:
            return f"{GROUP_COLUMN}={self.group_of(tenant)}"
        return f"tenant={tenant}"


BY_TENANT: Final = TableLayout(0)


def layout_of(partition_columns: Sequence[str], properties: Mapping[str, str]) -> TableLayout:
    """Return the layout that a table's metadata tell. Raises UnknownLayoutError."""
    if tuple(partition_columns) == _BY_TENANT:
        return BY_TENANT
    found = properties.get(GROUPS_PROPERTY, "")
    if tuple(partition_columns) == (GROUP_COLUMN,) and found.isascii() and found.isdigit():
        count = int(found)
        if 0 < count <= MAX_TENANT_GROUPS:
            return TableLayout(count)
    columns = ", ".join(partition_columns) or "nothing"
    raise UnknownLayoutError(f"it is partitioned by {columns}, with {GROUPS_PROPERTY}={found!r}")
