"""Transactions beside single appends: what it costs to have two topics, or a topic and a space, in one commit.

Measured in one run, 200-byte payloads, default settings: one producer that waits for each commit and takes one of each
kind in turn (latency), and 64 coroutines that each wait for their own (throughput: transactions, not
records, per second). An append is `topic.append`, and `append_async` among the coroutines. Encrypted ones are told
apart.

What is unfair: a transaction over two topics stores two records where an append stores one. That is the point: the
bar says what the second one may cost.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import holdfast
from bench import measure
from bench.material import KEYRING
from bench.measure import PAYLOAD, PRODUCERS, Contestant, Measured, Options, Part, Sample
from holdfast import Log, Settings

APPEND, TWO, SPACE, KEYED = "append", "tx, two topics", "tx, topic and space", "tx, two topics, keys"
SETTINGS = Settings()


def transactions(scratch: Path, options: Options) -> Part:
    """One producer, then many; plain, then encrypted."""
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        for kind, keyring in (("", None), (", encrypted", KEYRING)):
            log = stack.enter_context(holdfast.open(scratch / f"log{kind}", keyring=keyring, settings=SETTINGS))
            contestants += in_turns({name + kind: act for name, act in blocking(log).items()})
            for name, work in awaiting(log).items():
                contestants.append(together(f"{name}{kind}, {PRODUCERS} tasks", work))
        measured = measure.interleave(contestants, options)
    claims = []
    for kind in ("", ", encrypted"):
        reached = p50(measured, TWO + kind) / p50(measured, APPEND + kind)
        claims.append(measure.claim(f"latency of a transaction over two topics{kind}", reached, 1.3, "x one append"))
        many = measured.ratio(f"{TWO}{kind}, {PRODUCERS} tasks", f"{APPEND}{kind}, {PRODUCERS} tasks")
        claims.append(f"{PRODUCERS} tasks{kind}: {many:.2f} x as many transactions over two topics as appends a second")
    return Part("transactions", measured, claims=claims, references=[APPEND])


def p50(measured: Measured, name: str) -> float:
    return statistics.median(sample.p50_ms or 0.0 for sample in measured.samples[name])


def blocking(log: Log) -> dict[str, Callable[[], object]]:
    """What one thread does again and again."""
    first, second, space = log.topic("first"), log.topic("second"), log.space("space")
    turn = iter(range(2**62))

    def two() -> None:
        with log.transaction() as tx:
            tx.append(first, PAYLOAD)
            tx.append(second, PAYLOAD)

    def with_space() -> None:
        with log.transaction() as tx:
            tx.append(first, PAYLOAD)
            tx.put(space, b"newest", PAYLOAD)

    def keyed() -> None:
        key = b"%d" % next(turn)
        with log.transaction() as tx:
            tx.append(first, PAYLOAD, idempotency_key=key)
            tx.append(second, PAYLOAD, idempotency_key=key)

    return {APPEND: lambda: first.append(PAYLOAD), TWO: two, SPACE: with_space, KEYED: keyed}


def awaiting(log: Log) -> dict[str, Callable[[], Awaitable[object]]]:
    """What each of many coroutines does."""
    first, second, space = log.topic("first"), log.topic("second"), log.space("space")

    async def two() -> None:
        async with log.transaction() as tx:
            tx.append(first, PAYLOAD)
            tx.append(second, PAYLOAD)

    async def with_space() -> None:
        async with log.transaction() as tx:
            tx.append(first, PAYLOAD)
            tx.put(space, b"newest", PAYLOAD)

    return {APPEND: lambda: first.append_async(PAYLOAD), TWO: two, SPACE: with_space}


def in_turns(acts: dict[str, Callable[[], object]]) -> list[Contestant]:
    """Contestants that take turns at every single commit: a disk that is busy for a second is busy for all of them."""
    taken: dict[str, Sample] = {}

    def first(seconds: float) -> Sample:
        latencies: dict[str, list[float]] = {name: [] for name in acts}
        cpu = dict.fromkeys(acts, 0.0)
        deadline = time.perf_counter() + seconds * len(acts)
        while time.perf_counter() < deadline:
            for name, act in acts.items():
                begun, before = time.perf_counter(), time.process_time()
                act()
                latencies[name].append(time.perf_counter() - begun)
                cpu[name] += time.process_time() - before
        for name, found in latencies.items():
            found.sort()
            p50, p99 = (measure.percentile(found, share) * 1e3 for share in (0.50, 0.99))
            taken[name] = Sample(name, len(found), sum(found), p50, p99, cpu[name])
        return taken[begins]

    begins, *others = acts
    return [Contestant(begins, first), *(Contestant(name, partial(_take, taken, name)) for name in others)]


def _take(taken: dict[str, Sample], name: str, _: float) -> Sample:
    return taken[name]


def together(name: str, work: Callable[[], Awaitable[object]]) -> Contestant:
    def run(seconds: float) -> Sample:
        return asyncio.run(measure.drive_tasks(name, [work] * PRODUCERS, seconds))

    return Contestant(name, run)
