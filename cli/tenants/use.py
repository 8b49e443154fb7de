"""How the use of tenants is shown, beside what they may use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.cli.render import JsonObject, print_table, size
from holdfast.protocol.access.quota import Quota, TenantInfo

_COLUMNS: Final = (
    "tenant",
    "streams",
    "kvs",
    "stores",
    "bytes",
    "operations/s",
    "bytes/s",
    "open",
    "uploads",
)


def tenant_row(info: TenantInfo) -> JsonObject:
    """Return what a tenant has and may have as JSON."""
    row = {**info._asdict(), "quota": info.quota.to_wire()}
    if not info.quota.limits_use:
        # Servers tell these only where they are limited.
        row["open_stores"] = row["uploads"] = None
    return row


def print_tenants(infos: Sequence[TenantInfo]) -> None:
    """Print one line for each tenant; a `/` is followed by what it may use."""
    print_table(
        _COLUMNS,
        [
            (
                info.tenant,
                f"{info.streams:,}",
                f"{info.kvs:,}",
                of(f"{info.streams + info.kvs:,}", info.quota.max_stores, count),
                of(size(info.bytes), info.quota.max_bytes, size),
                of("", info.quota.max_rate, count),
                of("", info.quota.max_bytes_per_second, size),
                _held(info.open_stores, info.quota.max_open_stores),
                _held(info.uploads, info.quota.max_uploads),
            )
            for info in infos
        ],
        right=_COLUMNS[1:],
        optional=("uploads", "open", "bytes/s", "operations/s", "kvs", "streams"),
    )


def quota_fields(quota: Quota) -> dict[str, str]:
    """Return each limit of a quota for people."""
    forms: dict[str, Callable[[Any], str]] = {
        "max_stores": count,
        "max_bytes": size,
        "max_rate": count,
        "max_bytes_per_second": size,
        "max_open_stores": count,
        "max_uploads": count,
    }
    return {
        name: "-" if value is None else forms[name](value)
        for name, value in quota._asdict().items()
    }


def _held(held: int | None, limit: int | None) -> str:
    return "" if limit is None else of(f"{held or 0:,}", limit, count)


def of(used: str, limit: Any, form: Callable[[Any], str]) -> str:
    """Return what is used, of what limit."""
    return used if limit is None else f"{used} / {form(limit)}".lstrip()


def count(value: float) -> str:
    """Return a number for people."""
    return f"{value:,g}" if value != int(value) else f"{int(value):,}"
