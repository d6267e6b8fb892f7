"""What appending loses while everything is shipped to a directory on the same disk.

Measured: eight threads, each with a window of 256 tickets under way, appending sealed records of 200 bytes, as in the
bench of the journal, into an empty log: without a store, and with one, by the defaults (`low-latency`) and by the
profile `balanced`. Shipping runs beside the appends in the same process and writes the same bytes a second time to the
same disk, with two syncs per object.

That shipping kept up is shown, not assumed: told is how much of what was appended was on the store when the last append
was acknowledged. What is left then is not on the clock.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import holdfast
from bench import journal, measure
from bench.journal import KEYRING
from bench.measure import Bar, Contestant, Options, Part, Sample
from holdfast import Settings, Topic

PRODUCERS, WINDOW = 8, 256
AT_LEAST = 0.7
PROFILES = ("low-latency", "balanced")
ALONE = "append, no store"


def part(directory: Path, options: Options) -> Part:
    """Appends without a store, and with one under each profile."""
    shares: dict[str, list[float]] = defaultdict(list)
    names = {f"append, shipped {profile}": profile for profile in PROFILES}
    contestants = [
        Contestant(ALONE, partial(_append, ALONE, directory, "", shares[ALONE])),
        *(
            Contestant(name, partial(_append, name, directory, profile, shares[name]))
            for name, profile in names.items()
        ),
    ]
    measured = measure.interleave(contestants, options)
    told = ", ".join(f"{name} {statistics.median(shares[name]):.0%}" for name in names)
    claims = [f"on the store when the last append was acknowledged: {told}"]
    bars = [Bar(name, ALONE, AT_LEAST) for name in names]
    return Part("appending beside shipping to a directory", measured, bars, claims, [ALONE])


def _append(name: str, directory: Path, profile: str, shares: list[float], seconds: float) -> Sample:
    path, store = directory / "log", directory / "store"
    settings = {"segments": {"seal_on_close": False}, "shipping": {"profile": profile, "drain_timeout_ms": 1}}
    os.sync()  # or what the sample before left dirty would be written on this one's time
    try:
        with holdfast.open(
            path, store=str(store) if profile else None, keyring=KEYRING, settings=Settings.from_mapping(settings)
        ) as log:
            topic = log.topic("bench", partitions=PRODUCERS)
            sample = _drive(name, topic, seconds)
            marks = log.marks("bench")
            if profile:
                shares.append(sum(mark.shipped for mark in marks) / sum(mark.durable for mark in marks))
            return sample
    finally:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(store, ignore_errors=True)


def _drive(name: str, topic: Topic, seconds: float) -> Sample:
    """All producers at once; the sum of what they did."""
    cpu, began = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(PRODUCERS) as threads:
        windows: Sequence[Sample] = list(
            threads.map(lambda _: journal.windowed(name, topic, seconds, WINDOW), range(PRODUCERS))
        )
    spent = time.perf_counter() - began
    return Sample(name, sum(own.rows for own in windows), spent, cpu_seconds=time.process_time() - cpu)
