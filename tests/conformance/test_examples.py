"""What the documents show works, and prints what they say."""

from __future__ import annotations

import itertools

import pytest
from examples import Program, programs

_tenants = itertools.count(1)


@pytest.mark.parametrize("program", programs(), ids=str)
def test_the_examples_run_and_print_what_is_shown(nats: str, program: Program) -> None:
    program.run(nats, f"example{next(_tenants)}")
