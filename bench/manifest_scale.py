"""What a manifest of many segments costs: reconciling it with its files, and opening the log.

Sealing a million segments would take hours and measure sealing. So such a log is made: the rows of the manifest,
stamped as the writer stamps them, in one transaction of a closed log, and for each a file of the right name and size
that is one hole. A shallow pass and an open look at rows, names and sizes, never into files, so they do what they would
do; what is not measured is a cold cache: names and rows were written a moment ago.

Seconds are those of the median pass; to compare sizes they are told per 100 000 segments.
"""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from bench import material, measure
from bench.material import TOPIC
from bench.measure import Measured, Options, Part, Sample
from holdfast.crypto.vault import Vault
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.journal.state.partition import unsealed
from holdfast.journal.state.state_digest import total
from holdfast.model.control_rows import LIVE, SegmentRow, stamped
from holdfast.model.segment import NO_SCHEMA
from holdfast.segments.manifest import time_tree
from holdfast.store import layout

ROWS, SIZE = 1_000, 100_000
"""Records and bytes that each of these segments says it has."""

Result = TypeVar("Result")

UNIT = 100_000
RECONCILE_SECONDS, OPEN_SECONDS = 10.0, 1.0
GROWTH_MAX = 1.5
"""How much more a segment may cost in the largest manifest than in the smallest, to be called linear."""


def part(directory: Path, options: Options) -> Part:
    """Reconcile and open at growing sizes."""
    sizes = [1_000, 10_000] if options.quick else [10_000, UNIT]
    if options.full:
        sizes.append(10 * UNIT)
    measured = Measured()
    with ExitStack() as stack:
        paths = {}
        for size in sizes:
            print(f"making a manifest of {size:,} segments ...", flush=True)
            paths[size] = stack.enter_context(_log_of(directory / f"manifest-{size}", size))
        for number in range(1, options.rounds + 1):
            for size, path in paths.items():
                _measure(path, size, measured)
                opening, reconciling = (measured.samples[of(size)][-1].seconds for of in (_opening, _reconciling))
                place = f"round {number}/{options.rounds}"
                print(f"{place}  {size:>9,} segments: open {opening:.3f} s, reconcile {reconciling:.2f} s", flush=True)
    return Part("reconciling and opening", measured, (), _claims(measured, sizes))


def _measure(path: Path, size: int, measured: Measured) -> None:
    gc.collect()
    log, seconds = _timed(lambda: material.opened(path))
    measured.add(Sample(_opening(size), size, seconds))
    with log:
        report, seconds = _timed(log.reconcile)
        measured.add(Sample(_reconciling(size), size, seconds))
    if report.findings or report.segments != size:
        raise RuntimeError(f"nothing was to be found; segments={report.segments} found={report.findings[:1]}")


def _claims(measured: Measured, sizes: list[int]) -> list[str]:
    per_unit = {size: _seconds(measured, _reconciling(size)) / size * UNIT for size in sizes}
    told = ", ".join(f"{seconds:.2f} s at {size:,}" for size, seconds in per_unit.items())
    reference = UNIT if UNIT in sizes else sizes[-1]
    opened = ", ".join(f"{_seconds(measured, _opening(size)):.3f} s at {size:,}" for size in sizes)
    return [
        measure.claim(
            f"shallow reconcile per 100,000 segments, at {reference:,},", per_unit[reference], RECONCILE_SECONDS, "s"
        ),
        measure.claim(
            f"cost of a segment at {sizes[-1]:,} against {sizes[0]:,}, linear means",
            per_unit[sizes[-1]] / per_unit[sizes[0]],
            GROWTH_MAX,
            "x",
        ),
        measure.claim(
            f"opening with {reference:,} segments,", _seconds(measured, _opening(reference)), OPEN_SECONDS, "s"
        ),
        f"reconcile per 100,000 segments: {told}; opening: {opened}",
    ]


def _reconciling(size: int) -> str:
    return f"reconcile {size:,} segments"


def _opening(size: int) -> str:
    return f"open with {size:,} segments"


def _seconds(measured: Measured, name: str) -> float:
    return statistics.median(sample.seconds for sample in measured.samples[name])


def _timed(call: Callable[[], Result]) -> tuple[Result, float]:
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


# --- making the log -----------------------------------------------------------------------------------------


@contextmanager
def _log_of(path: Path, count: int) -> Iterator[Path]:
    """A closed log with so many segments in its manifest, and a hole for each file; removed afterwards."""
    try:
        with material.opened(path) as log:
            log.topic(TOPIC)
            log_id = bytes.fromhex(log.id)
        backend = SqliteBackend(path / "durable.db")
        try:
            _fill(backend, log_id, count)
        finally:
            backend.close()
        _make_holes(path / "segments" / layout.segments_folder(TOPIC, 0), count)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _fill(backend: SqliteBackend, log_id: bytes, count: int) -> None:
    """Manifest, watermark, head and the log's own row, as that many seals and trims would have left them."""
    vault = Vault(log_id)
    with backend.tables() as tables:
        control = tables.control_rows(newest=1)
    row, (head,) = control.log, control.heads
    assert row is not None
    backend.begin()
    lows: list[int] = []
    for number in range(count):
        segment = _segment_row(head.partition_id, number, row.epoch, lows)
        backend.insert_segment(stamped(segment, vault))
    head = stamped(head._replace(next_offset=count * ROWS), vault)
    backend.store_heads([head])
    watermark = unsealed(head.partition_id)._replace(
        segments=count, sealed_offset=count * ROWS, chain=_digest("chain", count - 1)
    )
    watermark = stamped(watermark, vault)
    backend.store_watermark(watermark)
    row = row._replace(segments=count, heads=total(vault.stamp, [head.stamp, watermark.stamp]))
    backend.store_log(stamped(row, vault), row.epoch)
    backend.commit()


def _segment_row(partition_id: int, number: int, epoch: int, lows: list[int]) -> SegmentRow:
    """The row of one segment; `lows` remembers the ranges of those before."""
    time_min, time_max = number * ROWS, number * ROWS + ROWS - 1
    low, high = time_tree.combine(
        (time_min, time_max), ((lows[child], child * ROWS + ROWS - 1) for child in time_tree.children(number))
    )
    lows.append(low)
    return SegmentRow(
        partition_id=partition_id,
        number=number,
        first_offset=number * ROWS,
        rows=ROWS,
        size=SIZE,
        time_min=time_min,
        time_max=time_max,
        low=low,
        high=high,
        sha256=_digest("sha256", number),
        content=_digest("content", number),
        footer=_digest("footer", number)[:16],
        chain=_digest("chain", number),
        schema=NO_SCHEMA,
        key_id="",
        epoch=epoch,
        sealed_us=time_max,
        state=LIVE,
        key_epoch=0,
        stamp=b"",
    )


def _digest(what: str, number: int) -> bytes:
    """Bytes that stand for a hash of a file that is not there."""
    return hashlib.sha256(f"{what} {number}".encode()).digest()


def _make_holes(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        name = layout.segment_name(number, _digest("sha256", number))
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(descriptor, SIZE)
        os.close(descriptor)
