"""The gateway answers requests of the API, and publishes, as nats-server does."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.api_requests import ANSWERS, REQUESTS, answers_to
from tests.support.jetstream import running_jetstream


async def test_each_answer_is_that_of_nats_server(tmp_path: Path) -> None:
    recorded = json.loads(ANSWERS.read_text())
    assert [name for name, _ in recorded] == [request.name for request in REQUESTS]
    with running_jetstream(tmp_path) as world:
        world.start_gateway()
        async with world.client() as client:
            told = await answers_to(client, REQUESTS)
    differing = [
        (name, expected, answer)
        for (name, expected), answer in zip(recorded, told, strict=True)
        if answer != expected
    ]
    assert not differing
