"""Finds out what a bucket honours, by trial on objects below `probe/`.

Some S3 endpoints accept `If-None-Match` and `If-Match` and overwrite all the same. Two owners of a
store could then silently erase each other's work. `bucket_capabilities.py` says what each finding
means; servers refuse an unfit bucket when they start.

`observe` makes its requests one after the other, so it can show that a bucket is unfit, but not
that it withstands races; `observe_races` tries those, and `holdfast probe` does both.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from io import BytesIO
from typing import Final, Protocol, Self

from holdfast.shared_fs.bucket.bucket_backend import ListedObject, Object, ObjectHead
from holdfast.shared_fs.bucket.bucket_capabilities import (
    S3_WAYS,
    Capability,
    Observed,
    Unfit,
    Ways,
    decide,
)
from holdfast.shared_fs.bucket.bucket_errors import (
    BucketUnfitError,
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    RequestUnsupportedError,
)

#: How the two forms of `If-Match` are tried.
_QUOTED: Final = S3_WAYS
_BARE: Final = Ways(bare_versions=True)
#: Numbered by one digit.
_RACERS: Final = 8
_RACE_BYTES: Final = 64
#: A write without an answer is tried anew so often.
_TRIES: Final = 3


class Triable(Protocol):
    """What is needed of a `Bucket`."""

    @property
    def name(self) -> str: ...
    def used_in(self, ways: Ways) -> Self: ...
    def head(self, key: str) -> ObjectHead: ...
    def get_range(self, key: str, start: int, length: int) -> Object: ...
    def list(self, prefix: str = "") -> Iterator[ListedObject]: ...
    def put_new(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> str: ...
    def put_new_in_parts(self, key: str, file: BytesIO) -> str: ...
    def replace(self, key: str, body: bytes, expected_version: str) -> str: ...
    def delete(self, key: str, expected_version: str | None = None) -> None: ...


def find_ways(bucket: Triable) -> Ways:
    """Return how to use a bucket, after about 22 requests on two objects, which are deleted in
    the end. A bucket that honours less takes a few more.

    Raises BucketUnfitError, and other errors that prevent the use of the bucket:
    BucketRefusedError, BucketUnavailableError, ObjectDamagedError.
    """
    found = decide(observe(bucket))
    if isinstance(found, Unfit):
        raise BucketUnfitError(bucket=bucket.name, what="; ".join(found.reasons))
    return found


def observe(bucket: Triable, key: str | None = None) -> dict[Capability, Observed]:
    """Return what a bucket does with each condition. Raises as `find_ways`, but for
    BucketUnfitError."""
    key = key or f"probe/{secrets.token_hex(8)}"
    try:
        return _Trial(bucket, key).run()
    finally:
        bucket.delete(key)


def observe_all(bucket: Triable, rounds: int) -> dict[Capability, Observed]:
    """Return what a bucket does with each condition, and in races unless it is unfit anyway."""
    observed = observe(bucket)
    ways = decide(observed)
    if isinstance(ways, Unfit):
        return observed
    return {**observed, **observe_races(bucket.used_in(ways), rounds)}


def observe_races(bucket: Triable, rounds: int) -> dict[Capability, Observed]:
    """Let several writers create, and then replace, the same object at once, `rounds` times."""
    fair_creations = fair_replacements = True
    with ThreadPoolExecutor(_RACERS) as threads:
        for _ in range(rounds):
            race = _Race(bucket, f"probe/{secrets.token_hex(8)}", threads)
            try:
                fair_creations &= race.is_fair(race.create)
                version = bucket.head(race.key).version
                fair_replacements &= race.is_fair(partial(race.replace, version))
            finally:
                bucket.delete(race.key)
    return {
        Capability.ONE_CREATES: _honoured(fair_creations),
        Capability.ONE_REPLACES: _honoured(fair_replacements),
    }


class _Race:
    """Writers of one object, all at once."""

    def __init__(self, bucket: Triable, key: str, threads: ThreadPoolExecutor) -> None:
        self._bucket = bucket
        self._threads = threads
        self.key = key

    def is_fair(self, write: Callable[[int], object]) -> bool:
        """Return whether at most one was told that it won, and the object is the winner's.

        After an outage there may be none: whose try took effect, if one did, is not known then.
        """
        start = threading.Barrier(_RACERS)

        def run(number: int) -> _Outcome:
            start.wait()
            return _tried(partial(write, number))

        outcomes = list(self._threads.map(run, range(_RACERS)))
        winners = [at for at, outcome in enumerate(outcomes) if outcome is _Outcome.DONE]
        if not winners:
            return True
        body = self._bucket.get_range(self.key, 0, _RACE_BYTES).body
        return [self._body(at) for at in winners] == [body[:1]]

    def create(self, number: int) -> str:
        return self._bucket.put_new(self.key, self._body(number) + b" created")

    def replace(self, version: str, number: int) -> str:
        return self._bucket.replace(self.key, self._body(number) + b" replaced", version)

    @staticmethod
    def _body(number: int) -> bytes:
        return f"{number}".encode()


class _Outcome(Enum):
    DONE = auto()
    #: The condition did not hold, says the store.
    REFUSED = auto()
    UNSUPPORTED = auto()


class _Trial:
    """The requests on one object, each of which says what the next one may expect."""

    def __init__(self, bucket: Triable, key: str) -> None:
        # What the bucket knows of itself is not known yet.
        self._bucket = bucket.used_in(_QUOTED)
        self._key = key
        self._observed: dict[Capability, Observed] = {}

    def run(self) -> dict[Capability, Observed]:
        if not self._create():
            return self._observed
        self._complete()
        old = self._replace(Capability.REPLACE, _QUOTED)
        ways = _QUOTED
        if self._observed[Capability.REPLACE] is Observed.NEVER_HOLDS:
            ways = _BARE
            old = self._replace(Capability.REPLACE_BARE, _BARE)
        self._read()
        self._delete(old)
        self._write_after_delete(old, ways)
        return self._observed

    def _create(self) -> bool:
        """Return whether the object is there; a store without the condition has not let us."""
        outcome = _tried(lambda: self._bucket.put_new(self._key, b"first"))
        if outcome is _Outcome.DONE:
            outcome = _tried(lambda: self._bucket.put_new(self._key, b"again"))
        self._observed[Capability.CREATE] = _of_invalid(outcome)
        return outcome is not _Outcome.UNSUPPORTED

    def _complete(self) -> None:
        outcome = _tried(lambda: self._bucket.put_new_in_parts(self._key, BytesIO(b"parts")))
        self._observed[Capability.COMPLETE] = _of_invalid(outcome)

    def _replace(self, capability: Capability, ways: Ways) -> str:
        """Replace the current version, then try to replace that one again. Return it."""
        trial = self._bucket.used_in(ways)
        for _ in range(_TRIES):
            old = trial.head(self._key).version
            # Bodies of their own: equal bodies may have equal versions.
            valid = _tried(partial(trial.replace, self._key, secrets.token_bytes(8), old))
            # A try that got no answer may have replaced it after all.
            if valid is not _Outcome.REFUSED or trial.head(self._key).version == old:
                break
        if valid is _Outcome.DONE:
            invalid = _tried(partial(trial.replace, self._key, secrets.token_bytes(8), old))
            self._observed[capability] = _of_invalid(invalid)
        elif valid is _Outcome.REFUSED:
            self._observed[capability] = Observed.NEVER_HOLDS
        else:
            self._observed[capability] = Observed.UNSUPPORTED
        return old

    def _read(self) -> None:
        body = secrets.token_hex(8).encode()
        metadata = {"probe": "kept"}
        # Nobody has written to this one, with or without a condition.
        other = f"{self._key}.read"
        try:
            version = self._bucket.put_new(other, body, metadata)
            found = self._bucket.get_range(other, 0, len(body) + 1)
            fresh = (found.body, found.version) == (body, version)
            kept = found.metadata == metadata
            listed = [(one.key, one.version) for one in self._bucket.list(other)]
        finally:
            self._bucket.delete(other)
        with suppress(ObjectMissingError):
            self._bucket.head(other)
            fresh = False
        shown = listed == [(other, version)] and not list(self._bucket.list(other))
        self._observed[Capability.METADATA] = _honoured(kept)
        self._observed[Capability.READ_AFTER_WRITE] = _honoured(fresh)
        self._observed[Capability.LIST_AFTER_WRITE] = _honoured(shown)

    def _delete(self, old: str) -> None:
        """Delete the object, with the condition if that is honoured."""
        current = self._bucket.head(self._key).version
        outcome = _tried(lambda: self._bucket.delete(self._key, old))
        self._observed[Capability.DELETE] = _of_invalid(outcome)
        if outcome is _Outcome.REFUSED:
            valid = _tried(lambda: self._bucket.delete(self._key, current))
            if valid is _Outcome.REFUSED and self._bucket.head(self._key).version == current:
                self._observed[Capability.DELETE] = Observed.NEVER_HOLDS
        self._bucket.delete(self._key)

    def _write_after_delete(self, old: str, ways: Ways) -> None:
        trial = self._bucket.used_in(ways)
        outcome = _tried(lambda: trial.replace(self._key, b"late", old))
        self._observed[Capability.REPLACE_DELETED] = _of_invalid(outcome)


def _tried(write: Callable[[], object]) -> _Outcome:
    for again in range(1, _TRIES + 1):
        try:
            write()
        except (ObjectExistsError, ObjectConflictError):
            return _Outcome.REFUSED
        except RequestUnsupportedError:
            return _Outcome.UNSUPPORTED
        except OutcomeUnknownError:
            if again == _TRIES:
                raise
        else:
            return _Outcome.DONE
    raise AssertionError("the last try returns or raises")


def _of_invalid(outcome: _Outcome) -> Observed:
    """Return what the outcome of a write says whose condition does not hold."""
    return {
        _Outcome.DONE: Observed.IGNORED,
        _Outcome.REFUSED: Observed.HONOURED,
        _Outcome.UNSUPPORTED: Observed.UNSUPPORTED,
    }[outcome]


def _honoured(holds: bool) -> Observed:
    return Observed.HONOURED if holds else Observed.IGNORED
