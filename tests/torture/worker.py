"""A client process: `python -m tests.torture.worker TASK`, where TASK is a Task as JSON.

It says on stdout how far it is, as JSON lines, first `{"connected": true}`, and hears words on
stdin, one to a line:

    finish   a writer, a keeper, a newcomer and a typist: answer what was begun, and end
             a follower: says `{"settled": true}`, then `{"caught_up": true}` after the markers, and
             all the time the stores that it is `beginning` with and `waiting` for
    end      a follower: end
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from holdfast.cli.settings import DEFAULT_TENANT
from holdfast.client import Client, connect
from tests.torture.editing_trace import EditingTrace, type_trace
from tests.torture.follower import Follower
from tests.torture.newcomer import Newcomer
from tests.torture.recording import Recorder
from tests.torture.workload import KVS, STREAMS
from tests.torture.writer import Writer

_FLUSH_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """What one client process does. `file` is its history; a typist's is its trace's end."""

    role: str
    name: str
    seed: int
    nats: str
    file: str
    seconds: float
    operations_per_second: float = 0.0
    trace: str = ""
    #: The codes of errors after which a follower begins anew.
    expected_errors: Sequence[str] = ()
    tenant: str = DEFAULT_TENANT
    #: The file with its token, if the cluster asks for one.
    token_file: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


async def run(task: Task) -> None:
    """Do the task."""
    _fail_on_callback_errors()
    async with AsyncExitStack() as stack:
        words = await listen(stack)
        if task.role == "newcomer":
            say(connected=True)
            await _keep_coming(task, stack, words["finish"])
            return
        client = await stack.enter_async_context(
            connect(
                task.nats,
                tenant=task.tenant,
                name=task.name,
                inbox_prefix=f"_INBOX.{task.tenant}",
                token=Path(task.token_file) if task.token_file else None,
            )
        )
        say(connected=True)
        if task.role == "typist":
            await _type(task, client, words["finish"])
            return
        file = stack.enter_context(open(task.file, "w"))  # noqa: PTH123, SIM115
        recorder = Recorder(file)
        async with _flushing(file):
            if task.role in ("writer", "keeper"):
                given = (task.name, task.seed, client, recorder, task.operations_per_second)
                # A keeper has an actor for each store.
                writer = Writer(*given) if task.role == "writer" else Writer(*given, STREAMS + KVS)
                await writer.run(words["finish"])
            else:
                await _follow(task, client, recorder, words)


async def _keep_coming(task: Task, stack: AsyncExitStack, finish: asyncio.Event) -> None:
    file = stack.enter_context(open(task.file, "w"))  # noqa: PTH123, SIM115
    newcomer = Newcomer(task.name, task.seed, Recorder(file), task.operations_per_second)
    async with _flushing(file):
        await newcomer.run(finish, lambda: connect(task.nats, tenant=task.tenant, name=task.name))


async def _follow(
    task: Task, client: Client, recorder: Recorder, words: dict[str, asyncio.Event]
) -> None:
    restless = task.role == "restless follower"
    follower = Follower(
        task.name,
        task.seed,
        client,
        recorder,
        restless=restless,
        expected_errors=task.expected_errors,
    )

    async def tell() -> None:
        await words["finish"].wait()
        while True:
            follower.news.clear()
            say(beginning=follower.beginning, waiting=follower.waiting)
            if not follower.beginning:
                say(settled=True)
            if not follower.waiting:
                say(caught_up=True)
            await follower.news.wait()

    async with asyncio.TaskGroup() as tasks:
        telling = tasks.create_task(tell())
        await follower.run(words["finish"], words["end"])
        telling.cancel()


async def _type(task: Task, client: Client, finish: asyncio.Event) -> None:
    trace = EditingTrace.load(Path(task.trace))
    typed = await type_trace(client, trace, task.seconds, finish)
    Path(task.file).write_text(json.dumps(asdict(typed)))


@asynccontextmanager
async def _flushing(file: TextIO) -> AsyncIterator[None]:
    """Put what is recorded on disk every now and then: a torture that is cut short leaves it."""

    async def flush() -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            file.flush()

    async with asyncio.TaskGroup() as tasks:
        flushing = tasks.create_task(flush())
        try:
            yield
        finally:
            flushing.cancel()


def _fail_on_callback_errors() -> None:
    """End this process when a callback of the client raises: no caller would ever hear of it."""
    main = asyncio.current_task()
    assert main is not None

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if "handle" in context:
            main.cancel()

    asyncio.get_running_loop().set_exception_handler(handle)


async def listen(stack: AsyncExitStack) -> dict[str, asyncio.Event]:
    """Return the words that may come on stdin: each is set once it has come."""
    words = {"finish": asyncio.Event(), "end": asyncio.Event()}

    class Words(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            for word in data.decode().split():
                words[word].set()

    transport, _ = await asyncio.get_running_loop().connect_read_pipe(Words, sys.stdin)
    stack.callback(transport.close)
    return words


def say(**fields: Any) -> None:
    """Tell the torture something."""
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    asyncio.run(run(Task(**json.loads(sys.argv[1]))))
