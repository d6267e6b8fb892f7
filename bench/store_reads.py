"""Reading from an S3 server as readers, restore and reconciliation do it, beside obstore doing the same.

Measured: requests per second of small objects, of ranges of 64 KiB, of whole objects of 8 MiB, and listings of 10,000
keys, by one thread and by eight, and the processor time of each. Both clients are warm and sign every request; obstore
hands its bytes on as Python's, since that is what a caller needs.

What would be unfair: one after the other. Every sample of one is followed by a sample of the other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import obstore

from bench import measure, ship_speed
from bench.measure import Bar, Contestant, Options, Part, Sample
from bench.seaweedfs import BUCKET, SeaweedFS
from holdfast.clock import SystemClock
from holdfast.store.port import Body
from holdfast.store.store_kinds import open_store
from holdfast.store.store_settings import StoreSettings

AT_LEAST = 0.8
"""By request; a machine that server and client share is not steadier than that."""
LARGE, RANGE = 8 * 2**20, 64 * 2**10

Call = Callable[[int], object]


def part(directory: Path, options: Options, server: SeaweedFS) -> Part:
    """Both clients in turn, verb by verb."""
    keys = 1_000 if options.quick else 10_000
    place = ship_speed.place()
    store = open_store(f"s3://{BUCKET}/{place}", StoreSettings(**server.settings), SystemClock())
    client = server.shipping_client(place)
    chance = random.Random(8)
    store.create("small", Body.of(chance.randbytes(600)))
    store.create("large", Body.of(chance.randbytes(LARGE)))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: store.create(f"many/{number:08d}", Body.of(b"")), range(keys)))
    verbs: dict[str, tuple[Call, Call]] = {
        "GET of 600 B": (lambda _: store.get("small"), lambda _: obstore.get(client, "small").bytes().to_bytes()),
        "range of 64 KiB": (
            lambda n: store.get_range("large", n % 64 * RANGE, RANGE),
            lambda n: obstore.get_range(client, "large", start=n % 64 * RANGE, length=RANGE).to_bytes(),
        ),
        "range of 8 MiB": (
            lambda _: store.get_range("large", 0, LARGE),
            lambda _: obstore.get_range(client, "large", start=0, length=LARGE).to_bytes(),
        ),
        "GET of 8 MiB": (lambda _: store.get("large"), lambda _: obstore.get(client, "large").bytes().to_bytes()),
        f"LIST of {keys:,}": (lambda _: list(store.list("many/")), lambda _: list(_listed(client))),
    }
    contestants, bars = [], []
    for verb, calls in verbs.items():
        for threads_count in (1, 8):
            names = [f"{verb}, threads: {threads_count}, {whose}" for whose in ("ours", "obstore")]
            contestants += [
                Contestant(name, partial(_drive, name, call, threads_count))
                for name, call in zip(names, calls, strict=True)
            ]
            bars.append(Bar(*names, AT_LEAST))
    try:
        measured = measure.interleave(contestants, options)
    finally:
        store.close()
    return Part("reading from S3 beside obstore", measured, bars, ["rows are requests here"])


def _listed(client: obstore.store.S3Store) -> Iterator[object]:
    for page in obstore.list(client, "many", chunk_size=1000):
        yield from page


def _drive(name: str, call: Call, threads: int, seconds: float) -> Sample:
    call(0)
    cpu, began = time.process_time(), time.perf_counter()
    deadline = began + seconds

    def work(first: int) -> int:
        done = 0
        while time.perf_counter() < deadline:
            call(first + done)
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        rows = sum(pool.map(work, range(threads)))
    return Sample(name, rows, time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)
