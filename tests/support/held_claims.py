"""Claims on cold work, as if a coordinator had granted them."""

from __future__ import annotations

from typing import Any, cast

from holdfast.persist.incarnation import Incarnation
from holdfast.persist.life_phase import LifePhase
from holdfast.persist.tier.claims import Claims


def held_claims(
    life: Incarnation, *works: str, epoch: int = 1, phase: LifePhase | None = None
) -> Claims:
    """Return the claims of a life that has these works."""
    claims = Claims(life, phase or LifePhase(life.server), cast(Any, None), works)
    claims._held = dict.fromkeys(works, epoch)
    return claims
