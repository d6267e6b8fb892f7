"""What a segment needs while it is written or read is given back: a log may seal for years."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pyarrow as pa
import pytest

from holdfast import Keyring, Log

pytestmark = pytest.mark.disk

SEGMENTS = 4


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_no_memory_is_kept_for_segments_that_are_sealed_and_read(
    encrypted: bool, open_log: Callable[..., Log], keyring: Keyring
) -> None:
    """Arrow's buffers are out of the garbage collector's sight, so a cycle through them would stay forever."""
    log = open_log(keyring=keyring if encrypted else None)
    topic = log.topic("t")

    def work() -> None:
        for _ in range(SEGMENTS):
            topic.append_batch([b"x" * 100] * 100)
            log.seal()
        assert sum(1 for _ in topic.read()) % 100 == 0

    work()
    gc.collect()
    before = pa.total_allocated_bytes()
    work()
    gc.collect()
    assert pa.total_allocated_bytes() - before < SEGMENTS * 2**18
