"""How fast sealed records come back, beside pyarrow reading the same files.

Sequential: all records of a few segments of default shape, files in the page cache for everybody, over and over until
the time is over. We find segments in the manifest, prove every block by its hash and add a column with the partition;
pyarrow opens the files that it is told and believes them. Of its two ways (`iter_batches`, `read_row_group`) the faster
one is the rival, both with its own threads. The encrypted log has no rival: pyarrow cannot read it.

Point reads: one record by its offset, at random, in a log of many small segments that the roller sealed; the rival
opens such a file, whose name it knows, and reads its only row group. Rates are reads per second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from bench import material, measure
from bench.material import KEYRING, SCHEMA, TOPIC, TYPED_BATCH
from bench.measure import Bar, Contestant, Options, Part, Sample
from holdfast import Topic

RAW, SEALED, TYPED = "read raw as Arrow", "read encrypted as Arrow", "read typed as Arrow"
RAW_RIVALS = ("pyarrow raw, iter_batches", "pyarrow raw, read_row_group")
TYPED_RIVALS = ("pyarrow typed, iter_batches", "pyarrow typed, read_row_group")
RECORDS, RECORDS_SEALED = "read records", "read encrypted records"
RECORDS_PER_SECOND = 400_000
POINT, POINT_RIVAL = "point read by offset", "pyarrow opens and reads a file"
POINT_ROWS = 20
SEALED_WITHIN_SECONDS = 900.0


def sequential(directory: Path, options: Options) -> Part:
    """All records of some segments, as Arrow and as Python objects."""
    segments = 2 if options.quick else 4
    records = material.payloads(50_000 if options.quick else 250_000)
    batches = material.typed_batches(25)  # also when quick: opening a file must not be most of reading it
    with ExitStack() as stack:
        logs = {
            name: stack.enter_context(material.fresh(directory / name, KEYRING if name == "sealed" else None))
            for name in ("raw", "sealed", "typed")
        }
        raw, sealed = logs["raw"].topic(TOPIC), logs["sealed"].topic(TOPIC)
        typed = logs["typed"].topic(TOPIC, schema=SCHEMA)
        for _ in range(segments):
            for chunk in material.chunks(records):
                raw.append_batch(chunk)
                sealed.append_batch(chunk)
            for batch in batches:
                typed.append(batch)
            for log in logs.values():
                log.seal(timeout=600)
        raw_files, typed_files = material.files(directory / "raw"), material.files(directory / "typed")
        contestants = [
            _reader(RAW, lambda: sum(batch.num_rows for batch in raw.read().batches())),
            _reader(SEALED, lambda: sum(batch.num_rows for batch in sealed.read().batches())),
            _reader(RAW_RIVALS[0], lambda: _iter_batches(raw_files)),
            _reader(RAW_RIVALS[1], lambda: _read_row_groups(raw_files)),
            _reader(TYPED, lambda: sum(batch.num_rows for batch in typed.read().batches())),
            _reader(TYPED_RIVALS[0], lambda: _iter_batches(typed_files)),
            _reader(TYPED_RIVALS[1], lambda: _read_row_groups(typed_files)),
            _reader(RECORDS, lambda: _count(raw)),
            _reader(RECORDS_SEALED, lambda: _count(sealed)),
        ]
        # One pass takes milliseconds when it is quick, and there are many contestants.
        seconds = options.seconds / 2 if options.quick else options.seconds
        measured = measure.interleave(contestants, replace(options, seconds=seconds))
    raw_rival, typed_rival = (max(names, key=measured.median) for names in (RAW_RIVALS, TYPED_RIVALS))
    claims = [
        f"{segments} segments of {len(records):,} records, and of {len(batches) * TYPED_BATCH:,} typed rows",
        measure.claim(f"{RECORDS},", measured.median(RECORDS), RECORDS_PER_SECOND, "records/s", at_least=True),
    ]
    bars = [Bar(RAW, raw_rival, 0.8), Bar(TYPED, typed_rival, 0.82)]
    return Part("reading sealed records in order", measured, bars, claims, [raw_rival, typed_rival])


def _reader(name: str, read_all: Callable[[], int]) -> Contestant:
    """Reads everything again and again until the time is over; the first time does not count."""

    def run(seconds: float) -> Sample:
        read_all()
        cpu, began, rows = time.process_time(), time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            rows += read_all()
        return Sample(name, rows, time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)

    return Contestant(name, run)


def _count(topic: Topic) -> int:
    count = 0
    for _ in topic.read():
        count += 1
    return count


def _iter_batches(files: Sequence[Path]) -> int:
    rows = 0
    for file in files:
        with pq.ParquetFile(file) as parquet:
            rows += sum(batch.num_rows for batch in parquet.iter_batches())
    return rows


def _read_row_groups(files: Sequence[Path]) -> int:
    rows = 0
    for file in files:
        with pq.ParquetFile(file) as parquet:
            rows += sum(parquet.read_row_group(group).num_rows for group in range(parquet.num_row_groups))
    return rows


def points(directory: Path, options: Options) -> Part:
    """Single records by offset among many segments."""
    segments = 300 if options.quick else 10_000
    records = material.payloads(POINT_ROWS * 100)
    chance = random.Random(4)
    with material.fresh(directory / "points", rows_max=POINT_ROWS) as log:
        topic = log.topic(TOPIC)
        print(f"sealing {segments:,} segments of {POINT_ROWS} records ...", flush=True)
        for number in range(segments):
            at = number % 100 * POINT_ROWS
            topic.append_batch(records[at : at + POINT_ROWS])
        topic.wait_sealed(segments * POINT_ROWS, SEALED_WITHIN_SECONDS)
        files = material.files(directory / "points")
        if len(files) != segments:
            raise RuntimeError(f"the roller made other segments than wanted; files={len(files)} wanted={segments}")

        def point() -> None:
            offset = chance.randrange(segments * POINT_ROWS)
            (record,) = topic.read(offset, offset + 1)
            assert record.offset == offset

        def rival() -> None:
            with pq.ParquetFile(chance.choice(files)) as parquet:
                assert parquet.read_row_group(0).num_rows == POINT_ROWS

        contestants = [
            Contestant(POINT, lambda seconds: measure.drive_threads(POINT, [point], seconds)),
            Contestant(POINT_RIVAL, lambda seconds: measure.drive_threads(POINT_RIVAL, [rival], seconds)),
        ]
        measured = measure.interleave(contestants, options)
    ratio = measured.latency_ratio(POINT, POINT_RIVAL, "p50_ms")
    text = f"{POINT} at {segments:,} segments, against {POINT_RIVAL}, median,"
    return Part("point reads", measured, (), [measure.claim(text, ratio, 3.0, "x")], [POINT_RIVAL])
