"""docs/cli.md lists every command, argument and option there is, and the JSON that is printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import click
import pytest

from holdfast.cli.access.audit import event_row
from holdfast.cli.access.auth import init_report
from holdfast.cli.access.issuer import issuer_row
from holdfast.cli.access.token import token_row
from holdfast.cli.balancing.move import move_report
from holdfast.cli.balancing.rebalance import rebalance_report
from holdfast.cli.command import holdfast
from holdfast.cli.commands.backup import delete_report, restore_report, version_row
from holdfast.cli.commands.collect import collect_report
from holdfast.cli.commands.probe import probe_report
from holdfast.cli.commands.purge import Erasure
from holdfast.cli.commands.rebuild import rebuild_report
from holdfast.cli.commands.verify import verdict_row
from holdfast.cli.demo.plan import DemoPlan
from holdfast.cli.demo.report import DemoReport
from holdfast.cli.demo.verify import DemoVerdict
from holdfast.cli.render import (
    ack_json,
    change_json,
    consumer_json,
    deleted_json,
    entry_json,
    head_json,
    message_json,
    store_row,
)
from holdfast.cli.settings import CLIENT_OPTIONS, NATS_OPTIONS
from holdfast.cli.stores.configuring import config_json
from holdfast.cli.stores.details import StoreDetails, to_json
from holdfast.cli.tenants.bucket import places_report
from holdfast.cli.tenants.reencrypting import Rewriting
from holdfast.cli.tenants.use import tenant_row
from holdfast.cli.watching.servers import part_row
from holdfast.client.wire.router import AskedOfServer, LoadOfServer, Rebalance
from holdfast.protocol.access.audit_event import AuditEvent
from holdfast.protocol.access.quota import Quota, TenantInfo
from holdfast.protocol.access.rights import ALL_RIGHTS
from holdfast.protocol.access.tokens import Token, TokenLimits
from holdfast.protocol.bus.login import variable
from holdfast.protocol.consumers import ConsumerConfig, ConsumerInfo
from holdfast.protocol.control import Owner, ServerInfo, StoreInfo, StoreState
from holdfast.protocol.messages import (
    Ack,
    Change,
    ChangeKind,
    Deleted,
    Durability,
    Entry,
    Head,
    Message,
)
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.store_config import StoreConfig
from holdfast.shared_fs.access.key_folder import PublicKeys
from holdfast.shared_fs.access.registry import Issuer
from holdfast.shared_fs.archive.table_chain import AckOutcome, KeptAck
from holdfast.shared_fs.inspection.probe_verdicts import (
    Judged,
    Measured,
    Need,
    ProbedMount,
    Verdict,
)
from holdfast.shared_fs.inspection.verification import StoreVerdict
from holdfast.shared_fs.snapshots.collecting import Collected
from holdfast.shared_fs.snapshots.places import TenantPlace
from holdfast.spark.export.compaction import CompactionReport
from holdfast.spark.export.export import ExportReport
from holdfast.spark.export.latest_view import LatestReport
from holdfast.spark.replay import ImportReport
from holdfast.spark.tables.erasing import TableErasure
from holdfast.spark.tables.reencrypting import TableRewriting
from tests.support import documents
from tests.support.documents import ROOT, documented_json, fenced, read
from tests.unit.cli.test_watching import a_cost, a_report

VERDICT = StoreVerdict(
    StoreId("acme", StoreKind.STREAM, "notes"),
    problems=["p"],
    parts=[(1, 2)],
    acks={"its table": [KeptAck(1, AckOutcome.MATCHED, 1)]},
)
DOCUMENT = read("cli.md")
SECTION = re.compile(r"^### `holdfast ([^`]+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(DOCUMENT))
CONSUMER = ConsumerInfo("workers", 3, ConsumerConfig(ack_wait_seconds=60), 8, 6, 1, 0, 7, 0, 6, 0)
MESSAGE = Message(7, b"hello", {"user": "ada"}, 1795230214000, 7)
STORE = StoreId("default", StoreKind.STREAM, "notes")
VERSION = dict.fromkeys(
    ("revision", "epoch", "time", "taken", "last_seq", "count", "bytes", "stored_bytes", "key"), 1
)
REMAIN = dict.fromkeys(("place", "count", "bytes", "holds_values", "example", "removed_by"))
FAILURE = {"tenant": "t", "name": "n", "error": "e", "message": "m"}
PART = PartStatistics("coordinator", "c1", "h", 1, 0.1, ())
LISTED = StoreInfo(1, "notes", "s1", "i", 1, StoreState.DURABLE)
EVENT = AuditEvent(
    "1", 1, "request", "refused", "p", "h", details={"asked": "write", "missing": "write"}
)
TENANT = TenantInfo("acme", 12, 3, 4096, Quota(20, 10**10, 5000.0, 2e7, max_open_stores=10), 4, 0)
ASKED = AskedOfServer("s1", 12.0, 3456.0)
BALANCE = Rebalance([LoadOfServer("s1", 9012.5, 8400.0, 1.2e6, 5392)], [], False, 91, 0)
SERVER = ServerInfo("s1", "i", "live", 0.2, 12, 3, 40.0, 81920)
TOKEN = Token("i", "s", "t", (">",), ALL_RIGHTS, 1, 2, "ada", TokenLimits(1, 1, 1))
ENTRY = Entry("theme", b"dark", {}, 3, 1795230214000)


def commands(group: click.Group = holdfast, *path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None and command.name == name
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


def usage(path: str, command: click.Command) -> str:
    """The command with its arguments, as a heading has it."""
    shown = [path]
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            name = parameter.make_metavar(click.Context(command))
            shown.append(name)
    return " ".join(shown)


def options(command: click.Command, *, shared: bool) -> set[str]:
    shared_names = [name.replace("-", "_") for name in CLIENT_OPTIONS]
    return {
        name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and (parameter.name in shared_names and not parameter.expose_value) == shared
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


ALL = dict(commands())


def test_the_document_has_a_section_for_each_command_and_no_other() -> None:
    assert set(SECTIONS) == {usage(path, command) for path, command in ALL.items()}


@pytest.mark.parametrize("path", ALL)
def test_each_section_lists_the_options_of_its_command(path: str) -> None:
    command = ALL[path]
    body = SECTIONS[usage(path, command)]
    rows = re.findall(r"^\| (`-[^|]*) \|", body, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", row)}
    assert listed == options(command, shared=False)
    [line] = re.findall(r"^Shared options: (.*)\.$", body, re.MULTILINE)
    names = set(CLIENT_OPTIONS) if line == "all" else set(re.findall(r"`--([\w-]+)`", line))
    if "the login" in line:
        names |= set(NATS_OPTIONS)
    assert {f"--{name}" for name in names} == options(command, shared=True)


def test_the_shared_options_are_listed_with_their_variables() -> None:
    rows = re.findall(r"^\| `--([\w-]+)[^`]*` \| `(HOLDFAST_\w+)` \|", DOCUMENT, re.MULTILINE)
    assert rows == [(name, variable(name)) for name in CLIENT_OPTIONS]


def test_the_defaults_of_the_document_are_those_of_the_commands() -> None:
    for path, command in ALL.items():
        for parameter in command.params:
            if not isinstance(parameter, click.Option) or parameter.is_flag:
                continue
            if isinstance(parameter.default, (int, float)) and not parameter.is_bool_flag:
                row = rf"\| `{parameter.opts[0]} [A-Z]+` \| {parameter.default:g} \|"
                assert re.search(row, SECTIONS[usage(path, command)]), (path, parameter.name)


#: What headers and skipped things are called is not for a document to list.
shape = partial(documents.shape, leave_out=("headers", "skipped"))


REWRITTEN = Rewriting(
    "acme",
    {STORE: {"epoch": 4, "values": 1, "chunks": 0, "archived": 0, "table": ""}},
    [FAILURE],
    tables=[TableRewriting(TableErasure("t"), 0, has_clear=False).to_json()],
    in_tables=[
        {
            "place": "tables", "count": 1, "bytes": 0, "holds_values": True,
            "example": "t: notes", "removed_by": "you",
        }
    ],
)  # fmt: skip


def documented(path: str) -> Any:
    return shape(documented_json(SECTIONS[path]))


@pytest.mark.parametrize(
    ("path", "printed"),
    [
        ("stream append NAME [VALUE]", ack_json(Ack(7, 7, 1, Durability.SYNCED))),
        ("stream consumers NAME", {"consumers": [consumer_json(CONSUMER)]}),
        ("stream info NAME", {"name": "n", **head_json(Head(7, 1, 7, 7, 812, 1, "s1"))}),
        ("stream get NAME SEQ", message_json(MESSAGE)),
        ("stream tail NAME", change_json(Change(ChangeKind.SET, 7, 1, message=MESSAGE))),
        ("stream delete NAME SEQ...", deleted_json(Deleted(1, 8))),
        ("stream config NAME", config_json("n", StoreConfig())),
        ("kv config NAME", config_json("n", StoreConfig())),
        ("kv get NAME KEY", entry_json(ENTRY)),
        ("kv set NAME KEY [VALUE]", ack_json(Ack(None, 3, 1, Durability.SYNCED))),
        ("kv watch NAME [KEY_PREFIX]", change_json(Change(ChangeKind.SET, 3, 1, entry=ENTRY))),
        ("kv delete NAME KEY", deleted_json(Deleted(1, 4))),
        ("stores [NAME_PREFIX]", {"stores": [to_json(StoreDetails(LISTED), store_row(LISTED))]}),
        ("servers", {"servers": [SERVER._asdict()], "parts": [part_row(PART)]}),
        (
            "move STORE SERVER",
            move_report(STORE, Owner("s1", "1", 3), Owner("s2", "1", 4), 0.1),
        ),
        ("rebalance", rebalance_report(BALANCE, BALANCE, dry_run=False, seconds=1.0)),
        ("report", a_report()),
        ("cost", a_cost()),
        ("audit", {"events": [event_row(EVENT)]}),
        ("tenants", {"tenants": [tenant_row(TENANT)]}),
        ("tenant set TENANT", {"tenant": "acme", "quota": TENANT.quota.to_wire()}),
        (
            "tenant bucket TENANT",
            places_report("acme", [TenantPlace("acme", 1, "s3://acme-data/holdfast")]),
        ),
        ("tenant reencrypt TENANT [STORE...]", REWRITTEN.to_json()),
        ("tenant show TENANT", {**tenant_row(TENANT), "servers": [ASKED._asdict()]}),
        ("backup [STORE...]", {"backups": [version_row(STORE, VERSION)], "failed": [FAILURE]}),
        ("backups STORE", {"backups": [version_row(STORE, VERSION)]}),
        ("restore STORE", restore_report(STORE, VERSION | {"exact": True, "replayed": 0})),
        (
            "delete STORE",
            delete_report(
                STORE,
                VERSION | {"files": 1, "snapshots": 1, "remains": [REMAIN], "forks": ["trial"]},
            ),
        ),
        (
            "purge [STORE]",
            Erasure(
                "acme",
                STORE,
                looked_at={"packs": 1},
                servers=["s"],
                tables=[TableErasure("t").to_json()],
                remains=[REMAIN],
                forks=["trial"],
            ).to_json(),
        ),
        (
            "verify [STORE...]",
            {"stores": [verdict_row(VERDICT)], "problems": ["p"]},
        ),
        (
            "probe TARGET",
            probe_report(
                Measured((ProbedMount("/mnt/a", "nfs4", "/mnt/a", False, 1, True, True),)),
                [Judged(Need.FENCE, Verdict.FAILED, "1 of 2 stale", "nothing")],
                0.1,
            ),
        ),
        ("auth init", init_report("k", asdict(PublicKeys("A", "X", "U", "U", "U")))),
        ("token list", {"tokens": [token_row(TOKEN, "valid")]}),
        ("token show [TOKEN_ID]", token_row(TOKEN, "valid")),
        ("issuer list", {"issuers": [issuer_row(Issuer("cluster", bytes(32), ("*",)))]}),
        ("collect", collect_report(asdict(Collected(keys=["k"])), dry_run=True)),
        (
            "rebuild",
            rebuild_report(
                stores=1, logs=1, updated=1, changes=1, problems={"n": "r"}, damaged_logs=["d"]
            ),
        ),
    ],
)
def test_what_is_printed_has_the_documented_shape(path: str, printed: Any) -> None:
    assert shape(printed) == documented(path)


def test_the_demo_s_report_has_the_documented_shape() -> None:
    report = DemoReport(DemoPlan("r", "demo.r."), 2, 4, [], None, DemoVerdict(), 0, [], 1.0)
    assert shape(report.to_json()) == documented("demo")


def test_the_reports_of_tables_have_the_documented_shape() -> None:
    requests = dict.fromkeys(("get", "head", "list", "put", "table_put"), 0)
    exported = ExportReport(requests=requests, latest=LatestReport("t")).to_json()
    compaction = CompactionReport("t").to_json()
    assert shape({**exported, "compaction": compaction}) == documented("export")
    assert shape(ImportReport("t").to_json()) == documented("import SOURCE")


def test_values_that_are_no_text_come_as_base64_alone() -> None:
    printed = message_json(MESSAGE._replace(value=b"\xff\x00"))
    assert printed["value_base64"] == "/wA="
    assert "value" not in printed


def test_changes_other_than_set_carry_what_is_gone() -> None:
    deleted = change_json(Change(ChangeKind.DELETE, 9, 1, seqs=(3, 4)))
    assert (deleted["change"], deleted["seqs"]) == ("delete", [3, 4])
    assert change_json(Change(ChangeKind.DELETE, 9, 1, keys=("k",)))["keys"] == ["k"]
    assert change_json(Change(ChangeKind.TRIM, 9, 1, end_seq=5))["end_seq"] == 5


def commands_shown() -> Iterator[str]:
    """Yield each `holdfast ...` of the console blocks of the README and the documents."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text()
        for block in fenced(text, "console"):
            for line in re.findall(r"^\$ (.*(?:\\\n.*)*)$", block, re.MULTILINE):
                shown = line.replace("\\\n", " ")
                for command in re.findall(r"(?:^|[|;&] )(holdfast [^|;&#>]+)", shown):
                    yield command.strip()


@pytest.mark.parametrize("line", sorted(set(commands_shown())))
def test_every_command_that_is_shown_is_one(line: str) -> None:
    command, words = holdfast, shlex.split(line)[1:]
    context = command.make_context("holdfast", words)
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, words = command.resolve_command(context, rest)
        assert found is not None, name
        context = found.make_context(name, words, parent=context)
        command = found
