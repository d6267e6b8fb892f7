"""Single typed rows, as many processes have them, on their way into one Delta table: what holdfast is for.

- `rows`: 64 coroutines append one typed row after the other, beside 64 that append raw records of the same bytes; and
  sealing the tail that either leaves, beside the other. The processor's time per row is what a busy machine shows best.
- `wedge`: eight processes with eight tasks each append single rows with `share=True`; then the log is sealed, and the
  clock stops when a published Delta table has every row. Beside it `deltalake`, where each row is a commit to the
  table, tried again when another process was first; and PostgreSQL with a connection per task, each INSERT a
  transaction of its own, whose rows are copied into a Delta table at the end (COPY, one commit).

Rows per second count from the first append to the table; p99 is that of an append. Failed tries are exceptions that a
program would have to handle. `deltalake` gets one task per process: more of them only fail more often.

In favour of PostgreSQL and `deltalake`: neither syncs what it writes as a table at the end, holdfast does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast
from bench import measure
from bench.measure import GRACE_SECONDS, PRODUCERS, Bar, Contestant, Measured, Options, Part, Sample
from bench.rivals.server import Absent
from bench.wedge_chart import CHART, Way, chart
from holdfast import Settings

PROCESSES = 8
TASKS = PRODUCERS // PROCESSES
CPU_AT_MOST_US, SEALING_AT_LEAST, POSTGRESQL_AT_LEAST = 15.0, 0.5, 1.0
HOLDFAST, DELTALAKE, POSTGRESQL = "holdfast, share=True", "deltalake", "postgresql + COPY"
SCHEMA = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64())])
QUIET = {"segments": {"seal_on_close": False, "rows_max": 10_000_000, "bytes_max": 2**30, "age_max_ms": 3_600_000}}
INSERT = "INSERT INTO orders(id, customer, amount) VALUES (%s, %s, %s)"


def row(number: int) -> dict[str, object]:
    """The same for everybody."""
    return {"id": number, "customer": f"customer-{number % 1000}", "amount": number * 0.25}


# -- one process ---------------------------------------------------------------------------------------------


def rows(scratch: Path, options: Options) -> Part:
    """Single rows and raw records of 64 tasks, and sealing what they leave."""
    appending = [Contestant(name, partial(_append, scratch, name)) for name in ("raw records", "typed rows")]
    measured = measure.interleave(appending, options)
    sealing = measure.interleave(
        [Contestant(f"sealing {name}", partial(_seal, scratch, name)) for name in _MAKES], options
    )
    # The least of all rounds: neighbours only add to it.
    cpu = min(sample.cpu_us_per_row or 0.0 for sample in measured.samples["typed rows"])
    return Part(
        "single rows of 64 tasks, and sealing them",
        Measured({**measured.samples, **sealing.samples}),
        bars=[Bar("sealing typed rows", "sealing raw records", SEALING_AT_LEAST)],
        claims=[measure.claim("the processor's time of a single typed row", cpu, CPU_AT_MOST_US, "us")],
    )


def _typed(log: holdfast.Log) -> Callable[[int], Any]:
    topic = log.topic("orders", schema=SCHEMA)
    return lambda number: topic.submit(row(number))


def _raw(log: holdfast.Log) -> Callable[[int], Any]:
    topic = log.topic("raw")
    return lambda number: topic.submit(b"%056d" % number)


_MAKES = {"raw records": _raw, "typed rows": _typed}


def _append(scratch: Path, name: str, seconds: float) -> Sample:
    with _fresh(scratch) as path, holdfast.open(path / "log", settings=Settings.from_mapping(QUIET)) as log:
        return asyncio.run(_driven(name, _MAKES[name](log), PRODUCERS, seconds))


async def _driven(name: str, put: Callable[[int], Any], tasks: int, seconds: float, first: int = 0) -> Sample:
    numbers = iter(range(first, 2**62))
    return await measure.drive_tasks(name, [lambda: put(next(numbers))] * tasks, seconds)


def _seal(scratch: Path, name: str, seconds: float) -> Sample:
    with _fresh(scratch) as path, holdfast.open(path / "log", settings=Settings.from_mapping(QUIET)) as log:
        count = asyncio.run(_driven(name, _MAKES[name](log), PRODUCERS, seconds)).rows + PRODUCERS
        began, cpu = time.perf_counter(), time.process_time()
        log.seal(timeout=GRACE_SECONDS)
        return Sample(f"sealing {name}", count, time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)


# -- eight processes -----------------------------------------------------------------------------------------


def wedge(scratch: Path, options: Options) -> Part:
    """Eight processes, one table, three ways."""
    contestants = [Contestant(HOLDFAST, partial(_wedge_of, scratch, _Holdfast()))]
    claims: list[str] = []
    try:
        from bench.rivals.postgresql import PostgreSQL

        server = PostgreSQL()
        server.start(scratch / "postgresql")
        contestants.append(Contestant(POSTGRESQL, partial(_wedge_of, scratch, _Copied(server))))
    except (Absent, ImportError) as absence:
        server = None
        claims.append(f"not measured: {POSTGRESQL}: {absence}")
    contestants.append(Contestant(DELTALAKE, partial(_wedge_of, scratch, _Deltalake())))
    _TALLIES.clear()
    try:
        measured = measure.interleave(contestants, options)
    finally:
        if server is not None:
            server.stop()
    claims += [
        f"{name}: {count:,} rows, {files:,} files, {failed:,} failed tries" for name, count, files, failed in _TALLIES
    ]
    bars = [Bar(HOLDFAST, POSTGRESQL, POSTGRESQL_AT_LEAST)] if server is not None else []
    if server is not None and not options.quick:
        _draw(measured, measure.machine(scratch))
    return Part("eight processes, single rows into one Delta table", measured, bars=bars, claims=claims)


_TALLIES: list[tuple[str, int, int, int]] = []
"""What a sample says beside its rate: rows, files and failed tries."""


def _draw(measured: Measured, facts: Mapping[str, object]) -> None:
    """The README's chart, of this run: of each way the round whose rate is the middle one."""
    ways = []
    for name, samples in measured.samples.items():
        middle = sorted(samples, key=lambda sample: sample.rate)[len(samples) // 2]
        tallies = [tally[1:] for tally in _TALLIES if tally[0] == name]
        _, files, failed = tallies[samples.index(middle)]
        ways.append(Way(name, middle.rate, middle.p99_ms or 0.0, failed, files))
    CHART.write_text(chart(ways, facts, datetime.now(UTC).date().isoformat()), encoding="utf-8")
    print(f"drawn: {CHART}")


class _Holdfast:
    name = HOLDFAST
    tasks = TASKS

    def prepare(self, path: Path) -> str:
        self._log = holdfast.open(path / "log", share=True, settings=Settings.from_mapping(QUIET))
        self._log.topic("orders", schema=SCHEMA)
        return str(path / "log")

    def finish(self, path: Path) -> Path:
        self._log.seal(timeout=GRACE_SECONDS)
        (report,) = holdfast.publish_tables(path / "log", "orders")
        return Path(report.table.removeprefix("file://"))

    def end(self) -> None:
        self._log.close()


class _Deltalake:
    name = DELTALAKE
    tasks = 1

    def prepare(self, path: Path) -> str:
        from deltalake import DeltaTable

        DeltaTable.create(path / "table", SCHEMA)
        return str(path / "table")

    def finish(self, path: Path) -> Path:
        return path / "table"

    def end(self) -> None:
        pass


class _Copied:
    name = POSTGRESQL
    tasks = TASKS

    def __init__(self, server: Any) -> None:
        self._server = server

    def prepare(self, path: Path) -> str:
        admin = self._server._admin
        admin.execute("DROP TABLE IF EXISTS orders")
        admin.execute("CREATE TABLE orders(seq bigserial PRIMARY KEY, id bigint, customer text, amount float8)")
        return str(self._server._address)

    def finish(self, path: Path) -> Path:
        from deltalake import write_deltalake
        from pyarrow import csv

        with self._server._admin.cursor().copy("COPY (SELECT id, customer, amount FROM orders) TO STDOUT CSV") as copy:
            content = b"".join(copy)
        found = csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(column_names=SCHEMA.names),
            convert_options=csv.ConvertOptions(column_types=SCHEMA),
        )
        write_deltalake(path / "table", found, mode="append")
        return path / "table"

    def end(self) -> None:
        self._server._settle()


