"""Ship to an S3 server, kill -9 it, go on appending, start it again, watch the log catch up, restore, compare.

    script/demo --s3 [--seconds 4] [--directory DIR]

The server is a SeaweedFS that this starts itself. A thread appends all the time, encrypted, and notes each
acknowledgement. While the server is away appends go on at the same speed: they are durable here, the lag grows, and an
alarm says why. When it is back everything is shipped, in order, without anybody's doing. At the end, as if this machine
had been lost, the log is restored from S3 into a new directory, and every acknowledged record must be there, once, in
its place. The old log, which is still open, then finds out that it was taken over.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from threading import Event, Thread

from bench.seaweedfs import BUCKET, SeaweedFS

import holdfast
from holdfast import Keyring, Log, Settings, Ticket
from holdfast.shipping.shipping_stats import ShippingStats

STORE = f"s3://{BUCKET}/demo"
BURST, PAUSE_SECONDS = 50, 0.01
CATCH_UP_SECONDS = 60.0
IMPATIENT = {"connect_timeout_ms": 250, "max_retry_attempts": 2, "retry_delay_max_ms": 500, "batch_bytes_max": 2**14}
"""A demonstration cannot wait: the alarm comes after a second instead of twenty, and small batches show how the log
catches up."""

Records = dict[tuple[int, int], bytes]
"""Payloads by partition and offset."""


class Producer:
    """Appends without rest, and notes what was acknowledged."""

    def __init__(self, log: Log) -> None:
        self.acknowledged: Records = {}
        self.failure: BaseException | None = None
        self._orders = log.topic("orders", partitions=4)
        self._stop = Event()
        self._under_way: deque[tuple[Ticket, bytes]] = deque()
        self._thread = Thread(target=self._work)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            number = 0
            while not self._stop.wait(PAUSE_SECONDS):
                for _ in range(BURST):
                    payload = b"order %d" % number
                    self._under_way.append((self._orders.submit(payload, key=b"%d" % (number % 97)), payload))
                    number += 1
                self._collect(4 * BURST)
            self._collect(0)
        except BaseException as failure:  # told by whoever waits for us
            self.failure = failure

    def _collect(self, left: int) -> None:
        while len(self._under_way) > left:
            ticket, payload = self._under_way.popleft()
            receipt = ticket.result()
            self.acknowledged[receipt.partition, receipt.offset] = payload


def watch(log: Log, producer: Producer, seconds: float) -> None:
    """Say once a second how things are."""
    ends = time.perf_counter() + seconds
    while (left := ends - time.perf_counter()) > 0:
        before, began = len(producer.acknowledged), time.perf_counter()
        time.sleep(min(1.0, left))
        rate = (len(producer.acknowledged) - before) / (time.perf_counter() - began)
        print(f"   appending {rate:7,.0f}/s   {_told(shipping(log))}")


def _told(stats: ShippingStats) -> str:
    alarm = f"   ALARM level {stats.alarm.level}: {stats.alarm.cause}" if stats.alarm else ""
    return f"not on the store yet {stats.lag_records:7,} records, {stats.lag_seconds:4.1f} s{alarm}"


def shipping(log: Log) -> ShippingStats:
    """Shipping at this moment."""
    stats = log.stats().shipping
    assert stats is not None
    return stats


def catch_up(log: Log) -> bool:
    """Watch the lag go down; True when the store has all that was there in the beginning.

    Batches count in order: what is sent while the oldest one still waits for its next attempt counts with that one.
    """
    began = told_at = time.perf_counter()
    wanted = [mark.durable for mark in log.marks("orders")]
    told = shipping(log).lag_records
    while time.perf_counter() - began < CATCH_UP_SECONDS:
        stats, now = shipping(log), time.perf_counter()
        if all(mark.shipped >= end for mark, end in zip(log.marks("orders"), wanted, strict=True)):
            print(f"   caught up {now - began:.1f} s after the server was back; {_told(stats)}")
            return True
        if stats.lag_records < 0.8 * told or now - told_at > 0.2:
            print(f"   {_told(stats)}   objects sent: {stats.objects_total:,}")
            told, told_at = stats.lag_records, now
        time.sleep(0.01)
    return False


def settle(log: Log) -> bool:
    """Seal and ship the rest; True when every mark has reached the end."""
    log.flush()
    log.seal()
    log.ship(60)
    marks = log.marks("orders")
    for number, mark in enumerate(marks):
        print(f"   orders/{number}: durable {mark.durable:,}  shipped {mark.shipped:,}  settled {mark.settled:,}")
    stats = shipping(log)
    failed = ", ".join(f"{cause} {count}" for cause, count in sorted(stats.retries.items()))
    print(
        f"   {stats.objects_total:,} objects, {stats.bytes_total / 2**20:.1f} MiB; failed attempts: {failed or 'none'}"
    )
    return all(mark.settled == mark.durable == mark.shipped for mark in marks)


def restore_and_compare(directory: Path, settings: Settings, keyring: Keyring, acknowledged: Records) -> bool:
    """Bring the log back from S3; True when every acknowledged record is there, once, in its place."""
    began = time.perf_counter()
    report = holdfast.restore(STORE, directory / "restored", settings=settings, keyring=keyring)
    print(f"   restored {report.records:,} records in {time.perf_counter() - began:.1f} s")
    with holdfast.open(directory / "restored", store=STORE, settings=settings, keyring=keyring) as log:
        found: Records = {(r.partition, r.offset): r.payload for r in log.topic("orders").read()}
        lost = [place for place, payload in acknowledged.items() if found.get(place) != payload]
        doubled = len(found) - len(set(found.values()))
        print(f"   acknowledged and missing or moved: {len(lost)}; there twice: {doubled}")
        receipt = log.topic("orders").append(b"and on it goes, elsewhere", durability="shipped")
        print(f"   appended and shipped one more: {receipt}")
    return not lost and not doubled


def is_fenced(log: Log) -> bool:
    """Whether the old log, which knows nothing yet, is refused the acknowledgement of the store."""
    try:
        log.topic("orders").append(b"too late", durability="shipped")
    except holdfast.Closed as error:
        print(f"   the old log says so: {error.message.split(' store=')[0]}")
        return True
    return False


def run(directory: Path, seconds: float) -> bool:
    """The whole story; True when every promise held."""
    server, keyring = SeaweedFS(directory / "seaweedfs"), Keyring.generate()
    print("1. An S3 server is started, and a log ships to it …")
    try:
        server.start()
        settings = Settings.from_mapping({"store": server.settings, "shipping": IMPATIENT})
        with holdfast.open(directory / "log", store=STORE, settings=settings, keyring=keyring) as log:
            with Producer(log) as producer:
                watch(log, producer, 2)
                print("2. The server is killed (kill -9); appending goes on …")
                server.kill()
                watch(log, producer, seconds)
                print("3. The server is started again …")
                server.start()
                good = catch_up(log)
            if producer.failure is not None:
                raise producer.failure
            print(f"4. {len(producer.acknowledged):,} records were acknowledged; the rest is sealed and shipped …")
            good = settle(log) and good
            print("5. As if this machine were lost, the log is restored from S3 into a new directory …")
            good = restore_and_compare(directory, settings, keyring, producer.acknowledged) and good
            return is_fenced(log) and good
    finally:
        server.stop()


def main() -> int:
    """Run the demo; 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long the server is away")
    parser.add_argument("--directory", type=Path, help="where to keep the log (default: a temporary directory)")
    options = parser.parse_args()
    logging.basicConfig(format="   log: %(message).120s", stream=sys.stdout)
    # Leave through the `finally` clauses, so that no server stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        good = run(directory, options.seconds)
    promise = "Every acknowledged record came back from S3, exactly once, in its place, in spite of the outage."
    print(promise if good else "A PROMISE WAS BROKEN.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
