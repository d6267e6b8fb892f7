"""What PUTs do to the event loop that they run on, beside `obstore.put_async` doing the same.

Measured: a ticker on the loop wants to run every millisecond while eight tasks PUT objects. How much later it runs is
the lag of whatever else shares the loop; its p50 and p99 stand in the columns of the same names, and rows are PUTs.
Beside it stands how long the loop's thread itself computed between two ticks: the part of the lag that is the client's
own, whatever else the machine does. Both clients are warm, sign every request and send a sha256, which is made anew for
each object. obstore works in threads of its own, in Rust; ours is Python on the loop, and hashes in a thread what is
large.

What would be unfair: one after the other. Every sample of one is followed by a sample of the other. The server has the
same processors: on a busy machine both lags are mostly the scheduler's.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path

import obstore

from bench import measure, ship_speed
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from bench.seaweedfs import BUCKET, SeaweedFS
from holdfast.clock import SystemClock
from holdfast.store.address import parse_url
from holdfast.store.port import Body
from holdfast.store.s3.s3_store import S3Store
from holdfast.store.store_settings import StoreSettings

SIZES = {"16 KiB": 2**14, "256 KiB": 2**18, "1 MiB": 2**20, "8 MiB": 2**23}
TASKS = 8
TICK = 0.001
AT_LEAST = 0.8
"""By PUTs per second; a machine that server and client share is not steadier than that."""

Put = Callable[[str, bytes], Awaitable[object]]
Drive = Callable[[Put], Awaitable[Sample]]
Way = Callable[[SeaweedFS, str, Drive], Coroutine[None, None, Sample]]
Held = dict[str, list[float]]
"""Seconds between two ticks that the loop's thread computed, by contestant."""


def part(directory: Path, options: Options, server: SeaweedFS) -> Part:
    """Both clients in turn, size by size."""
    contestants, bars = [], []
    held: Held = {}
    for name, size in SIZES.items():
        data = random.Random(size).randbytes(size)
        names = [f"PUT of {name}, {whose}" for whose in ("ours", "obstore")]
        ways = (_ours, _obstore)
        contestants += [
            Contestant(own, partial(_sample, own, way, server, data, held))
            for own, way in zip(names, ways, strict=True)
        ]
        bars.append(Bar(*names, AT_LEAST))
    measured = measure.interleave(contestants, options)
    return Part("loop lag beside PUTs", measured, bars, [_claim(measured, held, name) for name in SIZES])


def _claim(measured: Measured, held: Held, size: str) -> str:
    def lags(whose: str) -> str:
        name = f"PUT of {size}, {whose}"
        p50, p99 = (
            statistics.median(value or 0.0 for value in values)
            for values in zip(*((sample.p50_ms, sample.p99_ms) for sample in measured.samples[name]), strict=True)
        )
        most, often = max(held[name]) * 1e3, measure.percentile(sorted(held[name]), 0.99) * 1e3
        return f"{p50:.2f} / {p99:.2f} ms, computing {often:.2f} / {most:.2f} ms"

    both = f"ours {lags('ours')}; obstore {lags('obstore')}"
    return f"loop lag p50 / p99, computing p99 / most, beside PUTs of {size}: {both}"


def _sample(name: str, way: Way, server: SeaweedFS, data: bytes, held: Held, seconds: float) -> Sample:
    async def drive(put: Put) -> Sample:
        sample, computed = await _drive(name, put, data, seconds)
        held.setdefault(name, []).extend(computed)
        return sample

    return asyncio.run(way(server, ship_speed.place(), drive))


async def _ours(server: SeaweedFS, place: str, drive: Drive) -> Sample:
    settings = StoreSettings(**server.settings)
    store = S3Store(parse_url(f"s3://{BUCKET}/{place}"), settings, SystemClock())
    remote = store.remote(pool_size=TASKS, request_timeout=30, connect_timeout=10, heartbeat=30)
    await remote.start()
    try:
        return await drive(lambda key, content: remote.create(key, Body.of(content)))
    finally:
        await remote.close()
        store.close()


async def _obstore(server: SeaweedFS, place: str, drive: Drive) -> Sample:
    return await drive(partial(obstore.put_async, server.shipping_client(place), mode="create", use_multipart=False))


async def _drive(name: str, put: Put, data: bytes, seconds: float) -> tuple[Sample, list[float]]:
    await asyncio.gather(*(put(f"warm-{task}", data) for task in range(TASKS)))
    cpu, began = time.process_time(), time.perf_counter()
    ticker = asyncio.create_task(_tick())
    counts = await asyncio.gather(*(_work(put, data, task, began + seconds) for task in range(TASKS)))
    took = time.perf_counter() - began
    ticker.cancel()
    lags, computed = await ticker
    p50, p99 = (measure.percentile(sorted(lags), share) * 1e3 for share in (0.5, 0.99))
    return Sample(name, sum(counts), took, p50, p99, time.process_time() - cpu), computed


async def _work(put: Put, data: bytes, task: int, deadline: float) -> int:
    done = 0
    while time.perf_counter() < deadline:
        await put(f"{task}-{done}", data)
        done += 1
    return done


async def _tick() -> tuple[list[float], list[float]]:
    """How late the loop was each time, and how long its thread had computed."""
    lags, computed = [], []
    try:
        while True:
            before, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK)
            lags.append(time.perf_counter() - before - TICK)
            computed.append(time.thread_time() - worked)
    except asyncio.CancelledError:
        return lags, computed