@contextmanager
def _fresh(scratch: Path) -> Iterator[Path]:
    """A place for one sample, removed afterwards."""
    with tempfile.TemporaryDirectory(dir=scratch) as path:
        yield Path(path)


def _wedge_of(scratch: Path, way: Any, seconds: float) -> Sample:
    """Workers that are ready before the clock starts; it stops when the table has what they wrote."""
    with _fresh(scratch) as path:
        place = way.prepare(path)
        workers = [_worker(way.name, place, way.tasks, number) for number in range(PROCESSES)]
        try:
            for one in workers:
                _answer(one)
            began = time.perf_counter()
            for one in workers:
                _tell(one, str(seconds))
            told = [json.loads(_answer(one)) for one in workers]
            table = way.finish(path)
            taken = time.perf_counter() - began
            count = sum(one["rows"] for one in told)
            _require_rows(table, count)
        finally:
            for one in workers:
                one.kill()
                one.communicate()
            way.end()
        failed = sum(one["failed"] for one in told)
        files = sum(1 for found in table.rglob("*.parquet") if "_delta_log" not in found.parts)
        _TALLIES.append((way.name, count, files, failed))
        p50, p99 = (max(one[name] for one in told) for name in ("p50_ms", "p99_ms"))
        return Sample(way.name, count, taken, p50, p99, sum(one["cpu"] for one in told))


