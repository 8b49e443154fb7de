"""How often and how long a call to a bucket is tried.

The wait doubles up to a maximum, and only a random part of it is waited ("full jitter"), so callers
that were refused together do not return together. A call ends with its last try, or when the next
one would begin after its time limit. The backend limits how long one try takes.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from holdfast.shared_fs.bucket.bucket_backend import TransientError
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketError,
    BucketUnavailableError,
    OutcomeUnknownError,
)
from holdfast.shared_fs.bucket.bucket_usage import BucketUsage, RequestClass

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Retry:
    """The limits of one call."""

    max_tries: int = 8
    first_wait_seconds: float = 0.1
    max_wait_seconds: float = 5.0
    timeout_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a bucket takes from its environment; simulations of time and chance replace it."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random
    nonce: Callable[[], str] = lambda: secrets.token_hex(16)


DEFAULT_RETRY: Final = Retry()
REAL_SURROUNDINGS: Final = Surroundings()


class Tries:
    """The tries of one call."""

    def __init__(
        self,
        request: RequestClass,
        key: str,
        retry: Retry,
        surroundings: Surroundings,
        *,
        visible: bool,
    ) -> None:
        """With `visible`, others see the effect of a try, so it matters whether there was one."""
        self._request = request
        self._key = key
        self._visible = visible
        self._retry = retry
        self._surroundings = surroundings
        self._give_up_at = surroundings.clock() + retry.timeout_seconds
        self.failed_count = 0
        #: True if a try may have taken effect although no answer came.
        self.uncertain = False

    def failed(self, error: TransientError) -> None:
        """Wait for the next try.

        Raises OutcomeUnknownError or BucketUnavailableError if there is none.
        """
        self.failed_count += 1
        self.uncertain = self.uncertain or error.uncertain
        longest = self._retry.first_wait_seconds * 2 ** (self.failed_count - 1)
        wait = min(longest, self._retry.max_wait_seconds) * self._surroundings.chance()
        last = self.failed_count >= self._retry.max_tries
        if last or self._surroundings.clock() + wait >= self._give_up_at:
            raise self.given_up(str(error)) from error
        self._surroundings.sleep(wait)

    def given_up(self, reason: str) -> BucketUnavailableError:
        """Return the error to raise when no further try is made."""
        cls = OutcomeUnknownError if self._visible and self.uncertain else BucketUnavailableError
        return cls(
            request=str(self._request), key=self._key, tries=self.failed_count, reason=reason
        )

    def ended_by(self, error: BucketError) -> BucketError:
        """Return the error to raise if `error` ends the call; an earlier try
        may still have taken effect."""
        return self.given_up(str(error)) if self.uncertain else error


class Calls:
    """Makes calls: counts each try, and retries each call within its limits."""

    def __init__(self, retry: Retry, surroundings: Surroundings, usage: BucketUsage) -> None:
        self._retry = retry
        self._surroundings = surroundings
        self._usage = usage

    def tries(self, request: RequestClass, key: str, *, visible: bool = False) -> Tries:
        """Begin a call whose tries the caller makes itself."""
        return Tries(request, key, self._retry, self._surroundings, visible=visible)

    def tried(
        self, request: RequestClass, key: str, call: Callable[[], _T], sent_bytes: int = 0
    ) -> _T:
        """Return what `call` returns; retry it after each TransientError.

        For calls whose effect others do not see.
        """
        tries = self.tries(request, key)
        while True:
            try:
                with self.counted(request, sent_bytes):
                    return call()
            except TransientError as error:
                tries.failed(error)

    @contextmanager
    def counted(self, request: RequestClass, sent_bytes: int = 0) -> Iterator[Received]:
        """Count one try and the bytes that pass through the yielded counter."""
        received = Received()
        failed = False
        try:
            yield received
        except TransientError:
            failed = True
            raise
        finally:
            self._usage.add(
                request,
                sent_bytes=sent_bytes,
                received_bytes=received.size_bytes,
                failed=failed,
            )


class Received:
    """Counts the bytes of bodies that one try received."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def count(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self.size_bytes += len(chunk)
            yield chunk
