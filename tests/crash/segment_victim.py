"""A process that appends, seals, expires and reconciles at once and tells each acknowledgement, until it is killed.

    python -m tests.crash.segment_victim DIRECTORY CYCLE

Lines on standard output: `topic partition offset name`, written only after the acknowledgement.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import holdfast
from holdfast import Keyring, Log, Settings

KEYRING = Keyring.from_callable(lambda: "k1:" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=")
KEPT = 60
"""Records that retention leaves in each partition, at least."""
SETTINGS = Settings.from_mapping(
    {
        "journal": {"checkpoint_bytes": "256KiB"},
        "segments": {"rows_max": 20, "trim_entries": 4, "idle_ratio": 0, "seal_on_close": False},
        "retention": {"records_max": KEPT, "interval_ms": 20},
        "disk": {"free_bytes_min": 0},
    }
)
RAW, TYPED = "raw", "typed"
SCHEMA = pa.schema([pa.field("name", pa.string())])


def tell(receipts: list[holdfast.Receipt], names: list[str]) -> None:
    """Acknowledgements; a single write, so that lines never mix."""
    lines = [f"{r.topic} {r.partition} {r.offset} {name}\n" for r, name in zip(receipts, names, strict=True)]
    os.write(1, "".join(lines).encode())


def append_one_by_one(log: Log, cycle: int, number: int) -> None:
    name = f"{cycle}-one-{number}"
    tell([log.topic(RAW, partitions=2).append(name.encode(), key=b"k%d" % (number % 7))], [name])


def append_batches(log: Log, cycle: int, number: int) -> None:
    names = [f"{cycle}-batch-{number}.{member}" for member in range(number % 20 + 1)]
    tell(list(log.topic(RAW, partitions=2).append_batch([name.encode() for name in names])), names)


def append_rows(log: Log, cycle: int, number: int) -> None:
    names = [f"{cycle}-row-{number}.{member}" for member in range(number % 20 + 1)]
    tell(list(log.topic(TYPED, schema=SCHEMA).append([{"name": name} for name in names])), names)


def append_single_rows(log: Log, cycle: int, number: int) -> None:
    """A window of rows, one by one: what comes during a commit is encoded together."""
    names = [f"{cycle}-single-{number}.{member}" for member in range(number % 9 + 1)]
    topic = log.topic(TYPED, schema=SCHEMA)
    tickets = [topic.submit({"name": name}) for name in names]
    tell([ticket.result()[0] for ticket in tickets], names)


def seal(log: Log, cycle: int, number: int) -> None:
    log.seal()


def reconcile(log: Log, cycle: int, number: int) -> None:
    report = log.reconcile(fix=True)
    assert report.clean, report.findings
    assert not report.repairs, report.repairs


def again_and_again(action: Callable[[Log, int, int], None], log: Log, cycle: int) -> None:
    """Do it until we are killed; a failure is printed, and fails the test."""
    try:
        for number in range(10**9):
            action(log, cycle, number)
    except BaseException as error:
        os.write(1, f"failed {action.__name__}: {error!r}\n".replace("\n", " ").encode() + b"\n")
        raise


ACTIONS: tuple[Callable[[Log, int, int], None], ...] = (
    append_one_by_one,
    append_batches,
    append_rows,
    append_single_rows,
    seal,
    reconcile,
)


def main(directory: str, cycle: int) -> None:
    log = holdfast.open(Path(directory), keyring=KEYRING, settings=SETTINGS)
    # The first seal imports what sealing needs, which takes longer than most victims live.
    log.topic(RAW, partitions=2).append(f"{cycle}-first".encode())
    log.topic(TYPED, schema=SCHEMA).append({"name": f"{cycle}-first-row"})
    log.seal()
    os.write(1, b"ready\n")
    for action in ACTIONS:
        threading.Thread(target=again_and_again, args=(action, log, cycle), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
