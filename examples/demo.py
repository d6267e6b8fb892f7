"""Append in a burst, kill -9 it in the middle, reopen, account for every record, ship, damage, find it, restore.

    script/demo [--seconds 2] [--directory DIR] [--plot demo-marks.png] [--report demo-report.html]
    script/demo --s3                  another one, with an S3 server that is pulled the plug on (demo_s3.py)

A child process appends from 64 coroutines, encrypted, and writes down each acknowledgement; the parent kills it
without warning. Then the log is opened again: every acknowledged record must be there, once, where its
receipt said. What was not acknowledged may be there or not. The child seals segments as it goes, so records are read
from segments and from the journal's tail as one stream.

Then everything is sealed and shipped to a store, a directory beside the log. One byte of one segment is flipped and
another segment is taken away: reconciliation must find both, and nothing else. Then the log is restored from its
store into a new directory, where every record must be again.

Then Spark reads the store of another log while that is being written (demo_spark.py), and draws how far it was. Last,
a pipeline makes two Delta tables of what was read (demo_tables.py), writes its report, and Polars reads a table back.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples import demo_spark, demo_tables

import holdfast
import pyspark_holdfast
from holdfast import Keyring, Settings

PRODUCERS = 64

Records = dict[tuple[int, int], bytes]
"""Payloads by partition and offset."""


def burst(directory: Path) -> None:
    """The child: append until it is killed, telling each acknowledgement on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word
    settings = Settings.from_mapping({"segments": {"rows_max": 1_000}})
    log = holdfast.open(directory / "log", keyring=keyring(directory), settings=settings)
    orders = log.topic("orders", partitions=4)

    async def produce(name: int) -> None:
        number = 0
        while True:
            payload = b"order %d of producer %d" % (number, name)
            receipt = await orders.submit(payload, key=b"customer %d" % name)
            os.write(1, b"%d %d %s\n" % (receipt.partition, receipt.offset, payload))
            number += 1

    async def produce_all() -> None:
        await asyncio.gather(*(produce(name) for name in range(PRODUCERS)))

    asyncio.run(produce_all())


def keyring(directory: Path) -> Keyring:
    """The key of this demonstration."""
    return Keyring.from_file(directory / "keyring")


def run_and_kill(directory: Path, seconds: float) -> Records:
    """Start the child, let it work, kill it; returns what it was acknowledged for."""
    notes = directory / "acknowledged"
    with notes.open("wb") as stream:
        command = [sys.executable, "-m", "examples.demo", "--burst", str(directory)]
        child = subprocess.Popen(command, stdout=stream)  # noqa: S603
        try:
            while notes.stat().st_size == 0 and child.poll() is None:
                time.sleep(0.01)
            time.sleep(seconds)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    lines = notes.read_bytes().split(b"\n")[:-1]
    return {(int(p), int(o)): payload for p, o, payload in (line.split(b" ", 2) for line in lines)}


def account(directory: Path, acknowledged: Records) -> bool:
    """Reopen and compare; True when nothing is missing, doubled or moved."""
    began = time.perf_counter()
    with holdfast.open(directory / "log", keyring=keyring(directory)) as log:
        opened = time.perf_counter()
        orders = log.topic("orders")
        found = records_of(log)
        lost = [place for place, payload in acknowledged.items() if found.get(place) != payload]
        doubled = len(found) - len(set(found.values()))
        receipt = orders.append(b"and on it goes")
        print(f"   reopened in {1000 * (opened - began):.0f} ms; durable: {len(found):,} records")
        print(f"   acknowledged and missing or moved: {len(lost)}; there twice: {doubled}")
        for number, mark in enumerate(log.marks("orders")):
            print(f"   orders/{number}: durable {mark.durable:,}  sealed {mark.sealed:,}")
        print(f"   appended one more: {receipt}")
    secret = any(b"order 0 of" in path.read_bytes() for path in (directory / "log").rglob("*") if path.is_file())
    print(f"   plain text found in the files: {'YES' if secret else 'no'}")
    return not lost and not doubled and not secret


def records_of(log: holdfast.Log) -> Records:
    """Everything that can be read."""
    return {(record.partition, record.offset): record.payload for record in log.topic("orders").read()}


