"""What was asked for, which has to be there."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(found: T | None) -> T:
    """Return what was found, and fail if there is nothing."""
    assert found is not None
    return found
