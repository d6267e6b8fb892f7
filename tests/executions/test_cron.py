"""When schedules run: cron's fields as cron reads them, days that are an hour short or long included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.execution.waits.cron import next_slot, parse_timing, slots_back, zone_of

pytestmark = pytest.mark.unit

BERLIN = zone_of("Europe/Berlin")


def us(*when: int, zone=UTC) -> int:
    return round(datetime(*when, tzinfo=zone).timestamp()) * 1_000_000


def shown(slots, zone=UTC) -> list[str]:
    return [datetime.fromtimestamp(slot / 1e6, zone).strftime("%d %H:%M") for slot in slots]


def between(when: str, after: int, upto: int, zone=UTC) -> list[str]:
    return shown(reversed(list(slots_back(parse_timing(when), zone, after, upto))), zone)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("0 3 * * *", ["02 03:00", "03 03:00"]),
        ("30 1,13 * * *", ["01 13:30", "02 01:30", "02 13:30", "03 01:30"]),
        ("0 */8 * * *", ["01 16:00", "02 00:00", "02 08:00", "02 16:00", "03 00:00", "03 08:00"]),
        ("0 12-14/2 2 * *", ["02 12:00", "02 14:00"]),
        ("0 0 * * tue", ["03 00:00"]),
        ("0 0 * * 2", ["03 00:00"]),
        ("0 0 2 * 2", ["02 00:00", "03 00:00"]),  # either
        ("0 0 */2 * 2", ["03 00:00"]),  # both: a star is no restriction
        ("0 0 * feb *", []),
        ("0 0 2 feb,mar mon", ["02 00:00"]),
        ("@daily", ["02 00:00", "03 00:00"]),
        ("@every 12h", ["02 00:00", "02 12:00", "03 00:00", "03 12:00"]),
        ("5/30 0 * * *", ["02 00:05", "02 00:35", "03 00:05", "03 00:35"]),
    ],
)
def test_cron_is_read_as_cron_reads_it(when, expected):
    """1 March 2026 is a Sunday. After noon of that day, up to noon of the third."""
    assert between(when, us(2026, 3, 1, 12), us(2026, 3, 3, 12)) == expected


def test_sunday_is_zero_and_seven():
    assert parse_timing("0 0 * * 7").weekdays == parse_timing("0 0 * * sun").weekdays == frozenset({0})
    assert parse_timing("0 0 * * 5-7").weekdays == frozenset({5, 6, 0})


def test_an_hour_that_is_left_out_runs_once_and_one_that_comes_twice_too():
    spring, autumn = us(2026, 3, 28, 23), us(2026, 10, 24, 22)
    day = 86_400_000_000
    assert between("30 2 * * *", spring, spring + day, BERLIN) == ["29 03:30"]
    assert between("30 2 * * *", autumn, autumn + day, BERLIN) == ["25 02:30"]
    assert len(between("30 * * * *", spring, spring + 23 * 3_600_000_000, BERLIN)) == 23
    assert len(between("30 * * * *", autumn, autumn + 25 * 3_600_000_000, BERLIN)) == 25


def test_the_29th_of_february_comes_again_after_many_years():
    assert shown([next_slot(parse_timing("0 0 29 2 *"), UTC, us(2026, 3, 1))]) == ["29 00:00"]
    assert next_slot(parse_timing("0 0 29 2 *"), UTC, us(2096, 3, 1)) == us(2104, 2, 29)
    assert next_slot(parse_timing("0 0 29 2 *"), UTC, us(2026, 3, 1)) == us(2028, 2, 29)


@pytest.mark.parametrize(
    "when",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "x * * * *",
        "1,,2 * * * *",
        "@every 0s",
        "@every 5x",
        "@never",
        "-1 * * * *",
        "* * 31 2 *",
        "0 0 31 4,6 *",
        "1 1 1 1 1" * 100,
        "٣ * * * *",
        None,
        5,
    ],
)
def test_what_is_no_time_is_refused_with_what_is_wrong(when):
    with pytest.raises(Invalid) as caught:
        parse_timing(when)
    assert caught.value.hint


@pytest.mark.parametrize("zone", ["", "Nowhere/Land", "../../etc/passwd", "/etc/localtime", None, "x" * 300])
def test_what_is_no_zone_is_refused(zone):
    with pytest.raises(Invalid, match="time zone"):
        zone_of(zone)


@given(
    st.sampled_from(
        ["*/7 * * * *", "0 */5 * * *", "15 2 * * *", "0 0 1 * *", "30 1 * * sun", "@every 50m", "0 12 13 * 5"]
    ),
    st.sampled_from([UTC, BERLIN, ZoneInfo("Australia/Lord_Howe"), ZoneInfo("America/New_York")]),
    st.integers(us(2020, 1, 1), us(2030, 1, 1)),
    st.integers(1, 40 * 86_400),
)
def test_looking_back_and_looking_forward_find_the_same(when, zone, start, seconds):
    timing, end = parse_timing(when), start + seconds * 1_000_000
    forward, at = [], start
    while (at := next_slot(timing, zone, at)) is not None and at <= end and len(forward) < 500:
        forward.append(at)
    back = list(reversed(list(slots_back(timing, zone, start, end))))
    assert back[: len(forward)] == forward
    assert len(forward) == 500 or len(back) == len(forward)
    assert all(later > earlier for earlier, later in pairwise(back))


@given(st.integers(us(2020, 1, 1), us(2030, 1, 1)), st.sampled_from([BERLIN, ZoneInfo("America/New_York")]))
def test_a_daily_time_comes_once_a_day_whatever_clocks_do(start, zone):
    day = datetime.fromtimestamp(start / 1e6, zone).date()
    for hour in (0, 1, 2, 3):
        midnight = round(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) * 1_000_000
        next_day = day + timedelta(days=1)
        end = round(datetime(next_day.year, next_day.month, next_day.day, tzinfo=zone).timestamp()) * 1_000_000
        found = list(slots_back(parse_timing(f"30 {hour} * * *"), zone, midnight - 1, end - 1))
        assert len(found) == 1
