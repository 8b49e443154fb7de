"""A bucket's backend with faults: seeded or scripted, deterministic, without threads of its own.

backend = FaultyBackend(MemoryBackend(), seed=7, rates={Fault.LOST_ANSWER: 0.1})
backend.script(Fault.LATE, None, Fault.REFUSED)      # for the next three requests
backend.down = True                                  # an outage, until set back
backend.deliver()                                    # what is late arrives now
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Final, TypeVar

from holdfast.shared_fs.bucket.bucket_backend import (
    Backend,
    BucketUpload,
    ByteRange,
    Condition,
    ListedObject,
    NewObject,
    ObjectHead,
    Page,
    PreconditionError,
    Reading,
    TransientError,
    UploadGoneError,
)
from holdfast.shared_fs.bucket.bucket_errors import ObjectMissingError

_T = TypeVar("_T")
#: How many writes back a stale list lies.
_STALE_COUNT: Final = 8


class Fault(StrEnum):
    """What happens to one request."""

    REFUSED = "503: nothing done"
    CONFLICT = "409: nothing done"
    LOST_REQUEST = "timeout before the effect"
    LOST_ANSWER = "timeout after the effect"
    LATE = "timeout, the effect comes before a later request"
    TORN = "the connection breaks within the body: nothing visible"
    WRONG_BYTES = "one byte of the body is another"
    STALE_LIST = "a list from before the last writes"


_WRITES: Final = frozenset(
    [Fault.REFUSED, Fault.CONFLICT, Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LATE, Fault.TORN]
)
_QUESTIONS: Final = frozenset([Fault.REFUSED, Fault.LOST_REQUEST, Fault.LOST_ANSWER])
_READS: Final = _QUESTIONS | {Fault.TORN, Fault.WRONG_BYTES}
_LISTS: Final = _QUESTIONS | {Fault.STALE_LIST}


class FaultyBackend(Backend):
    """Hands requests on to `inner`, or not. Whatever a fault cannot mean for a request, it
    skips."""

    def __init__(
        self, inner: Backend, *, seed: int = 0, rates: Mapping[Fault, float] | None = None
    ) -> None:
        self.name = f"faulty {inner.name}"
        self.page_count = inner.page_count
        self.down = False
        #: What happened to each request so far.
        self.trace: list[tuple[str, Fault | None]] = []
        self._inner = inner
        self._rates = dict(rates or {})
        self._random = random.Random(seed)
        self._script: deque[Fault | None] = deque()
        self._late: list[Callable[[], object]] = []
        self._before: dict[str, ListedObject | None] = {}
        self._lock = threading.RLock()

    def script(self, *faults: Fault | None) -> None:
        """Let these happen to the next requests, whatever the rates."""
        self._script.extend(faults)

    def deliver(self) -> None:
        """Let every late request arrive."""
        with self._lock:
            late, self._late = self._late, []
        for effect in late:
            with suppress(PreconditionError, ObjectMissingError, UploadGoneError):
                effect()

    def put(self, key: str, body: bytes, metadata: Mapping[str, str], condition: Condition) -> str:
        def effect() -> str:
            version = self._inner.put(key, body, metadata, condition)
            self._remember(key, None if isinstance(condition, NewObject) else self._before.get(key))
            return version

        return self._write("put", effect)

    @contextmanager
    def read(self, key: str, wanted: ByteRange | None = None) -> Iterator[Reading]:
        fault = self._fault("read", _READS)
        self._refuse(fault)
        with self._inner.read(key, wanted) as reading:
            if fault is Fault.LOST_ANSWER:
                raise TransientError(str(fault), uncertain=True)
            yield Reading(reading.head, _spoiled(reading.chunks, fault))

    def head(self, key: str) -> ObjectHead:
        return self._ask("head", lambda: self._inner.head(key))

    def delete(self, key: str, expected_version: str | None) -> None:
        def effect() -> None:
            listed = None
            with suppress(ObjectMissingError):
                head = self._inner.head(key)
                listed = ListedObject(key, head.size_bytes, head.version, head.modified)
            self._inner.delete(key, expected_version)
            self._remember(key, listed)

        self._write("delete", effect)

    def list_page(self, prefix: str, start_after: str, limit: int) -> Page:
        fault = self._fault("list", _LISTS)
        self._refuse(fault)
        page = self._inner.list_page(prefix, start_after, limit)
        if fault is Fault.LOST_ANSWER:
            raise TransientError(str(fault), uncertain=True)
        return self._stale(page, prefix, start_after) if fault is Fault.STALE_LIST else page

    def begin_upload(self, key: str, metadata: Mapping[str, str]) -> BucketUpload:
        return self._write("begin_upload", lambda: self._inner.begin_upload(key, metadata))

    def put_part(self, upload: BucketUpload, number: int, offset: int, body: bytes) -> str:
        return self._write("put_part", lambda: self._inner.put_part(upload, number, offset, body))

    def complete_upload(
        self, upload: BucketUpload, tags: Sequence[str], condition: Condition
    ) -> str:
        return self._write(
            "complete_upload", lambda: self._inner.complete_upload(upload, tags, condition)
        )

    def abort_upload(self, upload: BucketUpload) -> None:
        self._write("abort_upload", lambda: self._inner.abort_upload(upload))

    def close(self) -> None:
        self.deliver()
        self._inner.close()

    def _write(self, request: str, effect: Callable[[], _T]) -> _T:
        fault = self._fault(request, _WRITES)
        self._refuse(fault)
        if fault is Fault.TORN:
            raise TransientError(str(fault), uncertain=True)
        if fault is Fault.LATE:
            with self._lock:
                self._late.append(effect)
            raise TransientError(str(fault), uncertain=True)
        result = effect()
        if fault is Fault.LOST_ANSWER:
            raise TransientError(str(fault), uncertain=True)
        return result

    def _ask(self, request: str, question: Callable[[], _T]) -> _T:
        fault = self._fault(request, _QUESTIONS)
        self._refuse(fault)
        result = question()
        if fault is Fault.LOST_ANSWER:
            raise TransientError(str(fault), uncertain=True)
        return result

    def _fault(self, request: str, possible: frozenset[Fault]) -> Fault | None:
        with self._lock:
            late = [effect for effect in self._late if self._random.random() < 0.5]
            self._late = [effect for effect in self._late if effect not in late]
            fault = self._choose(possible)
            self.trace.append((request, fault))
        for effect in late:
            with suppress(PreconditionError, ObjectMissingError, UploadGoneError):
                effect()
        return fault

    def _choose(self, possible: frozenset[Fault]) -> Fault | None:
        if self.down:
            return Fault.REFUSED
        if self._script:
            scripted = self._script.popleft()
            return scripted if scripted in possible else None
        chance = self._random.random()
        for fault, rate in self._rates.items():
            if chance < rate:
                return fault if fault in possible else None
            chance -= rate
        return None

    @staticmethod
    def _refuse(fault: Fault | None) -> None:
        if fault in (Fault.REFUSED, Fault.CONFLICT):
            raise TransientError(str(fault), uncertain=False)
        if fault is Fault.LOST_REQUEST:
            raise TransientError(str(fault), uncertain=True)

    def _remember(self, key: str, before: ListedObject | None) -> None:
        with self._lock:
            self._before.pop(key, None)
            self._before[key] = before
            while len(self._before) > _STALE_COUNT:
                del self._before[next(iter(self._before))]

    def _stale(self, page: Page, prefix: str, start_after: str) -> Page:
        with self._lock:
            before = dict(self._before)
        objects = {one.key: one for one in page.objects if before.get(one.key, one) is not None}
        last = page.objects[-1].key if page.objects else ""
        for key, listed in before.items():
            if listed and key.startswith(prefix) and key > start_after:
                if page.more and key > last:
                    continue
                objects.setdefault(key, listed)
        found = [objects[key] for key in sorted(objects)]
        return Page(found, page.more) if found or not page.more else page


def _spoiled(chunks: Iterator[bytes], fault: Fault | None) -> Iterator[bytes]:
    for chunk in chunks:
        if fault is Fault.TORN:
            yield chunk[: len(chunk) // 2]
            raise TransientError(str(fault), uncertain=False)
        if fault is Fault.WRONG_BYTES and chunk:
            yield bytes([chunk[0] ^ 1]) + chunk[1:]
        else:
            yield chunk
