"""A coalescer whose callers, owners and clock are a test's."""

from __future__ import annotations

from typing import Any

from holdfast.client.wire.coalescer import Coalescer
from holdfast.client.wire.effects import Resolve, SendFrame, Suspect
from holdfast.client.wire.store_queue import StoreKey
from holdfast.protocol import frames
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import HoldfastError
from holdfast.protocol.limits import MIN_PAYLOAD_BYTES

STORE: StoreKey = (1, "s")
OTHER: StoreKey = (2, "k")
OWNER = Owner("a", "a-1", 1)


class Caller:
    """What asyncio's Future is to the coalescer."""

    def __init__(self) -> None:
        self.answer: Any = None

    def done(self) -> bool:
        return self.answer is not None

    def set_result(self, result: Any, /) -> None:
        assert self.answer is None, "answered twice"
        self.answer = result

    def cancel(self) -> None:
        self.answer = "cancelled"

    @property
    def error(self) -> HoldfastError:
        result, _, durability = self.answer
        assert durability is None
        assert isinstance(result, HoldfastError)
        return result


class Client:
    """A coalescer with the little that a test says of time and owners."""

    def __init__(self, *, resolve: bool = True) -> None:
        self.core = Coalescer(b"w" * 12, MIN_PAYLOAD_BYTES)
        self.now = 100.0
        self.resolve = resolve
        self.frames: list[SendFrame] = []
        self.resolves: list[list[StoreKey]] = []
        self.suspects: list[Suspect] = []
        self.pings: list[SendFrame] = []

    def append(
        self, value: bytes = b"v", key: StoreKey = STORE, durability: int = 0, timeout: float = 30.0
    ) -> Caller:
        return self._submit([frames.APPEND, value], True, key, durability, timeout)

    def get(self, seq: int = 1, key: StoreKey = STORE) -> Caller:
        return self._submit([frames.GET_MESSAGE, seq], False, key, 0, 30.0)

    def send(self, *details: Any, **more: Any) -> tuple[Caller, SendFrame]:
        """Append a message that leaves at once; return its caller and its frame."""
        caller = self.append(*details, **more)
        (frame,) = self.turn()
        return caller, frame

    def append_many(self, count: int, value: bytes = b"v") -> list[Caller]:
        return [self.append(value) for _ in range(count)]

    def turn(self) -> list[SendFrame]:
        """Carry out the effects; return the frames that left."""
        sent: list[SendFrame] = []
        while True:
            effects = self.core.turn(self.now)
            if not effects:
                self.core.validate()
                return sent
            for effect in effects:
                if isinstance(effect, SendFrame) and not groups_of(effect):
                    self.pings.append(effect)
                elif isinstance(effect, SendFrame):
                    sent.append(effect)
                    self.frames.append(effect)
                elif isinstance(effect, Resolve):
                    self.resolves.append(effect.stores)
                    if self.resolve:
                        for key in effect.stores:
                            self.core.resolved(key, OWNER)
                else:
                    self.suspects.append(effect)

    def tick(self, seconds: float) -> list[SendFrame]:
        self.now += seconds
        self.core.tick(self.now)
        return self.turn()

    def reply(self, frame: SendFrame, *elements: list[Any]) -> None:
        self.core.reply(frame.number, frames.encode(list(elements)), self.now)
        self.core.validate()

    def settle(self, caller: Caller, frame: SendFrame) -> None:
        """Answer the one write of a frame; its caller hears of it."""
        self.reply(frame, answered(0, [1, 1]))
        assert caller.answer[0] == [1, 1]

    def no_responders(self, frame: SendFrame) -> list[SendFrame]:
        self.core.no_responders(frame.number, self.now)
        return self.turn()

    def move(self, key: StoreKey = STORE) -> list[SendFrame]:
        """Let `b` have a store from now on; return what leaves then."""
        self.core.resolved(key, Owner("b", "b-1", 2))
        return self.turn()

    def refuse(self, frame: SendFrame, error: HoldfastError, index: int = 0) -> None:
        self.reply(frame, frames.error_result(index, error))

    def _submit(
        self, operation: list[Any], write: bool, key: StoreKey, durability: int, timeout: float
    ) -> Caller:
        caller = Caller()
        packed = frames.pack(operation)
        self.core.submit(key, (packed, caller, self.now + timeout, durability, timeout), write)
        return caller


def groups_of(frame: SendFrame) -> list[frames.Group]:
    return frames.decode_request(frame.payload)[1]


def answered(index: int, *results: Any, durability: int = 2) -> list[Any]:
    return [index, 0, frames.encode_outcome(1, 1234, durability, list(results))]
