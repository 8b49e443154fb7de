"""Checking what somebody kept of the chain of a store against what the store holds now.

    report = check_chain([(each.seq, leaf_of_message(each)) for each in messages], kept)

Pure, and needs no server: whoever has the leaves of all messages after `base`, or the messages to
make them of, can check. `Stream.verify_chain` does so with what a cluster tells. What is said of
seqs holds for the revisions of a kv's sets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.protocol.chain.hashing import BEGINNING, ChainLink, after, leaf_of, leaf_of_set
from holdfast.protocol.errors import InvalidArgumentError
from holdfast.protocol.limits import SHA256_BYTES
from holdfast.protocol.messages import Ack, Entry, Message


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What became of the chain values that were kept. Seqs are in ascending order."""

    #: Nothing up to this seq is left, so nothing of that can be checked.
    base_seq: int
    #: The last message that was checked, and the chain after it, computed anew.
    last_seq: int
    chain: bytes
    #: How many messages after `base_seq` were removed, or could not be read: their leaves count.
    removed: int
    #: The seqs whose chain is as it was kept: no message from `base_seq` + 1 up to there has
    #: changed, and none is missing but those that were removed.
    matched: tuple[int, ...]
    #: Those whose chain is another now: that message, or one before it, is not what it was.
    differing: tuple[int, ...]
    #: Those up to `base_seq`: every message up to there was removed.
    trimmed: tuple[int, ...]

    @property
    def is_sound(self) -> bool:
        """Nothing differs."""
        return not self.differing


class ChainWalk:
    """Computes a chain message by message, and compares it with what was kept."""

    def __init__(self, base: ChainLink, kept: Iterable[ChainLink | Ack]) -> None:
        """Raises InvalidArgumentError unless each that was kept has a seq and a chain."""
        self.base = base
        self.last = base
        self._removed = 0
        self._matched: list[int] = []
        self._differing: list[int] = []
        self._kept = sorted({checked_link(each) for each in kept}, reverse=True)
        self._trimmed: list[int] = []
        self._pass_base()

    def restart(self, base: ChainLink) -> None:
        """Go on from a base that has moved beyond what was walked."""
        if base.seq > self.last.seq:
            self.base = self.last = base
            self._removed = 0
            self._pass_base()

    def step(self, seq: int, leaf: bytes, *, is_removed: bool = False) -> None:
        """Go on with a message. Raises InvalidArgumentError unless its seq is above the last."""
        if seq <= self.last.seq:
            reason = f"{seq} does not follow {self.last.seq}"
            raise InvalidArgumentError(argument="seq", reason=reason)
        self._miss(seq)
        self.last = ChainLink(seq, after(self.last.chain, leaf))
        self._removed += is_removed
        while self._kept and self._kept[-1].seq == seq:
            self._compare(self._kept.pop(), self.last.chain)

    def report(self) -> ChainReport:
        """Return what was found; what was kept of later messages differs."""
        self._miss(None)
        return ChainReport(
            self.base.seq,
            self.last.seq,
            self.last.chain,
            self._removed,
            tuple(dict.fromkeys(self._matched)),
            tuple(dict.fromkeys(self._differing)),
            tuple(dict.fromkeys(self._trimmed)),
        )

    def _compare(self, kept: ChainLink, chain: bytes) -> None:
        (self._matched if kept.chain == chain else self._differing).append(kept.seq)

    def _miss(self, before_seq: int | None) -> None:
        """What was kept of a message that there is no trace of differs."""
        while self._kept and (before_seq is None or self._kept[-1].seq < before_seq):
            self._differing.append(self._kept.pop().seq)

    def _pass_base(self) -> None:
        while self._kept and self._kept[-1].seq <= self.base.seq:
            kept = self._kept.pop()
            if kept.seq == self.base.seq:
                self._compare(kept, self.base.chain)
            else:
                self._trimmed.append(kept.seq)


def leaf_of_message(message: Message) -> bytes:
    """Return the leaf of a message as it is stored: read without a codec, and not compressed. A
    large value counts by its checksum, whether it was sent along or not. Raises TypeError for a
    decoded value."""
    seq, value, headers, time, _, large, subject = message
    if large is None and type(value) is not bytes:
        raise TypeError(f"the value of message {seq} is decoded")
    return leaf_of(seq, time, value if large is None else large, headers or None, subject)


def leaf_of_entry(entry: Entry) -> bytes:
    """Return the leaf of the set that made an entry of a kv: as `leaf_of_message`, for an entry
    that was read without a codec, and is not compressed."""
    key, value, headers, revision, time, large = entry
    if large is None and type(value) is not bytes:
        raise TypeError(f"the value of key {key!r} is decoded")
    return leaf_of_set(revision, time, value if large is None else large, headers or None, key)


def check_chain(
    leaves: Iterable[tuple[int, bytes]],
    kept: Iterable[ChainLink | Ack],
    base: ChainLink = BEGINNING,
) -> ChainReport:
    """Check what was `kept`, acks or Links, against a chain that is computed anew.

    `leaves` are `(seq, leaf)` of all messages after `base`, in order of seq; `leaf_of_message`
    makes a leaf. Without a base, the stream has had its chain from the first message on.
    Raises InvalidArgumentError.
    """
    walk = ChainWalk(base, kept)
    for seq, leaf in leaves:
        walk.step(seq, leaf)
    return walk.report()


def checked_link(kept: ChainLink | Ack) -> ChainLink:
    """Return what was kept as a link. Raises InvalidArgumentError unless it has a seq and a chain.
    """
    seq, chain = kept.seq, kept.chain
    if type(seq) is not int or type(chain) is not bytes or len(chain) != SHA256_BYTES:
        raise InvalidArgumentError(argument="kept", reason=f"{kept!r:.80} has no seq or no chain")
    return ChainLink(seq, chain)
