"""Asks the owners of stores for their chains of hashes, and compares them with what was verified.

A store in use has its newest content in its owner's memory and in a file that nobody else may read.
So its owner is asked for all messages, or entries, and their chain is computed anew here. What
snapshots, files at rest and logs tell of the chain counts like acks that somebody kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.client import Client
from holdfast.protocol.errors import HoldfastError, InvalidArgumentError
from holdfast.protocol.names import StoreKind

if TYPE_CHECKING:
    from holdfast.shared_fs.inspection.verification import StoreVerdict

#: Of what is neither at rest here nor known to have no chain, the owner is asked.
_UNSEEN = frozenset(("in use", "-"))


async def ask_for_chains(client: Client, verdicts: Iterable[StoreVerdict]) -> None:
    """Add to each verdict what its owner has, if the store keeps a chain or may keep one."""
    for verdict in verdicts:
        if verdict.chain != "-" or verdict.file in _UNSEEN:
            await _ask(client, verdict)


async def _ask(client: Client, verdict: StoreVerdict) -> None:
    store = verdict.store
    is_stream = store.kind == StoreKind.STREAM
    handle = client.stream(store.name) if is_stream else client.kv(store.name)
    try:
        report = await handle.verify_chain(verdict.links)
    except InvalidArgumentError:
        if verdict.links:
            _break(verdict, "its owner keeps none")
        return
    except HoldfastError as error:
        verdict.problems.append(f"its chain: its owner answered {error.code}: {error}")
        return
    if report.differing:
        end = report.differing[0]
        sound = max((each for each in report.matched if each < end), default=report.base_seq)
        what = "messages" if is_stream else "revisions"
        _break(verdict, f"its owner differs from the others between {what} {sound + 1} and {end}")
    elif verdict.chain in ("-", "links"):
        # Leaves are made here of what the owner decrypts.
        verdict.chain = "sound"


def _break(verdict: StoreVerdict, reason: str) -> None:
    verdict.chain = "broken"
    verdict.problems.append(f"its chain: {reason}")