def seal_and_ship(directory: Path) -> tuple[Records, bool]:
    """Seal everything, read it as Arrow, and bring it to the store; returns all records, and whether they are good."""
    with holdfast.open(directory / "log", store=directory / "store", keyring=keyring(directory)) as log:
        records = records_of(log)
        log.seal()
        table = log.topic("orders").read().to_arrow()
        segments = log.stats().segments.segments
        whole = table.num_rows == len(records)
        print(f"   {table.num_rows:,} records in {segments} segments, read as Arrow: {whole}")
        report = log.reconcile(deep=True)
        print(f"   reconciled deeply: {report.segments} segments, findings: {len(report.findings)}")
        began = time.perf_counter()
        log.ship(60)
        shipping = log.stats().shipping
        assert shipping is not None
        print(f"   shipped {shipping.objects_total} objects, {shipping.bytes_total / 2**20:.1f} MiB, in", end=" ")
        print(f"{time.perf_counter() - began:.1f} s; list price on a cloud: ${shipping.dollars:.4f}")
        marks = log.marks("orders")
        for number, mark in enumerate(marks):
            print(f"   orders/{number}: durable {mark.durable:,}  shipped {mark.shipped:,}  settled {mark.settled:,}")
        settled = all(mark.settled == mark.durable for mark in marks)
    return records, whole and report.clean and settled


def damage(directory: Path) -> bool:
    """Plant damage and let reconciliation find it; True when it found all of it, and nothing else."""
    with holdfast.open(directory / "log", store=directory / "store", keyring=keyring(directory)) as log:
        files = sorted((directory / "log" / "segments").rglob("*.parquet"))
        damaged, taken = files[0], files[-1]
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        taken.unlink()
        print(f"   flipped one bit of {damaged.name}, removed {taken.name}")
        found = log.reconcile(deep=True).findings
        for finding in found:
            last = (finding.first or 0) + (finding.rows or 0) - 1
            print(f"   found: {finding.kind} in orders/{finding.partition}, offsets {finding.first}..{last}")
        try:
            records_of(log)
            silent = True
        except holdfast.Corrupt as error:
            print(f"   reading says so too: {error.message.split(' path=')[0]}")
            silent = False
    return not silent and {finding.name for finding in found} == {damaged.name, taken.name}


def restore(directory: Path, records: Records) -> bool:
    """Bring the log back from its store, and compare; True when nothing is missing or different."""
    began = time.perf_counter()
    report = holdfast.restore(directory / "store", directory / "restored", keyring=keyring(directory))
    seconds = time.perf_counter() - began
    with holdfast.open(directory / "restored", store=directory / "store", keyring=keyring(directory)) as log:
        same = records_of(log) == records
        print(f"   restored {report.records:,} records in {report.segments} segments in {seconds:.1f} s")
        print(f"   every record is the same, in its place: {same}")
        receipt = log.topic("orders").append(b"and on it goes, elsewhere", durability="shipped")
        print(f"   appended and shipped one more: {receipt}")
    return same


def main() -> int:
    """Run the demo; 0 when every promise held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long the burst lasts before the kill")
    parser.add_argument("--directory", type=Path, help="where to keep the log (default: a temporary directory)")
    parser.add_argument("--spark-seconds", type=float, default=6.0, help="how long Spark watches a writer")
    parser.add_argument("--plot", type=Path, default=Path("demo-marks.png"), help="where to draw the marks over time")
    parser.add_argument("--report", type=Path, default=Path("demo-report.html"), help="where to put the report's page")
    parser.add_argument("--burst", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.burst is not None:
        burst(options.burst)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / "keyring").exists():
            Keyring.generate().save(directory / "keyring")
        print(
            f"1. A process appends from {PRODUCERS} coroutines, encrypted, and is killed after {options.seconds:g} s …"
        )
        acknowledged = run_and_kill(directory, options.seconds)
        rate = len(acknowledged) / options.seconds
        print(f"   killed; it had been acknowledged for {len(acknowledged):,} records ({rate:,.0f}/s)")
        print("2. The log is opened again …")
        good = account(directory, acknowledged)
        print("3. Everything is sealed, reconciled and shipped to a directory beside the log …")
        records, fine = seal_and_ship(directory)
        good = fine and good
        print("4. Damage is planted …")
        good = damage(directory) and good
        print("5. The log is restored from its store into a new directory …")
        good = restore(directory, records) and good
        print("6. Spark reads what is settled, in batch and as a stream, while a writer writes …")
        spark = pyspark_holdfast.session("local[2]")
        good = demo_spark.run(spark, directory, options.spark_seconds, options.plot) and good
        print("7. A pipeline makes two tables of it, run after run, and Polars reads one back …")
        good = demo_tables.run(spark, directory, options.report) and good
        spark.stop()
    promise = "Every acknowledged record was there, exactly once, in its place; all damage was found, and undone."
    print(promise if good else "A PROMISE WAS BROKEN.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # in the order of what goes to stderr
    try:
        code = main()
    except KeyboardInterrupt:
        print("interrupted")
        code = 130
    sys.exit(code)
