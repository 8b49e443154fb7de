"""The file of `--prices`: an operator's table of what the bucket costs."""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.monitoring.prices import MAX_TABLE_BYTES, S3_PRICES, Prices, parse_prices


def read_prices(path: Path | None) -> Prices:
    """Return the prices in a file, or those of Amazon S3 without one. Raises
    InvalidArgumentError."""
    if path is None:
        return S3_PRICES
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TABLE_BYTES + 1)
    except OSError as error:
        reason = f"cannot read {path}: {error.strerror or error}"
        raise InvalidArgumentError(argument="--prices", reason=reason) from error
    return parse_prices(text)
