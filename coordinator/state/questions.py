"""A question to the active coordinator over the shared file system, and the answer.

NATS cannot tell a coordinator that is stopped from one behind a route that is down. So a standby
that hears nothing of the active one writes a question; the active one looks for questions twice a
second, and answers durably. An answer shows that its process runs and that its mount reads and
writes, and it says whether servers reach it. That the question is durable shows the same of the
standby's mount.

Any change counts as a new question, and any change as an answer, so several standbys may ask at
once. Neither file decides what is valid: whoever is wrong about the other deposes it by term, which
is safe at any time (`term.py`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.shared_fs.authority import fresh_file
from holdfast.shared_fs.disk.disk import Disk

_ANSWER: Final = re.compile(rb"([0-9]{20}) ([01])\n")
_MAX_ID_BYTES: Final = 40


class ActiveAnswer(NamedTuple):
    """What the active coordinator has answered so far."""

    number: int
    #: Servers reach it over NATS.
    hears_servers: bool


NO_ANSWER: Final = ActiveAnswer(0, False)


class StandbyQuestions:
    """The two files in the coordinator's folder. All methods block, and raise StorageFailedError.

    One coordinator asks while it stands by, and answers while it is the active one.
    """

    def __init__(self, disk: Disk, folder: Path, who: str) -> None:
        self._disk = disk
        self._question = folder / "question"
        self._answer = folder / "answer"
        self._who = who.encode()[:_MAX_ID_BYTES]
        self._asked_count = 0
        self._seen: bytes | None = None

    def ask(self) -> ActiveAnswer:
        """Write a question durably; return the last answer from before it."""
        before = self.last_answer()
        self._asked_count += 1
        text = b"%s %020d\n" % (self._who.ljust(_MAX_ID_BYTES), self._asked_count)
        fresh_file.overwrite(self._disk, self._question, text)
        return before

    def last_answer(self) -> ActiveAnswer:
        match = _ANSWER.fullmatch(fresh_file.read(self._disk, self._answer))
        return ActiveAnswer(int(match[1]), match[2] == b"1") if match else NO_ANSWER

    def answer(self, hears_servers: bool) -> bool:
        """Answer durably if there is a new question; tell whether there was one. What was asked
        before the first call counts as new."""
        question = fresh_file.read(self._disk, self._question)
        if question in (b"", self._seen):
            return False
        number = self.last_answer().number + 1
        text = b"%020d %d\n" % (number, hears_servers)
        fresh_file.overwrite(self._disk, self._answer, text)
        self._seen = question
        return True
