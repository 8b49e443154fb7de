"""Settings by name: each has a default and a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.protocol.errors import InvalidArgumentError


def checked_settings(
    settings: Mapping[str, Any],
    checks: Mapping[str, Callable[[str, Any], Any]],
    defaults: Mapping[str, Any],
) -> dict[str, Any]:
    """Return `settings` as their checks return them; None becomes the default. Raises
    InvalidArgumentError, also for a name without a check."""
    checked: dict[str, Any] = {}
    for name, value in settings.items():
        check = checks.get(name)
        if check is None:
            known = ", ".join(checks)
            raise InvalidArgumentError(
                argument=repr(name)[:80], reason=f"it must be one of {known}"
            )
        checked[name] = defaults[name] if value is None else check(name, value)
    return checked
