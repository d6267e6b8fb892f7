"""A process that appends in every way at once and tells each acknowledgement, until it is killed.

    python -m tests.crash.victim DIRECTORY CYCLE

Lines on standard output: `partition offset name`, written only after the acknowledgement. Names say who wrote
what, so that the parent can tell what was acknowledged, what may be there, and what never was.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path

import holdfast
from holdfast import Keyring, Settings, Ticket, Topic

KEYRING = Keyring.from_callable(lambda: "k1:" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=")
SETTINGS = Settings.from_mapping({"journal": {"checkpoint_bytes": "256KiB"}})
PARTITIONS = 3


def tell(partition: int, offset: int, name: bytes) -> None:
    """One acknowledgement; a single write, so that lines never mix."""
    os.write(1, b"%d %d %s\n" % (partition, offset, name))


def append_one_by_one(topic: Topic, cycle: int) -> None:
    for i in range(10**9):
        name = b"%d-append-%d" % (cycle, i)
        receipt = topic.append(name, key=b"k%d" % (i % 11))
        tell(receipt.partition, receipt.offset, name)


def append_once(topic: Topic, cycle: int) -> None:
    for i in range(10**9):
        name = b"%d-once-%d" % (cycle, i)
        receipt = topic.append(name, idempotency_key=name)
        assert topic.append(name, idempotency_key=name) == receipt
        tell(receipt.partition, receipt.offset, name)


def append_batches(topic: Topic, cycle: int) -> None:
    for i in range(10**9):
        names = [b"%d-batch-%d.%d" % (cycle, i, n) for n in range(i % 50 + 1)]
        for receipt, name in zip(topic.append_batch(names), names, strict=True):
            tell(receipt.partition, receipt.offset, name)


def submit_in_a_window(topic: Topic, cycle: int) -> None:
    window: deque[tuple[Ticket, bytes]] = deque()
    for i in range(10**9):
        name = b"%d-submit-%d" % (cycle, i)
        topic.offer(b"%d-offer-%d" % (cycle, i), partition=i % PARTITIONS)
        window.append((topic.submit(name, kind="s", headers={"i": b"%d" % i}), name))
        if len(window) >= 64:
            ticket, done = window.popleft()
            receipt = ticket.result()
            tell(receipt.partition, receipt.offset, done)


def main(directory: str, cycle: int) -> None:
    log = holdfast.open(Path(directory), keyring=KEYRING, settings=SETTINGS)
    topic = log.topic("t", partitions=PARTITIONS)
    os.write(1, b"ready\n")
    for target in (append_one_by_one, append_once, append_batches, submit_in_a_window):
        threading.Thread(target=target, args=(topic, cycle), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
