"""A short life of a log that uses everything, and the notes of what it was acknowledged for."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast import Keyring, Log, Record, Settings
from holdfast.testing import ManualClock

PARTITIONS = 2
SETTINGS = Settings.from_mapping({"journal": {"checkpoint_bytes": "64KiB", "ack_timeout_ms": "60s"}})
Place = tuple[int, int]


class Notes:
    """What was acknowledged so far, by place; and everything that was ever put in, to recognise strangers."""

    def __init__(self) -> None:
        self.acked: dict[Place, bytes] = {}
        self.known: set[bytes] = set()
        self.keyring = Keyring.generate("k1", clock=ManualClock(seed=3))

    def copy(self) -> Notes:
        """Independent notes of the same past."""
        twin = Notes()
        twin.acked, twin.known, twin.keyring = dict(self.acked), set(self.known), self.keyring
        return twin

    def append(self, log: Log, name: bytes, **options: object) -> None:
        self.known.add(name)
        receipt = log.topic("t", partitions=PARTITIONS).append(name, **options)
        self.acked[receipt.partition, receipt.offset] = name

    def append_batch(self, log: Log, names: list[bytes]) -> None:
        self.known.update(names)
        records = [Record(name, key=name[-1:]) for name in names]
        for receipt, name in zip(log.topic("t", partitions=PARTITIONS).append_batch(records), names, strict=True):
            self.acked[receipt.partition, receipt.offset] = name

    def offer(self, log: Log, name: bytes) -> None:
        self.known.add(name)
        log.topic("t", partitions=PARTITIONS).offer(name, partition=0)


def open_log(directory: Path, notes: Notes) -> Log:
    return holdfast.open(directory, keyring=notes.keyring, settings=SETTINGS)


def live(directory: Path, notes: Notes, rounds: int = 2) -> None:
    """Open, append in every way, rotate, checkpoint, close; twice."""
    for turn in range(rounds):
        with open_log(directory, notes) as log:
            work(log, notes, turn)


def work(log: Log, notes: Notes, turn: int = 0) -> None:
    for i in range(6):
        notes.append(log, b"%d single %d" % (turn, i), partition=i % PARTITIONS)
        notes.offer(log, b"%d offered %d" % (turn, i))
        notes.append(log, b"%d once %d" % (turn, i), idempotency_key=f"{turn}-{i}", partition=0)
    notes.append_batch(log, [b"%d batch %d" % (turn, i) for i in range(30)])
    newer = notes.keyring.rotated(f"k{turn + 2}", clock=ManualClock(seed=turn + 10))
    log.rotate_key(newer)
    notes.keyring = newer
    for i in range(4):
        notes.append(log, b"%d large %d " % (turn, i) + b"x" * 9000, partition=1)


def check(directory: Path, acked: dict[Place, bytes], notes: Notes, *, append: bool = True) -> int:
    """Open what is left and compare: all that was acknowledged is in its place, nothing strange, no gaps."""
    with open_log(directory, notes) as log:
        topic = log.topic("t", partitions=PARTITIONS)
        found = {(r.partition, r.offset): r.payload for r in topic.read()}
        for place, name in acked.items():
            assert found.get(place) == name, f"lost: {name[:20]!r} at {place}"
        for number, mark in enumerate(log.marks("t")):
            assert sorted(o for p, o in found if p == number) == list(range(mark.durable))
        assert set(found.values()) <= notes.known
        assert len(found) == len(set(found.values())), "a record is there twice"
        if append:
            assert topic.append(b"and on", partition=0).offset == log.marks("t")[0].durable - 1
    return len(found)
