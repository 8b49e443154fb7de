"""The limits of an account, as the options of a gateway say them."""

from __future__ import annotations

import pytest

from holdfast.gateway.jetstream.api.limits import NO_LIMITS, AccountLimits


def test_limits_are_told_by_their_names() -> None:
    assert AccountLimits.parse([]) == NO_LIMITS
    found = AccountLimits.parse(["max_streams=10", "max_storage=1000", "max_bytes_required=1"])
    assert (found.max_streams, found.max_storage, found.max_memory) == (10, 1000, -1)
    assert found.max_bytes_required is True


@pytest.mark.parametrize("text", ["streams=1", "max_streams", "max_streams=x", "max_streams=-1"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition("=")[0]):
        AccountLimits.parse([text])
