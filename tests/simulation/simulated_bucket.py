"""The bucket of a simulated cluster: objects in memory, and all that can go wrong between.

A call takes a while before its effect and after it, during which the loop goes on. It may be
refused, get lost on the way there or back, and have its effect after the caller has given up on it.
A crash may be set for the so-manieth call, of whoever makes it: before its effect, or after it.

What a call costs, its bounds and what is tried again are the shipped `Bucket`'s.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from holdfast.shared_fs.bucket.bucket import Bucket
from holdfast.shared_fs.bucket.bucket_backend import (
    Backend,
    BucketUpload,
    ByteRange,
    Condition,
    ObjectHead,
    Page,
    PreconditionError,
    Reading,
    TransientError,
)
from holdfast.shared_fs.bucket.bucket_memory import MemoryBackend
from holdfast.shared_fs.bucket.bucket_tries import Retry, Surroundings
from tests.simulation.simulated_threads import current_thread

_T = TypeVar("_T")

#: Short, so that a run has the ends of calls and not only their tries.
RETRY: Final = Retry(
    max_tries=4, first_wait_seconds=0.05, max_wait_seconds=0.5, timeout_seconds=4.0
)
#: A try that got no answer may have its effect so much later.
LATE_SECONDS: Final = 1.0


class BucketWeather:
    """How the way to the bucket is."""

    def __init__(self, chance: random.Random) -> None:
        self.latency_seconds = chance.choice((0.002, 0.01, 0.05))
        #: Of all calls: answered with 503; lost on the way there; there, but late; lost on the way
        #: back.
        self.busy, self.lost, self.late, self.unanswered = (
            chance.choice((0.0, 0.0, 0.01, 0.05)) for _ in range(4)
        )
        #: Hosts that cannot reach it.
        self.away: set[str] = set()
        self.slow = 1.0


class Caller(Protocol):
    """Who calls: a node."""

    name: str

    def trace(self, text: str) -> None:
        """Note what happens."""

    def may_crash(self) -> None:
        """Die here, if that is due. Raises OSError then."""

    def may_stop(self, kind: str, key: str) -> None:
        """Be stopped here for a while, if that is due."""

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Have something done whatever becomes of the caller."""

    def fail(self, what: str) -> None:
        """Something is wrong."""


class SimulatedBucket:
    """What all share. Objects outlive everything."""

    def __init__(self, chance: random.Random, clock: Callable[[], float]) -> None:
        self.objects = MemoryBackend(clock)
        self.weather = BucketWeather(chance)
        self.chance = chance
        self._clock = clock

    def of(self, caller: Caller) -> Bucket:
        """Return the bucket as a process sees it."""

        def sleep(seconds: float) -> None:
            thread = current_thread()
            assert thread is not None
            thread.give_way(seconds)

        surroundings = Surroundings(
            clock=self._clock,
            sleep=sleep,
            chance=self.chance.random,
            nonce=lambda: f"{self.chance.getrandbits(128):032x}",
        )
        return Bucket(_CallerBackend(self, caller), retry=RETRY, surroundings=surroundings)

    def in_good_weather(self) -> Bucket:
        """Return the bucket as it is when nothing goes wrong, and nothing takes time."""
        return Bucket(self.objects)


class _CallerBackend(Backend):
    name = "memory://simulated"
    #: Lists have several pages.
    page_count = 20

    def __init__(self, bucket: SimulatedBucket, caller: Caller) -> None:
        self._objects = bucket.objects
        self._weather = bucket.weather
        self._chance = bucket.chance
        self._caller = caller

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        return self._call(
            "put", key, lambda: self._objects.put(key, body, metadata, condition), changes=True
        )

    @contextlib.contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        with contextlib.ExitStack() as stack:
            # Objects are replaced whole, so one that is open stays as it is.
            yield self._call(
                "get", key, lambda: stack.enter_context(self._objects.read(key, wanted))
            )

    def head(self, key: str) -> ObjectHead:
        return self._call("head", key, lambda: self._objects.head(key))

    def delete(self, key: str, expected_version: str | None) -> None:
        self._call("delete", key, lambda: self._objects.delete(key, expected_version), changes=True)

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        return self._call(
            "list", prefix, lambda: self._objects.list_page(prefix, start_after, limit)
        )

    def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload:
        return self._call("begin", key, lambda: self._objects.begin_upload(key, metadata))

    def put_part(self, upload: BucketUpload, number: int, offset: int, body: bytes) -> str:
        return self._call(
            "part", upload.key, lambda: self._objects.put_part(upload, number, offset, body)
        )

    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        return self._call(
            "complete",
            upload.key,
            lambda: self._objects.complete_upload(upload, tags, condition),
            changes=True,
        )

    def abort_upload(self, upload: BucketUpload) -> None:
        self._call("abort", upload.key, lambda: self._objects.abort_upload(upload))

    def close(self) -> None:
        """Nothing is kept open."""

    def _call(self, kind: str, key: str, effect: Callable[[], _T], *, changes: bool = False) -> _T:
        weather, caller = self._weather, self._caller
        if current_thread() is None:
            caller.fail(f"{kind} of {key} keeps the loop waiting for the bucket")
        self._caller.may_crash()
        self._caller.may_stop(kind, key)
        self._travel()
        caller.trace(f"bucket {kind} {key}")
        if caller.name in weather.away:
            raise TransientError("the bucket is away", uncertain=changes)
        dice = self._chance.random()
        if dice < weather.busy:
            raise TransientError("503", uncertain=False)
        dice -= weather.busy
        if 0 <= dice < weather.lost:
            raise TransientError("lost on the way there", uncertain=changes)
        dice -= weather.lost
        if 0 <= dice < weather.late and changes:
            caller.later(self._chance.uniform(0.0, LATE_SECONDS), lambda: _too_late(effect))
            raise TransientError("late", uncertain=True)
        dice -= weather.late
        lost_answer = 0 <= dice < weather.unanswered
        try:
            result = effect()
        except PreconditionError:
            self._travel()
            if lost_answer:
                raise TransientError("lost on the way back", uncertain=changes) from None
            raise
        self._caller.may_crash()
        self._travel()
        if lost_answer:
            raise TransientError("lost on the way back", uncertain=changes)
        return result

    def _travel(self) -> None:
        thread = current_thread()
        if thread is None:
            return
        typical = self._weather.latency_seconds * self._weather.slow
        if self._chance.random() < 0.02:
            typical *= 10
        thread.give_way(typical * self._chance.uniform(0.2, 1.0))


def _too_late(effect: Callable[[], object]) -> None:
    with contextlib.suppress(PreconditionError):
        effect()
