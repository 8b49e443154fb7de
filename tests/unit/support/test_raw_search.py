"""The search of raw bytes finds what is compressed."""

from __future__ import annotations

import os

import pytest
import zstandard

from tests.support.raw_search import holds

SECRET = b"the secret that was to be erased"


@pytest.mark.parametrize("at", [0, 10, 4096 - 16, 4096, 8192 - 1])
def test_a_value_is_found_within_one_frame_and_across_two(at: int) -> None:
    image = os.urandom(at) + SECRET + os.urandom(3 * 4096 - at)
    compress = zstandard.ZstdCompressor().compress
    frames = [compress(image[start : start + 4096]) for start in range(0, len(image), 4096)]
    assert holds(b"head" + b"".join(frames) + b"tail", SECRET)
    assert not holds(b"head" + b"".join(frames) + b"tail", SECRET[::-1])
