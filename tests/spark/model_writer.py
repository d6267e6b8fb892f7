"""One life of a log for test_model.py: random appends, seals, ships and expiries; it ends by closing, or dies.

    python -m tests.spark.model_writer SETTINGS-JSON

Each acknowledged record is printed, as `topic partition offset`, before the next one is appended.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast
from holdfast import Record, Settings

SCHEMAS = [
    pa.schema([("name", pa.string()), ("amount", pa.int64())]),
    pa.schema([("name", pa.string()), ("amount", pa.int64()), ("tags", pa.list_(pa.string()))]),
]
RAW_PARTITIONS = 2


def main(life: dict[str, Any]) -> None:
    rng = random.Random(life["seed"])
    settings = Settings.from_mapping(
        {"store": life["store"], "segments": {"rows_max": 40, "seal_on_close": False}, "disk": {"free_bytes_min": 0}}
    )
    with holdfast.open(Path(life["path"]), settings=settings) as log:
        version = min(life["number"], len(SCHEMAS) - 1)
        for _ in range(life["steps"]):
            step(log, rng, version, life)
        if life["dies"]:
            log.topic("raw").submit(b"never acknowledged")
            os._exit(9)
        if life["is_last"]:
            log.seal()
        if life["store"]:
            log.ship(60)


def step(log: holdfast.Log, rng: random.Random, version: int, life: dict[str, Any]) -> None:
    kind = rng.choice(["raw", "raw", "raw", "typed", "typed", "seal", "ship", "expire"])
    raw = log.topic("raw", partitions=RAW_PARTITIONS)
    typed = log.topic("typed", schema=SCHEMAS[version])
    if kind == "raw":
        acknowledge(
            raw.append_batch([record(rng) for _ in range(rng.randint(1, 60))], partition=rng.randrange(RAW_PARTITIONS))
        )
    elif kind == "typed":
        acknowledge(typed.append([row(rng, version) for _ in range(rng.randint(1, 60))]))
    elif kind == "seal":
        log.seal(rng.choice([None, "raw", "typed"]))
    elif kind == "ship" and life["store"]:
        log.ship(60)
    elif kind == "expire" and life["read"] is not None:
        # Only what every stream has read: a paused stream is another test's business.
        for topic, partitions in life["read"].items():
            left = max(mark.durable - partitions.get(str(n), 0) for n, mark in enumerate(log.marks(topic)))
            log.set_retention(topic, records_max=max(1, left))
        log.retain()
        for topic in life["read"]:
            log.set_retention(topic)  # or what is appended next would push out what nobody has read


def record(rng: random.Random) -> Record:
    return Record(
        rng.randbytes(rng.choice([0, 1, 30, 300])),
        key=rng.choice([None, b"", rng.randbytes(3)]),
        kind=rng.choice([None, "k", "größer"]),
        headers=rng.choice([None, {"a": b"1"}, {"é": b"", "b": rng.randbytes(2)}]),
        time=rng.choice(
            [0, rng.randint(-(10**12), 0), rng.randint(10**13, 10**15)]
        ),  # never like seconds, or milliseconds
    )


def row(rng: random.Random, version: int) -> dict[str, Any]:
    made: dict[str, Any] = {"name": rng.choice([None, "", "größer"]), "amount": rng.choice([None, rng.randint(-9, 9)])}
    if version:
        made["tags"] = rng.choice([None, [], ["x", None]])
    return made


def acknowledge(receipts: Any) -> None:
    receipts = receipts if isinstance(receipts, (list, tuple)) or hasattr(receipts, "__len__") else [receipts]
    lines = [f"{receipt.topic} {receipt.partition} {receipt.offset}\n" for receipt in receipts]
    os.write(1, "".join(lines).encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
