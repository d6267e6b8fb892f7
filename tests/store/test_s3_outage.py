"""A store that is away for a while: appends go on, memory stays flat, somebody hears of it, and it is made up for."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

import holdfast
from holdfast import Log, Settings
from tests.store import shipped_logs
from tests.store.fault_proxy import FaultProxy
from tests.store.servers import S3Server

pytestmark = pytest.mark.store

PATIENCE = 60.0
RECORD = b"x" * 6000
GROWTH_BYTES_MAX = 96 * 2**20
"""What a process may grow by during an outage: caches and fragments, but not what it would have shipped."""


def settings(endpoint: str) -> Settings:
    """As in earnest, but for segments that are sealed soon and pauses that end within the test."""
    return shipped_logs.settings(
        endpoint,
        shipping={
            "retry_base_delay_ms": 100, "retry_delay_max_ms": 1000, "connect_timeout_ms": 1000,
            "max_in_flight_requests": 16,
        },
        segments={"rows_max": 2000},
    )  # fmt: skip


class Appender:
    """Appends batches from a thread of its own, each durable before the next, and counts."""

    def __init__(self, log: Log) -> None:
        self.appended = 0
        self.slowest = 0.0
        self._topic = log.topic("t", partitions=2)
        self._stop = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._work)
        self._thread.start()

    def rate(self, seconds: float) -> float:
        """Records per second, over so long from now on."""
        before, started = self.appended, time.monotonic()
        time.sleep(seconds)
        return (self.appended - before) / (time.monotonic() - started)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            for number in range(10**9):
                if self._stop.is_set():
                    return
                started = time.monotonic()
                self._topic.append_batch([RECORD] * 10, partition=number % 2)
                self.slowest = max(self.slowest, time.monotonic() - started)
                self.appended += 10
                self._stop.wait(0.002)  # the store has to keep up on a machine that runs it as well
        except BaseException as error:
            self._error = error


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def alarm_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "shipping_alarm"]


def until_shipped(log: Log) -> float:
    """Wait until nothing is left to ship; returns how long that took."""
    started = time.monotonic()
    while log.unshipped():
        assert time.monotonic() - started < PATIENCE, log.stats().shipping
        time.sleep(0.005)
    return time.monotonic() - started


def outage(
    server: S3Server, proxy: FaultProxy, prefix: str, directory: Path, seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that goes away for so long while a log is being written to; and all that is promised about it."""
    caplog.set_level(logging.INFO, logger="holdfast.shipping")
    log = holdfast.open(directory / "log", store=shipped_logs.url(prefix), settings=settings(proxy.endpoint))
    appender = Appender(log)
    try:
        appender.rate(1)  # what is loaded and warmed up once is no part of it
        before = appender.rate(seconds / 4)
        proxy.go_down()
        went_down = time.monotonic()
        appender.rate(1)
        resident = resident_bytes()
        during = appender.rate(seconds - 1)
        growth = resident_bytes() - resident
        stats = log.stats().shipping
        assert stats is not None
        behind = stats.lag_records
        proxy.come_up()
        away = time.monotonic() - went_down
    finally:
        appender.stop()
    caught_up = until_shipped(log)
    log.seal()
    log.ship(PATIENCE)
    print(
        f"{before:.0f}/s before, {during:.0f}/s during {away:.0f} s, {behind} behind, "
        f"grown by {growth / 2**20:.0f} MiB, slowest append {appender.slowest:.3f} s, caught up in {caught_up:.1f} s"
    )
    assert during >= 0.5 * before, "appends went on at local speed"
    assert behind >= 0.5 * during * (seconds - 1), "they could not be shipped"
    assert growth < GROWTH_BYTES_MAX, "memory is flat"
    assert stats.alarm is not None
    assert stats.alarm.cause in ("refused", "reset")
    assert stats.alarm.attempts > 3
    assert stats.lag_seconds >= 0.8 * seconds
    assert alarm_lines(caplog)
    assert stats.pool.healthy == 0
    assert caught_up < away, "faster than real time"
    after = log.stats().shipping
    assert after is not None
    assert (after.alarm, after.ended, after.lag_records) == (None, None, 0)
    assert any(getattr(record, "action", "") == "shipping_recovered" for record in caplog.records)
    log.close()
    report, found = shipped_logs.restored(server.endpoint, prefix, directory / "copy")
    assert report.records == len(found) == appender.appended


def test_appends_go_on_while_the_store_is_away(
    s3_server: S3Server,
    fault_proxy: Callable[..., FaultProxy],
    prefix: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At local speed, with flat memory and a visible alarm; and afterwards all is there sooner than it took."""
    outage(s3_server, fault_proxy(), prefix, tmp_path, 12, caplog)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_minute_without_the_store(
    s3_server: S3Server,
    fault_proxy: Callable[..., FaultProxy],
    prefix: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage(s3_server, fault_proxy(), prefix, tmp_path, 60, caplog)


def test_closing_while_the_store_is_away_is_quick_and_the_next_open_goes_on(
    s3_server: S3Server, fault_proxy: Callable[..., FaultProxy], prefix: str, tmp_path: Path
) -> None:
    """What was not shipped is told, stays in the log, and is shipped when the store is back."""
    proxy = fault_proxy()
    url, own = shipped_logs.url(prefix), settings(proxy.endpoint)
    log = holdfast.open(tmp_path / "log", store=url, settings=own)
    topic = log.topic("t")
    topic.append(b"there", durability="shipped")
    proxy.go_down()
    topic.append_batch([b"not yet there"] * 5)
    deadline = time.monotonic() + PATIENCE
    while log.stats().shipping.alarm is None:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started = time.monotonic()
    log.close()
    assert time.monotonic() - started < 3
    assert [(span.first, span.records) for span in log.unshipped()] == [(1, 5)]

    started = time.monotonic()
    with holdfast.open(tmp_path / "log", store=url, settings=own) as again:
        assert time.monotonic() - started < 5, "a store that is away keeps no log from opening"
        again.topic("t").append(b"appended without the store")
        proxy.come_up()
        until_shipped(again)
        expected = shipped_logs.records(again)
    _, found = shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy")
    assert found == expected
    assert len(found) == 7
