"""A client of which each test of the wire has one."""

from __future__ import annotations

import pytest

from tests.support.coalescer_client import Client


@pytest.fixture
def client() -> Client:
    return Client()
