"""What `connect` takes, and what it refuses before there is a connection."""

from __future__ import annotations

import pytest

from holdfast.client import connect
from holdfast.protocol.errors import InvalidArgumentError


@pytest.mark.parametrize("prefix", ["_INBOX.acme", "_INBOX.acme.ada"])
def test_inboxes_of_the_tenant_can_be_chosen_among(prefix: str) -> None:
    connect(tenant="acme", inbox_prefix=prefix)


@pytest.mark.parametrize("prefix", ["_INBOX", "_INBOX._", "_INBOX.acm", "_INBOX.acme2", "hf", 7])
def test_inboxes_that_no_server_replies_to_are_refused(prefix: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        connect(tenant="acme", inbox_prefix=prefix)
    assert caught.value.fields["argument"] == "inbox_prefix"
