"""An encrypted tenant in a simulated cluster whose servers are killed: what was acknowledged is
decrypted by later owners, nothing is logged in clear, no nonce is used twice, and its chain is that
of what clients read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

from holdfast.client import Ack, HoldfastError
from holdfast.persist.encryption.key_book import KeyBook
from holdfast.persist.write_path.tick import Tick
from holdfast.protocol import changes
from holdfast.protocol.frames import WireChange
from holdfast.shared_fs.disk.commit_log import LogRecord
from holdfast.shared_fs.encryption import sessions
from holdfast.shared_fs.encryption.data_keys import KeyRecord, TenantKeys, WrappedKey
from holdfast.shared_fs.encryption.master_keys import MasterKey
from holdfast.shared_fs.encryption.registry import NO_KEYS, KeyRecords
from holdfast.shared_fs.encryption.sessions import CipherSessions
from holdfast.shared_fs.encryption.store_cipher import StoreCipher
from tests.simulation.simulated_cluster import Simulation
from tests.simulation.simulated_nodes import TENANT, ClientNode
from tests.simulation.simulated_vfs import errors_may_go_unheard
from tests.simulation.virtual_loop import VirtualLoop

SEED = 1
_KILLS = 3
_WORK_SECONDS = 4.0
_SECRET = b"a secret that no log may have"
_MASTER = MasterKey(bytes(range(32)))


class _Registry:
    """One tenant, which gets a new data key after some looks."""

    def __init__(self) -> None:
        self._looks = 0

    def read(self, known: KeyRecords = NO_KEYS) -> KeyRecords:
        self._looks += 1
        made = [
            WrappedKey.of(TENANT, key_id, bytes((key_id,)) * 32, _MASTER, 1)
            for key_id in range(1, 2 + (self._looks > 4))
        ]
        return KeyRecords(str(self._looks), {TENANT: (len(made), KeyRecord(TENANT, tuple(made)))})


class _Witness:
    """Sees every nonce and every record of a log."""

    def __init__(self, simulation: Simulation) -> None:
        self._fail = simulation.fail
        self._seen: set[tuple[int, bytes, int]] = set()
        self.key_ids: set[int] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        encrypt, records = CipherSessions.encrypt, Tick.records

        def seen(this: CipherSessions, clear: bytes, aad: bytes) -> Any:
            box, hidden = encrypt(this, clear, aad)
            nonce = (box.key_id, box.salt, box.counter)
            if nonce in self._seen:
                self._fail(f"a nonce is used twice: {nonce}")
            self._seen.add(nonce)
            self.key_ids.add(box.key_id)
            return box, hidden

        def logged(this: Tick) -> list[LogRecord]:
            found = records(this)
            if any(_SECRET in payload for record in found for payload in record.payloads):
                self._fail("a log has a value in clear")
            return found

        with patch.object(CipherSessions, "encrypt", seen), patch.object(Tick, "records", logged):
            yield


class _Written(NamedTuple):
    """What was acknowledged: values by seq, and the acks."""

    values: dict[int, bytes]
    acks: list[Ack]


async def _write(simulation: Simulation, client: Any, until: float) -> _Written:
    """Append until a time; return what was acknowledged."""
    loop, chance = asyncio.get_running_loop(), simulation.chance("encrypting")
    stream, written, number = client.stream("secrets"), _Written({}, []), 0
    while loop.time() < until:
        await asyncio.sleep(chance.expovariate(20.0))
        number += 1
        value = _SECRET + b"%d" % number
        with contextlib.suppress(HoldfastError):
            ack = await stream.append(value, headers={"n": str(number)}, timeout_seconds=2.0)
            written.values[ack.seq] = value
            written.acks.append(ack)
    return written


def play(seed: int) -> tuple[Simulation, _Witness]:
    """Write to an encrypted stream while its owner is killed again and again."""

    async def main() -> tuple[Simulation, _Witness]:
        simulation = Simulation(seed)
        simulation.keys, simulation.master_keys = _Registry(), {_MASTER.id: _MASTER}
        witness = _Witness(simulation)
        with witness.watching():
            async with simulation:
                node = ClientNode(simulation, "k1")
                simulation.clients.append(node)
                client = await node.run(node.start(timeout_seconds=60.0))
                await node.run(client.stream("secrets").configure(chain=True))
                until = asyncio.get_running_loop().time() + _WORK_SECONDS
                working = node.run(_write(simulation, client, until))
                for number in range(_KILLS):
                    await asyncio.sleep(_WORK_SECONDS / (_KILLS + 1))
                    for server in simulation.servers[number % 2 : number % 2 + 2]:
                        server.kill()
                        server.start_later(0.5)
                written = await working
                await asyncio.sleep(10.0)
                await node.run(_check(simulation, client, written))
                assert len(written.values) > 10
        return simulation, witness

    with errors_may_go_unheard(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


async def _check(simulation: Simulation, client: Any, written: _Written) -> None:
    try:
        found = {each.seq: each.value async for each in client.stream("secrets").get_all()}
    except HoldfastError as error:
        simulation.fail(f"what was acknowledged cannot be read: {error}")
        return
    for seq, value in written.values.items():
        if found.get(seq) != value:
            simulation.fail(f"message {seq} is {found.get(seq)!r}")
    report = await client.stream("secrets").verify_chain(written.acks)
    if not report.is_sound or len(report.matched) != len(written.acks):
        simulation.fail(f"the chain is not that of what is read: {report}")


def test_later_owners_decrypt_what_was_acknowledged_and_no_nonce_repeats() -> None:
    simulation, witness = play(SEED)
    assert simulation.history.failures == []
    assert witness.key_ids == {1, 2}, "the key was rotated meanwhile"


def test_a_nonce_that_each_owner_counts_anew_is_found() -> None:
    with patch.object(sessions.os, "urandom", bytes):
        failures = play(SEED)[0].history.failures
    assert any("a nonce is used twice" in failure for failure in failures), failures


def test_an_owner_that_forgets_the_former_keys_is_found() -> None:
    keys_of = KeyBook._keys_of

    def only_current(this: KeyBook, tenant: str) -> TenantKeys:
        found = keys_of(this, tenant)
        current = found.current_id
        return TenantKeys(tenant, {current: found.keys[current]}, current)

    with patch.object(KeyBook, "_keys_of", only_current):
        failures = play(SEED)[0].history.failures
    assert any("cannot be read" in failure for failure in failures), failures


def test_an_owner_that_makes_its_leaves_of_other_than_what_it_sends_is_found() -> None:
    leaf_of_now = changes.leaf

    def without_salt(change: WireChange, time: int) -> bytes:
        return leaf_of_now(change[:3], time)

    with patch.object(changes, "leaf", without_salt):
        failures = play(SEED)[0].history.failures
    assert any("the chain is not that" in failure for failure in failures), failures


def test_an_owner_whose_log_lacks_the_leaves_is_found() -> None:
    encrypted = StoreCipher.encrypted

    def without_leaf(
        this: StoreCipher, change: WireChange, revision: int, leaf: bytes | None = None
    ) -> WireChange:
        return encrypted(this, change, revision)

    with patch.object(StoreCipher, "encrypted", without_leaf):
        failures = play(SEED)[0].history.failures
    assert any("its owner had the chain" in failure for failure in failures), failures
