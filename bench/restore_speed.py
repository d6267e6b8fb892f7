"""Bringing a log back from an S3 server, beside fetching the same objects and writing them down.

Measured: MiB per second of a whole `holdfast.restore` into a new directory: claim, listings, manifests, segments,
commit batches, all of it proved, and the database made. The log has sealed segments of about 8 MiB and a tail in
commit batches of 256 KiB. Beside it the bare loop: obstore gets the same objects, as many at once as a restore does,
each written to a file and synced.

What would be unfair: letting one side write where the other's files are still dirty; each begins with a sync.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import obstore
from obstore.store import S3Store

import holdfast
from bench import material, measure, ship_speed
from bench.material import TOPIC
from bench.measure import Bar, Contestant, Options, Part, Sample
from bench.seaweedfs import BUCKET, SeaweedFS
from holdfast import Settings

AT_ONCE = 6
"""What a restore has under way."""
AT_LEAST = 0.6
RESTORE, BARE = "restore", "bare GET and write"


class Shipped(NamedTuple):
    """A log on the store."""

    place: str
    keys: Sequence[str]
    """Its segments and commit batches."""
    size: int
    records: int


def part(directory: Path, options: Options, server: SeaweedFS) -> Part:
    """Restores and bare fetches in turn."""
    segments, batches = (8, 32) if options.quick else (32, 128)
    shipped = _ship(directory / "log", server, segments, batches)
    contestants = [
        Contestant(BARE, partial(_bare, server, shipped, directory / "fetched")),
        Contestant(RESTORE, partial(_restore, server, shipped, directory / "restored")),
    ]
    measured = measure.interleave(contestants, options)
    claims = [f"rows are MiB here; {segments} segments and {batches} commit batches, {shipped.size / 2**20:,.0f} MiB"]
    return Part("restoring beside bare GETs", measured, [Bar(RESTORE, BARE, AT_LEAST)], claims)


def _ship(path: Path, server: SeaweedFS, segments: int, batches: int) -> Shipped:
    chance = random.Random(segments)
    place = ship_speed.place()
    with ship_speed.shipping(path, server, place) as log:
        topic = log.topic(TOPIC)
        for _ in range(segments):
            ship_speed.append_segment(log, chance)
        log.ship(ship_speed.ACKNOWLEDGED_SECONDS)
        for _ in range(batches):
            ticket = topic.submit(chance.randbytes(250 * 2**10))
            ticket.result()
        ticket.shipped(ship_speed.ACKNOWLEDGED_SECONDS)
    found = [meta for page in obstore.list(server.shipping_client(place)) for meta in page]
    objects = {meta["path"]: meta["size"] for meta in found if meta["path"].endswith((".parquet", ".arrow"))}
    return Shipped(place, list(objects), sum(objects.values()), segments * ship_speed.SEGMENT_ROWS + batches)


def _bare(server: SeaweedFS, shipped: Shipped, target: Path, _seconds: float) -> Sample:
    client = server.shipping_client(shipped.place)
    target.mkdir()
    os.sync()
    try:
        cpu, began = time.process_time(), time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(partial(_fetch, client, target), shipped.keys))
        return _sample(BARE, shipped, began, cpu)
    finally:
        shutil.rmtree(target)


def _fetch(client: S3Store, target: Path, key: str) -> None:
    data = obstore.get(client, key).bytes()
    with (target / key.replace("/", "_")).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _restore(server: SeaweedFS, shipped: Shipped, target: Path, _seconds: float) -> Sample:
    settings = Settings.from_mapping({"store": server.settings, "segments": material.QUIET})
    os.sync()
    try:
        cpu, began = time.process_time(), time.perf_counter()
        report = holdfast.restore(f"s3://{BUCKET}/{shipped.place}", target, settings=settings)
        sample = _sample(RESTORE, shipped, began, cpu)
        if report.records != shipped.records:
            raise RuntimeError(f"not everything came back; records={report.records} wanted={shipped.records}")
        return sample
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _sample(name: str, shipped: Shipped, began: float, cpu: float) -> Sample:
    return Sample(name, shipped.size >> 20, time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)
