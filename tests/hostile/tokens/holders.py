"""The kinds of tokens that attack, and what each may do: one right each, and what is no token."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nacl.signing import SigningKey

from holdfast.protocol.access.rights import ALL_RIGHTS, NO_RIGHTS, RIGHT_OF_WORD, Right
from holdfast.protocol.access.tokens import EVERY_TENANT, Token, new_token, sign_token
from holdfast.shared_fs.access.key_folder import KeyFolder
from holdfast.shared_fs.access.registry import CLUSTER_ISSUER, AccessRegistry, Issuer
from tests.hostile.tokens.office import OFFICE, PRIVATE, Mark

#: A tenant of one of the holders, that has all rights there.
ELSEWHERE: Final = "elsewhere"
#: With any of these a holder may change its own stores.
_CHANGING: Final = Right.WRITE | Right.CONFIGURE | Right.CONSUME | Right.DESTROY
#: Who may not read is told names if it may list, and settings if it may change them.
_SHOWING: Final = {"name": Right.LIST, "setting": Right.CONFIGURE}
#: The revoked token is valid at first.
REVOKED: Final = "revoked"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who attacks. Its own stores are `<name>.*`, if NATS lets it in."""

    name: str
    #: What it presents to NATS.
    text: str
    #: What it names in its subjects.
    id: str
    tenant: str = OFFICE
    #: What it may do, as numbers; on its own stores.
    rights: int = 0
    #: Whether NATS lets it in.
    logs_in: bool = False

    def may_see(self, mark: Mark) -> bool:
        """Tell whether it may be told what is marked."""
        needed = Right.READ | _SHOWING.get(mark.what, NO_RIGHTS)
        is_its_own = mark.stores == self.name or self.is_operator
        return is_its_own and bool(needed & self._rights_there)

    @property
    def is_operator(self) -> bool:
        return self.tenant == EVERY_TENANT

    @property
    def stores(self) -> str:
        """Whose stores it takes for its own."""
        return self.name if self.logs_in else PRIVATE

    @property
    def may_change(self) -> bool:
        """True if it may change its own stores."""
        return bool(_CHANGING & self._rights_there)

    @property
    def _rights_there(self) -> int:
        """What it may do on its own stores in the office."""
        return self.rights if self.tenant in (OFFICE, EVERY_TENANT) else 0


def make_holders(registry: AccessRegistry, keys: KeyFolder, owner: str) -> list[Holder]:
    """Register tokens, and return one holder of each kind. `owner` is the id of the token that may
    do everything there."""
    return list(_Maker(registry, keys.issuer_key(), owner).holders())


class _Maker:
    def __init__(self, registry: AccessRegistry, key: SigningKey, owner: str) -> None:
        self._registry = registry
        self._key = key
        self._owner = owner
        #: Of an identity provider that may issue tokens for one tenant.
        self._provider = SigningKey.generate()
        registry.add_issuer(
            Issuer("provider", bytes(self._provider.verify_key), (ELSEWHERE, "third"))
        )
        self._of_office = SigningKey.generate()
        registry.add_issuer(Issuer("office", bytes(self._of_office.verify_key), (OFFICE,)))

    def holders(self) -> Iterator[Holder]:
        for word, right in RIGHT_OF_WORD.items():
            yield self._valid(word, right)
        elsewhere = self._token("another-tenant", tenant=ELSEWHERE, stores=[">"])
        yield self._holder("another-tenant", elsewhere, rights=ALL_RIGHTS)
        observer = self._token("observer", tenant=EVERY_TENANT, stores=[">"], rights=Right.LIST)
        yield self._holder("observer", observer, rights=Right.LIST)
        # It is revoked before the attack begins, and connected before that.
        yield self._holder(REVOKED, self._token(REVOKED))
        yield Holder("none", "", "")
        expired = self._token("expired", expires_at=int(time.time()) - 1)
        yield self._holder("expired", expired, logs_in=False)
        yield from self._never_valid()

    def _never_valid(self) -> Iterator[Holder]:
        """What nobody signed that may. All of it is in the registry, as if somebody could write
        there: servers verify what they read."""
        key, foreign = self._key, SigningKey.generate()
        of_all = self._token("resigned", stores=[">"])
        yield self._forged("resigned", of_all, sign_token(of_all, foreign))
        operator = self._token("other-operator", tenant=EVERY_TENANT, stores=[">"])
        yield self._forged("other-operator", operator, sign_token(operator, foreign))
        unknown = self._token("unknown-issuer", stores=[">"], issuer="nobody")
        yield self._forged("unknown-issuer", unknown, sign_token(unknown, foreign))
        foreign_tenant = self._token("foreign-issuer", stores=[">"], issuer="provider")
        yield self._forged(
            "foreign-issuer", foreign_tenant, sign_token(foreign_tenant, self._provider)
        )
        truncated = self._token("truncated", stores=[">"])
        yield self._forged("truncated", truncated, sign_token(truncated, key)[:-1])
        less = sign_token(self._token("swapped"), key)
        swapped = self._token("swapped", stores=[">"])
        version, payload, _ = sign_token(swapped, key).split(".")
        _, _, signature = less.split(".")
        yield self._forged("swapped", swapped, f"{version}.{payload}.{signature}")
        # Its issuer may issue tokens for the office, and gives it the id of the owner's.
        fields = {"issuer": "office", "id": self._owner}
        replayed = self._token("replayed", stores=["replayed.*"], **fields)
        yield Holder("replayed", sign_token(replayed, self._of_office), secrets.token_hex(16))

    def _token(self, name: str, tenant: str = OFFICE, **changes: Any) -> Token:
        id_ = changes.pop("id", "")
        fields: Mapping[str, Any] = {
            "issuer": CLUSTER_ISSUER,
            "tenant": tenant,
            "stores": [f"{name}.*"],
            "rights": ALL_RIGHTS,
            "created_at": int(time.time()),
            "subject": name,
        }
        token = new_token(**{**fields, **changes})
        if not id_:
            return token
        return Token(id_, *(getattr(token, each) for each in Token.__slots__[1:]))

    def _valid(self, name: str, rights: Right) -> Holder:
        return self._holder(name, self._token(name, rights=rights), rights=rights)

    def _holder(
        self, name: str, token: Token, *, rights: Right = NO_RIGHTS, logs_in: bool = True
    ) -> Holder:
        text = sign_token(token, self._key)
        self._registry.put_token(text, token)
        return Holder(name, text, token.id, token.tenant, int(rights), logs_in)

    def _forged(self, name: str, token: Token, text: str) -> Holder:
        self._registry.put_token(text, token)
        return Holder(name, text, token.id)
