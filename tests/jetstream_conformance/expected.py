"""Which tests are expected to fail, and why.

One that passes after all is an error too, unless it is unsteady: then these tables are out of date.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.jetstream_conformance.python_suites import INDEX
from tests.jetstream_conformance.suite import Suite

HOLDFAST: Final = "holdfast"
JETSTREAM: Final = "jetstream"

_REPEATED_HEADERS: Final = "nats-core keeps the last value of a repeated header, not the first"
_OLD_SERVER: Final = "it was written for a nats-server that left this field out"
#: Of nats-py 2.14: they compare answers as older servers gave them.
_OUTDATED: Final = {
    f"tests/test_js.py::{test}": _OLD_SERVER
    for test in (
        "KVTest::test_kv_basic",
        "ObjectStoreTest::test_object_basics",
        "V210FeaturesTest::test_stream_compression",
    )
}
#: Those that fail against JetStream too.
_ANYWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "nats-jetstream": {
        "tests/test_consumer.py::test_consumer_reset_to_ack_floor": (
            "it asks for the ack floor before the acks count"
        ),
        **{
            f"tests/{test}[{direct}]": _REPEATED_HEADERS
            for test in (
                "test_jetstream.py::test_get_message_with_multi_value_header",
                "test_stream.py::test_stream_get_message_with_multi_value_header",
            )
            for direct in (False, True)
        },
    },
    "nats-key-value": {
        "tests/test_kv.py::test_keys_filtered": "it filters by `a*`, which is no wildcard of NATS",
    },
}
#: Of those the ones that measure time, and so may pass.
UNSTEADY: Final = frozenset({"tests/test_consumer.py::test_consumer_reset_to_ack_floor"})
#: Those that fail against holdfast alone.
_HOLDFAST: Final[Mapping[str, Mapping[str, str]]] = {}


def expected_failures(suite: Suite, server: str) -> Mapping[str, str]:
    """Return which tests are expected to fail against `server`, and why."""
    return {
        **_ANYWHERE.get(suite.name, {}),
        **(_OUTDATED if (suite.name, suite.source) == ("nats-py", INDEX) else {}),
        **(_HOLDFAST.get(suite.name, {}) if server == HOLDFAST else {}),
    }
