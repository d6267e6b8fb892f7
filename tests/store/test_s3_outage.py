"""A store that is away for a while: appends go on, memory stays flat, somebody hears of it, and it is made up for.

Judged by what came before what and by counts, never by the clock: the machine may be as slow as it likes.
"""

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
from holdfast.shipping.shipping_stats import ShippingStats
from tests.store import shipped_logs
from tests.store.fault_proxy import FaultProxy
from tests.store.servers import S3Server

pytestmark = [pytest.mark.store, pytest.mark.timeout(600)]

PATIENCE = 240.0
"""For what takes seconds: how long to wait before it counts as never."""
AN_HOUR_MS = 3_600_000
RECORDS = [b"x" * 20_000] * 10
BATCH_BYTES = sum(map(len, RECORDS))
GROWTH_BYTES_MAX = 96 * 2**20
"""What a process may grow by during an outage: caches and fragments, but not what it would have shipped."""
AWAY_BYTES = 2 * GROWTH_BYTES_MAX
"""What is appended meanwhile, at least; kept in memory, it would show."""


def settings(endpoint: str, **shipping: object) -> Settings:
    """As in earnest, but for segments that are sealed soon and pauses that end within the test."""
    return shipped_logs.settings(
        endpoint,
        shipping={
            "retry_base_delay_ms": 100,
            "retry_delay_max_ms": 1000,
            "connect_timeout_ms": 1000,
            "max_in_flight_requests": 16,
            **shipping,
        },
        segments={"rows_max": 600},
    )


class Appender:
    """Appends batches from a thread of its own, each durable before the next, and counts."""

    def __init__(self, log: Log) -> None:
        self.batches = 0
        self._topic = log.topic("t", partitions=2)
        self._stop = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._work)
        self._thread.start()

    def until(self, batches: int) -> None:
        """Wait until so many are durable."""
        until(lambda: self.batches >= batches or self._error is not None, f"{batches} batches are durable")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while not self._stop.wait(0.002):  # the store has to keep up on a machine that runs it as well
                self._topic.append_batch(RECORDS, partition=self.batches % 2, timeout=PATIENCE)
                self.batches += 1
        except BaseException as error:
            self._error = error


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)


def shipping(log: Log) -> ShippingStats:
    stats = log.stats().shipping
    assert stats is not None
    return stats


def is_alarmed(log: Log) -> bool:
    """Whether the alarm stands, for the right reason, and grows: it is tried again and again."""
    alarm = shipping(log).alarm
    # A machine that is busy may take a connection that was refused at once for one that came too late.
    return alarm is not None and alarm.cause in ("refused", "reset") and alarm.attempts > 3


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def actions(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {getattr(record, "action", "") for record in caplog.records}


def outage(
    server: S3Server, proxy: FaultProxy, prefix: str, directory: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is away while so many bytes are written to a log; and all that is promised about it."""
    caplog.set_level(logging.INFO, logger="holdfast.shipping")
    log = holdfast.open(directory / "log", store=shipped_logs.url(prefix), settings=settings(proxy.endpoint))
    appender = Appender(log)
    try:
        appender.until(100)  # what is loaded and warmed up once is no part of it
        until(lambda: shipping(log).batches_total > 0, "the first batches are on the store")
        assert not actions(caplog) & {"shipping_alarm", "shipping_recovered"}
        proxy.go_down()
        until(lambda: is_alarmed(log), "the alarm is raised")
        first, resident, already = shipping(log), resident_bytes(), appender.batches
        appender.until(already + size // BATCH_BYTES)  # durable, every one of them: appends went on
        growth, last = resident_bytes() - resident, shipping(log)
        assert "shipping_recovered" not in actions(caplog)
        proxy.come_up()
    finally:
        appender.stop()
    until(lambda: not log.unshipped(), "all that is durable is on the store")
    log.seal(timeout=PATIENCE)
    log.ship(PATIENCE)
    after = shipping(log)
    print(f"{last.lag_records} records behind, grown by {growth / 2**20:.0f} MiB")
    assert first.batches_total == last.batches_total, "nothing could be shipped meanwhile"
    assert last.lag_records >= size // BATCH_BYTES * len(RECORDS)
    assert last.lag_seconds > first.lag_seconds > 0
    assert growth < GROWTH_BYTES_MAX, "memory is flat"
    assert first.alarm is not None
    assert last.alarm is not None
    assert last.alarm.since == first.alarm.since, "one alarm, from beginning to end"
    assert last.alarm.attempts >= first.alarm.attempts
    assert last.pool.healthy == 0
    assert {"shipping_alarm", "shipping_recovered"} <= actions(caplog)
    assert (after.alarm, after.ended, after.lag_records) == (None, None, 0)
    log.close()
    report, found = shipped_logs.restored(server.endpoint, prefix, directory / "copy")
    assert report.records == len(found) == appender.batches * len(RECORDS)


def test_appends_go_on_while_the_store_is_away(
    s3_server: S3Server,
    fault_proxy: Callable[..., FaultProxy],
    prefix: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As durable as ever, with flat memory and a visible alarm; and afterwards all is there."""
    outage(s3_server, fault_proxy(), prefix, tmp_path, AWAY_BYTES, caplog)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_gibibyte_without_the_store(
    s3_server: S3Server,
    fault_proxy: Callable[..., FaultProxy],
    prefix: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage(s3_server, fault_proxy(), prefix, tmp_path, 2**30, caplog)


@pytest.mark.timeout(300)
def test_closing_while_the_store_is_away_does_not_wait_for_it_and_the_next_open_goes_on(
    s3_server: S3Server, fault_proxy: Callable[..., FaultProxy], prefix: str, tmp_path: Path
) -> None:
    """What was not shipped is reported, stays in the log, and is shipped when the store is back."""
    proxy = fault_proxy()
    url, own = shipped_logs.url(prefix), settings(proxy.endpoint, drain_timeout_ms=AN_HOUR_MS)
    log = holdfast.open(tmp_path / "log", store=url, settings=own)
    topic = log.topic("t")
    topic.submit(b"there").shipped(PATIENCE)
    proxy.go_down()
    topic.append_batch([b"not yet there"] * 5)
    until(lambda: shipping(log).alarm is not None, "the alarm is raised")
    log.close()  # where it waited for the store, it would do so for an hour
    assert [(span.first, span.records) for span in log.unshipped()] == [(1, 5)]

    with holdfast.open(tmp_path / "log", store=url, settings=own) as again:
        again.topic("t").append(b"appended without the store")
        assert [(span.first, span.records) for span in again.unshipped()] == [(1, 6)]
        proxy.come_up()  # and not before: a store that is away keeps no log from opening
        until(lambda: not again.unshipped(), "all that is durable is on the store")
        expected = shipped_logs.records(again)
    _, found = shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy")
    assert found == expected
    assert len(found) == 7
