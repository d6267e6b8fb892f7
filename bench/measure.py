"""The harness that every contestant runs in: drive, interleave, compare, keep.

Measured: acknowledged durable appends per second of a 200-byte payload in a closed loop. Each of `c`
producers waits for its own acknowledgement before its next append, so at most `c` appends are under way. The
clock (`time.perf_counter`) starts after connections are open and every producer has had one append
acknowledged, and stops at the last acknowledgement. CPU is that of this process alone: the client for a
server, everything for a library.

What would be unfair, and is not done here:

- running A to the end and then B: rounds are interleaved (A, B, C, A, B, C ...), because the disk and the
  neighbours of a shared machine drift by more than most differences;
- one lucky sample: at least three rounds, the median counts, and the minimum and maximum are printed beside
  it;
- a file system in memory, where a sync costs nothing: `workspace` refuses it;
- a loop of our own for ourselves: rivals and journal go through the same `drive_tasks` and `drive_threads`.

What stays unfair, in favour of an embedded log: a server pays a socket round trip and a Python client. The
columns `CPU us/row` and `cores` show how much of a figure is the client, and bracketed contestants (pgbench,
redis-benchmark) show what the server does for a client in C.

Nothing here asserts a time. A bar that is not reached prints MISS and the process still ends with 0.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import platform
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal

import apsw

PAYLOAD = random.Random(200).randbytes(200)
PRODUCERS = 64
ROUNDS_MIN = 3
GRACE_SECONDS = 30.0  # what a sample may take beyond its time before it is given up
RESULTS = Path(__file__).parent / "results"
MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})

Stamps = Sequence[float]
AppendTask = Callable[[], Awaitable[object]]
AppendThread = Callable[[], object]
Latency = Literal["p50_ms", "p99_ms", "p999_ms"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks of a bench."""

    quick: bool = False
    rounds: int = 5
    seconds: float = 2.0
    directory: Path | None = None
    full: bool = False
    """Also what takes many minutes and proves growth only."""
    only: tuple[str, ...] = ()
    """Parts to run, of a bench that knows them by name; all if empty."""

    def __post_init__(self) -> None:
        if self.rounds < ROUNDS_MIN:
            raise ValueError(f"a median needs at least {ROUNDS_MIN} rounds; rounds={self.rounds}")
        if self.seconds <= 0:
            raise ValueError(f"a sample needs time; seconds={self.seconds}")


def wanted(parts: Iterable[str], options: Options) -> Sequence[str]:
    """The parts that are asked for, or all of them; ends the program where there is no such part."""
    names = list(parts)
    unknown = [name for name in options.only if name not in names]
    if unknown:
        raise SystemExit(f"there is no part {', '.join(unknown)}; there are: {', '.join(names)}")
    return options.only or names


@dataclass(frozen=True, slots=True)
class Sample:
    """One contestant in one round. `None` where a foreign tool does not report the value."""

    name: str
    rows: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_seconds: float | None = None
    p999_ms: float | None = None

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_us_per_row(self) -> float | None:
        return None if self.cpu_seconds is None else self.cpu_seconds / self.rows * 1e6

    @property
    def cores(self) -> float | None:
        return None if self.cpu_seconds is None else self.cpu_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Contestant:
    """A name and a way to take one sample of the given length."""

    name: str
    run: Callable[[float], Sample]


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise: `subject` does at least `at_least` times the rows per second of `rival`."""

    subject: str
    rival: str
    at_least: float


@dataclass(slots=True)
class Measured:
    """All samples of a bench by contestant, in the order of the rounds."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        self.samples.setdefault(sample.name, []).append(sample)

    def rates(self, name: str) -> list[float]:
        return [sample.rate for sample in self.samples[name]]

    def median(self, name: str) -> float:
        return statistics.median(self.rates(name))

    def ratio(self, subject: str, rival: str) -> float:
        """Median against median."""
        return self.median(subject) / self.median(rival)

    def latency_ratio(self, subject: str, rival: str, which: Latency) -> float:
        """How much longer one waits than the other, median against median; nothing where it was not measured."""
        return self._latency(subject, which) / self._latency(rival, which)

    def _latency(self, name: str, which: Latency) -> float:
        found = [getattr(sample, which) for sample in self.samples[name]]
        return statistics.median(value for value in found if value is not None)

    def ratios_by_round(self, subject: str, rival: str) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.rates(subject), self.rates(rival), strict=True)]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bench that has several: what was measured, what is promised of it, what else is to be said."""

    title: str
    measured: Measured
    bars: Sequence[Bar] = ()
    claims: Sequence[str] = ()
    references: Sequence[str] = ()
    """Contestants that the table compares all others with."""


# --- drive --------------------------------------------------------------------------------------------------


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of an ascending sequence."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def sample_of(name: str, stamps: Sequence[Stamps], cpu_seconds: float, rows_per_stamp: int = 1) -> Sample:
    """A sample from each producer's clock readings: its start, then one at every acknowledgement."""
    latencies = sorted(chain.from_iterable((b - a for a, b in pairwise(own)) for own in stamps))
    if not latencies:
        raise RuntimeError(f"no append was acknowledged; contestant={name}")
    seconds = max(own[-1] for own in stamps) - min(own[0] for own in stamps)
    return Sample(
        name=name,
        rows=len(latencies) * rows_per_stamp,
        seconds=seconds,
        p50_ms=percentile(latencies, 0.50) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        cpu_seconds=cpu_seconds,
        p999_ms=percentile(latencies, 0.999) * 1e3,
    )


