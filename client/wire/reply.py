"""Reading a server's reply: the answers to the groups of a frame.

Pure, and all or nothing: a reply with any mistake is ignored as a whole.
"""

from __future__ import annotations

from typing import Final

from holdfast.client.wire.frame import Frame
from holdfast.client.wire.store_queue import QueuedGroup
from holdfast.protocol.errors import HoldfastError, MalformedFrameError, error_from_wire
from holdfast.protocol.frames import Outcome, Run, decode, decode_outcome

#: In a refusal, this index means all groups of the frame.
WHOLE_FRAME: Final = -1


def read_reply(payload: bytes, frame: Frame) -> list[tuple[int, Outcome | HoldfastError]]:
    """Return the answers in a reply, each with its group's index in `frame`. Groups that are
    already answered are left out.

    The whole reply is checked before any part counts; otherwise a half-good reply would leave
    groups that are never answered. Raises UnsupportedVersionError, MalformedFrameError.
    """
    groups = frame.groups
    answers: list[tuple[int, Outcome | HoldfastError]] = []
    try:
        for element in decode(payload):
            index, status = element[0], element[1]
            if status == 0 and index >= 0:
                # Nearly all elements are like this one, and there may be a thousand.
                group = groups[index]
                if group is not None:
                    outcome = decode_outcome(element[2])
                    results = outcome[3]
                    if not (
                        type(results) is Run
                        and results[2] == group.result_count
                        and group.counter
                        and type(outcome[1]) is type(outcome[2]) is int
                    ):
                        _check_fits(outcome, group)
                    answers.append((index, outcome))
                continue
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
    """Raise MalformedFrameError if `outcome` cannot be the answer to `group`. Every write needs a
    result; of reads, the first few may have one."""
    _, time, durability, results = outcome
    wanted = group.result_count
    is_run = type(results) is Run
    count = results[2] if type(results) is Run else len(results)
    if (
        type(time) is not int
        or type(durability) is not int
        or (is_run and not group.counter)
        or (count != wanted and (group.counter or not 0 < count < wanted))
    ):
        raise MalformedFrameError(reason=f"{count} results for {wanted} operations")
