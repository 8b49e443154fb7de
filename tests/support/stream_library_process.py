"""A process with a stream library that appends until it is killed, or says why it cannot.

`python -m tests.support.stream_library_process FOLDER [BUCKET]`: appends batches of three records
`<number>.<part>` to the streams `a` and `b` in turn, many at a time, and writes a line `<stream>
<number> <base offset>` for each that is acknowledged, in the order in which their futures complete.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from holdfast.protocol.errors import HoldfastError
from holdfast.stream_library.library import open_library
from holdfast.stream_library.records import AppendedBatch

STREAMS = ("a", "b")
BATCH = 3
#: How many batches are not acknowledged at a time.
IN_FLIGHT = 32


def batch(number: int) -> list[bytes]:
    return [b"%d.%d" % (number, part) for part in range(BATCH)]


def main(arguments: Sequence[str] | None = None) -> int:
    folder, *bucket = sys.argv[1:] if arguments is None else arguments
    try:
        library = open_library(Path(folder), bucket=bucket[0] if bucket else None)
    except HoldfastError as error:
        print(f"refused {type(error).__name__}: {error}", flush=True)
        return 1
    streams = [library.stream(name) for name in STREAMS]
    print("opened", flush=True)
    places = threading.Semaphore(IN_FLIGHT)
    for number in itertools.count():
        for stream in streams:
            places.acquire()
            future = stream.append(batch(number))
            future.add_done_callback(functools.partial(_told, stream.stream_id, number, places))
    return 0


def _told(
    stream: str, number: int, places: threading.Semaphore, future: Future[AppendedBatch]
) -> None:
    # One write for each line: a kill never leaves half of one but the last.
    sys.stdout.write(f"{stream} {number} {future.result().base_offset}\n")
    sys.stdout.flush()
    places.release()


if __name__ == "__main__":
    sys.exit(main())
