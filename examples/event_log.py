"""An event log inside a Flask application: no server, no broker, one folder, perhaps a bucket.

    pip install flask              # and holdfast with its extra [server]
    flask --app examples/event_log run
    curl -d '{"what": "signed up"}' -H content-type:application/json 127.0.0.1:5000/events
    curl '127.0.0.1:5000/events?after=0'

An event is answered once it is on the disk. EVENTS_FOLDER and EVENTS_BUCKET say where. One process
has the folder: run one worker with threads (`gunicorn --workers 1 --threads 8 ...`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from holdfast.protocol.errors import BusyError
from holdfast.stream_library.library import open_library


class EventLog:
    """Events in order, each with a number, for any number of threads."""

    def __init__(self, folder: str, bucket: str | None = None) -> None:
        self._library = open_library(folder, bucket=bucket)
        self._stream = self._library.stream("events")

    def add(self, event: Mapping[str, Any]) -> int:
        """Store an event and return its number. Raises BusyError if there is no room for it."""
        added = self._stream.append([json.dumps(event).encode()], timeout_seconds=5)
        return added.result().base_offset

    def after(self, number: int, max_bytes: int = 1 << 20) -> list[dict[str, Any]]:
        """Return the events after a number, oldest first; as many as fit."""
        stream = self._stream
        start = max(number + 1, stream.start_offset)
        end = max(start, stream.confirm_offset)
        fetched = stream.fetch(start, end, max_bytes).result() if start < end else None
        return [
            {"number": each.offset, "time": each.time, "event": json.loads(each.value)}
            for each in (fetched.records if fetched is not None else ())
        ]

    def forget(self, number: int) -> None:
        """Drop all events up to a number."""
        self._stream.trim(min(number + 1, self._stream.confirm_offset)).result()

    def close(self) -> None:
        self._library.close()


def create_app(log: EventLog | None = None) -> Any:
    """Return the Flask application."""
    from flask import Flask, jsonify, request

    app = Flask(__name__)
    events = log or EventLog(
        os.environ.get("EVENTS_FOLDER", "events"), os.environ.get("EVENTS_BUCKET")
    )

    @app.post("/events")
    def add() -> Any:
        try:
            return jsonify(number=events.add(request.get_json())), 201
        except BusyError as error:
            return jsonify(error=str(error)), 503

    @app.get("/events")
    def read() -> Any:
        return jsonify(events.after(request.args.get("after", 0, type=int)))

    return app