async def drive_tasks(name: str, appends: Sequence[AppendTask], seconds: float) -> Sample:
    """Run one asyncio producer per element of `appends` until the time is over."""
    try:
        async with asyncio.timeout(seconds + GRACE_SECONDS):
            await asyncio.gather(*(_once(append) for append in appends))
            cpu = time.process_time()
            deadline = time.perf_counter() + seconds
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_produce_in_task(append, deadline)) for append in appends]
            cpu = time.process_time() - cpu
    except TimeoutError as late:
        raise _overdue(name, seconds) from late
    return sample_of(name, [task.result() for task in tasks], cpu)


async def _once(append: AppendTask) -> None:
    await append()


async def _produce_in_task(append: AppendTask, deadline: float) -> list[float]:
    stamps = [time.perf_counter()]
    while stamps[-1] < deadline:
        await append()
        stamps.append(time.perf_counter())
    return stamps


def drive_threads(name: str, appends: Sequence[AppendThread], seconds: float) -> Sample:
    """Run one thread per element of `appends` until the time is over."""
    crew = _Crew(seconds, len(appends))
    threads = [threading.Thread(target=crew.produce, args=(append,), daemon=True) for append in appends]
    for thread in threads:
        thread.start()
    give_up = time.perf_counter() + seconds + GRACE_SECONDS
    for thread in threads:
        thread.join(max(0.0, give_up - time.perf_counter()))
    cpu = time.process_time() - crew.cpu_begun
    if crew.failures:
        raise crew.failures[0]
    if any(thread.is_alive() for thread in threads):
        raise _overdue(name, seconds)
    return sample_of(name, crew.stamps, cpu)


def _overdue(name: str, seconds: float) -> TimeoutError:
    return TimeoutError(f"producers did not come back; contestant={name} seconds={seconds + GRACE_SECONDS:g}")


class _Crew:
    """Threads that start together, share a deadline and leave their clock readings or the first failure."""

    def __init__(self, seconds: float, count: int) -> None:
        self.seconds = seconds
        self.deadline = 0.0
        self.cpu_begun = 0.0
        self.stamps: list[list[float]] = []
        self.failures: list[BaseException] = []
        self.gate = threading.Barrier(count, action=self.begin, timeout=GRACE_SECONDS)

    def begin(self) -> None:
        self.cpu_begun = time.process_time()
        self.deadline = time.perf_counter() + self.seconds

    def produce(self, append: AppendThread) -> None:
        try:
            append()
            self.gate.wait()
            self.stamps.append(_produce_in_thread(append, self.deadline))
        except BaseException as failure:  # handed to the thread that drives
            self.failures.append(failure)
            self.gate.abort()


def _produce_in_thread(append: AppendThread, deadline: float) -> list[float]:
    stamps = [time.perf_counter()]
    while stamps[-1] < deadline:
        append()
        stamps.append(time.perf_counter())
    return stamps


# --- rounds -------------------------------------------------------------------------------------------------


def interleave(contestants: Sequence[Contestant], options: Options) -> Measured:
    """Let every contestant take one sample per round, always in the same order; report each sample."""
    measured = Measured()
    for number in range(1, options.rounds + 1):
        for contestant in contestants:
            gc.collect()
            sample = contestant.run(options.seconds)
            measured.add(sample)
            place = f"round {number}/{options.rounds}"
            print(f"{place}  {sample.name:<32} {sample.rate:>12,.0f} rows/s", flush=True)
    return measured


