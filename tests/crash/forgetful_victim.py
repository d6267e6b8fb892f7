"""A process that ships until it is killed, to a store that forgets; each acknowledgement is printed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import holdfast
from holdfast import HoldfastError, Settings, Unavailable

PARTITIONS = 2


def settings() -> Settings:
    """Small segments and batches; a store that has forgotten is rebuilt without asking."""
    return Settings.from_mapping(
        {
            "segments": {"rows_max": 15, "trim_entries": 4, "idle_ratio": 0, "seal_on_close": False},
            "shipping": {
                "rebuild_store": True,
                "claim_check_interval_ms": 50,
                "batch_size_threshold": 3,
                "checkpoint_every": 4,
                "retry_base_delay_ms": 5,
                "retry_delay_max_ms": 100,
                "shipped_timeout_ms": 20_000,
            },
            "disk": {"free_bytes_min": 0},
        }
    )


def tell(line: str) -> None:
    """One line; a single write, so that lines never mix."""
    os.write(1, f"{line}\n".encode())


def work(directory: str, store: str, cycle: str) -> None:
    log = holdfast.open(Path(directory), store=store, settings=settings())
    topic = log.topic("orders", partitions=PARTITIONS)
    tell("ready")

    def append(partition: int) -> None:
        number = 0
        while True:
            name = f"{cycle}-{partition}-{number}"
            number += 1
            try:
                receipt = topic.append(name.encode(), partition=partition, durability="shipped")
            except Unavailable:
                continue  # durable here; the store has forgotten, and is being rebuilt
            except HoldfastError as error:
                tell(f"failed {error!r}".replace("\n", " "))
                return
            tell(f"shipped {receipt.partition} {receipt.offset} {name}")

    for partition in range(PARTITIONS):
        threading.Thread(target=append, args=(partition,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    work(*sys.argv[1:4])
