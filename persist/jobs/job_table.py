"""Jobs by name: a request starts a job once, and asks about it until it is done.

The same request, with the same name, starts a job or asks for its result. So a lost reply costs
nothing, and no request waits on the wire for a large store. Jobs are kept in memory. If a server
dies during a job, the next request starts the job again at the new owner, which is harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Final

from holdfast.protocol.errors import BusyError, InvalidArgumentError, UnavailableError
from holdfast.protocol.limits import MAX_DESTROYING, MAX_DESTROYING_OF_TENANT

logger = logging.getLogger("holdfast.persist")

#: Beyond this many jobs, finished ones are forgotten. No more than this of operators run.
_MAX_JOBS: Final = 256
_MAX_NAME_LENGTH: Final = 64

Report = dict[str, Any]


class JobTable:
    """The jobs of one incarnation."""

    def __init__(self, server: str) -> None:
        self._server = server
        #: By tenant, which is empty for operators, and name.
        self._jobs: OrderedDict[tuple[str, str], asyncio.Task[Report]] = OrderedDict()

    def answer(
        self, tenant: str, name: Any, work: Callable[[], Coroutine[Any, Any, Report]]
    ) -> Report:
        """Start a job, unless there is one with this name, and return its result so far. Raises
        the job's error; InvalidArgumentError, BusyError, UnavailableError."""
        if type(name) is not str or not 1 <= len(name) <= _MAX_NAME_LENGTH:
            raise InvalidArgumentError(
                argument="job", reason="it must be a name of 1 to 64 characters"
            )
        job = self._jobs.get((tenant, name))
        if job is None:
            self._check_room(tenant)
            job = asyncio.get_running_loop().create_task(work(), name=f"holdfast.{name}")
            job.add_done_callback(_heard)
            self._jobs[tenant, name] = job
            finished = [each for each, task in self._jobs.items() if task.done()]
            for each in finished[: max(0, len(self._jobs) - _MAX_JOBS)]:
                del self._jobs[each]
        if not job.done():
            return {"done": False}
        if job.cancelled():
            raise UnavailableError(reason=f"server {self._server!r} is stopping")
        return {"done": True, **job.result()}

    async def stop(self) -> None:
        """Cancel the jobs that run."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    def _check_room(self, tenant: str) -> None:
        """Raise BusyError if operators, or applications, have the most jobs that may run."""
        running = [key[0] for key, task in self._jobs.items() if not task.done()]
        if tenant:
            of_applications = len(running) - running.count("")
            is_full = (
                of_applications >= MAX_DESTROYING
                or running.count(tenant) >= MAX_DESTROYING_OF_TENANT
            )
        else:
            is_full = running.count("") >= _MAX_JOBS
        if is_full:
            whose = "operators'" if not tenant else "applications'"
            raise BusyError(what=f"the {whose} queue of server {self._server!r}")


def _heard(job: asyncio.Task[Report]) -> None:
    """Log the error of a job. Its requester gets it too, but may never ask again."""
    if job.cancelled():
        return
    error = job.exception()
    if error is not None:
        logger.warning("operator.job_failed job=%s reason=%s", job.get_name(), error)