@contextmanager
def workspace(options: Options) -> Iterator[Path]:
    """A directory on a real disk for all contestants, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=options.directory))
    try:
        kind = filesystem(path)
        if kind in MEMORY_FILESYSTEMS:
            raise RuntimeError(f"a sync costs nothing here, name a disk by --directory; filesystem={kind}")
        path.chmod(0o711)  # a server that must not be root has to reach its own directory in here
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# --- report -------------------------------------------------------------------------------------------------


def table(measured: Measured, references: Sequence[str] = ()) -> str:
    """Plain text: one line per contestant, one ratio column per reference that was measured."""
    present = [name for name in references if name in measured.samples]
    head = ["contestant", "rows/s", "[min-max]", "p50 ms", "p99 ms", "p99.9 ms", "CPU us/row", "cores"]
    lines = [head + [f"x {name}" for name in present]]
    for name, samples in measured.samples.items():
        lines.append(_line(name, samples) + [f"{measured.ratio(name, other):.2f}" for other in present])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _line(name: str, samples: Sequence[Sample]) -> list[str]:
    rates = [sample.rate for sample in samples]
    return [
        name,
        f"{statistics.median(rates):,.0f}",
        f"[{min(rates):,.0f}-{max(rates):,.0f}]",
        _median_text([sample.p50_ms for sample in samples], 2),
        _median_text([sample.p99_ms for sample in samples], 2),
        _median_text([sample.p999_ms for sample in samples], 2),
        _median_text([sample.cpu_us_per_row for sample in samples], 1),
        _median_text([sample.cores for sample in samples], 2),
    ]


def _median_text(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.{digits}f}" if known else "-"


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        text.ljust(width) if n == 0 else text.rjust(width)
        for n, (text, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join([first, *others]).rstrip()


def verdict(measured: Measured, bar: Bar) -> str:
    """One line: the bar, the ratio reached, the ratios of single rounds, PASS or MISS."""
    promise = f"bar: {bar.subject} at least {bar.at_least:g} x {bar.rival}"
    missing = [name for name in (bar.subject, bar.rival) if name not in measured.samples]
    if missing:
        return f"{promise}: not measured, absent={','.join(missing)}"
    reached = measured.ratio(bar.subject, bar.rival)
    rounds = measured.ratios_by_round(bar.subject, bar.rival)
    word = "PASS" if reached >= bar.at_least else "MISS"
    return f"{promise}: reached {reached:.2f} x [{min(rounds):.2f}-{max(rounds):.2f} by round] {word}"


def claim(text: str, reached: float, bound: float, unit: str, *, at_least: bool = False) -> str:
    """A bar that is not a ratio of rates, as a line."""
    word = "PASS" if (reached >= bound if at_least else reached <= bound) else "MISS"
    direction = "at least" if at_least else "at most"
    return f"bar: {text} {direction} {bound:,g} {unit}: reached {reached:,.2f} {unit} {word}"


def report(part: Part) -> str:
    """A part's table, its bars and its claims."""
    bars = [verdict(part.measured, bar) for bar in part.bars]
    tables = [table(part.measured, part.references)] if part.measured.samples else []
    return "\n".join(["", f"--- {part.title}", *tables, *bars, *part.claims])


# --- keep ---------------------------------------------------------------------------------------------------


def filesystem(path: Path) -> str:
    """The type of the file system that holds `path`, or "unknown" where the kernel does not tell."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    resolved = path.resolve()
    holding = [(point, kind) for point, kind in mounts if resolved.is_relative_to(point)]
    # The longest mount point is the nearest one; of equal ones the last mounted hides the others.
    return max(reversed(holding), key=lambda mount: len(mount[0]), default=("", "unknown"))[1]


def machine(directory: Path) -> dict[str, str | int | float]:
    """Facts that a figure depends on; nothing that names the machine or its user."""
    return {
        "cores": os.cpu_count() or 0,
        "architecture": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": apsw.sqlite_lib_version(),
        "filesystem": filesystem(directory),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def save(
    name: str, measured: Measured, facts: Mapping[str, object], *, bars: Sequence[Bar] = (), remarks: Sequence[str] = ()
) -> Path:
    """Write every sample, the bars as printed and the facts to `bench/results/<name>-<timestamp>.json`."""
    now = datetime.now(UTC)
    content = {
        "bench": name,
        "time": now.isoformat(timespec="seconds"),
        "machine": dict(facts),
        "payload_bytes": len(PAYLOAD),
        "samples": {key: [asdict(sample) for sample in samples] for key, samples in measured.samples.items()},
        "bars": [verdict(measured, bar) for bar in bars],
        "remarks": list(remarks),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def save_parts(name: str, parts: Sequence[Part], facts: Mapping[str, object]) -> None:
    """Keep all parts of a bench in one file, and say where."""
    path = save(name, _together(parts), facts, bars=_bars(parts), remarks=[c for part in parts for c in part.claims])
    print(f"saved as bench/results/{path.name}")


def conclude(name: str, parts: Sequence[Part], facts: Mapping[str, object]) -> None:
    """Print the bars of all parts once more, and keep everything."""
    print("--- all bars", *(verdict(_together(parts), bar) for bar in _bars(parts)), sep="\n")
    print(*(claim for part in parts for claim in part.claims if claim.startswith("bar: ")), sep="\n")
    save_parts(name, parts, facts)


def _together(parts: Sequence[Part]) -> Measured:
    return Measured({name: samples for part in parts for name, samples in part.measured.samples.items()})


def _bars(parts: Sequence[Part]) -> list[Bar]:
    return [bar for part in parts for bar in part.bars]
