"""The bound on the unsealed tail of a whole log, where no partition's own tail is due."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.disk


def test_a_log_at_its_tail_limit_seals_though_no_partition_is_due(open_log):
    log = open_log(segments={"bytes_max": 15_000, "seal_on_close": False}, journal={"tail_bytes_max": 20_000})
    topic = log.topic("t", partitions=4)
    for number in range(40):
        topic.append(b"x" * 1_000, partition=number % 4, timeout=2)
