"""The documents say what the code says, and their links and the map lead somewhere.

Tables are read from the documents and compared with the code, both ways where a table claims to be
complete; the bytes of the protocol's example are made anew by the server's own code.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import runpy
import string
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import click
import pytest

from holdfast.cli.cluster.nats_binary import find_nats_server
from holdfast.cli.command import holdfast
from holdfast.client.wire.router import RESEND_SECONDS
from holdfast.client.wire.schedule import BACKOFF_MAX_SECONDS, BACKOFF_SECONDS
from holdfast.coordinator.__main__ import main as run_coordinator
from holdfast.coordinator.answering.parsing import _CLIENT_VERBS, _CLUSTER_VERBS, _OPERATOR_VERBS
from holdfast.coordinator.standing_by import STANDBY_POLL_SECONDS
from holdfast.persist.__main__ import main as run_persist
from holdfast.persist.operations import reads
from holdfast.persist.shared_disk.locked_files import LOCK_WAIT_SECONDS
from holdfast.persist.store.open_stores import Arrival
from holdfast.persist.store.store import Store
from holdfast.persist.write_path.tick import Tick
from holdfast.protocol import changes, frames, limits
from holdfast.protocol.access.audit_event import AuditAction
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.compression import ENCODINGS
from holdfast.protocol.consumers import ConsumerConfig, ConsumerInfo
from holdfast.protocol.control import (
    Heartbeat,
    Owner,
    ServerInfo,
    ServerState,
    StoreInfo,
    StoreState,
)
from holdfast.protocol.errors import ERRORS_BY_CODE, HoldfastError
from holdfast.protocol.messages import Durability
from holdfast.protocol.monitoring.description import MetricKind
from holdfast.protocol.monitoring.metrics import METRICS
from holdfast.protocol.names import StoreId, StoreKind, quote
from holdfast.protocol.serving.trouble import OVER_EVENT
from holdfast.protocol.store_config import StoreConfig
from holdfast.protocol.subjects import Subjects
from holdfast.shared_fs.access.set_up import KEYS_FOLDER, registry_folder
from holdfast.shared_fs.bucket.bucket_errors import NoBucketError
from holdfast.shared_fs.disk.layout import Layout, NoDataError
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.support.documents import ROOT, bare, fenced, read, table, tables

PROTOCOL, OPERATIONS = read("protocol.md"), read("operations.md")
#: Where limits are listed.
DOCUMENTS = (PROTOCOL, OPERATIONS, *map(read, ("guide.md", "tutorial.md", "coming-from.md")))
DRAWINGS = ROOT / "docs" / "drawings"
#: The protocol page without its line breaks.
PROSE = " ".join(PROTOCOL.split())

NOTES = StoreId("acme", StoreKind.STREAM, "notes")
SETTINGS = StoreId("acme", StoreKind.KV, "settings")
WRITER = bytes.fromhex("0102030405060708090a0b0c")
TIME = 1767225600000


# Errors
def fields_of(cls: type[HoldfastError]) -> list[str]:
    names = [name for _, name, _, _ in string.Formatter().parse(cls.template) if name]
    return sorted(set(names))


def test_every_error_code_is_listed_with_its_fields_and_whether_a_retry_can_help() -> None:
    listed = {
        row[0]: (row[1] == "yes", sorted(re.findall(r"`(\w+)`", row[2])))
        for row in table(PROTOCOL, "code", "retry", "fields")
    }
    assert listed == {code: (cls.retryable, fields_of(cls)) for code, cls in ERRORS_BY_CODE.items()}


def command_line_errors() -> set[str]:
    """The codes of the errors that the modules of the command line define, imported or not."""
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "cli").rglob("*.py")))
    pattern = r'^class \w+Error\(\w+\):(?:\n    .*|\n)*?\n    code = "(\w+)"'
    return set(re.findall(pattern, sources, re.MULTILINE))


def codes_in(rows: list[list[str]]) -> set[str]:
    return {code for row in rows for code in re.findall(r"\w+", row[0])}


def test_operators_are_told_what_to_do_about_every_error_they_can_meet() -> None:
    told = codes_in(table(OPERATIONS, "code", "what it means to an operator"))
    of_the_bus = {NoRespondersError.code, BusTimeoutError.code}
    assert told <= set(ERRORS_BY_CODE) | of_the_bus
    for code, cls in ERRORS_BY_CODE.items():
        is_branch = any(sub.code in ERRORS_BY_CODE for sub in cls.__subclasses__())
        if code.startswith("un") or (not is_branch and not _is_caller_s_fault(code)):
            assert code in told, code
    assert of_the_bus <= told


def _is_caller_s_fault(code: str) -> bool:
    return "RequestError" in {cls.__name__ for cls in ERRORS_BY_CODE[code].__mro__}


def test_every_error_of_the_command_line_is_listed() -> None:
    # Commands meet these two, and no server does.
    met = {NoBucketError.code, NoDataError.code}
    assert codes_in(table(OPERATIONS, "code", "what it means", "what to do")) == (
        command_line_errors() | met
    )


# Operations, changes, numbers
def numbered_constants(module: ModuleType, numbers: Callable[[str], bool]) -> dict[int, str]:
    return {
        value: name
        for name, value in vars(module).items()
        if name.isupper() and type(value) is int and numbers(name)
    }


def test_every_operation_is_listed_with_its_number_and_its_word() -> None:
    listed = {int(row[0]): (bare(row[1]), row[2]) for row in table(PROTOCOL, "number", "operation")}
    constants = numbered_constants(
        frames, lambda name: not name.startswith(("FIRST_", "MAX_", "PROTOCOL_", "VERB_"))
    )
    assert set(constants) == set(frames.OPERATION_NAMES)
    assert listed == {
        number: (constants[number], word) for number, word in frames.OPERATION_NAMES.items()
    }


def test_every_layout_begins_with_the_number_of_its_operation() -> None:
    rows = [*table(PROTOCOL, "number", "operation"), *table(PROTOCOL, "number", "change")]
    for row in rows:
        layout = row[4] if len(row) > 4 else row[2]
        assert layout.startswith((f"`[{row[0]}]", f"`[{row[0]},")), row


def test_writes_are_below_the_first_read() -> None:
    assert f"Writes are below {frames.FIRST_READ}, reads from {frames.FIRST_READ} on" in PROSE


def test_every_change_is_listed_with_its_number() -> None:
    listed = {int(row[0]): bare(row[1]) for row in table(PROTOCOL, "number", "change")}
    assert listed == numbered_constants(changes, lambda name: name.startswith("CHANGE_"))


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("kind", {kind.value: kind.word for kind in StoreKind}),
        ("durability", {level.value: level.word for level in Durability}),
        ("store state", {state.value: state.name.lower() for state in StoreState}),
    ],
)
def test_numbers_have_the_words_of_the_code(title: str, expected: dict[int, str]) -> None:
    listed = {int(row[0]): bare(row[1]) for row in table(PROTOCOL, "number", title)}
    assert listed == expected


def test_the_states_of_a_server_are_listed() -> None:
    assert [row[0] for row in table(PROTOCOL, "server state")] == [str(one) for one in ServerState]


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("server_info", ServerInfo._fields),
        ("store_info", StoreInfo._fields),
        ("consumer_info", [each.name for each in dataclasses.fields(ConsumerInfo)]),
    ],
)
def test_the_arrays_of_infos_are_listed_in_order(title: str, fields: Sequence[str]) -> None:
    rows = table(PROTOCOL, "position", title)
    assert [(int(row[0]), bare(row[1])) for row in rows] == list(enumerate(fields))


def test_the_fields_of_a_heartbeat_and_of_an_owner_are_listed() -> None:
    assert tuple(row[0] for row in table(PROTOCOL, "field")) == (*Heartbeat._fields, "report")
    assert f"An owner is `[{', '.join(Owner._fields)}]`" in PROSE


def test_every_verb_of_the_coordinator_is_listed() -> None:
    found = [rows for header, rows in tables(PROTOCOL) if header[:1] == ["verb"]]
    listed = [{bare(row[0]) for row in rows} for rows in found]
    assert listed == [set(_CLIENT_VERBS), set(_CLUSTER_VERBS), set(_OPERATOR_VERBS)]


def test_subjects_are_those_that_the_code_builds() -> None:
    subjects = Subjects()
    assert {row[0] for row in table(PROTOCOL, "subject")} == {
        subjects.coordinator("acme", "resolve"),
        subjects.server("acme", "p1"),
        subjects.destroy("acme", "p1"),
        subjects.fork("acme", "p1"),
        subjects.changes(NOTES),
        subjects.changes(SETTINGS),
        subjects.meta_changes(SETTINGS),
        subjects.cluster("open"),
        subjects.cluster("drain"),
        subjects.heartbeat(),
        subjects.control("p1"),
        subjects.operator("p1"),
        subjects.audit(),
    }


def test_the_example_of_quoting_is_right() -> None:
    assert f"`ada@x.org/a` is `{quote('ada@x.org/a')}`" in PROSE


# Limits
def test_every_limit_that_is_listed_has_the_value_of_the_code() -> None:
    listed = [
        (bare(row[0]), float(row[1]))
        for document in DOCUMENTS
        for header, rows in tables(document)
        if header[:2] == ["limit", "value"]
        for row in rows
    ]
    assert len(listed) == len(dict(listed)), "a limit is listed twice"
    for name, value in listed:
        assert getattr(limits, name) == value, name
    # The ends of 64 bits are in the prose: they are no floats.
    unlisted = {"KIB", "MIB", "MIN_INTEGER", "MAX_INTEGER"}
    assert set(dict(listed)) == {name for name in vars(limits) if name.isupper()} - unlisted


def test_the_numbers_in_the_prose_are_those_of_the_code() -> None:
    assert f"tries the active one's lock every {STANDBY_POLL_SECONDS:g} s" in OPERATIONS
    assert f"wait {LOCK_WAIT_SECONDS:g} s for their locks" in OPERATIONS
    first_ms, most = BACKOFF_SECONDS * 1000, BACKOFF_MAX_SECONDS
    assert f"back off ({first_ms:g} ms, doubling up to {most:g} s, with jitter)" in PROSE
    assert f"no answer for {limits.PING_SECONDS:g} s" in PROSE
    assert f"no answer for {limits.FRAME_TIMEOUT_SECONDS:g} s" in PROSE
    first, again = RESEND_SECONDS, 3 * RESEND_SECONDS
    assert f"asks again after {first:g} s and {again:g} s" in PROSE
    assert f"gives up after {limits.CONTROL_TIMEOUT_SECONDS:g} s" in PROSE
    assert f"takes {limits.SILENCE_SECONDS:g} s for it" in OPERATIONS
    assert f"a probe in the last {limits.PROBE_TIMEOUT_SECONDS:g} s of it" in OPERATIONS
    assert f"stored within the last {limits.DEDUPE_WINDOW_SECONDS:g} s" in PROSE


# Options and variables
def command_of(name: str) -> click.Command:
    command = holdfast.get_command(click.Context(holdfast), name)
    assert command is not None
    return command


def options_of(name: str) -> dict[str, str]:
    """Each option of a command, with the variable that sets it."""
    command = command_of(name)
    shared = {one.name: one for one in holdfast.params if isinstance(one, click.Option)}
    found = {}
    for one in command.params:
        assert isinstance(one, click.Option) and one.name is not None
        variable = str(one.envvar or f"HOLDFAST_{name.upper()}_{one.name.upper()}")
        if one.name in shared and not one.expose_value:
            [variable] = [str(shared[one.name].envvar)]
        found[one.opts[0]] = variable
    return found


def documented_options(name: str) -> list[list[str]]:
    [block] = re.findall(rf"^`holdfast {name}`:\n\n((?:^\|.*\|\n)+)", OPERATIONS, re.MULTILINE)
    [(_, rows)] = tables(block)
    return [[bare(row[0]), *row[1:]] for row in rows]


@pytest.mark.parametrize("name", ["coordinator", "gateway", "persist", "up"])
def test_every_option_of_a_server_is_listed_with_its_variable(name: str) -> None:
    listed = {row[0]: bare(row[1]) for row in documented_options(name)}
    assert listed == options_of(name)


@pytest.mark.parametrize("name", ["coordinator", "gateway", "persist", "up"])
def test_the_listed_defaults_are_those_of_the_options(name: str) -> None:
    listed = {row[0]: bare(row[2]) for row in documented_options(name)}
    for one in command_of(name).params:
        assert isinstance(one, click.Option)
        if one.required:
            assert listed[one.opts[0]] == "required"
        elif one.is_flag:
            assert listed[one.opts[0]] == "off"
        elif one.expose_value and isinstance(one.default, (int, float)):
            assert float(listed[one.opts[0]]) == one.default
        elif one.expose_value and isinstance(one.default, (str, Path)):
            assert listed[one.opts[0]] == str(one.default)


@pytest.mark.parametrize(
    ("name", "run"), [("coordinator", run_coordinator), ("persist", run_persist)]
)
def test_the_server_modules_take_the_same_options(
    name: str, run: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["--help"])
    offered = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    listed = {row[0] for row in documented_options(name)}
    # A gateway is put into the process by the command alone.
    assert offered - {"--help"} == listed - {"--jetstream", "--leafnodes"}


def test_every_variable_that_is_mentioned_exists() -> None:
    known = {str(one.envvar) for one in holdfast.params if isinstance(one, click.Option)}
    for name in ("coordinator", "gateway", "persist", "up"):
        known |= set(options_of(name).values())
    assert set(re.findall(r"HOLDFAST_\w+", OPERATIONS + PROTOCOL)) == known & set(
        re.findall(r"\w+", OPERATIONS)
    )


# Logs
def logged_events() -> dict[str, set[str]]:
    """Each event that the code logs, with the levels it is logged at."""
    found: dict[str, set[str]] = {}
    for package in (
        *("cli", "client", "coordinator", "gateway", "persist", "protocol", "shared_fs"),
    ):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "Trouble":
                    event, *level = [ast.unparse(one) for one in node.args[1:3]]
                    named = level[0].partition(".")[2] if level else "WARNING"
                    found.setdefault(ast.literal_eval(event), set()).add(named.lower())
                    continue
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "logger"):
                    continue
                levels = [node.func.attr]
                if levels == ["log"]:
                    levels = re.findall(r"logging\.(\w+)", ast.unparse(node.args[0]).lower())
                constants = [one.value for one in node.args if isinstance(one, ast.Constant)]
                assert constants, f"{path}:{node.lineno} logs no event"
                found.setdefault(constants[0].split(" ")[0], set()).update(levels)
    return found


def test_every_event_that_is_logged_is_listed_with_its_levels() -> None:
    listed = [
        (bare(row[0]), set(row[1].split(", ")))
        for header, rows in tables(OPERATIONS)
        if header[:2] == ["event", "level"]
        for row in rows
    ]
    assert len(listed) == len(dict(listed)), "an event is listed twice"
    assert dict(listed) == logged_events() | {OVER_EVENT: {"info"}}


def test_every_setting_of_a_store_is_listed_with_its_default() -> None:
    words = {"None": "nil", "": "empty", "old": "`old`", "0": "`default`", "120.0": "120"}
    words |= {"False": "false", "1": "1"}
    defaults = {each.name: str(each.default) for each in dataclasses.fields(StoreConfig)}
    assert {row[0]: row[1] for row in table(PROTOCOL, "name", "default")} == {
        name: words[default] for name, default in defaults.items()
    }
    body = PROTOCOL.partition("Limits of a store\n")[2].partition("\n## ")[0]
    assert f"at most {limits.MAX_DESCRIPTION_BYTES} bytes" in body
    assert f"a turn removes {limits.MAX_EVICTED_ROWS}" in PROSE


def test_every_setting_of_a_consumer_is_listed_with_its_default_and_every_verb() -> None:
    words = {"None": "nil", "30.0": "30"}
    defaults = {each.name: str(each.default) for each in dataclasses.fields(ConsumerConfig)}
    assert {row[0]: row[1] for row in table(PROTOCOL, "setting", "default")} == {
        name: words.get(default, default) for name, default in defaults.items()
    }
    verbs = {
        int(row[0]): f"VERB_{bare(row[1]).upper()}" for row in table(PROTOCOL, "number", "verb")
    }
    assert verbs == numbered_constants(frames, lambda name: name.startswith("VERB_"))


# Files
def test_every_action_of_the_audit_log_is_listed() -> None:
    rows = table(OPERATIONS, "action")
    listed = [name for row in rows for name in re.findall("[a-z._]+", row[0])]
    assert sorted(listed) == sorted(action.value for action in AuditAction)


def test_the_layout_on_disk_is_the_one_of_the_code() -> None:
    layout = Layout(Path())
    store = layout.store(NOTES)
    assert {row[0] for row in table(OPERATIONS, "path under `--data`")} == {
        str(layout.format_file),
        str(layout.coordinator / "lock"),
        str(layout.coordinator / "state.db"),
        str(layout.coordinator / "state.<term>.db"),
        str(layout.coordinator / "term"),
        str(layout.coordinator / "term.<term>"),
        str(layout.coordinator / "question"),
        str(layout.coordinator / "answer"),
        str(layout.coordinator_progress),
        str(layout.cluster_file),
        str(layout.server("<server>") / "lock"),
        str(layout.server("<server>") / "reaper"),
        str(layout.fence("<server>", "<incarnation>")),
        str(layout.proof("<server>", "<incarnation>")),
        str(layout.log("<server>", "<incarnation>") / "<number>.log"),
        str(layout.letting_go("<server>", "<incarnation>")),
        str(layout.loss_accepted("<server>", "<incarnation>")),
        "stores/<tenant>/<aaa>/<name>.<kind>.<generation>.db",
        "stores/<tenant>/<aaa>/<name>.<kind>.deleted",
        f"{layout.quotas}/",
        f"{layout.audit}/",
        f"{layout.quarantine}/<tenant>/<file>.<time>/",
        f"{registry_folder(layout.root)}/",
        f"{layout.root / KEYS_FOLDER}/",
    }
    assert f"cp DATA/{store} " in OPERATIONS


# The example, made anew by the server's own code
@pytest.fixture
def example(tmp_path: Path) -> dict[str, bytes]:
    """Every payload of the example in docs/protocol.md."""

    def create_file(page_bytes: int) -> StoreFile:
        path = tmp_path / "notes.db"
        file = StoreFile.create(path, NOTES, time=TIME, page_bytes=page_bytes)
        file.take(1, "p1", "i1")
        return file

    def arrival(payload: bytes) -> Arrival:
        writer, [group] = frames.decode_request(payload)
        return Arrival("reply", 0, writer, NOTES, group)

    append_hello = [frames.APPEND, b"hello"]
    append_world = [frames.APPEND, b"world", {"user": "ada"}]
    set_too_far = [frames.SET_MESSAGE, 9, b"!"]
    operations = [append_hello, append_world, set_too_far]
    request = frames.encode_request(WRITER, [[1, "notes", 1, 1, 0, operations]])
    store = Store(NOTES, 1, None, create_file)
    tick = Tick(1, TIME, Durability.SYNCED)
    tick.write(store, arrival(request))
    tick.records()
    tick.committed(1)
    again = Tick(2, TIME + 1, Durability.SYNCED)
    again.write(store, arrival(request))
    assert again.synced == tick.synced
    [(_, broadcast)] = tick.broadcasts

    store.materialise(1)
    catch_up = frames.encode_request(WRITER, [[1, "notes", 0, 0, 0, [[frames.CHANGES, 1, 1]]]])
    found = reads.execute(store, "p1", arrival(catch_up).group.operations)
    assert store.file is not None
    store.file.close()
    outcome = frames.encode_outcome(store.epoch, store.time, 0, found)
    return {
        "resolve-request": frames.encode_control(stores=[[1, "notes"]]),
        "resolve-reply": frames.encode_control(
            term=1, owners=[Owner("p1", "i1", 1)], encodings=ENCODINGS
        ),
        "request": request,
        "reply": frames.encode(tick.synced["reply"]),
        "changes": broadcast,
        "changes-request": catch_up,
        "changes-reply": frames.encode([[0, 0, outcome]]),
    }


def documented_bytes() -> dict[str, bytes]:
    found = re.findall(r"^```hex ([\w-]+)\n(.*?)^```$", PROTOCOL, re.MULTILINE | re.DOTALL)
    return {name: bytes.fromhex(text) for name, text in found}


def test_the_bytes_of_the_example_are_those_of_the_code(example: dict[str, bytes]) -> None:
    documented = documented_bytes()
    assert set(documented) == set(example)
    for name, payload in example.items():
        assert documented[name].hex() == payload.hex(), name


def test_the_prose_of_the_example_is_what_its_bytes_say() -> None:
    documented = documented_bytes()
    [[index, kind, outcome]] = frames.decode(documented["reply"])
    assert (index, kind) == (0, 0)
    assert f"`bin` of {len(outcome)} bytes" in PROSE
    decoded = frames.decode_outcome(outcome)
    assert (decoded.epoch, decoded.time, decoded.durability) == (1, TIME, 2)
    assert decoded.results == [[1, 1], [2, 2], ["invalid_seq", {"seq": 9, "last_seq": 2}]]
    assert f"{TIME}" in PROTOCOL and WRITER.hex() in PROTOCOL


def test_the_decoder_in_the_document_reads_a_broadcast(
    example: dict[str, bytes], tmp_path: Path
) -> None:
    [source] = fenced(PROTOCOL, "python")
    program = tmp_path / "decoder.py"
    program.write_text(source)
    namespace = runpy.run_path(str(program))
    assert namespace["decode_changes"](example["changes"]) == [
        (1, TIME, [1, 1, b"hello"]),
        (2, TIME, [1, 2, b"world", {"user": "ada"}]),
    ]


# The rest
def test_nats_server_accepts_the_configuration_in_the_document(tmp_path: Path) -> None:
    [configuration] = fenced(OPERATIONS, "nats")
    path = tmp_path / "nats.conf"
    path.write_text(configuration)
    command = [str(find_nats_server()), "-t", "-c", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 0, result.stderr


def test_the_api_page_is_that_of_the_docstrings() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate" / "api_page.py"))["page"]
    assert (ROOT / "docs" / "api.md").read_text() == page(), "run make generate"


def test_the_table_of_metrics_is_what_the_code_counts() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate" / "metrics_table.py"))["page"]
    assert page() == OPERATIONS, "run make generate"


def test_the_dashboard_and_the_alerts_name_metrics_that_exist() -> None:
    module = runpy.run_path(str(ROOT / "docs" / "generate" / "grafana_dashboard.py"))
    text = (ROOT / "docs" / "deploy" / "grafana" / "holdfast.json").read_text()
    assert text == module["text"](), "run make generate"
    known: dict[str, tuple[str, ...]] = {}
    for metric in METRICS.values():
        is_histogram = metric.kind is MetricKind.HISTOGRAM
        labels = (*metric.labels, "instance", *(["le"] if is_histogram else []))
        known[metric.full_name + ("_bucket" if is_histogram else "")] = labels
    queries = [
        target["expr"]
        for panel in json.loads(text)["panels"]
        for target in panel.get("targets", ())
    ]
    alerts = [bare(row[0]) for row in table(OPERATIONS, "alert", "because")]
    assert len(queries) > 30 and len(alerts) > 4
    for query in queries + alerts:
        [name] = set(re.findall(r"holdfast_\w+", query))
        for labels in re.findall(r"by \(([^)]*)\)|\{(\w+)!?=", query):
            for label in filter(None, ",".join(labels).replace(" ", "").split(",")):
                assert label in known[name], query
        assert name in known, query


def test_every_metric_that_is_listed_is_counted_somewhere() -> None:
    module = ROOT / "protocol" / "monitoring" / "metrics.py"
    names = {
        target.id
        for node in ast.parse(module.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    # Programs that show numbers count none.
    readers = {"overview.py", "findings.py", "happenings.py", "metrics.py"}
    counted: set[str] = set()
    for package in ("protocol", "persist", "coordinator", "gateway"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name not in readers and path.parent.name != "console":
                counted.update(re.findall(r"\bmetrics\.([A-Z_]+)", path.read_text()))
    assert names - counted == set()


def test_the_table_of_who_may_do_what_is_that_of_the_code() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate" / "access_table.py"))["page"]
    assert (ROOT / "docs" / "access.md").read_text() == page(), "run make generate"


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.is_file(), target
        if anchor:
            assert anchor in anchors(file.read_text()), target


# The map
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
PACKAGES = sorted(mark.parent.name for mark in ROOT.glob("*/py.typed"))


def test_every_package_and_every_room_is_in_the_map() -> None:
    rooms = {
        initial.parent.relative_to(ROOT)
        for package in PACKAGES
        for initial in (ROOT / package).glob("*/__init__.py")
    }
    for room in {*map(Path, PACKAGES), *rooms}:
        assert f"`{room}/`" in ARCHITECTURE, room


def test_everything_that_the_map_and_the_decisions_name_exists() -> None:
    named = re.compile(rf"`((?:{'|'.join(PACKAGES)})/(?:[\w/]+\.py|(?:\w+/)*))`")
    assert len(named.findall(ARCHITECTURE)) > 50
    for text in (ARCHITECTURE, *(each.read_text() for each in DECISIONS)):
        for path in named.findall(text):
            assert (ROOT / path).exists(), path


def test_every_decision_is_in_the_index_under_its_title() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    numbers = [each.name[:3] for each in DECISIONS]
    # Branches that run side by side have numbers of their own, so some may be left out.
    assert numbers == sorted(set(numbers))
    for each in DECISIONS:
        number, _, title = each.read_text().splitlines()[0].removeprefix("# ").partition(" ")
        assert f"| {number} | [{title}]({each.name}) |" in index


@pytest.mark.parametrize("drawing", sorted(path.name for path in DRAWINGS.glob("*")))
def test_every_drawing_is_svg_with_a_title_and_legible_in_dark_mode(drawing: str) -> None:
    root = ElementTree.parse(DRAWINGS / drawing).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{svg}svg" and root.findtext(f"{svg}title")
    assert "@media (prefers-color-scheme: dark)" in (root.findtext(f"{svg}style") or "")
    assert any(f"drawings/{drawing})" in (ROOT / page).read_text() for page in PAGES)
