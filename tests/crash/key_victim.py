"""A process with producers that repeat what was not acknowledged, until it is killed.

    python -m tests.crash.key_victim DIRECTORY STORE plain|encrypted START START …

One producer per START: it submits a window of records with idempotency keys, from the first that was never acknowledged
as shipped, and waits for the store; then the next window. Lines on standard output: `shipped name partition offset`,
written only after the acknowledgement. Meanwhile everything is sealed, settled and swept away all the time.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.shipping.cleanup import janitor

KEYRING = Keyring.from_callable(lambda: "k1:" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=")
WINDOW = 6
PARTITIONS = 2
SETTINGS = Settings.from_mapping(
    {
        "segments": {"rows_max": 25, "age_max_ms": 40, "seal_on_close": False, "trim_entries": 4, "idle_ratio": 0},
        "shipping": {"batch_size_threshold": 3, "retry_base_delay_ms": 1, "checkpoint_every": 4},
        "disk": {"free_bytes_min": 0},
    }
)


def produce(log: Log, producer: int, start: int) -> None:
    """Windows of records, each repeated by the next process if this process does not live to see it shipped."""
    topic = log.topic("orders")
    at = start
    while True:
        names = [f"{producer}-{number}" for number in range(at, at + WINDOW)]
        tickets = [topic.submit(name.encode(), partition=producer % PARTITIONS, idempotency_key=name) for name in names]
        for name, ticket in zip(names, tickets, strict=True):
            receipt = ticket.shipped(30)
            os.write(1, f"shipped {name} {receipt.partition} {receipt.offset}\n".encode())
        at += WINDOW


def main() -> None:
    directory, store, kind, *starts = sys.argv[1:]
    janitor._SWEEP_S, janitor._SWEEP_BATCHES = 0.02, 1
    keyring = KEYRING if kind == "encrypted" else None
    log = holdfast.open(Path(directory), store=store, settings=SETTINGS, keyring=keyring)
    log.topic("orders", partitions=PARTITIONS)
    os.write(1, b"ready\n")
    for producer, start in enumerate(starts):
        threading.Thread(target=produce, args=(log, producer, int(start)), daemon=True).start()
    threading.Event().wait(120)


if __name__ == "__main__":
    main()
