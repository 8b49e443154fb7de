"""docs/reliability.md and docs/fault-matrix.md name tests that exist, for every row, and all that
the harnesses inject."""

from __future__ import annotations

import ast
import re

from tests.support.documents import ROOT, read, tables

TESTS = ROOT / "tests"
DOCUMENT = read("reliability.md") + "\n" + read("fault-matrix.md")
FAULT_MATRIX = ["fault", "injected by", "promised", "shown by"]
NAMED_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
NOT_TESTED = re.compile(r"not tested: \S.{9,}")


def rows_of(*header: str) -> list[list[str]]:
    [rows] = [rows for found, rows in tables(DOCUMENT) if found == list(header)]
    return rows


def matrix() -> list[list[str]]:
    return [row for header, rows in tables(DOCUMENT) if header == FAULT_MATRIX for row in rows]


def tree(path: str) -> ast.Module:
    return ast.parse((TESTS / path).read_text())


def existing_tests() -> set[tuple[str, str]]:
    """The file name and name of every test function."""
    return {
        (path.name, node.name)
        for path in TESTS.rglob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def constant(path: str, name: str) -> ast.expr:
    """The value that a module gives to `name`."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                return node.value
    raise AssertionError(f"{path} has no {name}")


def scenarios_of_power() -> set[str]:
    return {
        str(ast.literal_eval(node.args[0]))
        for node in ast.walk(constant("power/scenarios.py", "SCENARIOS"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
    }


def crashed_operations() -> set[str]:
    return {
        str(ast.literal_eval(statement.value))
        for node in tree("crashes/operations.py").body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id == "name"
    }


def faults_of_the_nemesis() -> set[str]:
    """What its `__init__` lists, and that of its part for tokens: `(self._name, weight)`."""
    return {
        node.elts[0].attr.removeprefix("_")
        for path in ("simulation/nemesis.py", "simulation/token_faults.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Tuple)
        and len(node.elts) == 2
        and isinstance(node.elts[0], ast.Attribute)
        and isinstance(node.elts[1], ast.Constant)
    }


def faults_of_hosts() -> set[str]:
    """The values of `HostFault`."""
    return {
        str(ast.literal_eval(value))
        for node in tree("hosts/faults.py").body
        if isinstance(node, ast.ClassDef) and node.name == "HostFault"
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for value in [statement.value]
    }


def faults_of_the_torture() -> set[str]:
    [kinds] = [
        node
        for node in tree("torture/faults.py").body
        if isinstance(node, ast.ClassDef) and node.name == "FaultKind"
    ]
    return {
        str(ast.literal_eval(node.value)) for node in kinds.body if isinstance(node, ast.Assign)
    }


def bugs_planted_in(path: str) -> set[str]:
    return {
        node.name
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }


def names_in(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_every_row_names_a_test_or_says_why_there_is_none() -> None:
    rows = matrix()
    assert len(rows) > 50
    for row in rows:
        assert len(row) == len(FAULT_MATRIX), row
        shown_by = row[-1]
        assert NAMED_TEST.search(shown_by) or NOT_TESTED.fullmatch(shown_by), row


def test_every_fault_has_one_row() -> None:
    faults = [row[0] for row in matrix()]
    assert len(set(faults)) == len(faults)


def test_every_test_that_is_named_exists() -> None:
    named = set(NAMED_TEST.findall(DOCUMENT))
    assert named
    assert named - existing_tests() == set()
    assert DOCUMENT.count("::") == len(NAMED_TEST.findall(DOCUMENT)), "one is written otherwise"


def test_every_claim_of_the_readme_names_tests_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    [section] = re.findall(r"^## What holds\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    claims = re.findall(r"^- (.*?)(?=^- |^\n)", section, re.MULTILINE | re.DOTALL)
    assert len(claims) >= 5
    for claim in claims:
        assert NAMED_TEST.search(claim), claim
    named = NAMED_TEST.findall(section)
    assert set(named) - existing_tests() == set()
    assert section.count("::") == len(named), "one is written otherwise"


def test_every_scenario_of_the_power_cuts_is_listed() -> None:
    listed = [names_in(row[0]) for row in rows_of("scenario", "the power goes while")]
    assert scenarios_of_power() == set.union(*listed)


def test_every_operation_that_is_crashed_is_listed() -> None:
    rows = rows_of("operation", "what is crashed", "crashes, of points")
    operations = crashed_operations()
    assert len(operations) > 5
    assert operations == set.union(*(names_in(row[0]) for row in rows))
    assert bugs_planted_in("crashes/planted.py") <= names_in(DOCUMENT)


def test_every_fault_of_the_simulation_is_listed_and_in_the_matrix() -> None:
    faults = faults_of_the_nemesis()
    assert len(faults) > 10
    assert faults == set.union(*(names_in(row[0]) for row in rows_of("fault", "what it does")))
    assert faults <= set.union(*(names_in(row[1]) for row in matrix()))


def test_every_fault_of_the_torture_is_named() -> None:
    prose = " ".join(DOCUMENT.split())
    assert [fault for fault in faults_of_the_torture() if fault not in prose] == []


def test_every_fault_of_hosts_is_listed() -> None:
    faults = faults_of_hosts()
    assert len(faults) > 10
    assert faults == {row[0] for row in rows_of("fault of a host", "how", "what happens")}


def test_planted_bugs_are_listed_with_the_seeds_that_find_them() -> None:
    seeds = ast.literal_eval(constant("simulation/test_simulation.py", "_PLANTED_SEEDS"))
    listed = {
        bare: (int(row[1]), None if row[2] == "all" else names_in(row[2]).pop())
        for row in rows_of("planted bug", "found within seeds", "faults")
        for bare in names_in(row[0])
    }
    assert listed == seeds
    assert set(listed) == bugs_planted_in("simulation/planted.py")
    assert bugs_planted_in("power/planted.py") <= names_in(DOCUMENT)


def test_modules_and_folders_that_are_named_exist() -> None:
    for path in re.findall(r"`((?:\w+/)+\w+(?:\.py)?)`", DOCUMENT):
        assert (ROOT / path).exists(), path
