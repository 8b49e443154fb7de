"""The deliveries of a queue, judged by what its workers saw alone. Pure.

- Each delivery, a message and how often it was delivered, is one worker's.
- Until it is handed back, or its ack wait is over by any owner's clock, nobody else is given the
  message.
- What was asked for after a confirmed ack is never that message; and of all its acks one counts.
- In the end every message of the stream was delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.support.checking.history import Delivery, History

#: Times of stores are whole milliseconds.
_ROUNDING_SECONDS: Final = 0.002


def check_deliveries(history: History) -> Iterator[str]:
    """Yield what is wrong with what the workers were given, as sentences."""
    by_seq: dict[int, list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries:
        by_seq[delivery.seq].append(delivery)
    held_seconds = history.ack_wait_seconds - history.clock_skew_seconds - _ROUNDING_SECONDS
    for seq, deliveries in sorted(by_seq.items()):
        deliveries.sort(key=lambda each: each.count)
        for one, other in pairwise(deliveries):
            if one.count == other.count:
                yield f"seq {seq}: delivery {one.count} is that of {one.worker} and {other.worker}"
            elif not one.released and other.received_at - one.held_from < held_seconds:
                yield (
                    f"seq {seq}: with {other.worker} {other.received_at - one.held_from:.3f} s "
                    "after "
                    f"{one.worker} got it for {history.ack_wait_seconds} s"
                )
        done = min((each.done for each in deliveries if each.done is not None), default=None)
        for each in deliveries:
            if done is not None and each.asked > done:
                yield f"seq {seq}: done with, and delivered again to {each.worker}"
        if sum(each.counted for each in deliveries) > 1:
            yield f"seq {seq}: two acks of it counted"
    if history.queue in history.final:
        for key in sorted(history.final[history.queue].rows, key=int):
            if key not in by_seq:
                yield f"seq {key}: never delivered"
