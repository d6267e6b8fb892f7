"""A process that reads, works and writes, over and over: what `tests.crash.test_consumers` kills.

    orders ──(billing)──► invoices, audit ──(booking, of invoices)──► ledger

Each step is one transaction: records read, records written and the position. It tells "ready", then a line for each
transaction that was acknowledged. With `rest` it does what is left, and ends.
"""

from __future__ import annotations

import os
import sys
import threading

import holdfast
from holdfast import Log, Record
from holdfast.results import Consumer

PARTITIONS = 2
turns = threading.Semaphore(30)
"""New orders come about as fast as old ones are done."""
SETTINGS = {"segments": {"rows_max": 40, "age_max_ms": 5}}


def tell(*words: object) -> None:
    """One line, whole: several threads tell."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def step(log: Log, consumer: Consumer[Record], targets: tuple[str, ...], timeout: float) -> int:
    """Read some records, write one for each to every target, and commit it with the position."""
    records = consumer.poll(7, timeout)
    if records:
        with log.transaction() as tx:
            for record in records:
                # What was read names its source; what is made of it goes on under that name.
                name = record.key or b"%d:%d" % (record.partition, record.offset)
                for target in targets:
                    tx.append(target, record.payload, key=name)
            tx.consumed(consumer)
    return len(records)


def work(log: Log, source: str, name: str, targets: tuple[str, ...], word: str, *, rest: bool) -> None:
    """The loop of one consumer; with `rest` until nothing is left."""
    consumer = log.topic(source).consumer(name)
    try:
        while (count := step(log, consumer, targets, 0 if rest else 5)) or not rest:
            tell(word, count)
            turns.release()
    except Exception as error:
        tell("failed", word, repr(error))


def main(path: str, rest: bool) -> None:
    """Work until somebody kills us."""
    with holdfast.open(path, settings=SETTINGS) as log:
        orders = log.topic("orders", partitions=PARTITIONS)
        for name in ("invoices", "audit", "ledger"):
            log.topic(name, partitions=PARTITIONS)
        billing = (log, "orders", "billing", ("invoices", "audit"), "billed")
        booking = (log, "invoices", "booking", ("ledger",), "booked")
        tell("ready")
        if rest:
            for one in (billing, booking):
                work(*one, rest=True)
            return
        for one in (billing, billing, booking):  # two members of one consumer
            threading.Thread(target=work, args=one, kwargs={"rest": False}, daemon=True).start()
        while turns.acquire():
            for number in range(PARTITIONS):
                orders.append_batch([b"%d" % n for n in range(3)], partition=number)


if __name__ == "__main__":
    main(sys.argv[1], "rest" in sys.argv[2:])