def _require_rows(table: Path, count: int) -> None:
    from deltalake import DeltaTable

    found = DeltaTable(table).to_pyarrow_dataset().count_rows()
    if found != count:
        raise RuntimeError(f"the table has other rows than were acknowledged; found={found} acknowledged={count}")


def _worker(name: str, place: str, tasks: int, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.wedge", name, place, str(tasks), str(number)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.getcwd())


def _tell(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(line + "\n")
    worker.stdin.flush()


def _answer(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError("a process of the bench has ended")
    return line


# -- one of the eight ----------------------------------------------------------------------------------------


def work(name: str, place: str, tasks: int, number: int) -> None:
    """Be ready, wait for how long, append, and say what came of it."""
    first = number * 10**12
    if name == HOLDFAST:
        with holdfast.open(place, share=True, settings=Settings.from_mapping(QUIET)) as log:
            topic = log.topic("orders", schema=SCHEMA)
            sample = asyncio.run(_driven(name, lambda one: topic.submit(row(one)), tasks, _ready(), first))
            _say(sample, 0, tasks)
            sys.stdin.readline()
        return
    failures: list[int] = []
    appends = _appends(name, place, tasks, first, failures)
    sample = measure.drive_threads(name, appends, _ready())
    _say(sample, len(failures), tasks)


def _appends(name: str, place: str, tasks: int, first: int, failures: list[int]) -> Sequence[Callable[[], object]]:
    numbers, lock = iter(range(first, 2**62)), threading.Lock()

    def number() -> int:
        with lock:
            return next(numbers)

    if name == DELTALAKE:
        return [partial(_commit, place, number, failures)]
    import psycopg

    cursors = [psycopg.connect(place, autocommit=True).cursor() for _ in range(tasks)]
    return [partial(_insert, cursor, number) for cursor in cursors]


def _insert(cursor: Any, number: Callable[[], int]) -> None:
    cursor.execute(INSERT, tuple(row(number()).values()), prepare=True)


def _commit(place: str, number: Callable[[], int], failures: list[int]) -> None:
    from deltalake import write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError

    found = pa.Table.from_pylist([row(number())], schema=SCHEMA)
    while True:
        try:
            write_deltalake(place, found, mode="append")
            return
        except (CommitFailedError, DeltaError):
            failures.append(1)


def _ready() -> float:
    print("ready", flush=True)
    return float(sys.stdin.readline())


def _say(sample: Sample, failed: int, warm: int) -> None:
    """`warm`: every task has appended once before the clock started."""
    said = {"rows": sample.rows + warm, "p50_ms": sample.p50_ms, "p99_ms": sample.p99_ms, "cpu": sample.cpu_seconds}
    print(json.dumps({**said, "failed": failed}), flush=True)


PARTS = {"rows": rows, "wedge": wedge}


def main(options: Options) -> None:
    """Run the parts that are asked for, print tables and verdicts, keep the samples."""
    done: list[Part] = []
    with measure.workspace(options) as directory:
        facts = measure.machine(directory)
        for name in measure.wanted(PARTS, options):
            part = PARTS[name](directory, options)
            print(measure.report(part), "", sep="\n", flush=True)
            done.append(part)
    measure.conclude("wedge", done, facts)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
