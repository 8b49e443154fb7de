"""Requests of JetStream's API, and publishes with all kinds of headers, one after the other, and
what is told apart in their answers.

`api_answers.json` has nats-server's answers; `python -m tests.support.record_answers` writes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from nats.aio.client import Client

ANSWERS = Path(__file__).with_name("api_answers.json")
SECOND = 1_000_000_000
_HOUR = 3600 * SECOND
#: What differs from one run to the next, or between machines.
_VARIES = frozenset(
    (
        *("bytes", "cluster", "created", "first_ts", "last_active", "last_ts", "metadata", "type"),
        *("pause_remaining", "pinned_ts", "time", "ts"),
    )
)
_INVALID_JSON = 10025


class Request(NamedTuple):
    """A request, or a publish that waits for its ack."""

    subject: str
    body: bytes
    headers: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.subject} {self.body.decode()} {self.headers or ''}".strip()


def _api(verb: str, body: Any = None, **headers: str) -> Request:
    """`body` is JSON, or bytes as they are."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return Request(f"$JS.API.{verb}", raw, _named(headers))


def _publish(subject: str, body: bytes = b"x", **headers: str) -> Request:
    return Request(subject, body, _named(headers))


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def _stream(name: str, **config: Any) -> Request:
    return _api(f"STREAM.CREATE.{name}", {"name": name, **config})


def _update(name: str, *subjects: str, **config: Any) -> Request:
    return _api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": list(subjects), **config})


def _consumer(stream: str, name: str, **config: Any) -> Request:
    body = {"stream_name": stream, "config": {"name": name, **config}}
    return _api(f"CONSUMER.CREATE.{stream}.{name}", body)


