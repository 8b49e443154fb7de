"""The stream that tests of subjects write to, in clear and encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.protocol.names import StoreKind
from tests.support.tenant_keys import KEYS
from tests.support.ticked_store import Bench


@pytest.fixture(params=(None, KEYS), ids=("clear", "encrypted"))
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with closing(Bench(tmp_path, StoreKind.STREAM, keys=request.param)) as bench:
        yield bench
