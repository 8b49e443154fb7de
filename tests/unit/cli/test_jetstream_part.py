"""Where the JetStream gateway of `holdfast up` works."""

from __future__ import annotations

import pytest

from holdfast.cli.cluster.jetstream_part import is_in_servers


@pytest.mark.parametrize(
    ("cores", "in_servers"), [(0.5, True), (1, True), (2, True), (2.5, False), (16, False)]
)
def test_on_few_cores_it_works_in_each_server(cores: float, in_servers: bool) -> None:
    assert is_in_servers(cores) is in_servers
