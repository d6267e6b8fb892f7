"""Shipping at full speed to an S3 server, beside bare PUTs of objects of the same size.

Measured: objects per second from the first object that is sent until the mark of the last one has moved. A prepared log
(written without a store, so that nothing is on its way yet) is copied and opened with a place of its own in the bucket:

- 4 KiB and 256 KiB: commit batches, one commit each, read from the journal, proved, encoded and sent, acknowledged in
  order behind the fence;
- 8 MiB: sealed segments, read from their files, and their manifest objects behind them.

Beside it the bare loop: obstore, sixteen threads, create-only, with sha256, bytes that lie in memory. That is the
fastest way known here to bring such objects to this server; threads are faster than its async calls. Shipping has
sixteen requests under way, too, and its own questions to the store on top.

On a machine that others use, rates say more about its scheduler than about us. What does not depend on that is told as
well: the processor time that an object costs here and in the server, ours against the bare loop's. Where processors
are the limit, the rates of an idle machine have that ratio.

What would be unfair: counting our small objects (documents, manifests) as objects. They are work that the bare loop
does not have, and only objects of the size in question count.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import obstore

import holdfast
from bench import material, measure
from bench.material import TOPIC
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from bench.seaweedfs import BUCKET, SeaweedFS
from holdfast import Log, Settings
from holdfast.root.objects import commit_batch

CONCURRENCY = 16
SEGMENT_ROWS = 31
ACKNOWLEDGED_SECONDS = 120.0

_places = count()


@dataclass(frozen=True, slots=True)
class Size:
    """One size of objects: how a log comes to have them, and what is promised."""

    name: str
    bytes: int
    objects: int
    objects_quick: int
    at_least: float
    sealed: bool = False


SIZES = (
    Size("4 KiB", 4 * 2**10, 4_000, 1_000, 0.65),
    Size("256 KiB", 256 * 2**10, 480, 160, 0.85),
    Size("8 MiB", 8 * 2**20, 32, 16, 0.85, sealed=True),
)


def part(directory: Path, options: Options, server: SeaweedFS) -> Part:
    """All sizes, ours and bare in turn."""
    contestants: list[Contestant] = []
    bars: list[Bar] = []
    rates: dict[str, int] = {}
    server_cpu: dict[str, list[float]] = defaultdict(list)
    for size in SIZES:
        objects = size.objects_quick if options.quick else size.objects
        prepared = directory / f"prepared-{size.bytes}"
        mean = prepare(prepared, size, objects)
        ours, bare = f"shipping {size.name}", f"bare PUT {size.name}"
        contestants += [
            _noting(Contestant(bare, partial(_bare, bare, server, mean, objects)), server, server_cpu),
            _noting(
                Contestant(ours, partial(_ship, ours, server, prepared, directory / "log", objects)), server, server_cpu
            ),
        ]
        bars.append(Bar(ours, bare, size.at_least))
        rates |= {ours: mean, bare: mean}
    measured = measure.interleave(contestants, options)
    told = ", ".join(f"{name} {measured.median(name) * mean / 1e6:,.1f}" for name, mean in rates.items())
    claims = [f"rows are objects here; MB/s: {told}", *(_cost(measured, bar, server_cpu) for bar in bars)]
    return Part("shipping beside bare PUTs", measured, bars, claims)


def _noting(contestant: Contestant, server: SeaweedFS, noted: dict[str, list[float]]) -> Contestant:
    """The same contestant; what the server spends on each of its objects is noted."""

    def run(seconds: float) -> Sample:
        before = server.cpu_seconds
        sample = contestant.run(seconds)
        noted[sample.name].append((server.cpu_seconds - before) / sample.rows)
        return sample

    return Contestant(contestant.name, run)


def _cost(measured: Measured, bar: Bar, server_cpu: dict[str, list[float]]) -> str:
    """Processor time per object, in this process and in the server."""

    def cost(name: str) -> tuple[float, float]:
        own = statistics.median((sample.cpu_us_per_row or 0.0) / 1000 for sample in measured.samples[name])
        return own, statistics.median(server_cpu[name]) * 1000

    (ours, for_ours), (bare, for_bare) = cost(bar.subject), cost(bar.rival)
    return (
        f"CPU ms per object, here + server: {bar.subject} {ours:.2f} + {for_ours:.2f},"
        f" {bar.rival} {bare:.2f} + {for_bare:.2f}; ratio {(bare + for_bare) / (ours + for_ours):.2f}"
    )


# --- bare ----------------------------------------------------------------------------------------------------


def _bare(name: str, server: SeaweedFS, size: int, objects: int, _seconds: float) -> Sample:
    client = server.shipping_client(place())
    chance = random.Random(size)
    body = chance.randbytes(size - 8)
    bodies = [number.to_bytes(8, "big") + body for number in range(min(objects, 64))]

    def put(number: int) -> None:
        obstore.put(client, f"{number:020d}", bodies[number % len(bodies)], mode="create", use_multipart=False)

    with ThreadPoolExecutor(CONCURRENCY) as threads:
        list(threads.map(lambda number: obstore.put(client, f"warm-{number}", b"up"), range(CONCURRENCY)))
        cpu, began = time.process_time(), time.perf_counter()
        list(threads.map(put, range(objects)))
        seconds = time.perf_counter() - began
    return Sample(name, objects, seconds, cpu_seconds=time.process_time() - cpu)


# --- ours ----------------------------------------------------------------------------------------------------


def _ship(name: str, server: SeaweedFS, prepared: Path, path: Path, objects: int, _seconds: float) -> Sample:
    clone(prepared, path)
    with shipping(path, server, place()) as log:
        first = _first_object(log)
        cpu = time.process_time()
        _acknowledged(log)
        seconds, cpu = time.perf_counter() - first, time.process_time() - cpu
        stats = log.stats().shipping
        assert stats is not None
        arrived = max(stats.batches_total, stats.segments_total)
        if arrived != objects or stats.retries:
            raise RuntimeError(f"shipping was disturbed; objects={arrived} wanted={objects} retries={stats.retries}")
    return Sample(name, objects, seconds, cpu_seconds=cpu)


def _first_object(log: Log) -> float:
    """When the first object was under way."""
    give_up = time.perf_counter() + ACKNOWLEDGED_SECONDS
    while time.perf_counter() < give_up:
        stats = log.stats().shipping
        if stats is not None and stats.epoch and (stats.in_flight or stats.objects_total):
            return time.perf_counter()
        time.sleep(0.0005)
    raise TimeoutError("nothing was sent")


def _acknowledged(log: Log) -> None:
    """Return when everything counts; looked at now and then, which costs less than being told each time."""
    give_up = time.perf_counter() + ACKNOWLEDGED_SECONDS
    while time.perf_counter() < give_up:
        if all(mark.shipped == mark.durable and mark.settled == mark.sealed for mark in log.marks(TOPIC)):
            return
        time.sleep(0.01)
    raise TimeoutError("not everything was acknowledged")


def place() -> str:
    """A place in the bucket that nobody used before."""
    return f"bench/{next(_places):06d}"


@contextmanager
def shipping(path: Path, server: SeaweedFS, prefix: str, **sections: dict[str, Any]) -> Iterator[Log]:
    """A log that ships to a place in the bucket, one commit per batch, sixteen at once; removed afterwards."""
    values: dict[str, Any] = {
        "segments": material.QUIET,
        "journal": {"tail_bytes_max": 2**40},
        "store": server.settings,
        "shipping": {"batch_size_threshold": 1, "batch_bytes_max": 1},
    }
    settings = Settings.from_mapping({**values, **sections})
    try:
        with holdfast.open(path, store=f"s3://{BUCKET}/{prefix}", settings=settings) as log:
            yield log
    finally:
        shutil.rmtree(path, ignore_errors=True)


# --- prepared logs -------------------------------------------------------------------------------------------


def prepare(path: Path, size: Size, objects: int) -> int:
    """A closed log whose shipping takes so many objects of that size; returns their mean size."""
    chance = random.Random(size.bytes)
    with material.opened(path) as log:
        for _ in range(objects):
            if size.sealed:
                append_segment(log, chance)
            else:
                log.topic(TOPIC).append(chance.randbytes(size.bytes - _overhead()))
    return (
        statistics.mean(file.stat().st_size for file in material.files(path)).__int__() if size.sealed else size.bytes
    )


def append_segment(log: Log, chance: random.Random) -> None:
    """A sealed segment of a little less than 8 MiB; random bytes, which no compression makes smaller."""
    log.topic(TOPIC).append_batch([chance.randbytes(2**18) for _ in range(SEGMENT_ROWS)])
    log.seal()


def _overhead() -> int:
    """What a batch of one commit is larger than its record."""
    entry = commit_batch.TailEntry(TOPIC, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, bytes(16), bytes(16), b"")
    frame = 32  # about what the journal puts around one record
    return frame + len(commit_batch.encode(commit_batch.CommitBatch(bytes(16), 1, 1, 1, (), [entry])))


def clone(prepared: Path, path: Path) -> None:
    """A copy to be used up; files that never change are linked."""
    shutil.copytree(prepared, path, copy_function=_link_or_copy)
    os.sync()  # or what is dirty would be written on the sample's time


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(".parquet"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)
