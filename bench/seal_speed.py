"""How fast a tail becomes a segment, beside pyarrow writing the very same table.

Measured: `log.seal()` alone, from the call until it returns, on a tail that is there and a roller that sleeps: reading
and proving entries, Arrow, Parquet, hashes, fsync, rename, the commit. Afterwards the entries are removed from the
journal, slice by slice; the share of the time until the commit shows how much of that the caller waits for. There is
one segment; raw records were appended in batches of 1000, typed rows in batches of 10 000.

The rival writes the table that such a segment holds, from memory in one piece, with the same Parquet settings and row
groups into one file, and syncs it. It reads no journal, hashes and proves nothing, seals nothing and commits nothing.
It runs on as many threads as pyarrow likes. `MB/s` are bytes of Arrow data.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench import material, measure
from bench.material import KEYRING, RAW_BATCH, SCHEMA, TOPIC, TYPED_BATCH
from bench.measure import Bar, Contestant, Measured, Options, Part, Sample
from holdfast import Keyring, Log
from holdfast.segments.file.segment_writer import parquet_settings

RAW, SEALED, TYPED = "seal raw", "seal raw, encrypted", "seal typed"
RAW_RIVAL, TYPED_RIVAL = "pyarrow writes raw", "pyarrow writes typed"

Fill = Callable[[Log], None]


def part(directory: Path, options: Options) -> Part:
    """Sealing, interleaved with pyarrow."""
    records = material.payloads(60_000 if options.quick else 500_000)
    batches = material.typed_batches(20 if options.quick else 100)
    shares: dict[str, list[float]] = {}

    def raw(log: Log) -> None:
        topic = log.topic(TOPIC)
        for chunk in material.chunks(records, RAW_BATCH):
            topic.append_batch(chunk)

    def typed(log: Log) -> None:
        topic = log.topic(TOPIC, schema=SCHEMA)
        for batch in batches:
            topic.append(batch)

    def ours(name: str, keyring: Keyring | None, fill: Fill) -> Contestant:
        return Contestant(name, lambda _: _seal(name, directory / "log", keyring, fill, shares.setdefault(name, [])))

    raw_table, raw_rows, raw_size = _segment_of(directory / "log", raw)
    typed_table, typed_rows, typed_size = _segment_of(directory / "log", typed)
    contestants = [
        ours(RAW, None, raw),
        ours(SEALED, KEYRING, raw),
        _rival(RAW_RIVAL, directory, raw_table, raw_rows),
        ours(TYPED, None, typed),
        _rival(TYPED_RIVAL, directory, typed_table, typed_rows),
    ]
    measured = measure.interleave(contestants, options)
    sizes = (
        f"raw: {len(records):,} records, {len(records) * material.PAYLOAD_BYTES / 1e6:,.0f} MB of payloads,"
        f" {raw_size / 1e6:,.1f} MB of file; typed: {len(batches) * TYPED_BATCH:,} rows,"
        f" {typed_table.nbytes / 1e6:,.0f} MB of Arrow data, {typed_size / 1e6:,.1f} MB of file"
    )
    claims = [
        sizes,
        "MB/s: " + ", ".join(_speed(measured, name, raw_table) for name in (RAW, SEALED, RAW_RIVAL)),
        "MB/s: " + ", ".join(_speed(measured, name, typed_table) for name in (TYPED, TYPED_RIVAL)),
        *(f"{name}: {statistics.median(found):.0%} of it until the commit" for name, found in shares.items()),
    ]
    bars = [Bar(RAW, RAW_RIVAL, 0.6), Bar(SEALED, RAW_RIVAL, 0.4), Bar(TYPED, TYPED_RIVAL, 0.8)]
    return Part("sealing", measured, bars, claims, [RAW_RIVAL, TYPED_RIVAL])


def _seal(name: str, path: Path, keyring: Keyring | None, fill: Fill, shares: list[float]) -> Sample:
    with material.fresh(path, keyring) as log:
        fill(log)
        cpu, began = time.process_time(), time.perf_counter()
        log.seal(timeout=600)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        stats = log.stats().segments
    if stats.seals_total != 1:
        raise RuntimeError(f"one segment was to be sealed; sealed={stats.seals_total}")
    shares.append(stats.seal_seconds.total / seconds)
    return Sample(name, stats.rows_sealed_total, seconds, cpu_seconds=cpu)


def _segment_of(path: Path, fill: Fill) -> tuple[pa.Table, int, int]:
    """The table that such a segment holds, the rows of its row groups, the size of its file."""
    with material.fresh(path) as log:
        fill(log)
        log.seal(timeout=600)
        (file,) = material.files(path)
        return *material.stored_table(file), file.stat().st_size


def _rival(name: str, directory: Path, table: pa.Table, group_rows: int) -> Contestant:
    # The writer's own settings, so that the rival cannot fall behind them unnoticed.
    settings = parquet_settings(table.schema, is_encrypted=False)
    path = directory / "rival.parquet"

    def run(_seconds: float) -> Sample:
        with _removed(path):
            cpu, began = time.process_time(), time.perf_counter()
            pq.write_table(table, path, row_group_size=group_rows, **settings)
            _sync(path)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return Sample(name, table.num_rows, seconds, cpu_seconds=cpu)

    return Contestant(name, run)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _removed(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _speed(measured: Measured, name: str, table: pa.Table) -> str:
    return f"{name} {measured.median(name) * table.nbytes / table.num_rows / 1e6:,.0f}"


# --- appending typed batches --------------------------------------------------------------------------------

APPEND, APPEND_SEALED, IPC = "append typed", "append typed, encrypted", "Arrow IPC, fdatasync"


def appends(directory: Path, options: Options) -> Part:
    """Typed batches of 10 000 rows, each durable before the next, beside an Arrow IPC file that is synced as often.

    The roller is quiet, as the file has none; appending beside sealing is measured on its own. The file proves nothing
    and finds nothing again after a crash: it is what the disk and Arrow allow, not a rival.
    """
    batches = material.typed_batches(10)
    contestants = [
        Contestant(APPEND, lambda seconds: _append(APPEND, directory / "log", None, batches, seconds)),
        Contestant(APPEND_SEALED, lambda seconds: _append(APPEND_SEALED, directory / "log", KEYRING, batches, seconds)),
        Contestant(IPC, lambda seconds: _ipc(directory / "rival.arrow", batches, seconds)),
    ]
    measured = measure.interleave(contestants, options)
    mean = sum(batch.nbytes for batch in batches) / len(batches) / TYPED_BATCH
    told = ", ".join(f"{name} {measured.median(name) * mean / 1e6:,.0f}" for name in measured.samples)
    claims = [f"{mean:.0f} bytes of Arrow data per row; MB/s: {told}"]
    return Part("appending typed batches of 10 000 rows", measured, [Bar(APPEND, IPC, 0.5)], claims, [IPC])


def _append(
    name: str, path: Path, keyring: Keyring | None, batches: Sequence[pa.RecordBatch], seconds: float
) -> Sample:
    with material.fresh(path, keyring) as log:
        topic = log.topic(TOPIC, schema=SCHEMA)
        return _drive(name, topic.append, batches, seconds)


def _ipc(path: Path, batches: Sequence[pa.RecordBatch], seconds: float) -> Sample:
    # Arrow's own unbuffered file; a second descriptor syncs the same inode.
    with _removed(path), pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        descriptor = os.open(path, os.O_RDWR)

        def append(batch: pa.RecordBatch) -> None:
            writer.write_batch(batch)
            os.fdatasync(descriptor)

        try:
            return _drive(IPC, append, batches, seconds)
        finally:
            os.close(descriptor)


def _drive(
    name: str, append: Callable[[pa.RecordBatch], object], batches: Sequence[pa.RecordBatch], seconds: float
) -> Sample:
    """One producer; the batches in turn, until the time is over."""
    append(batches[0])
    cpu = time.process_time()
    stamps = [time.perf_counter()]
    deadline = stamps[0] + seconds
    while stamps[-1] < deadline:
        append(batches[len(stamps) % len(batches)])
        stamps.append(time.perf_counter())
    return measure.sample_of(name, [stamps], time.process_time() - cpu, rows_per_stamp=TYPED_BATCH)
