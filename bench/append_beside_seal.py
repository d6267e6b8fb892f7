"""What appending loses while the roller works all the time.

Measured: 64 asyncio producers of single acknowledged appends of 200 bytes, as in the bench of the journal, in an empty
log whose roller is quiet, and beside a roller that does not come to rest, in the two ways in which that can be:

- small segments, of a few groups each: every one costs its syncs and commits, which the appends have to share;
- large segments out of a backlog that was there when the log was opened: Parquet, zstd and hashes take the processor.

That the roller did not rest is shown, not assumed: told is the share of the time in which a seal was under way (the
slices of the journal that it removes in between not counted), and whether it still lagged behind in the end.

What p99 shows here is the processor, not the disk: with the roller busy the writer waits for a core (and for the
interpreter's lock) 25 to 30 times as long as without, while its syncs hardly get longer. So p99 is to be read beside
the number of cores, and on a machine that does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import material, measure
from bench.material import KEYRING, TOPIC
from bench.measure import PRODUCERS, Bar, Contestant, Measured, Options, Part, Sample
from holdfast import Keyring, Log

PLAIN_AT_LEAST, SEALED_AT_LEAST, P99_AT_MOST = 0.7, 0.5, 2.7
SMALL_ROWS = 128


@dataclass(slots=True)
class Busyness:
    """How busy the roller was, sample by sample."""

    shares: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    behind: list[bool] = field(default_factory=list)

    def note(self, log: Log, seconds: float, rows_max: int) -> None:
        stats = log.stats().segments
        self.shares.append(stats.seal_seconds.total / seconds)
        self.rows.append(stats.rows_sealed_total / max(1, stats.seals_total))
        self.behind.append(stats.tail_records >= rows_max)

    def told(self, name: str) -> str:
        lagged, samples = sum(self.behind), len(self.behind)
        text = (
            f"{name}: seals under way {statistics.median(self.shares):.0%} of the time,"
            f" {statistics.median(self.rows):,.0f} records each, lagged behind in {lagged} of {samples} samples"
        )
        return text if lagged == samples else f"{text}: NOT continuous, the bar proves too little"


@dataclass(frozen=True, slots=True)
class Setting:
    """One kind of log to append to."""

    name: str
    keyring: Keyring | None
    rows_max: int = material.QUIET["rows_max"]
    backlog: Path | None = None
    """A closed log with a long tail, to begin with."""


def part(directory: Path, options: Options) -> Part:
    """Appends with and without a busy roller, plain and encrypted."""
    backlog, large_rows = (300_000, 20_000) if options.quick else (2_000_000, 100_000)
    payloads = material.payloads(20_000)
    settings: list[Setting] = []
    bars: list[Bar] = []
    with _removed(directory / "backlog-plain") as plain, _removed(directory / "backlog-sealed") as sealed:
        for suffix, keyring, path, at_least in (
            ("", None, plain, PLAIN_AT_LEAST),
            (", encrypted", KEYRING, sealed, SEALED_AT_LEAST),
        ):
            _fill(path, keyring, payloads, backlog)
            quiet = Setting(f"append{suffix}", keyring)
            small = Setting(f"append beside small seals{suffix}", keyring, SMALL_ROWS)
            large = Setting(f"append beside large seals{suffix}", keyring, large_rows, path)
            settings += [quiet, small, large]
            bars += [Bar(each.name, quiet.name, at_least) for each in (small, large)]
        busy = {bar.subject: Busyness() for bar in bars}
        contestants = [
            Contestant(setting.name, partial(_append, directory / "log", setting, payloads, busy.get(setting.name)))
            for setting in settings
        ]
        measured = measure.interleave(contestants, options)
    claims = [*(_tail_claim(measured, bar) for bar in bars), *(seen.told(name) for name, seen in busy.items())]
    return Part("appending beside sealing", measured, bars, claims, [bars[0].rival, bars[-1].rival])


def _append(path: Path, setting: Setting, payloads: Sequence[bytes], busy: Busyness | None, seconds: float) -> Sample:
    if setting.backlog is not None:
        shutil.copytree(setting.backlog, path)
    os.sync()  # or what the copy left dirty, and the sample before, would be written on this sample's time
    with material.fresh(path, setting.keyring, rows_max=setting.rows_max) as log:
        began = time.perf_counter()
        topic = log.topic(TOPIC)
        appends = [partial(topic.submit, payload) for payload in payloads[:PRODUCERS]]
        sample = asyncio.run(measure.drive_tasks(setting.name, appends, seconds))
        if busy is not None:
            busy.note(log, time.perf_counter() - began, setting.rows_max)
    return sample


def _fill(path: Path, keyring: Keyring | None, payloads: Sequence[bytes], records: int) -> None:
    """A closed log with so many records in its tail."""
    with material.opened(path, keyring) as log:
        topic = log.topic(TOPIC)
        for _ in range(records // len(payloads)):
            for chunk in material.chunks(payloads):
                topic.append_batch(chunk)


def _tail_claim(measured: Measured, bar: Bar) -> str:
    ratio = measured.latency_ratio(bar.subject, bar.rival, "p99_ms")
    return measure.claim(f"p99 of {bar.subject}, against {bar.rival},", ratio, P99_AT_MOST, "x")


@contextmanager
def _removed(path: Path) -> Iterator[Path]:
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
