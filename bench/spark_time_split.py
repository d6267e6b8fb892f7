"""Where the time of a query through the format goes, told when a bar is missed.

The tasks that Spark would run are planned and read here, in one process, one after the other, without Spark: what that
takes is ours (reading, proving, decoding, shaping). Spread over the cores of the session, it is what a query would take
if nothing came on top; what comes on top is the way of the rows through a socket into the JVM, and the JVM itself.
The steps are told apart by a profiler that counts the time inside of single functions; what it adds to few large calls
is small.
"""

from __future__ import annotations

import cProfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from bench.spark_session import CORES
from pyspark_holdfast.batch import BatchReader
from pyspark_holdfast.source import HoldfastSource

_STEPS = {
    "read": ("posix.pread", "posix.read"),
    "prove": ("hash_block",),
    "decrypt": ("AESGCM", "ChaCha20"),
    "decode": ("_decode_rows", "read_row_group", "decrypt_block", "decompress"),
    "shape": ("shape", "made", "select"),
}
"""Functions, by parts of their names, that do the work of a step themselves."""
_CALLS_TOLD, _SECONDS_TOLD = 6, 0.005


@dataclass(frozen=True, slots=True)
class Split:
    """What a query costs without Spark."""

    planning: float
    tasks: int
    reading: float
    steps: dict[str, float]

    def told(self, name: str, seconds: float) -> str:
        """As a line, beside the seconds that the query took."""
        steps = ", ".join(f"{step} {spent:.2f}" for step, spent in self.steps.items())
        rest = seconds - self.planning - self.reading / CORES
        return (
            f"where time goes, {name}: {seconds:.2f} s; planning {self.planning:.3f}, {self.tasks} tasks;"
            f" without Spark {self.reading:.2f} on one core ({steps}), so {self.reading / CORES:.2f} on {CORES};"
            f" transfer, JVM and scheduling {rest:.2f}"
        )


def split(options: Mapping[str, str]) -> Split:
    """Plan and read what these options ask for, twice: on the clock, and under the profiler."""
    threads = pa.cpu_count()
    pa.set_cpu_count(1)  # as a task has it
    try:
        began = time.perf_counter()
        reader = _reader(options)
        tasks = reader.partitions()
        planned = time.perf_counter()
        rows = _read(reader)
        reading = time.perf_counter() - planned
        with cProfile.Profile() as profile:
            rows -= _read(reader)
        assert rows == 0
        return Split(planned - began, len(tasks), reading, _steps(profile))
    finally:
        pa.set_cpu_count(threads)


def _reader(options: Mapping[str, str]) -> BatchReader:
    source = HoldfastSource(dict(options))
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return reader


def _read(reader: BatchReader) -> int:
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))


def _steps(profile: cProfile.Profile) -> dict[str, float]:
    steps = dict.fromkeys((*_STEPS, "other"), 0.0)
    for name, seconds in _calls(profile):
        steps[next((step for step, names in _STEPS.items() if any(part in name for part in names)), "other")] += seconds
    return {step: spent for step, spent in steps.items() if spent >= _SECONDS_TOLD}


def _calls(profile: cProfile.Profile) -> Iterator[tuple[str, float]]:
    """Functions, and the seconds that each spent itself."""
    for entry in profile.getstats():
        name = entry.code if isinstance(entry.code, str) else entry.code.co_qualname
        yield name, entry.inlinetime


def planning(options: Mapping[str, str]) -> str:
    """The functions in which planning spends its time, as a line."""
    with cProfile.Profile() as profile:
        _reader(options).partitions()
    most = sorted(_calls(profile), key=lambda call: call[1], reverse=True)[:_CALLS_TOLD]
    return "where time goes, planning: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in most)
