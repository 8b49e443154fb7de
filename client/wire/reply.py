"""A server's reply to a frame, read: which group of the frame is answered with what.

Pure, and all or nothing: a reply that is wrong anywhere counts nowhere.
"""

from __future__ import annotations

from typing import Final

from holdfast.client.wire.frame import Frame
from holdfast.client.wire.store_queue import QueuedGroup
from holdfast.protocol.errors import HoldfastError, MalformedFrameError, error_from_wire
from holdfast.protocol.frames import Outcome, Run, decode, decode_outcome

#: The index that stands for all groups of a frame, in a refusal.
WHOLE_FRAME: Final = -1


def read_reply(payload: bytes, frame: Frame) -> list[tuple[int, Outcome | HoldfastError]]:
    """Return what a reply answers to which group of `frame`, groups answered before left out.

    All of it is looked at before any of it counts, or a reply that is half good would leave groups
    that nobody answers. Raises UnsupportedVersionError, MalformedFrameError.
    """
    groups = frame.groups
    answers: list[tuple[int, Outcome | HoldfastError]] = []
    try:
        for element in decode(payload):
            index, status = element[0], element[1]
            if index < WHOLE_FRAME:
                raise IndexError(f"group {index}")
            for each in (index,) if index >= 0 else range(len(groups)):
                group = groups[each]
                if group is None:
                    continue
                if status == 0:
                    outcome = decode_outcome(element[2])
                    _check_fits(outcome, group)
                    answers.append((each, outcome))
                else:
                    answers.append((each, error_from_wire(str(element[2]), element[3])))
    except (TypeError, LookupError, ValueError, AttributeError, RecursionError) as error:
        raise MalformedFrameError(reason=f"a reply of the wrong shape: {error}") from error
    return answers


def _check_fits(outcome: Outcome, group: QueuedGroup) -> None:
    """Raise MalformedFrameError if `outcome` cannot be the answer to `group`: one result for each
    write, or for the first few reads at least."""
    _, time, durability, results = outcome
    wanted = len(group.operations)
    is_run = type(results) is Run
    count = results[2] if type(results) is Run else len(results)
    if (
        type(time) is not int
        or type(durability) is not int
        or (is_run and not group.counter)
        or (count != wanted and (group.counter or not 0 < count < wanted))
    ):
        raise MalformedFrameError(reason=f"{count} results for {wanted} operations")
