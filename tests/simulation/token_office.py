"""Tokens in a simulated cluster: who issues them, who holds which, and which were revoked when.

All of it comes from the seed, keys and ids too; what signs and verifies is the real Ed25519. Each
client has a badge: one token after the other, all of one holder. Two clients share a holder; one
may only read, one only write, and one holds what is worth nothing here. What each may do, what was
revoked, and what servers admitted is noted in the history, whose checker judges it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from nacl.signing import SigningKey

from holdfast.coordinator.answering.inbox import RequestInbox
from holdfast.persist.access.frame_access import FrameAccess
from holdfast.persist.access.gatekeeper import Gatekeeper, Refuse, Take
from holdfast.protocol.access.grants import TokenGrant
from holdfast.protocol.access.nats_permissions import permissions_of
from holdfast.protocol.access.rights import ALL_RIGHTS, NO_RIGHTS, Right
from holdfast.protocol.access.tokens import EVERY_TENANT, Token, sign_token
from holdfast.protocol.bus.bus import BusMessage
from holdfast.protocol.subjects import DEFAULT_PREFIX, Subjects
from holdfast.shared_fs.access.registry import CLUSTER_ISSUER, Issuer
from holdfast.shared_fs.disk.layout import open_layout
from tests.simulation.simulated_disk import HostDisk
from tests.simulation.simulated_nodes import EPOCH_MS, ROOT, TENANT, ClientNode
from tests.simulation.simulated_registry import RegistryView
from tests.simulation.virtual_loop import current_process
from tests.support.checking.grants import REVOKED_SECONDS, Admission, KnownToken

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import Simulation

#: An identity provider whose key is registered; it may issue tokens for the tenant.
_PROVIDER: Final = "idp"
_RIGHTS: Final = Right.READ | Right.WRITE | Right.CONSUME | Right.LIST
#: Clients, their holders, and what those may do. Others have all rights, and keep their tokens.
_HOLDERS: Final = {
    "k1": ("ada", _RIGHTS),
    "k2": ("ben", _RIGHTS),
    "k3": ("ada", _RIGHTS),
    "k4": ("rita", Right.READ),
    "k5": ("will", Right.WRITE),
}
#: The clients of a run that come besides.
OTHER_CLIENTS: Final = ("k4", "k5", "k6")
#: May do nothing here, whatever its token says.
OUTSIDER: Final = "k6"
#: Operators write the last values, and read everything.
_OPERATORS: Final = ("k0", "k00")
#: Of tokens that expire: how long they last at first.
_LIFE_SECONDS: Final = (3, 6, 12, 30)


class Badge:
    """What one client holds: a token that is renewed, by the same holder."""

    def __init__(self, client: str, subject: str, rights: Right, issuer: str) -> None:
        self.client = client
        self.subject = subject
        self.rights = rights
        self.issuer = issuer
        self.text = ""
        #: What the registry's owner gave last, and what the client has asked with last.
        self.token: Token
        self.presented: Token
        self.node: ClientNode | None = None
        #: Set when it is of no use any more; and how soon it is renewed then.
        self.lost = asyncio.Event()
        self.renewed_after: Sequence[float] = (0.1,)

    def present(self) -> str:
        """Return the text for the client, which is about to use it."""
        self.presented = self.token
        return self.text

    def permits(self, action: str, subject: str) -> bool:
        """Tell what a nats-server with the auth service lets this client do."""
        allowed = permissions_of(self.presented, DEFAULT_PREFIX)
        patterns = allowed.publish if action == "publish to" else allowed.subscribe
        return any(_covers(pattern, subject) for pattern in patterns)


class TokenOffice:
    """Who issues and revokes. Its own view of the disk is always good."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._chance = simulation.chance("tokens")
        self.badges: dict[str, Badge] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self.view = RegistryView(ROOT, simulation.chance("registry"), simulation.loop.time)
        self.weather = self.view.weather
        self._disk = HostDisk(simulation.files, "office", "office")
        open_layout(ROOT, self._disk)
        self._registry = self.view.of(self._disk)
        #: All tokens that were registered.
        self._registered: list[tuple[str, Token]] = []
        self._keys = {
            name: SigningKey(self._chance.randbytes(32)) for name in (CLUSTER_ISSUER, _PROVIDER)
        }
        self._add_issuers()
        #: Whether NATS enforces what follows from tokens; servers check it all the same.
        self._nats_checks = self._chance.random() < 0.4
        #: What is wrong with the token of the outsider.
        self._flaw = self._chance.choice(("tenant", "signature", "unregistered", "issuer"))
        self._expires = self._chance.random() < 0.7
        simulation.history.rights[OUTSIDER] = NO_RIGHTS
        for client, (_, rights) in _HOLDERS.items():
            simulation.history.rights[client] = rights

    def restore(self) -> None:
        """Put the registry back where all shared files were lost: nothing of it is in the
        cluster's bucket."""
        self._add_issuers()
        for text, token in self._registered:
            self._registry.put_token(text, token)
            if self._simulation.history.tokens[token.id].revoked_at is not None:
                self._registry.revoke(token, self.now)

    def _add_issuers(self) -> None:
        for name, tenants in ((CLUSTER_ISSUER, (EVERY_TENANT,)), (_PROVIDER, (TENANT, "evil"))):
            self._registry.add_issuer(Issuer(name, bytes(self._keys[name].verify_key), tenants))

    def close(self) -> None:
        self._disk.close()

    @property
    def now(self) -> float:
        """The true time, in seconds since 1970."""
        return EPOCH_MS / 1000 + self._simulation.loop.time()

    # --- holders ---------------------------------------------------------------------------------
    def badge_of(self, node: ClientNode) -> Badge:
        """Return the badge of a client, with its first token."""
        client = node.name
        subject, rights = _HOLDERS.get(client, (client, ALL_RIGHTS))
        issuer = CLUSTER_ISSUER
        if subject == "ada" or (client == OUTSIDER and self._flaw == "issuer"):
            issuer = _PROVIDER
        badge = Badge(client, subject, rights, issuer)
        badge.node = node
        self.badges[client] = badge
        self.renew(badge, self._lifetime() if client in _HOLDERS else None)
        return badge

    def permits_of(self, badge: Badge) -> Callable[[str, str], bool] | None:
        """Return what NATS lets a client do; None if it lets all do everything."""
        return badge.permits if self._nats_checks else None

    def _lifetime(self) -> int | None:
        return self._chance.choice(_LIFE_SECONDS) if self._expires else None

    def renew(self, badge: Badge, seconds: int | None) -> None:
        """Give a client another token of the same holder, for so many seconds."""
        flaw = self._flaw if badge.client == OUTSIDER else ""
        tenant = TENANT
        if badge.client in _OPERATORS or flaw == "issuer":
            # Only the cluster's own key signs for operators.
            tenant = EVERY_TENANT
        elif flaw == "tenant":
            tenant = "evil"
        token = Token(
            id=f"{self._chance.getrandbits(128):032x}",
            issuer=badge.issuer,
            tenant=tenant,
            stores=(">",),
            rights=badge.rights,
            created_at=int(self.now),
            expires_at=None if seconds is None else int(self.now) + seconds,
            subject=badge.subject,
        )
        wrong_key = SigningKey(bytes(32))
        key = wrong_key if flaw == "signature" else self._keys[badge.issuer]
        text = sign_token(token, key)
        if flaw != "unregistered":
            self._registry.put_token(text, token)
            self._registered.append((text, token))
        badge.token, badge.text = token, text
        badge.lost.clear()
        self._simulation.trace.add(f"{badge.client} is given {token.id} for {seconds} s")
        self._simulation.history.tokens[token.id] = KnownToken(badge.client, token.expires_at)

    async def reconnect(self, badge: Badge) -> None:
        """Let a client connect anew, as it does when its token expires: it asks for another one."""
        assert badge.node is not None
        badge.node.bus.drop()
        await asyncio.sleep(self._chance.choice((0.005, 0.05, 0.5)))
        badge.node.bus.come_back()

    def revoke(self, badge: Badge, renewed_after: Sequence[float] = (0.1, 1.0, 8.0)) -> None:
        """Revoke what a client asks with. After one of these times it gets another one."""
        token = badge.presented
        known = self._simulation.history.tokens[token.id]
        if known.revoked_at is not None:
            return
        self._registry.revoke(token, self.now)
        known.revoked_at = self._simulation.loop.time()
        self._simulation.trace.add(f"revoked {token.id} of {badge.client}")
        badge.renewed_after = renewed_after
        badge.lost.set()

        def is_dead() -> None:
            known.dead_from = self._simulation.history.position()

        self._simulation.loop.call_later(REVOKED_SECONDS, is_dead)

    def keep(self, badge: Badge) -> None:
        """Give a client another token from now on whenever its own is worth nothing any more, or
        soon will be."""
        self._keepers.append(asyncio.create_task(self._keep(badge)))

    async def settle(self) -> None:
        """Give everybody a token that stays, now that nothing goes wrong any more."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for badge in self.badges.values():
            if badge.client in _HOLDERS:
                self.renew(badge, None)
                await self.reconnect(badge)

    async def _keep(self, badge: Badge) -> None:
        chance = self._chance
        while True:
            expires_at = badge.token.expires_at
            at = None
            if expires_at is not None:
                at = expires_at - EPOCH_MS / 1000 + chance.uniform(-2.0, 1.5)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await badge.lost.wait()
                    await asyncio.sleep(chance.choice(badge.renewed_after))
            self.renew(badge, self._lifetime())
            await self.reconnect(badge)

    # --- what servers admit ----------------------------------------------------------------------
    @contextlib.contextmanager
    def witnessed(self) -> Iterator[None]:
        """Note whatever servers and coordinators admit, with the token that they go by."""
        admit, take_question = Gatekeeper.admit, RequestInbox.on_message

        def admit_noted(
            gatekeeper: Gatekeeper, message: BusMessage, take: Take, refuse: Refuse
        ) -> None:
            def take_noted(message: BusMessage, access: FrameAccess | None) -> None:
                self._note(message.subject, None if access is None else access.grant)
                take(message, access)

            admit(gatekeeper, message, take_noted, refuse)

        def take_question_noted(
            inbox: RequestInbox, message: BusMessage, grant: TokenGrant | None = None
        ) -> None:
            if not message.subject.startswith(f"{DEFAULT_PREFIX}._."):
                self._note(message.subject, grant)
            take_question(inbox, message, grant)

        with (
            patch.object(Gatekeeper, "admit", admit_noted),
            patch.object(RequestInbox, "on_message", take_question_noted),
        ):
            yield

    def _note(self, subject: str, grant: TokenGrant | None) -> None:
        simulation = self._simulation
        token_id = Subjects().grant_of(subject)
        process = current_process()
        node = next((node for node in simulation.nodes if node.process is process), None)
        if node is None:
            # What a dead process takes has no effect.
            return
        if grant is None or grant.id != token_id:
            simulation.fail(f"{node.name} admits {subject} without its token")
        else:
            simulation.history.admissions.append(
                Admission(node.name, subject, token_id, simulation.loop.time())
            )


def _covers(pattern: str, subject: str) -> bool:
    """Tell if a subject, which may have wildcards of its own, is within a permission."""
    allowed, asked = pattern.split("."), subject.split(".")
    for index, token in enumerate(allowed):
        if token == ">":
            return index < len(asked)
        if index == len(asked) or (token not in ("*", asked[index])):
            return False
    return len(allowed) == len(asked)
