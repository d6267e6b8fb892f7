"""Reading segments from an S3 server: fetched ahead of the reader, beside one after the other.

Measured: rows per second of a whole `holdfast.read(…)`, manifests included, of 200 small segments and of a few large
ones (several row groups each), from a server that answers at once and from one that is 50 ms away (`delayed_server`).
Beside it the same with `prefetch_requests=0`, which is how everything was read before.

What would be unfair: a proxy in the reader's own process, and connections that only one side finds open. Each reading
uses connections of its own store, which both have used before.
"""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import holdfast
from bench import measure, ship_speed
from bench.delayed_server import far_away
from bench.material import QUIET, TOPIC, payloads
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from bench.seaweedfs import BUCKET, SeaweedFS, running

SMALL_SEGMENTS, SMALL_ROWS = 200, 50
LARGE_SEGMENTS, LARGE_ROWS, LARGE_BYTES = 4, 48_000, 1_000
LARGE_GROUP_BYTES = 8 * 2**20
LATENCIES = (0.0, 0.05)
BARS = {"small": {0.0: 0.9, 0.05: 3.0}, "large": {0.0: 0.9, 0.05: 1.0}}
"""At least this many times as fast as one after the other, by latency."""
AHEAD, IN_TURN = "ahead", "one after the other"
_IN_TURN = {"prefetch_requests": 0}


def main(options: Options) -> None:
    """All of it, printed and kept."""
    with measure.workspace(options) as directory:
        facts = measure.machine(directory)
        made = parts(directory, options)
    print(*(measure.report(part) for part in made), sep="\n")
    measure.save_parts("store_prefetch", made, facts)


def parts(directory: Path, options: Options) -> list[Part]:
    """Both sizes at both latencies."""
    with running(directory / "server") as server:
        small = SMALL_SEGMENTS // 4 if options.quick else SMALL_SEGMENTS
        large = LARGE_SEGMENTS // 2 if options.quick else LARGE_SEGMENTS
        places = {
            "small": (_small(directory / "small", server, small), small * SMALL_ROWS),
            "large": (_large(directory / "large", server, large), large * LARGE_ROWS),
        }
        return [_part(server, seconds, places, options) for seconds in LATENCIES]


def _part(server: SeaweedFS, seconds: float, places: dict[str, tuple[str, int]], options: Options) -> Part:
    with far_away(server.port, seconds) as endpoint:
        store = {**server.settings, "endpoint": endpoint}
        contestants, bars = [], []
        for size, (place, rows) in places.items():
            names = [f"{size} segments, {way}, {seconds * 1000:g} ms" for way in (AHEAD, IN_TURN)]
            for name, given in zip(names, ({}, _IN_TURN), strict=True):
                contestants.append(Contestant(name, partial(_read, name, place, rows, {**store, **given})))
            bars.append(Bar(*names, BARS[size][seconds]))
        for contestant in contestants:
            contestant.run(0)
        measured = measure.interleave(contestants, options)
    return Part(f"reading from S3, {seconds * 1000:g} ms away", measured, bars, [_told(measured)])


def _told(measured: Measured) -> str:
    seconds = {name: min(sample.seconds for sample in samples) for name, samples in measured.samples.items()}
    return "seconds, best: " + ", ".join(f"{name} {best:.2f}" for name, best in seconds.items())


def _read(name: str, place: str, rows: int, store: dict[str, Any], _seconds: float) -> Sample:
    cpu, began = time.process_time(), time.perf_counter()
    found = sum(batch.num_rows for batch in holdfast.read(f"s3://{BUCKET}/{place}", TOPIC, store=store).batches())
    sample = Sample(name, rows, time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)
    if found != rows:
        raise RuntimeError(f"not all rows were read; rows={found} wanted={rows}")
    return sample


def _small(path: Path, server: SeaweedFS, segments: int) -> str:
    some = payloads(SMALL_ROWS)
    place = ship_speed.place()
    with ship_speed.shipping(path, server, place) as log:
        for _ in range(segments):
            log.topic(TOPIC).append_batch(some)
            log.seal()
        log.ship(ship_speed.ACKNOWLEDGED_SECONDS)
    return place


def _large(path: Path, server: SeaweedFS, segments: int) -> str:
    """Bytes that no compressor makes smaller: about 48 MB in a segment, six row groups."""
    chance = random.Random(segments)
    place = ship_speed.place()
    with ship_speed.shipping(path, server, place, segments={**QUIET, "row_group_bytes": LARGE_GROUP_BYTES}) as log:
        for _ in range(segments):
            for _ in range(LARGE_ROWS // 1_000):
                log.topic(TOPIC).append_batch([chance.randbytes(LARGE_BYTES) for _ in range(1_000)])
            log.seal()
        log.ship(ship_speed.ACKNOWLEDGED_SECONDS)
    return place
