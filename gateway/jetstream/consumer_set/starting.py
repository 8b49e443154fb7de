"""Where a new consumer begins, and how much is pending for it then.

The consumer must hear what is appended while the owner is asked, so the backlog exists first: it
notes appends from then on, and what the owner counted is added to them. Numbers are those that
nats-server shows of a consumer that was just created.
"""

from __future__ import annotations

from holdfast.gateway.jetstream.api.consumer_config import ApiConsumerConfig, DeliverPolicy
from holdfast.gateway.jetstream.api.times import MILLISECOND
from holdfast.gateway.jetstream.consumers.backlog import Backlog
from holdfast.gateway.jetstream.consumers.stream_access import StreamAccess


async def start_seq(access: StreamAccess, config: ApiConsumerConfig) -> int:
    """Return the first seq that may be delivered, of all policies but `last_per_subject`."""
    policy = config.deliver_policy
    found = 0
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        # It may be in the future.
        return max(config.opt_start_seq, access.state().first_seq)
    if policy is DeliverPolicy.BY_START_TIME:
        found = await access.seq_at((config.opt_start_time or 0) // MILLISECOND)
    elif policy is DeliverPolicy.LAST and config.filters:
        found = await access.last_seq_of(config.filters)
    first_seq, last_seq, _ = access.state()
    if policy is DeliverPolicy.NEW:
        return last_seq + 1
    if policy is DeliverPolicy.LAST and not config.filters:
        found = last_seq
    return max(found, first_seq)


def is_by_lasts(access: StreamAccess, config: ApiConsumerConfig) -> bool:
    """Return whether a consumer reads the last message of each subject first. Where subjects have
    one message, that is just what the stream has."""
    lasts = config.deliver_policy is DeliverPolicy.LAST_PER_SUBJECT
    return lasts and access.config.max_msgs_per_subject != 1


async def count(access: StreamAccess, filters: tuple[str, ...], backlog: Backlog) -> None:
    """Count what is pending. The backlog must hear of appends since `asked_for_count`."""
    lasts_up_to = backlog.lasts_up_to
    if not lasts_up_to:
        found, counted_to = await access.count(filters, backlog.next_seq)
        backlog.counted(found, counted_to)
        return
    # A consumer that continues in the middle of its lasts. Subjects that changed since may be
    # counted twice: it says so until the last one was read.
    lasts, _ = await access.count(filters, backlog.next_seq, lasts=True)
    behind, counted_to = await access.count(filters, lasts_up_to + 1)
    backlog.counted(lasts, counted_to, behind)


async def count_lasts(
    access: StreamAccess, filters: tuple[str, ...], backlog: Backlog, limit: int
) -> int:
    """Count the subjects of a new consumer that begins with their last messages, and read the first
    page of those. Return the seq of the first; of none, the stream's last."""
    found, counted_to = await access.count(filters, 1, lasts=True)
    backlog.counted_lasts(found, counted_to)
    if not backlog.lasts_up_to:
        return 1
    backlog.asked_for_page(access.state().last_seq)
    page = await access.read_lasts(filters, counted_to, 1, limit)
    backlog.loaded(page.messages, page.next_seq, access.state().last_seq)
    return page.messages[0].seq if page.messages else counted_to
