"""Takes frames apart: which groups go to the pipeline, and why the others are refused.

Pure. A malformed frame is refused whole; a group that makes no sense, or that its sender's token
does not allow, is refused alone. That includes a group whose arguments are nested too deeply to be
shown or packed. The writer of a frame that came with a token is bound to the token's holder. A
frame may hold a thousand groups of one operation, so each group is looked at once, and its tuples
are made without calling their classes (`_new` in `frames.py` says why).
"""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

from holdfast.persist.access.frame_access import FrameAccess
from holdfast.persist.store.open_stores import Arrival, OpenStores
from holdfast.protocol import frames
from holdfast.protocol.errors import HoldfastError, InvalidNameError, MalformedFrameError
from holdfast.protocol.limits import ELEMENT_BYTES, GROUP_BYTES, MAX_NESTING
from holdfast.protocol.names import StoreId, StoreKind, check_store, check_tenant

#: The nesting allowed within the operations of a group, which are three levels down in the request.
_LEVELS: Final = MAX_NESTING - 3
_number: Final = itemgetter(0)


class Incoming(NamedTuple):
    """A frame taken apart. Both lists are empty if it only asks whether the server is there."""

    arrivals: list[Arrival]
    #: By the group's index in the frame.
    refusals: list[tuple[int, HoldfastError]]


def take_apart(
    tenant: str,
    payload: bytes,
    reply: str,
    open_stores: OpenStores,
    access: FrameAccess | None = None,
) -> Incoming:
    """Return the contents of a frame of `tenant`. Without `access`, everything is allowed. Raises
    ProtocolError, InvalidNameError."""
    check_tenant(tenant)
    writer, groups = frames.decode_request(payload)
    if access is not None:
        grant, is_metered = access.grant, access.meter is not None
        writer, masks, allowed = grant.bound_writer(writer), grant.masks, grant.allowed
    incoming = Incoming([], [])
    if not groups:
        return incoming
    find = open_stores.find
    arrivals = incoming.arrivals
    share_bytes = len(payload) // len(groups) + GROUP_BYTES
    for index, group in enumerate(groups):
        kind, name, counter, _, _, operations = group
        store = tuple.__new__(StoreId, (tenant, kind, name))
        wrong: HoldfastError | None = None
        size_bytes = share_bytes
        number = operations[0][0]
        if len(operations) > 1 or (number < frames.FIRST_READ) != (counter > 0):
            numbers = set(map(_number, operations))
            wrong = _check_numbers(numbers, counter)
        if wrong is None and not frames.is_flat(chain.from_iterable(operations)):
            try:
                size_bytes += ELEMENT_BYTES * frames.check_nesting(operations, _LEVELS)
            except MalformedFrameError as error:
                wrong = error
        if wrong is None and find(store) is None:
            wrong = _check_name(group)
        if (
            access is not None
            and wrong is None
            # The common case is decided here: a call for each group would cost more than it.
            and (
                is_metered
                or not masks[kind].get(name)
                or not (number in allowed if len(operations) == 1 else numbers <= allowed)
            )
        ):
            wrong = access.refusal(group, size_bytes, tenant)
        if wrong is not None:
            incoming.refusals.append((index, wrong))
            continue
        fields = (reply, index, writer, store, group, size_bytes, None, 0)
        arrivals.append(tuple.__new__(Arrival, fields))
    return incoming


def _check_name(group: frames.Group) -> HoldfastError | None:
    """Return what is wrong with a group's store, or None."""
    try:
        StoreKind(group.kind)
        check_store(group.name)
    except ValueError:
        return MalformedFrameError(reason=f"unknown kind of store {group.kind}")
    except InvalidNameError as error:
        return error
    return None


def _check_numbers(numbers: set[int], counter: int) -> HoldfastError | None:
    """Return what is wrong with the numbers of a group's operations, or None."""
    writes = counter > 0
    for number in numbers:
        if (number < frames.FIRST_READ) != writes:
            return MalformedFrameError(
                reason="a group has either writes and a counter, or reads and counter 0"
            )
    return None
