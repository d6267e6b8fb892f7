"""Logs that ship to a real S3 server over a bad line, by many seeded schedules of faults.

Whatever the line does: acknowledgements come in order, what counts as shipped is there, nobody fences himself, and when
the line is good again the store holds the log, record for record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast import Closed, Keyring, Log
from holdfast.shipping.events import Event, Subscription
from holdfast.testing.manual_clock import ManualClock
from tests.store import shipped_logs
from tests.store.fault_proxy import (
    Fault,
    FaultProxy,
    Policy,
    at_random,
    bandwidth,
    close_after,
    close_before,
    conflict,
    delay,
    expired_token,
    go_stale,
    half_open,
    precondition_failed,
    reset_after,
    reset_before,
    reset_midway,
    server_error,
    slow_down,
    truncate,
)
from tests.store.servers import S3Server
from tests.store.shipped_logs import Place

pytestmark = [pytest.mark.store, pytest.mark.timeout(600)]

TIMEOUT_MS = 300
"""How long a request may take: short, so that half-open connections are given up in time."""
FAULTS = (
    delay(0.01), delay(0.05), bandwidth(20_000), server_error(), slow_down(), slow_down(0), slow_down(1), conflict(),
    precondition_failed(), expired_token(), reset_before(), reset_midway(), reset_after(), reset_after(0.02),
    close_before(), close_after(), truncate(), truncate(20), half_open(2), go_stale(),
)  # fmt: skip
RARE = {slow_down(1), half_open(2)}
"""What keeps a schedule waiting for long."""
PATIENCE = 120.0
SCHEDULES_MIN = 5


def bad_line(rng: Random, seed: int) -> Policy:
    """A few kinds of faults, each with a chance; together they leave every other request alone, at least."""
    kinds = rng.sample(FAULTS, rng.randint(1, 6))
    share = rng.uniform(0.1, 0.5) / len(kinds)
    chances = {fault: share / 5 if fault in RARE else share for fault in kinds}
    return at_random(seed, chances)


class Schedule:
    """One log on one bad line: what was appended, what was acknowledged, what events said."""

    def __init__(self, seed: int, server: S3Server, directory: Path) -> None:
        self.seed, self.server, self.directory = seed, server, directory
        self.rng = Random(seed)
        self.prefix = f"schedule-{seed}-{directory.name}"
        self.keyring = Keyring.generate(clock=ManualClock(seed=seed)) if seed % 3 == 0 else None
        self.partitions = self.rng.randint(1, 3)
        self.proxy = FaultProxy(server.port, bad_line(self.rng, seed))
        self.appended = 0
        self.acknowledged: set[Place] = set()
        """Places whose `shipped()` returned."""
        self.resolved = 0
        self.retries: Counter[str] = Counter()
        self.settings = shipped_logs.settings(
            self.proxy.endpoint,
            store={"timeout_ms": TIMEOUT_MS, "retries": self.rng.randint(0, 2)},
            shipping={
                "request_timeout_ms": TIMEOUT_MS,
                "connect_timeout_ms": TIMEOUT_MS,
                "heartbeat_interval_ms": self.rng.choice([20, 15_000]),
                "max_in_flight_requests": self.rng.choice([1, 2, 4, 8]),
                "batch_timeout_ms": self.rng.choice([1, 5]),
                "batch_size_threshold": self.rng.choice([1, 3, 1000]),
                "checkpoint_every": 3,
                "drain_timeout_ms": self.rng.choice([1, 300]),
            },
            segments={"rows_max": self.rng.choice([5, 20, 1000])},
        )

    def run(self) -> dict[Place, bytes]:
        """Append and ship, now and then in a new session; returns what the log holds at the end."""
        try:
            for _ in range(self.rng.choice([0, 0, 1])):
                with self._opened() as log, log.subscribe() as events:
                    self._work(log)
                    self._leave(log)
                    require_order(events)
            with self._opened() as log, log.subscribe() as events:
                self._work(log)
                self.proxy.policy = lambda _: None
                expected = self._finish(log)
                require_order(events)
                self._leave(log)
            return expected
        finally:
            self.proxy.close()

    def _opened(self) -> Log:
        return holdfast.open(
            self.directory / "log", store=shipped_logs.url(self.prefix), settings=self.settings, keyring=self.keyring
        )

    def _work(self, log: Log) -> None:
        topic = log.topic("t", partitions=self.partitions)
        for _ in range(self.rng.randint(2, 8)):
            for _ in range(self.rng.randint(1, 6)):
                names = [b"%d" % (self.appended + n) for n in range(self.rng.randint(1, 4))]
                topic.append_batch(names, partition=self.rng.randrange(self.partitions))
                self.appended += len(names)
            step = self.rng.randrange(6)
            if step == 0:
                log.seal()
            elif step == 1:
                self.proxy.close_idle(reset=self.rng.random() < 0.5)
            elif step == 2:
                ticket = topic.submit(b"%d" % self.appended)
                self.appended += 1
                receipt = ticket.shipped(PATIENCE)
                self.acknowledged.add((receipt.topic, receipt.partition, receipt.offset))

    def _leave(self, log: Log) -> None:
        stats = log.stats().shipping
        assert stats is not None
        assert stats.ended is None, stats.ended
        self.resolved += stats.resolved_total
        self.retries.update(stats.retries)

    def _finish(self, log: Log) -> dict[Place, bytes]:
        """The line is good now: everything arrives."""
        deadline = time.monotonic() + PATIENCE
        while log.unshipped():
            assert log.stats().shipping.ended is None, log.stats().shipping.ended  # type: ignore[union-attr]
            assert time.monotonic() < deadline, log.stats().shipping
            time.sleep(0.002)
        log.ship(PATIENCE)
        found = shipped_logs.records(log)
        assert len(found) == self.appended
        return found


def require_order(events: Subscription) -> None:
    """Batches are reported in order, one behind the other, accepted before shipped."""
    received: list[Event] = []
    while (event := _next(events)) is not None:
        received.append(event)
    spans = {
        kind: [(event.first_seq, event.last_seq) for event in received if event.kind == kind]
        for kind in ("accepted", "shipped")
    }
    for kind, own in spans.items():
        for (_, last), (first, _) in pairwise(own):
            assert first == last + 1, f"{kind} out of order: {own}"
    assert spans["shipped"] == spans["accepted"][: len(spans["shipped"])]
    when = {(event.kind, event.first_seq): index for index, event in enumerate(received)}
    for first, _ in spans["shipped"]:
        assert when["accepted", first] < when["shipped", first]


def _next(events: Subscription) -> Event | None:
    try:
        return events.get(0)
    except Closed:
        return None


def require_kept(seed: int, server: S3Server, directory: Path) -> Schedule:
    """Run a schedule, and compare what the server holds, asked directly, with the log."""
    directory.mkdir()
    schedule = Schedule(seed, server, directory)
    try:
        expected = schedule.run()
        _, found = shipped_logs.restored(server.endpoint, schedule.prefix, directory / "copy", schedule.keyring)
        assert found == expected
        assert schedule.acknowledged <= set(found)
    except BaseException as error:
        error.add_note(f"schedule {seed}: {dict(schedule.proxy.counts)} {dict(schedule.retries)}")
        raise
    return schedule


def run_schedules(seeds: Iterator[int], server: S3Server, directory: Path, seconds: float) -> tuple[int, Counter[str]]:
    """So many schedules as fit into the time, but some; returns how many, and what the line did in all of them."""
    deadline, done, line = time.monotonic() + seconds, 0, Counter[str]()
    for seed in seeds:
        line += require_kept(seed, server, directory / str(seed)).proxy.counts
        done += 1
        if done >= SCHEDULES_MIN and time.monotonic() > deadline:
            break
    print(f"{done} schedules: {dict(line)}")
    return done, line


def test_everything_arrives_once_and_in_order_whatever_the_line_does(
    s3_server: S3Server, tmp_path: Path, is_sampled: bool, seed: int
) -> None:
    """As many schedules as fit into a third of a minute; in the gate some, others for each commit."""
    _, line = run_schedules(count(seed), s3_server, tmp_path, 0 if is_sampled else 20)
    assert line["pass"] < line.total()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_three_hundred_schedules(s3_server: S3Server, tmp_path: Path) -> None:
    """Other seeds than above."""
    done, line = run_schedules(iter(range(10_000, 10_300)), s3_server, tmp_path, 3000)
    assert done == 300
    assert {fault.name for fault in FAULTS} <= set(line), "each kind of fault came about"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.name}-{fault.seconds:g}-{fault.keep}")
def test_every_second_request_meets_one_kind_of_fault(
    fault: Fault, s3_server: S3Server, fault_proxy: Callable[..., FaultProxy], prefix: str, tmp_path: Path
) -> None:
    """No kind is harmless only because it is rare: every object meets it once."""
    always_first: Policy = lambda request: fault if request.attempt % 2 else None  # noqa: E731
    proxy = fault_proxy(always_first)
    options = {"timeout_ms": TIMEOUT_MS, "retries": 1}
    settings = shipped_logs.settings(proxy.endpoint, store=options, shipping={"request_timeout_ms": TIMEOUT_MS})
    with holdfast.open(tmp_path / "log", store=shipped_logs.url(prefix), settings=settings) as log:
        topic = log.topic("t", partitions=2)
        topic.append_batch([b"%d" % n for n in range(20)], partition=0)
        log.seal()
        topic.append(b"tail", partition=1)
        topic.submit(b"last", partition=1).shipped(PATIENCE)
        log.ship(PATIENCE)
        expected = shipped_logs.records(log)
        assert log.stats().shipping.ended is None  # type: ignore[union-attr]
    assert proxy.counts[fault.name] > 5
    _, found = shipped_logs.restored(s3_server.endpoint, prefix, tmp_path / "copy")
    assert found == expected
