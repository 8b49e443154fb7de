"""A tenant whose keys are rotated, and which an operator encrypts anew, while applications write,
owners are killed and stores move; and in the end all keys but the last one are destroyed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest.mock import patch

from holdfast.client.connection import Client
from holdfast.persist.jobs.replacing import StoreReplacement
from holdfast.protocol.bus.bus import BusTimeoutError, NoRespondersError
from holdfast.protocol.control import Owner
from holdfast.protocol.errors import HoldfastError, UnavailableError
from holdfast.protocol.frames import decode_control, encode_control
from holdfast.protocol.messages import Ack
from holdfast.protocol.names import StoreId, StoreKind
from holdfast.protocol.subjects import CLUSTER_TENANT, Subjects
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys, WrappedKey
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import NO_KEYS, KeyRecords
from holdfast.shared_fs.encryption.rewriting import Rewritten, ValueRewriting
from holdfast.shared_fs.snapshots.manifest import Manifests
from holdfast.shared_fs.store_file.store_file import StoreFile
from tests.simulation.simulated_cluster import SERVERS, Simulation
from tests.simulation.simulated_nodes import TENANT

MASTER: Final = MasterKey(bytes(range(32)))
STORES: Final = (
    StoreId(TENANT, StoreKind.STREAM, "ledger"),
    StoreId(TENANT, StoreKind.STREAM, "notes"),
    StoreId(TENANT, StoreKind.KV, "settings"),
)
LATE_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.02


class Keyring:
    """The registry of the keys of one tenant. The last server sees it as it was seconds ago."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._version = 0
        self._rotated_at = 0.0
        self._keys: dict[int, WrappedKey] = {}
        self.rotate()

    def rotate(self) -> None:
        self._version += 1
        self._rotated_at = self._simulation.loop.time()
        key = self._version
        self._keys[key] = WrappedKey.of(TENANT, key, bytes((key,)) * 32, MASTER, key)

    def drop_all_but_the_last(self) -> None:
        self._version += 1
        last = max(self._keys)
        self._keys = {last: self._keys[last]}

    def read(self, known: KeyRecords = NO_KEYS) -> KeyRecords:
        is_late = self._simulation.loop.time() < self._rotated_at + LATE_SECONDS
        if known.version is not None and is_late and self._is_asked_by_the_last():
            return known
        if known.version == str(self._version):
            return known
        record = KeyRecord(TENANT, tuple(self._keys[key] for key in sorted(self._keys)))
        return KeyRecords(str(self._version), {TENANT: (self._version, record)})

    def _is_asked_by_the_last(self) -> bool:
        return self._simulation.node_here().name == SERVERS[-1]


