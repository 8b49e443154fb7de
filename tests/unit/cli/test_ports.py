"""The ports of an embedded cluster."""

from __future__ import annotations

import pytest

from holdfast.cli.cluster import ports


def test_parts_that_have_not_started_yet_never_get_the_same_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_FREE_PORTS", range(10_000, 10_250))
    given = [ports.free_port() for _ in range(100)]
    assert len(set(given)) == len(given)
