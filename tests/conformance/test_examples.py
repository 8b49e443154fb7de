"""What the documents show works, and prints what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conformance.examples import DOCUMENTS, ROOT, Program, programs


@pytest.mark.parametrize("program", programs(), ids=str)
def test_the_examples_run_and_print_what_is_shown(nats: str, tenant: str, program: Program) -> None:
    program.run(nats, tenant)


def test_the_program_of_the_readme_may_be_run_again(nats: str, tenant: str) -> None:
    [program] = [each for each in programs() if each.document == "README.md"]
    program.run(nats, tenant)
    # What it prints then goes on where the first run ended.
    again = tuple(replace(each, output=None) for each in program.examples)
    replace(program, examples=again).run(nats, tenant)


def test_no_example_and_no_output_is_left_out() -> None:
    examples = [example for program in programs() for example in program.examples]
    text = "".join((ROOT / document).read_text() for document in DOCUMENTS)
    programs_with_arguments = text.count("```python\n# check_table.py\n")
    assert len(examples) == text.count("```python\n") - programs_with_arguments
    assert sum(example.output is not None for example in examples) == text.count("```text\n")
