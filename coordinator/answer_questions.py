"""The active coordinator's answers to standbys that ask whether it works (`questions.py`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.coordinator.life import Life
from holdfast.coordinator.peers.heartbeat_feed import HeartbeatFeed
from holdfast.coordinator.state.questions import StandbyQuestions
from holdfast.protocol.errors import StorageError
from holdfast.protocol.serving.trouble import Trouble

logger = logging.getLogger("holdfast.coordinator")

#: How often it looks for questions.
LOOK_SECONDS: Final = 0.5


async def answer_questions(life: Life, feed: HeartbeatFeed, questions: StandbyQuestions) -> None:
    """Answer each question, also while the coordinator starts, until cancelled."""
    failing = Trouble(logger, "coordinator.answer_failed")
    while True:
        try:
            if await life.background_tasks.blocking(questions.answer, feed.hears_servers()):
                logger.debug("coordinator.answered")
        except StorageError as error:
            failing.note("reason=%s", error)
        else:
            failing.over()
        await asyncio.sleep(LOOK_SECONDS)
