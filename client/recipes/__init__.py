"""Recipes on top of the client: leases, and the election of a leader, for asyncio and for threads.

    from holdfast.client.recipes import Election, Lease

    async with Lease(hf.kv("leases"), "nightly-report", ttl_seconds=10) as lease:
        ...                                     # one holder at a time; cancelled if it is lost

They use the public API alone, so each is also an example of how to write your own.
"""

from holdfast.client.recipes.blocking_lease import BlockingLease
from holdfast.client.recipes.election import Election, Leader
from holdfast.client.recipes.lease import Lease, LeaseLostError

__all__ = ["BlockingLease", "Election", "Leader", "Lease", "LeaseLostError"]
