"""Any records of a log."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.protocol.names import StoreId
from holdfast.shared_fs.disk.commit_log import LogRecord

NUMBERS = st.integers(0, (1 << 63) - 1)
_BYTES = st.binary(max_size=8)
RECORDS = st.builds(
    LogRecord,
    st.builds(StoreId, st.sampled_from("tu"), st.sampled_from([1, 2]), st.text("abc.", max_size=5)),
    *[NUMBERS] * 3,
    st.lists(st.binary(max_size=20), max_size=3),
    st.lists(st.tuples(_BYTES, NUMBERS, NUMBERS, NUMBERS, _BYTES).map(list), max_size=3),
)
