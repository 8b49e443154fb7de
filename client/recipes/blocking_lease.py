"""A lease for blocking code: it is renewed on the client's thread. A thread cannot be cancelled, so
look at `held`, or call `check`, between the steps of what you do.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from holdfast.client.blocking.blocking_kv import KV
from holdfast.client.recipes.lease import Lease


class BlockingLease:
    """What `Lease` is, for a KV of `holdfast.client.sync`. For one thread.

        with BlockingLease(hf.kv("leases"), "nightly-report") as lease:
            for step in steps:
                lease.check()
                step()
    """

    def __init__(
        self, kv: KV[bytes], key: str, *, holder: str = "", ttl_seconds: float = 10.0
    ) -> None:
        self._background = kv._background
        self._lease = self._background.do(
            lambda: Lease(kv._kv, key, holder=holder, ttl_seconds=ttl_seconds)
        )
        #: The key of the lease.
        self.key = self._lease.key

    @property
    def token(self) -> int:
        """A number that is greater than that of every earlier holder; 0 before the first time."""
        return self._lease.token

    @property
    def revision(self) -> int:
        """The revision of the key; it grows with each renewal."""
        return self._lease.revision

    @property
    def held(self) -> bool:
        """Whether the lease is held, as far as this process can know."""
        return self._background.do(lambda: self._lease.held)

    def check(self) -> None:
        """Raise LeaseLostError unless the lease is held."""
        self._background.do(self._lease.check)

    def acquire(self, *, timeout_seconds: float | None = None) -> bool:
        """Wait for the lease and hold it. Return False if `timeout_seconds` pass first; None waits
        for ever. Raises errors that no retry can help.
        """
        return self._background.run(self._lease.acquire(timeout_seconds=timeout_seconds))

    def release(self) -> None:
        """Give the lease back, so that the next one gets it at once. Idempotent."""
        if not self._background.forked:
            self._background.run(self._lease.release())

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
