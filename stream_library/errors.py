"""What only the library raises; the tree is in `protocol/errors.py`."""

from __future__ import annotations

from holdfast.protocol.errors import RequestError, StorageError, UnavailableError


class OffsetOutOfRangeError(RequestError):
    """The stream does not have these offsets: they were trimmed, or are not confirmed yet."""

    code = "offset_out_of_range"
    template = (
        "stream {stream!r} has the offsets from {start_offset} to before {confirm_offset}, not "
        "{asked}"
    )


class StreamClosedError(RequestError):
    """The stream, or its library, was closed, or the stream was destroyed."""

    code = "stream_closed"
    template = "stream {stream!r} is closed"


class AppendAbortedError(UnavailableError):
    """An earlier append of the stream failed, so this one, which was to follow it, was not made.
    Nothing of it is stored."""

    code = "append_aborted"
    retryable = True
    template = "an earlier append to stream {stream!r} failed: {reason}"


class TakenOverError(StorageError):
    """A cluster took the folder over while this process had it, or its disk failed. What is
    unanswered may or may not be stored."""

    code = "taken_over"
    template = (
        "this process no longer has {folder}: {reason}. Open it again once nobody else has it"
    )


class ForkedLibraryError(RequestError):
    """The library was opened in process `made_in` and used in its child `process_id`."""

    code = "forked_library"
    template = (
        "this library was opened by process {made_in}, and this is its child {process_id}: open it "
        "after the fork, in one process"
    )