class Rewriter:
    """An operator, as `holdfast tenant reencrypt` is one."""

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self._simulation = simulation
        self._bus = simulation.network.connect("o2")
        self._router = client._link.router
        self._jobs = 0

    async def reencrypt(self, store: StoreId, patience_seconds: float) -> Mapping[str, Any] | None:
        """Have a store rewritten, whatever its owners go through. None if that takes too long."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + patience_seconds
        fields = {"verb": "reencrypt", "store": list(store)}
        server = ""
        while loop.time() < give_up_at:
            try:
                if not server:
                    self._jobs += 1
                    [owner] = await self._router.resolve([(store.kind, store.name)])
                    assert isinstance(owner, Owner | HoldfastError)
                    if isinstance(owner, HoldfastError):
                        raise owner
                    server = owner.server
                reply = await self._ask(server, **fields)
            except (UnavailableError, NoRespondersError, BusTimeoutError) as error:
                self._simulation.trace.add(f"{store.name} is not rewritten yet: {error!r}")
                server = ""
            except HoldfastError as error:
                if type(error) is not HoldfastError:
                    self._simulation.fail(f"{store.name} cannot be rewritten: {error!r}")
                    return None
                # Of the bucket: its errors have no codes on the wire.
                self._simulation.trace.add(f"{store.name} is not rewritten yet: {error!r}")
                server = ""
            else:
                if reply["done"]:
                    return reply
            await asyncio.sleep(_POLL_SECONDS)
        return None

    async def sweep(self, epochs: Mapping[StoreId, int]) -> None:
        """Have every server remove what is void."""
        rows = [[int(store.kind), store.name, epoch] for store, epoch in epochs.items()]
        for server in SERVERS:
            self._jobs += 1
            done = False
            while not done:
                asked = {"verb": "sweep_stores", "tenant": TENANT, "stores": rows}
                try:
                    done = (await self._ask(server, **asked))["done"]
                except (HoldfastError, NoRespondersError) as error:
                    self._simulation.trace.add(f"{server} has not swept yet: {error!r}")
                    self._jobs += 1
                await asyncio.sleep(_POLL_SECONDS)

    async def move(self, store: StoreId, server: str) -> None:
        fields = {"tenant": TENANT, "kind": int(store.kind), "name": store.name, "server": server}
        try:
            answer = await self._bus.request(
                Subjects().cluster("move"), encode_control(**fields), _ASK_SECONDS, CLUSTER_TENANT
            )
            decode_control(answer)
        except (TimeoutError, NoRespondersError, HoldfastError) as error:
            self._simulation.trace.add(f"a move is refused: {error!r}")

    async def _ask(self, server: str, **fields: object) -> Mapping[str, Any]:
        payload = encode_control(job=f"r{self._jobs}", by="o", **fields)
        answer = await self._bus.request(Subjects().operator(server), payload, _ASK_SECONDS)
        return decode_control(answer)


class Application:
    """Writes to all stores, and knows what was acknowledged."""

    def __init__(self, simulation: Simulation, client: Client) -> None:
        self._fail = simulation.fail
        self._chance: random.Random = simulation.chance("writing")
        self._client = client
        self.acks: list[Ack] = []
        #: By stream and seq.
        self.written: dict[str, dict[int, bytes]] = {"ledger": {}, "notes": {}}
        #: By key: what was acknowledged last, None before the first, and what was tried since.
        self.set: dict[str, list[bytes | None]] = {}

    async def begin(self) -> None:
        await self._client.stream("ledger").configure(chain=True, timeout_seconds=60.0)
        await self._client.stream("notes").append(b"first", timeout_seconds=60.0)
        await self._client.kv("settings").set("first", b"first", timeout_seconds=60.0)

    async def work(self, until: float) -> None:
        """Write until a time."""
        await asyncio.gather(self._append("ledger", until), self._append("notes", until))

    async def _append(self, name: str, until: float) -> None:
        loop, number = asyncio.get_running_loop(), 0
        settings = self._client.kv("settings")
        while loop.time() < until:
            await asyncio.sleep(self._chance.expovariate(20.0))
            number += 1
            value = b"%s %d" % (name.encode(), number)
            if self._chance.random() < 0.3:
                key = f"{name}.{self._chance.randrange(3)}"
                self.set.setdefault(key, [None]).append(value)
                with contextlib.suppress(HoldfastError):
                    await settings.set(key, value, timeout_seconds=2.0)
                    self.set[key] = [value]
                continue
            with contextlib.suppress(HoldfastError):
                ack = await self._client.stream(name).append(value, timeout_seconds=2.0)
                assert ack.seq is not None
                self.written[name][ack.seq] = value
                if name == "ledger":
                    self.acks.append(ack)

    async def check(self) -> None:
        """Read everything, and compare it with what was acknowledged."""
        try:
            for name, written in self.written.items():
                stream = self._client.stream(name)
                found = {each.seq: each.value async for each in stream.get_all()}
                lost = [seq for seq, value in written.items() if found.get(seq) != value]
                if lost:
                    self._fail(f"acknowledged messages of {name} are lost: {lost[:5]}")
            for key, allowed in self.set.items():
                entry = await self._client.kv("settings").get(key)
                found = None if entry is None else entry.value
                if found not in allowed:
                    self._fail(f"an acknowledged entry is lost: {key} is {found!r}, not {allowed}")
            report = await self._client.stream("ledger").verify_chain(self.acks)
            if not report.is_sound or not {ack.seq for ack in self.acks} <= {*report.matched}:
                self._fail(f"the chain is not that of what is read: {report}")
        except HoldfastError as error:
            self._fail(f"what was acknowledged cannot be read: {error}")


def check_snapshots(simulation: Simulation, epochs: Mapping[StoreId, int]) -> None:
    """See that nothing names a snapshot from before a store was rewritten."""
    assert simulation.bucket is not None
    manifests = Manifests(simulation.bucket.in_good_weather())
    for store, epoch in epochs.items():
        entry = manifests.find(store)
        if entry is not None and any(each.epoch <= epoch for each in entry.versions):
            simulation.fail(f"{store} could be restored to what was there before")


# Bugs, planted
@contextlib.contextmanager
def rewrite_under_the_former_key() -> Iterator[None]:
    """A store is encrypted anew with the key that its owner knew before, and says that it was the
    present one."""
    run = ValueRewriting.run

    def outdated(this: ValueRewriting, cipher: Any, bodies: Any = None) -> Rewritten:
        keys = cipher.sessions.keys
        former = sorted(keys.keys)[-2:][0]
        cipher.sessions.becomes(TenantKeys(TENANT, keys.keys, former))
        return run(this, cipher, bodies)

    with (
        patch.object(ValueRewriting, "run", outdated),
        patch.object(ValueRewriting, "is_needed", lambda this, key: False),
    ):
        yield


@contextlib.contextmanager
def believe_the_mark() -> Iterator[None]:
    """A file that says it was rewritten is not looked through."""
    with patch.object(ValueRewriting, "is_needed", lambda this, key: False):
        yield


@contextlib.contextmanager
def rewrite_an_open_store() -> Iterator[None]:
    """The copy is made a moment before the store is closed, and writes in between are not in it."""
    replaced = StoreReplacement.replaced

    async def too_early(
        this: StoreReplacement, store: StoreId, work: Callable[[StoreFile], Any], *, key: int = 0
    ) -> Any:
        disk, path = this._life.disk, this._life.layout.store(store)
        early = path.with_name(f"{path.name}.early")
        disk.remove(early)
        await this.looked_at(store, lambda file: file.copy_to(early))
        await asyncio.sleep(0.3)

        def outdated(file: StoreFile) -> Any:
            former = StoreFile.open(early, store, disk=disk)
            former._back_up(file._connection)
            former.close()
            file._load()
            return work(file)

        return await replaced(this, store, outdated, key=key)

    with patch.object(StoreReplacement, "replaced", too_early):
        yield


@contextlib.contextmanager
def keep_earlier_snapshots() -> Iterator[None]:
    """What a store was before it was rewritten can be restored."""

    async def nothing(this: StoreReplacement, store: StoreId, epoch: int) -> int:
        return 0

    with patch.object(StoreReplacement, "drop", nothing):
        yield


@contextlib.contextmanager
def decrypt_with_the_key_of_new_values() -> Iterator[None]:
    """An owner takes the current key for every one."""
    key = TenantKeys.key

    def current(this: TenantKeys, key_id: int) -> bytes:
        return key(this, this.current_id)

    with patch.object(TenantKeys, "key", current):
        yield
