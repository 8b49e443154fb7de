"""Jobs by name: started once, answered as often as somebody asks, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.persist.jobs.job_table import JobTable
from holdfast.protocol.errors import BusyError, NotFoundError, UnavailableError
from holdfast.protocol.limits import MAX_DESTROYING_OF_TENANT


class Work:
    """A job that goes on until it may end, and counts how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> dict[str, Any]:
        self.begun += 1
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return {"epoch": 7}


async def test_a_job_is_begun_once_and_its_end_is_told_as_often_as_somebody_asks() -> None:
    jobs, work = JobTable("s"), Work()
    for _ in range(3):
        assert jobs.answer("", "restore", work) == {"done": False}
        await asyncio.sleep(0)
    work.may_end.set()
    await asyncio.sleep(0)
    for _ in range(2):
        await asyncio.sleep(0)
        assert jobs.answer("", "restore", work) == {"done": True, "epoch": 7}
    assert work.begun == 1


async def test_what_a_job_raised_is_its_answer_and_one_that_was_stopped_says_so() -> None:
    jobs, failing, stopped = JobTable("s"), Work(), Work()
    failing.error = NotFoundError(what="store", name="a")
    failing.may_end.set()
    jobs.answer("", "failing", failing)
    jobs.answer("", "stopped", stopped)
    await asyncio.sleep(0)
    await jobs.stop()
    with pytest.raises(NotFoundError):
        jobs.answer("", "failing", failing)
    with pytest.raises(UnavailableError):
        jobs.answer("", "stopped", stopped)


async def test_a_tenant_that_destroys_much_keeps_neither_operators_nor_others_out() -> None:
    jobs, work = JobTable("s"), Work()
    for number in range(MAX_DESTROYING_OF_TENANT):
        jobs.answer("acme", str(number), work)
    with pytest.raises(BusyError):
        jobs.answer("acme", "one too many", work)
    assert jobs.answer("other", "1", work) == {"done": False}
    assert jobs.answer("", "1", work) == {"done": False}
    await jobs.stop()
