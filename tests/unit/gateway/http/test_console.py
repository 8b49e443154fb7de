"""The console's parts: its files, what it shows of stores, and the look that viewers share."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.gateway.http.console.census import Census, census_of
from holdfast.gateway.http.console.history import CHARTS, History
from holdfast.gateway.http.console.page import ConsolePage
from holdfast.gateway.http.console.previews import PREVIEW_BYTES, message_preview
from holdfast.gateway.http.console.watch import ClusterWatch, event
from holdfast.gateway.http.problems import ProblemError
from holdfast.protocol.control import ServerInfo, StoreInfo, StoreState
from holdfast.protocol.errors import NoCoordinatorError, UnknownOperationError
from holdfast.protocol.messages import LargeValue, Message
from holdfast.protocol.monitoring.samples import PartStatistics
from holdfast.protocol.names import StoreKind
from tests.unit.protocol.monitoring.clusters import counting, server, told

PAGES = Path(__file__).parents[4] / "gateway/http/console/pages"


class Answer:
    """What an ASGI application sends."""

    status = 0
    body = b""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {n.decode().lower(): t.decode() for n, t in message["headers"]}
        else:
            self.body += message["body"]


def asked(page: ConsolePage, path: str, method: str = "GET", **headers: str) -> Answer:
    """The answer to a request for a file."""

    async def receive() -> Any:
        raise AssertionError

    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": method, "raw_path": path.encode(), "headers": raw}
    answer = Answer()
    asyncio.run(page(scope, receive, answer.send))
    return answer


def test_the_page_may_load_and_ask_its_gateway_alone() -> None:
    policy = asked(ConsolePage(), "/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["frame-ancestors"] == "'none'"
    sources = {source for name, source in rules.items() if name != "require-trusted-types-for"}
    assert sources == {"'none'", "'self'"}


def test_files_are_kept_for_ever_under_their_digest_and_the_page_is_not() -> None:
    page = ConsolePage()
    index = asked(page, "/?from=somewhere")
    assert index.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src)="(/console/[^"]+)"', index.body.decode())
    assert len(named) == 4
    for path in named:
        found = asked(page, path)
        assert found.status == 200 and "immutable" in found.headers["cache-control"]
    again = asked(page, "/", if_none_match=index.headers["etag"])
    assert again.status == 304 and not again.body


@pytest.mark.parametrize(
    "path", ["/console/", "/console/0/console.js", "/console/../page.py", "/index.html", "/?/../x"]
)
def test_there_are_no_other_files(path: str) -> None:
    page = ConsolePage()
    if path.startswith("/?"):
        assert asked(page, path).body == asked(page, "/").body
        return
    with pytest.raises(ProblemError) as refusal:
        asked(page, path.replace("/console/../", f"{page.assets}/../"))
    assert refusal.value.status == 404


def test_the_page_cannot_be_written() -> None:
    with pytest.raises(ProblemError) as refusal:
        asked(ConsolePage(), "/", "POST")
    assert refusal.value.status == 405


def test_the_scripts_make_no_html_and_name_no_other_place() -> None:
    for path in PAGES.iterdir():
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        places = set(re.findall(r"https?://[^\s\"')]+", text))
        assert places <= {"http://www.w3.org/2000/svg"}, path
        assert not re.search(r"\sstyle=|\son[a-z]+=\"", text), path


def message(value: bytes = b"", **fields: Any) -> Message:
    """A message."""
    return Message(**{"seq": 1, "value": value, "headers": {}, "time": 2, "revision": 3, **fields})


def test_previews_are_text_or_bytes_and_say_what_is_missing() -> None:
    assert message_preview(message("grüße".encode()))["value"] == "grüße"
    assert message_preview(message(b"\xff"))["value_base64"] == "/w=="
    cut = message_preview(message("ü".encode() * PREVIEW_BYTES))
    assert cut["truncated"] and cut["size_bytes"] == 2 * PREVIEW_BYTES
    odd = message_preview(message(b"x" + "ü".encode() * PREVIEW_BYTES))
    assert odd["value"] == "x" + "ü" * (PREVIEW_BYTES // 2 - 1)
    large = message_preview(message(large=LargeValue(b"i", 10**9, b"", 0)))
    assert large["size_bytes"] == 10**9 and "value" not in large


@settings(max_examples=30)
@given(
    st.binary(max_size=300).map(lambda value: value * 10),
    st.dictionaries(st.text(), st.text(max_size=9).map(lambda text: text * 60), max_size=9),
)
def test_any_message_is_a_bounded_preview(value: bytes, headers: dict[str, str]) -> None:
    row = json.dumps(message_preview(message(value, headers=headers)))
    assert len(row) < 6 * PREVIEW_BYTES + 32 * 2 * 256 * 12 + 1000


def store(name: str, **fields: Any) -> StoreInfo:
    """A store."""
    known = {"server": "s1", "incarnation": "i", "epoch": 1, "state": StoreState.DURABLE}
    return StoreInfo(kind=StoreKind.STREAM, name=name, **{**known, **fields})


def test_a_census_says_whether_it_counted_all() -> None:
    async def listed() -> AsyncIterator[StoreInfo]:
        yield store("a")
        yield store("b", cold=True, server="")
        yield store("c")._replace(kind=StoreKind.KV)

    whole = asyncio.run(census_of(listed()))
    assert (whole.streams, whole.kvs, whole.cold, whole.by_server) == (2, 1, 1, {"s1": 2})
    assert whole.complete and whole.to_json()["hot"] == 2
    assert asyncio.run(census_of(listed(), 2)) == Census(2, 0, 1, {"s1": 1}, complete=False)


def test_the_history_is_bounded_and_shows_a_gap_after_a_rest() -> None:
    history = History(points=4)
    for time in (0, 2000, 4000, 60_000):
        history.add(time, dict.fromkeys(CHARTS, 1.0))
    found = history.to_json()
    assert found["times"] == [2000, 4000, 4001, 60_000]
    assert found["series"]["open_stores"] == [1.0, 1.0, None, 1.0]


def test_text_of_a_cluster_cannot_end_an_event() -> None:
    body = event("happened", {"text": "a\n\ndata: forged\r\u2028"})
    assert body.count(b"\n") == 3 and body.endswith(b"\n\n") and b"\r" not in body


class ScriptedCluster:
    """Answers what a test says, and counts how often it was asked."""

    tenant = "acme"

    def __init__(self) -> None:
        self.asked = 0
        self.problem: Exception | None = None
        self.state = "live"
        self.statistics_problem: Exception | None = None

    async def servers(self, *, timeout_seconds: float | None = None) -> list[ServerInfo]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        return [server(state=self.state)]

    async def statistics(self, *, timeout_seconds: float | None = None) -> list[PartStatistics]:
        if self.statistics_problem is not None:
            raise self.statistics_problem
        return [told(counting())]

    async def stores(
        self, kind: Any = None, prefix: str = "", *, timeout_seconds: float | None = None
    ) -> AsyncIterator[StoreInfo]:
        yield store("a")


async def turn(watch: ClusterWatch) -> tuple[str, dict[str, Any]]:
    """The name and data of the next look."""
    assert await watch.turned(watch.turn, 60)
    name, data = watch.newest.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_viewers_share_one_look_and_nobody_asks_once_they_are_gone() -> None:
    async def scenario() -> None:
        cluster = ScriptedCluster()
        watch = ClusterWatch(cluster, look_seconds=0.001)
        async with watch.viewed(), watch.viewed():
            name, found = await turn(watch)
            assert name == "overview" and found["tenant"] == "acme"
            assert found["servers"][0]["server"] == "s1"
        rests_at = cluster.asked
        for _ in range(20):
            await asyncio.sleep(0)
        assert cluster.asked == rests_at and watch.newest == b""
        async with watch.viewed():
            await turn(watch)
        assert cluster.asked > rests_at

    asyncio.run(scenario())


def test_viewers_hear_that_the_coordinator_is_silent_and_that_it_answers_again() -> None:
    async def scenario() -> None:
        cluster = ScriptedCluster()
        watch = ClusterWatch(cluster, look_seconds=0.001)
        async with watch.viewed():
            await turn(watch)
            cluster.problem = NoCoordinatorError(prefix="hf")
            while (found := await turn(watch))[0] != "unavailable":
                pass
            assert found[1]["code"] == "no_coordinator"
            cluster.problem = ValueError("a bug")
            while (await turn(watch))[1].get("code") != "internal_error":
                pass
            cluster.problem, cluster.state = None, "dead"
            while (await turn(watch))[0] != "overview":
                pass
        told = [json.loads(each.body.split(b"data: ")[1]) for each in watch.happened_after(0)]
        assert [each["kind"] for each in told] == [
            "coordinator.silent", "coordinator.silent", "coordinator.answers", "server.dead",
        ]
        assert [each["id"] for each in told] == [1, 2, 3, 4]
        assert len(watch.happened_after(3)) == 1

    asyncio.run(scenario())


def test_a_coordinator_of_an_earlier_version_shows_what_it_knows() -> None:
    async def scenario() -> None:
        cluster = ScriptedCluster()
        cluster.statistics_problem = UnknownOperationError(operation="statistics")
        found = await ClusterWatch(cluster).look()
        assert found["servers"] and not found["has_statistics"]

    asyncio.run(scenario())


def luminance(colour: str) -> float:
    """The relative luminance of WCAG."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [1, 2], ids=["light", "dark"])
def test_every_colour_of_text_stands_out_from_what_is_behind_it(scheme: int) -> None:
    style = (PAGES / "console.css").read_text()
    pairs = re.findall(r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", style)
    colours = {name: both[scheme - 1] for name, *both in pairs}
    behind = [*[(text, ground) for text in ("text", "soft", "accent", "good", "warn", "bad", "cold")
                for ground in ("page", "card", "sunk")],
              ("on-accent", "accent"), ("text", "warn-fill"), ("text", "bad-fill")]
    for text, ground in behind:
        dark, light = sorted(map(luminance, (colours[text], colours[ground])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
