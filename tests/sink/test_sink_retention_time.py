"""Retention of a sink's topic by a clock that is wrong: what was retired waits for a time that is supported."""

from __future__ import annotations

import pytest

from holdfast.reader.lease import Lease
from holdfast.root.objects.documents import RetentionLimits
from holdfast.root.rewrite_sweep import Grace
from holdfast.sink.sink_retention import SinkRetention
from holdfast.sink.sink_root import open_root
from holdfast.testing import ManualClock
from tests.sink.sinks import CLOCK, Place, write

pytestmark = pytest.mark.store

DAY_US = 86_400_000_000
A_WEEK, NOW = Grace(7 * DAY_US, 30 * DAY_US), Grace(0, 30 * DAY_US)


def removed(place: Place, days: int = 0, grace: Grace = A_WEEK, **values: int) -> int:
    """How many files retention removes by a clock that is so far ahead; all but the newest segment are retired."""
    clock = ManualClock(CLOCK.now_us() + days * DAY_US)
    retention = SinkRetention(open_root(place.target(), CLOCK).store, clock, grace, **values)
    retention.set_policy("t", RetentionLimits(0, 0, 1))
    return sum(one.removed_files for one in retention.apply(*retention.topics()))


def test_a_clock_that_nothing_supports_removes_no_retired_file(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; a caller may say that the clock is right."""
    place = Place()
    for batch in range(3):
        write(place.target(), "q", batch)
    assert removed(place) == 0
    assert not caplog.records
    assert removed(place, 400) == 0
    assert [record.action for record in caplog.records] == ["clock_jump"]
    assert removed(place, 400, jump_max_us=500 * DAY_US) > 0
    assert place.counted()[("q", 2)] > 0


def test_a_wrong_clock_ends_no_lease_of_a_sinks_topic() -> None:
    place = Place()
    for batch in range(3):
        write(place.target(), "q", batch)
    lease = Lease(place.store, place.newest().log, "nightly", 3600, CLOCK)
    lease.renew({("t", partition): 0 for partition in range(4)})
    assert removed(place, 400, NOW) == 0
    lease.end()
    assert removed(place, 400, NOW) > 0