_AT = "@at 2040-01-01T00:00:00Z"
_STREAMS = [
    _stream("A", subjects=["a.>"]),
    _stream("A", subjects=["a.>"], max_msgs=-5),
    _stream("B", subjects=["b.>"], retention="interest", discard="new", max_msgs=3),
    _stream(
        "C",
        subjects=["c.*"],
        allow_msg_ttl=True,
        subject_delete_marker_ttl=5 * SECOND,
        allow_direct=True,
        max_msgs_per_subject=5,
    ),
    _stream("D", subjects=["d"], allow_msg_counter=True),
    _stream(
        "E", subjects=["e.>"], allow_atomic=True, allow_batched=True, allow_msg_schedules=True
    ),
    _stream("F", subjects=["f.>"], persist_mode="async", allow_batched=True),
    _stream("F2", subjects=["f2.>"], persist_mode="async", allow_atomic=True),
    _stream("G", mirror={"name": "A"}, allow_batched=True),
    _stream("I", subjects=["i.>"], subject_transform={"src": "i.*", "dest": "i.x.{{wildcard(1)}}"}),
    _stream("J", subjects=["j.>"], republish={"src": "j.>", "dest": "rj.>", "headers_only": True}),
    _stream("K", subjects=["k"], storage="memory", compression="s2", first_seq=10),
    _stream(
        "L",
        subjects=["l"],
        max_consumers=1,
        consumer_limits={"max_ack_pending": 5, "inactive_threshold": _HOUR},
    ),
    _stream(
        "M",
        subjects=["$KV.M.>"],
        max_msgs_per_subject=1,
        deny_delete=True,
        allow_rollup_hdrs=True,
        allow_direct=True,
        discard="new",
        duplicate_window=SECOND,
    ),
    _stream("N", subjects=["n"], num_replicas=3),
    _stream("N", subjects=["n"], num_replicas=7),
    _stream("N", subjects=["n", "n"]),
    _stream("N", subjects=["n.>", "n.x"]),
    _stream("N", subjects=["a.b"]),
    _stream("N", subjects=["n"], max_age=5),
    _stream("N", subjects=["n"], retention="bad"),
    _stream("N", subjects=["n"], bogus=1),
    _stream("N", subjects=["n"], duplicate_window=5 * SECOND, max_age=2 * SECOND),
    _stream("N", subjects=[" "]),
    _stream("N", subjects=["n"], sealed=True),
    _stream("O", subjects=["$JS.API.>"]),
    _stream("P", subjects=["p"], discard_new_per_subject=True),
    _stream("P", subjects=["p"], mirror={"name": "A"}),
    _stream("Q", subjects=["q"], placement={"cluster": ""}),
    _stream("R", sources=[{"name": "A"}, {"name": "A"}]),
    _stream("T", subjects=["t.>"], retention="workqueue"),
    _stream("U", subjects=["u"], description="x" * 5000),
    _api("STREAM.CREATE.A", {"name": "ZZ", "subjects": ["zz"]}),
    _api("STREAM.CREATE.A"),
    _api("STREAM.CREATE.A", b"[]"),
    _api("STREAM.CREATE.A", b"{"),
    _api("STREAM.INFO.A", Nats_Required_Api_Level="4"),
    _api("STREAM.INFO.A", Nats_Required_Api_Level="99"),
    _api("STREAM.INFO.A", Nats_Required_Api_Level="x"),
]
_PUBLISHES = [
    _publish("a.x"),
    _publish("a.y", Nats_Msg_Id="1"),
    _publish("a.y", Nats_Msg_Id="1"),
    _publish("a.z", Nats_Expected_Last_Sequence="1"),
    _publish("a.z", Nats_Expected_Last_Sequence="abc"),
    _publish("a.z", Nats_Expected_Last_Subject_Sequence="0"),
    _publish("a.z", Nats_Expected_Last_Subject_Sequence="0"),
    _publish(
        "a.z",
        Nats_Expected_Last_Subject_Sequence="3",
        Nats_Expected_Last_Subject_Sequence_Subject="a.*",
    ),
    _publish("a.z", Nats_Expected_Last_Subject_Sequence_Subject="a.*"),
    _publish("a.z", Nats_Expected_Stream="B"),
    _publish("a.z", Nats_Expected_Last_Msg_Id="zz"),
    _publish("a.z", Nats_Rollup="sub"),
    _publish("a.z", Nats_TTL="5"),
    _publish("a.z", Nats_Incr="1"),
    _publish("a.z", Nats_Schedule=_AT),
    _publish("a.z", Nats_Schedule_Next="purge"),
    _publish("a.z", Nats_Batch_Id="x", Nats_Batch_Sequence="1"),
    _publish("a.z", Nats_Stream_Source="x"),
    _publish("b.x"),
    *(_publish("c.x", Nats_TTL=ttl) for ttl in ("5", "x", "never", "0", "-1", "100ms", "1h")),
    _publish("d", b"", Nats_Incr="+5"),
    _publish("d", b"", Nats_Incr="-2"),
    _publish("d", b"x", Nats_Incr="1"),
    _publish("d", b""),
    _publish("d", b"", Nats_Incr="1.5"),
    _publish("d", b"", Nats_Incr="1", Nats_Rollup="sub"),
    _publish("e.x", Nats_Schedule=_AT),
    _publish("e.x", Nats_Schedule=_AT, Nats_Schedule_Target="e.t"),
    _publish("e.x", Nats_Schedule="@every 1x", Nats_Schedule_Target="e.t"),
    _publish("e.x", Nats_Schedule="@every 1h", Nats_Schedule_Target="z.t"),
    _publish("e.x", Nats_Schedule=_AT, Nats_Schedule_Target="e.t", Nats_Schedule_TTL="5"),
    _publish("e.x", Nats_Schedule=_AT, Nats_Schedule_Target="e.t", Nats_Schedule_Source="e.t"),
    _publish(
        "e.x",
        Nats_Schedule="0 0 0 1 1 *",
        Nats_Schedule_Target="e.t",
        Nats_Schedule_Time_Zone="Nowhere/X",
    ),
    _publish("e.x", Nats_Scheduler="e.x"),
    _publish("e.y", Nats_Scheduler="e.x", Nats_Schedule_Next="purge"),
    _publish("e.y", Nats_Schedule_Next="x"),
    _publish("e.b", Nats_Batch_Id="b1", Nats_Batch_Sequence="1", Nats_Batch_Commit="1"),
    _publish("e.b", Nats_Batch_Id="b1", Nats_Batch_Sequence="2"),
    _publish("e.b", Nats_Batch_Id="b1", Nats_Batch_Sequence="1"),
    _publish("e.b", Nats_Batch_Id="b1", Nats_Batch_Sequence="2", Nats_Batch_Commit="eob"),
    _publish("e.b", Nats_Batch_Id="b2", Nats_Batch_Commit="1"),
    _publish("e.b", Nats_Batch_Id="b3", Nats_Batch_Sequence="1", Nats_Batch_Commit="2"),
    _publish("i.1"),
    _publish("k"),
    _publish("$KV.M.a"),
    _publish("$KV.M.a", Nats_Expected_Last_Subject_Sequence="1"),
    _publish("$KV.M.a", b"", KV_Operation="DEL"),
    _publish("t.a"),
]
_MESSAGES = [
    *(_api(f"STREAM.INFO.{name}") for name in "ABCDEFIJKLMT"),
    _api("STREAM.INFO.A", {"deleted_details": True, "subjects_filter": ">"}),
    _api("STREAM.INFO.A", {"subjects_filter": "a.x", "offset": 0}),
    _api("STREAM.INFO.A", {"bogus": 1}),
    _api("STREAM.INFO.A", b"x"),
    _api("STREAM.INFO.nope"),
    *(
        _api("STREAM.MSG.GET.A", body)
        for body in (
            {"seq": 1},
            {"seq": 99},
            {"last_by_subj": "a.y"},
            {"last_by_subj": "nope"},
            {"last_by_subj": "a y"},
            {"seq": 1, "next_by_subj": "a.*"},
            {"next_by_subj": "a.y"},
            {"start_time": "2020-01-01T00:00:00Z"},
            {},
            {"seq": 1, "last_by_subj": "a.x"},
            {"batch": 2, "seq": 1},
            {"seq": 1, "no_hdr": True},
            {"seq": -1},
            {"seq": "x"},
            {"multi_last": ["a.>"]},
        )
    ),
    *(_api("STREAM.MSG.DELETE.A", {"seq": seq}) for seq in (3, 3, 1, 1, 99, 0)),
    _api("STREAM.MSG.DELETE.K", {"seq": 1}),
    _api("STREAM.MSG.DELETE.M", {"seq": 1}),
    _api("STREAM.MSG.DELETE.A", {}),
    _api("STREAM.MSG.DELETE.A"),
    *(
        _api("STREAM.PURGE.A", body)
        for body in (
            {"filter": "a.y", "keep": 1},
            {"seq": 3, "keep": 1},
            {"seq": 3},
            {"filter": "zz"},
            {"bogus": 1},
            None,
        )
    ),
    _api("STREAM.PURGE.M"),
    _api("STREAM.PURGE.nope"),
]
_UPDATES = [
    _update("A", "a.>", max_msgs=100),
    _update("A", "a.>", storage="memory"),
    _update("A", "a.>", retention="interest"),
    _update("A", "a.>", retention="workqueue"),
    _update("A", "a.>", allow_msg_counter=True),
    _update("A", "a.>", num_replicas=3),
    _update("A", "a.>", max_consumers=5),
    _update("A", "a.>", "b.q"),
    _update("A", "a.>", first_seq=100),
    _update("A", "a.>", allow_batched=True),
    _update("A", "a.>", persist_mode="async"),
    _update("M", "$KV.M.>"),
    _update("nope", "x"),
    _update("F", "f.>", persist_mode="async", sealed=True),
    _publish("f.x"),
]
_CONSUMERS = [
    _consumer("A", "c1", durable_name="c1", ack_policy="explicit"),
    _consumer("A", "c1", durable_name="c1", ack_policy="explicit"),
    _consumer("A", "c1", durable_name="c1", ack_policy="all"),
    _consumer("A", "c2", inactive_threshold=_HOUR),
    _consumer("A", "c3", deliver_subject="d.x", max_waiting=5),
    _consumer("A", "c4", filter_subject="zz.x", inactive_threshold=_HOUR),
    _consumer("A", "c5", filter_subjects=["a.x", "a.>"]),
    _consumer("A", "c6", deliver_policy="by_start_sequence"),
    _consumer("A", "c7", ack_policy="explicit", backoff=[SECOND, 2 * SECOND], max_deliver=1),
    _consumer("A", "c8", max_deliver=5, ack_policy="explicit", ack_wait=-1),
    _consumer(
        "A",
        "c9",
        priority_groups=["g"],
        priority_policy="pinned_client",
        ack_policy="explicit",
        durable_name="c9",
    ),
    _consumer("A", "c10", num_replicas=3),
    _consumer("A", "c11", pause_until="2040-01-01T00:00:00Z", durable_name="c11"),
    _consumer("A", "c12", sample_freq="50%", ack_policy="explicit", durable_name="c12"),
    _consumer("A", "c13", rate_limit_bps=5),
    _consumer("A", "c14", durable_name="other"),
    _consumer("A", "c15", mem_storage=True, durable_name="c15"),
    _consumer("A", "c16", max_batch=5, max_expires=SECOND, max_bytes=100, durable_name="c16"),
    _consumer("A", "c17", headers_only=True, replay_policy="original", durable_name="c17"),
    _consumer("A", "c18", bogus=1),
    _consumer("A", "c19", ack_policy="flow_control", durable_name="c19"),
    _consumer("A", "c20", ack_policy="flow_control", durable_name="c20", deliver_subject="d.y"),
    _consumer("T", "w1", ack_policy="none"),
    _consumer("T", "w1", ack_policy="explicit", durable_name="w1"),
    _consumer("T", "w2", ack_policy="explicit"),
    _consumer("L", "l1"),
    _consumer("L", "l2"),
    _consumer("B", "b1", ack_policy="explicit", durable_name="b1"),
    _consumer("nope", "n"),
    *(
        _api(
            "CONSUMER.CREATE.A.c21",
            {
                "stream_name": "A",
                "config": {"name": "c21", "durable_name": "c21"},
                "action": action,
            },
        )
        for action in ("update", "create", "create", "update", "", "bad")
    ),
    _api("CONSUMER.CREATE.A.c1", {"stream_name": "B", "config": {}}),
    *(
        _api("CONSUMER.DURABLE.CREATE.A.dd", {"stream_name": "A", "config": config})
        for config in (
            {"durable_name": "dd", "ack_policy": "explicit"},
            {"ack_policy": "explicit"},
            {"durable_name": "ee"},
        )
    ),
    *(
        _api("CONSUMER.CREATE.A.f1.a.x", {"stream_name": "A", "config": {"name": "f1", **config}})
        for config in (
            {"filter_subject": "a.x", "inactive_threshold": _HOUR},
            {"filter_subject": "a.y"},
            {"filter_subjects": ["a.x"]},
        )
    ),
    *(_api(f"CONSUMER.INFO.A.{name}") for name in ("c1", "c9", "c11", "nope")),
    _api("CONSUMER.NAMES.A"),
    _api("CONSUMER.NAMES.A", {"offset": 2}),
    _api("CONSUMER.NAMES.A", {"bogus": 1}),
    _api("CONSUMER.NAMES.nope"),
    _api("CONSUMER.LIST.T"),
    _api("CONSUMER.PAUSE.A.c1", {"pause_until": "2041-01-01T00:00:00Z"}),
    _api("CONSUMER.PAUSE.A.c1"),
    _api("CONSUMER.PAUSE.A.nope", {}),
    _api("CONSUMER.UNPIN.A.c9", {"group": "g"}),
    _api("CONSUMER.UNPIN.A.c9", {"group": "h"}),
    _api("CONSUMER.UNPIN.A.c1", {"group": "h"}),
    _api("CONSUMER.RESET.A.c1", {"seq": 2}),
    _api("CONSUMER.RESET.A.c1"),
    _api("CONSUMER.RESET.A.c1", {"seq": 999}),
    _api("CONSUMER.RESET.A.c2", {"bogus": 1}),
]
_REST = [
    _api("STREAM.LEADER.STEPDOWN.A"),
    _api("STREAM.PEER.REMOVE.A", {}),
    _api("CONSUMER.LEADER.STEPDOWN.A.c1"),
    _api("STREAM.NAMES"),
    _api("STREAM.NAMES", {"subject": "a.q"}),
    _api("STREAM.NAMES", {"subject": "a q"}),
    _api("STREAM.NAMES", {"offset": 3}),
    _api("STREAM.NAMES", {"bogus": 3}),
    _api("STREAM.LIST", {"subject": "k"}),
    _api("CONSUMER.DELETE.A.c1"),
    _api("CONSUMER.DELETE.A.c1"),
    _api("CONSUMER.DELETE.A.c2", {"x": 1}),
    _api("STREAM.DELETE.A", {"x": 1}),
    _api("STREAM.DELETE.nope"),
    *(_api(f"STREAM.DELETE.{name}") for name in "ABCDEFIJKLMTQ"),
]
REQUESTS = [*_STREAMS, *_PUBLISHES, *_MESSAGES, *_UPDATES, *_CONSUMERS, *_REST]


async def answers_to(client: Client, requests: list[Request]) -> list[Any]:
    """Send the requests one after the other, and return what is told apart in each answer."""
    answers = []
    for request in requests:
        headers = request.headers or None
        answer = await client.request(request.subject, request.body, 20.0, headers=headers)
        answers.append(_told(json.loads(answer.data) if answer.data else None))
    return answers


def _told(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_told(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    told = {name: _told(value) for name, value in answer.items() if name not in _VARIES}
    if told.get("err_code") == _INVALID_JSON:
        # Another parser has other words.
        del told["description"]
    return told
