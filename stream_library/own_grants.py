"""What a server asks of a coordinator, answered by the process that has the folder for itself.

Nobody else can own a store, so every grant is made. What a coordinator has in its state, the files
tell, as they do when a coordinator has lost its state:

- A store that has a file is durable, unless the file is still as it was made, or empty.
- A store without a file may be in the bucket: the server looks there before it makes a new one.
- Epochs never go back, because the store files and logs contain them. A server that finds an epoch
  at or above its grant says so and is granted a higher one.

Before each answer it is checked that nobody has taken over. What the server does with an answer is
safe in any case, by its fence. The shapes of requests and answers are in `protocol/control.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.persist.threads.run_in_thread import RunInThread
from holdfast.persist.threads.spawned_tasks import SpawnedTasks
from holdfast.protocol import frames
from holdfast.protocol.bus.bus import Bus, BusMessage, BusSubscription
from holdfast.protocol.control import StoreState
from holdfast.protocol.errors import HoldfastError, UnknownOperationError, internal_error
from holdfast.protocol.names import StoreId
from holdfast.protocol.subjects import Subjects
from holdfast.protocol.work.roles import Role
from holdfast.shared_fs.authority.found_files import state_of_file
from holdfast.shared_fs.disk.proof import ProofNumber
from holdfast.stream_library.sole_use import SoleUse


@dataclass(slots=True)
class _Known:
    """What is known of a store."""

    epoch: int
    state: StoreState
    #: The revision at which it went cold; 0 if the bucket may have it; None if its file must exist.
    cold: int | None
    #: The least revision of its file and the logs together.
    revision: int = 0
    owned: bool = False


class OwnGrants:
    """Answers one server, which is of this process."""

    def __init__(
        self,
        use: SoleUse,
        bus: Bus,
        subjects: Subjects,
        server: str,
        *,
        has_bucket: bool,
        run_in_thread: RunInThread = asyncio.to_thread,
    ) -> None:
        self._use = use
        self._bus = bus
        self._subjects = subjects
        self._server = server
        self._has_bucket = has_bucket
        self._run_in_thread = run_in_thread
        #: The stores that were used since the folder was taken.
        self._known: dict[StoreId, _Known] = {}
        self._tasks = SpawnedTasks()
        #: One answer at a time, in the order of requests.
        self._one = asyncio.Lock()
        self._subscriptions: list[BusSubscription] = []
        self._verbs: dict[str, Callable[[Any], dict[str, object]]] = {
            "register": self._register,
            "prove": self._prove,
            "seal": self._seal,
            "open": self._open,
            "claim": self._claim,
            "tend": self._tend,
            "created": self._created,
            "closed": self._closed,
            "cold": self._cold,
            "deleted": self._deleted,
            "release": self._release,
            "vacate": self._nothing,
            "usage": self._usage,
            "resolve": self._owners,
            "owners": self._owners,
        }

    async def begin(self) -> None:
        """Answer from now on."""
        pattern = self._subjects.coordinator_pattern()
        self._subscriptions.append(await self._bus.subscribe(pattern, self._on_request))

    async def end(self) -> None:
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._tasks.cancel()

    def _on_request(self, message: BusMessage) -> None:
        if message.reply:
            self._tasks.spawn(self._answer(message))

    async def _answer(self, message: BusMessage) -> None:
        verb = self._subjects.verb_of(message.subject)
        async with self._one:
            try:
                fields = frames.decode_control(message.payload)
                answer = await self._run_in_thread(lambda: self._answered(verb, fields))
                payload = frames.encode_control(
                    cluster=self._use.cluster, term=self._use.term, **answer
                )
            except HoldfastError as error:
                payload = frames.encode_control_error(error, cluster=self._use.cluster)
            except Exception as error:  # noqa: BLE001 (the server gets it)
                refusal = internal_error(f"the answer to {verb!r}", error)
                payload = frames.encode_control_error(refusal, cluster=self._use.cluster)
        await self._bus.publish(message.reply, payload)

    def _answered(self, verb: str, fields: Any) -> dict[str, object]:
        """Blocking. Raises DeposedError, StorageError, UnknownOperationError."""
        answer = self._verbs.get(verb)
        if answer is None:
            raise UnknownOperationError(operation=verb)
        self._use.check()
        return answer(fields)

    # The incarnation
    def _register(self, fields: Any) -> dict[str, object]:
        return {"time": time.time_ns() // 1_000_000, "roles": list(Role)}

    def _prove(self, fields: Any) -> dict[str, object]:
        number = ProofNumber(self._use.term, fields["number"])
        self._use.fences.write_proof(self._server, fields["incarnation"], number)
        return {"number": number.number}

    def _seal(self, fields: Any) -> dict[str, object]:
        return {"logs": [list(log) for log in self._use.fences.seal(())]}

    # Stores
    def _open(self, fields: Any) -> dict[str, object]:
        grants = [
            self._granted(StoreId(tenant, kind, name), create, known_epoch)
            for tenant, kind, name, create, known_epoch in fields["stores"]
        ]
        return {"grants": grants, "ended": 0}

    def _claim(self, fields: Any) -> dict[str, object]:
        """Nobody else does any work."""
        return {"claims": [[work, self._use.term] for work in fields["offers"]], "wanted": []}

    def _tend(self, fields: Any) -> dict[str, object]:
        """All stores are the one server's own."""
        named = [StoreId(*each[:3]) for each in fields["stores"]]
        return {"stores": [[self._granted(store, False, None)[0], True] for store in named]}

    def _granted(self, store: StoreId, create: bool, known_epoch: int | None) -> list[object]:
        known = self._known.get(store)
        if known is None:
            known = self._known[store] = self._found(store)
        if not known.owned:
            known.owned = True
            known.epoch += 1
        if known_epoch is not None:
            known.epoch = max(known.epoch, known_epoch + 1)
        before = known.state
        if create and before is StoreState.UNKNOWN:
            known.state = StoreState.CREATED
        return [known.epoch, int(known.state), int(before), known.cold, known.revision]

    def _found(self, store: StoreId) -> _Known:
        disk, layout = self._use.disk, self._use.layout
        generations = layout.generations(disk, store)
        maybe_cold = 0 if self._has_bucket else None
        if not generations:
            return _Known(0, StoreState.UNKNOWN, maybe_cold)
        last = generations[-1]
        path = layout.store(store, last)
        # A process that was killed in the middle of making a file leaves an empty one, and then
        # the logs hold the whole store; where they do not, the file is refused in any case.
        is_empty = disk.size_bytes(path) == 0
        state = StoreState.CREATED if is_empty else state_of_file(disk, store, path)
        return _Known(last, state, None if state is StoreState.DURABLE else maybe_cold)

    def _created(self, fields: Any) -> dict[str, object]:
        for tenant, kind, name, revision, *_ in fields["stores"]:
            known = self._owned(StoreId(tenant, kind, name))
            if known is None:
                continue
            known.state = StoreState.DURABLE
            known.revision = max(known.revision, revision)
            if known.cold is not None and revision > known.cold:
                known.cold = None
        return {}

    def _closed(self, fields: Any) -> dict[str, object]:
        for tenant, kind, name, epoch, revision, *_ in fields["stores"]:
            known = self._owned(StoreId(tenant, kind, name), epoch)
            if known is not None:
                known.revision = max(known.revision, revision)
        return {}

    def _cold(self, fields: Any) -> dict[str, object]:
        recorded = []
        for tenant, kind, name, epoch, revision in fields["stores"]:
            known = self._owned(StoreId(tenant, kind, name), epoch)
            if known is not None:
                known.cold = revision
            recorded.append(known is not None)
        return {"cold": recorded}

    def _deleted(self, fields: Any) -> dict[str, object]:
        recorded = []
        for tenant, kind, name, epoch, *_ in fields["stores"]:
            store = StoreId(tenant, kind, name)
            known = self._known.get(store)
            is_last = known is not None and known.epoch == epoch
            if is_last:
                self._known[store] = _Known(epoch, StoreState.UNKNOWN, None)
            recorded.append(is_last)
        return {"deleted": recorded}

    def _release(self, fields: Any) -> dict[str, object]:
        if fields["stores"] is None:
            for known in self._known.values():
                known.owned = False
            return {}
        for tenant, kind, name, epoch, *more in fields["stores"]:
            released = self._owned(StoreId(tenant, kind, name), epoch)
            if released is None:
                continue
            released.owned = False
            if len(more) > 1 and more[1] is not None:
                released.revision = max(released.revision, more[1])
        return {}

    def _owned(self, store: StoreId, epoch: int | None = None) -> _Known | None:
        known = self._known.get(store)
        if known is None or not known.owned or epoch not in (None, known.epoch):
            return None
        return known

    def _nothing(self, fields: Any) -> dict[str, object]:
        return {}

    def _usage(self, fields: Any) -> dict[str, object]:
        return {"tenants": {}, "elsewhere": {}}

    def _owners(self, fields: Any) -> dict[str, object]:
        # Who asks reads the name of the server alone.
        return {"owners": [[self._server, "", 0] for _ in fields["stores"]]}
