"""What is told about many streams at once, whichever gateways serve them.

Each gateway answers for the streams that it serves, since it alone knows their consumers. One that
does not answer in time is not waited for: what stores say is told then, without consumers.

What an account uses is a sum over all streams, and clients ask for it whenever they start. So sizes
are remembered, and only so many are read anew for one answer: first those of streams that were
published to. Of very many streams the sum is a little old.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final, TypeVar

from holdfast.gateway.jetstream.api.errors import ApiError
from holdfast.gateway.jetstream.api.replies import ApiStreamInfo, ApiStreamState
from holdfast.gateway.jetstream.api.stream_config import ApiStreamConfig
from holdfast.gateway.jetstream.catalogue.catalogue import Catalogue, StreamEntry
from holdfast.gateway.jetstream.serving.served_streams import ServedStreams
from holdfast.gateway.jetstream.streams.account import AccountUsage
from holdfast.gateway.jetstream.streams.context import GatewayContext
from holdfast.gateway.jetstream.streams.served_stream import ServedStream
from holdfast.gateway.jetstream.streams.stream_info import state_of
from holdfast.gateway.jetstream.wire.ports import PortMessage
from holdfast.protocol.errors import HoldfastError

logger = logging.getLogger("holdfast.gateway")

#: Heads that are asked for at a time, and that are read anew for one answer about the account.
_HEADS: Final = 256
_HEADS_OF_ACCOUNT: Final = 1024
_T = TypeVar("_T")
_STATE_FIELDS: Final = frozenset(each.name for each in fields(ApiStreamState))
_NUMBERS: Final = _STATE_FIELDS - {"deleted", "subjects", "origins"}
#: What other gateways are asked for: the last token of the subject.
INFOS: Final = "infos"
USAGE: Final = "usage"

#: Asks another gateway for something, and returns its answer; None if there is none in time.
AskGateway = Callable[[str, str, dict[str, Any]], Awaitable[Any]]


class StreamInfos:
    """What one gateway tells about streams."""

    def __init__(
        self,
        context: GatewayContext,
        catalogue: Catalogue,
        streams: ServedStreams,
        gateway_of: Callable[[str], str],
        others: Callable[[], Sequence[str]],
        ask: AskGateway,
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._streams = streams
        self._gateway_of = gateway_of
        self._others = others
        self._ask = ask

    async def of(self, names: Iterable[str]) -> list[ApiStreamInfo]:
        """Return what there is to tell about streams, in the order of their names."""
        asked = [name for name in names if self._entry(name) is not None]
        states = await self._own_states(asked)
        others: dict[str, list[str]] = {}
        for name in asked:
            if name not in states:
                others.setdefault(self._gateway_of(name), []).append(name)
        answers = await asyncio.gather(
            *(self._ask(each, INFOS, {"names": names}) for each, names in others.items())
        )
        for answer in answers:
            states |= _states(answer)
        missing = [name for name in asked if name not in states]
        states |= await self._stored_states(missing)
        found: list[ApiStreamInfo] = []
        for name in asked:
            entry, state = self._entry(name), states.get(name)
            if entry is None or state is None:
                continue
            try:
                found.append(self.info(entry, state))
            except ApiError as error:
                # What a foreign hand has put into the catalogue costs its stream alone.
                logger.warning("jetstream.stream_unreadable reason=%s: %s", name, error)
        return found

    async def usage(self) -> AccountUsage:
        """Return what all streams use together, which gateways serve."""
        total = await self._own_usage()
        asked = (self._ask(each, USAGE, {}) for each in self._others())
        for answer in await asyncio.gather(*asked):
            total = total.plus(_usage(answer))
        return total

    def info(self, entry: StreamEntry, state: ApiStreamState) -> ApiStreamInfo:
        """Return a StreamInfo. Raises ApiError for a configuration that makes no sense."""
        config = ApiStreamConfig.from_json(entry.config)
        return ApiStreamInfo(config, entry.created_ms, state, self._context.domain)

    async def answer(self, what: str, body: dict[str, Any], message: PortMessage) -> None:
        """Answer another gateway."""
        if what == INFOS:
            names = body.get("names")
            wanted = [each for each in names if type(each) is str] if type(names) is list else []
            states = await self._own_states(wanted)
            answer: Any = {name: asdict(state) for name, state in states.items()}
        else:
            answer = list(await self._own_usage())
        self._context.client.publish(message.reply, json.dumps(answer).encode())

    async def _own_states(self, names: Iterable[str]) -> dict[str, ApiStreamState]:
        """Return the states of the streams among these that this gateway serves."""
        served = [each for name in names if (each := self._streams.get(name)) is not None]
        heads = await _in_parts(served, ServedStream.state)
        return {each.name: state for each, state in zip(served, heads, strict=True) if state}

    async def _stored_states(self, names: Iterable[str]) -> dict[str, ApiStreamState]:
        """Return the states of streams that nobody answers for."""
        entries = [entry for name in names if (entry := self._entry(name)) is not None]

        async def state(entry: StreamEntry) -> ApiStreamState:
            return state_of(await self._context.holdfast.serving_stream(entry.store).head(), 0)

        states = await _in_parts(entries, state)
        return {each.name: found for each, found in zip(entries, states, strict=True) if found}

    async def _own_usage(self) -> AccountUsage:
        """Return what the streams use that this gateway serves."""
        served = list(self._streams)
        stale = served
        if len(served) > _HEADS_OF_ACCOUNT:
            stale = [each for each in served if each.size_is_stale]
            # Those that were never read come last: there may be very many after a start.
            stale.sort(key=lambda each: each.size_bytes is None)
        await _in_parts(stale[:_HEADS_OF_ACCOUNT], ServedStream.state)
        used = [0, 0]
        for each in served:
            used[each.entry.in_memory] += each.size_bytes or 0
        return AccountUsage(used[True], used[False], sum(each.consumer_count for each in served))

    def _entry(self, name: str) -> StreamEntry | None:
        entry = self._catalogue.get(name)
        return None if entry is None or entry.deleting else entry


async def _in_parts(
    items: Sequence[_T], read: Callable[[_T], Awaitable[ApiStreamState]]
) -> list[ApiStreamState | None]:
    """Read the states of streams, so many at a time; None where that fails."""

    async def one(item: _T) -> ApiStreamState | None:
        try:
            return await read(item)
        except HoldfastError as error:
            logger.warning("jetstream.stream_unreadable reason=%s", error)
            return None

    found: list[ApiStreamState | None] = []
    left = iter(items)
    while part := list(itertools.islice(left, _HEADS)):
        found += await asyncio.gather(*map(one, part))
    return found


def _states(answer: Any) -> dict[str, ApiStreamState]:
    """Return the states in another gateway's answer, without what makes no sense."""
    if type(answer) is not dict:
        return {}
    found = {}
    for name, state in answer.items():
        # A gateway of another version may tell less, or more.
        if type(state) is dict and state.keys() >= _NUMBERS:
            numbers = {each: state[each] for each in _NUMBERS}
            origins = state.get("origins") or []
            if all(type(each) is int for each in numbers.values()):
                found[name] = ApiStreamState(**numbers, origins=_origins(origins))
    return found


def _origins(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if type(each) is dict] if type(found) is list else []


def _usage(answer: Any) -> AccountUsage:
    if type(answer) is list and len(answer) == 3 and all(type(each) is int for each in answer):
        return AccountUsage(*answer)
    return AccountUsage()
