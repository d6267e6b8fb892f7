"""A short life of a log with segments, what it was promised at each moment, and the check of what is left of it.

The life does everything that moves records or files: appends, seals, trims, expires, closes, opens again, and repairs
planted damage. It has two topics, a raw one with two partitions and a typed one, and is plain or sealed. `Notes` keeps
what was acknowledged; a `Promise` is a copy of them at one moment, together with the marks that were published then.
`check` opens what a crash left and holds it against a promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

import holdfast
from holdfast import Keyring, Log, NotFound, Settings, disk
from holdfast.testing import FaultyDisk, ManualClock

RAW, TYPED = "raw", "typed"
PARTITIONS = {RAW: 2, TYPED: 1}
SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field("number", pa.int64())])
KEPT = 5
"""Records that retention leaves in each partition of the raw topic, at least."""

Place = tuple[str, int, int]
Part = tuple[str, int]


class Published(NamedTuple):
    """What everybody could read about a partition's segments; none of it ever goes back."""

    segments: int
    sealed: int
    first: int


class Promise(NamedTuple):
    """What must hold if the power is cut now."""

    acked: Mapping[Place, str]
    marks: Mapping[Part, Published]
    retained: bool
    """Retention may have begun: of the raw topic at least the newest KEPT sealed records must be there."""
    strangers: Mapping[str, bytes]
    """Files that nobody can prove to be garbage: they may be moved, never lost."""
    untidy: bool
    """Damage was planted: it must be repairable, and the rest holds after the repair."""


class Notes:
    """What the life was acknowledged for so far, and everything that was ever put in."""

    def __init__(self, *, keyed: bool = False) -> None:
        self.keyring = Keyring.generate("k1", clock=ManualClock(seed=3)) if keyed else None
        self.acked: dict[Place, str] = {}
        self.known: set[str] = set()
        self.strangers: dict[str, bytes] = {}
        self.retained = self.untidy = False
        self.returning: tuple[Path, bytes] | None = None
        """A file that retention will remove, to let it turn up again later."""
        self.log: Log | None = None
        self.disk: FaultyDisk | None = None
        """The disk that it lives on, for lives that break it."""

    def copy(self) -> Notes:
        """Independent notes of the same past."""
        twin = Notes()
        twin.keyring, twin.acked, twin.known = self.keyring, dict(self.acked), set(self.known)
        twin.strangers, twin.retained, twin.untidy = dict(self.strangers), self.retained, self.untidy
        return twin

    def open(self, directory: Path, **segments: object) -> Log:
        """Open the log, with nothing in the background but what the life asks for."""
        self.log = open_log(directory, self.keyring, **segments)
        return self.log

    def promise(self) -> Promise:
        """What must hold from now on."""
        marks = {} if self.log is None else published(self.log)
        return Promise(dict(self.acked), marks, self.retained, dict(self.strangers), self.untidy)

    def append(self, log: Log, partition: int, names: list[str]) -> None:
        """Records to the raw topic: one alone, or several as a batch."""
        self.known.update(names)
        topic = log.topic(RAW, partitions=PARTITIONS[RAW])
        payloads = [name.encode() for name in names]
        if len(names) == 1:
            receipts = [topic.append(payloads[0], key=b"k", partition=partition)]
        else:
            receipts = list(topic.append_batch(payloads, partition=partition))
        self.acked.update({(RAW, r.partition, r.offset): name for r, name in zip(receipts, names, strict=True)})

    def append_rows(self, log: Log, names: list[str]) -> None:
        """Rows to the typed topic."""
        self.known.update(names)
        rows = [{"name": name, "number": number} for number, name in enumerate(names)]
        receipts = log.topic(TYPED, schema=SCHEMA).append(rows)
        self.acked.update({(TYPED, r.partition, r.offset): name for r, name in zip(receipts, names, strict=True)})


def open_log(directory: Path, keyring: Keyring | None, **segments: object) -> Log:
    settings = Settings.from_mapping(
        {
            "journal": {"checkpoint_bytes": "64KiB", "ack_timeout_ms": "60s"},
            "segments": {"seal_on_close": False, "trim_entries": 2, **segments},
            "retention": {"interval_ms": "1h"},
            "disk": {"free_bytes_min": 0},
        }
    )
    return holdfast.open(directory, keyring=keyring, settings=settings)


def published(log: Log) -> dict[Part, Published]:
    """The marks of all partitions, as they stand in memory."""
    found = {}
    for partition in list(log._journal.partitions.values()):
        row = partition.sealed
        found[partition.topic, partition.number] = Published(row.segments, row.sealed_offset, row.first_offset)
    return found


# -- the life ---------------------------------------------------------------------------------------------


def live(directory: Path, notes: Notes) -> None:
    """Append, seal, append, seal, append, expire, close; open, repair, append, close with a seal."""
    with notes.open(directory) as log:
        fill(log, notes, "a")
        log.seal()
        fill(log, notes, "b")
        log.seal()
        fill(log, notes, "c")
        remember(directory, notes)
        expire(log, notes)
    with notes.open(directory, seal_on_close=True) as log:
        plant(log, notes)
        log.reconcile(fix=True)
        fill(log, notes, "d")


def fill(log: Log, notes: Notes, turn: str) -> None:
    """Three entries for each raw partition and two for the typed topic."""
    for partition in range(PARTITIONS[RAW]):
        for index in range(2):
            notes.append(log, partition, [f"{turn} single {partition} {index}"])
        notes.append(log, partition, [f"{turn} batch {partition} {index}" for index in range(3)])
    notes.append_rows(log, [f"{turn} row {index}" for index in range(3)])
    notes.append_rows(log, [f"{turn} last row"])


def expire(log: Log, notes: Notes) -> None:
    """Let retention take all but the newest segment of each raw partition; noted before it may."""
    notes.retained = True
    log.set_retention(RAW, records_max=KEPT)
    log.retain()


def remember(directory: Path, notes: Notes) -> None:
    """Keep the bytes of a segment that retention will remove, to let it turn up again later."""
    first, *_ = sorted(_folder(directory, RAW).glob("*.parquet"))
    notes.returning = first, first.read_bytes()


def plant(log: Log, notes: Notes) -> None:
    """One piece of damage of each kind that can be repaired."""
    notes.untidy = True
    folder = _folder(log.path, RAW)
    disk.write_file(folder / f"{77:020d}.parquet.tmp", b"an attempt that nobody finishes")
    assert notes.returning is not None
    disk.write_file(*notes.returning)
    for path in (folder / "notes.txt", log.path / "segments" / "stranger", folder / f"{88:020d}-{'0' * 16}.parquet"):
        disk.write_file(path, path.name.encode())
        notes.strangers[path.name] = path.name.encode()
    live_one = min(_folder(log.path, TYPED).glob("*.parquet"))
    disk.rename(live_one, log.path / "segments" / "misplaced")


def _folder(directory: Path, topic: str) -> Path:
    return directory / "segments" / "topics" / topic / "0" / "segments"


# -- the check --------------------------------------------------------------------------------------------


def check(directory: Path, promise: Promise, notes: Notes, *, go_on: bool = True) -> None:
    """Open what is left: each record once and in its place, no mark behind what was published, nothing to repair.

    With `go_on` the log must also be fit for use: the rest of the tail is sealed, and all of that holds again.
    """
    if not promise.untidy:
        require_nothing_missing(directory, notes)
    with open_log(directory, notes.keyring) as log:
        if promise.untidy:
            log.reconcile(fix=True)
            require_strangers(directory, promise.strangers)
        log.retain()
        require_clean(log)
        require_records(log, promise, notes)
        if go_on:
            _go_on(log, notes)
            require_clean(log)
            require_records(log, promise, notes)


def require_nothing_missing(directory: Path, notes: Notes) -> None:
    """Before anything is tidied up there may be files too many, never one too few: opening must not have to hide it."""
    try:
        log = holdfast.open(directory, keyring=notes.keyring, read_only=True)
    except NotFound:
        return
    with log:
        found = [finding for finding in log.reconcile().findings if finding.kind != "untracked"]
        assert found == [], [(finding.kind, finding.topic, finding.name, finding.detail) for finding in found]


def require_clean(log: Log) -> None:
    """A deep reconciliation finds nothing."""
    report = log.reconcile(deep=True)
    assert report.findings == (), [(found.kind, found.topic, found.name, found.detail) for found in report.findings]


def require_records(log: Log, promise: Promise, notes: Notes) -> None:
    """Everything that was promised is there once, and nothing else is."""
    found, marks = read_all(log), published(log)
    for part, mark in promise.marks.items():
        now = marks[part]
        assert all(new >= old for new, old in zip(now, mark, strict=True)), f"a mark went back: {part} {mark} {now}"
    for part, mark in marks.items():
        expirable = max(0, mark.sealed - KEPT) if promise.retained and part[0] == RAW else 0
        assert mark.first <= expirable, f"more expired than may: {part} {mark}"
        durable = log.marks(part[0])[part[1]].durable
        offsets = sorted(offset for topic, partition, offset in found if (topic, partition) == part)
        assert offsets == list(range(mark.first, durable)), f"not dense: {part} {mark} {durable} {offsets}"
    for (topic, partition, offset), name in promise.acked.items():
        if offset >= marks[topic, partition].first:
            assert found.get((topic, partition, offset)) == name, f"lost: {name!r} at {topic}/{partition}/{offset}"
    assert set(found.values()) <= notes.known, "a record that nobody wrote"
    assert len(set(found.values())) == len(found), "a record is there twice"


def require_strangers(directory: Path, strangers: Mapping[str, bytes]) -> None:
    """What could not be proved to be garbage is still somewhere."""
    kept = {path.name: path.read_bytes() for path in (directory / "quarantine").rglob("*") if path.is_file()}
    for name, content in strangers.items():
        assert kept.get(name) == content, f"a file was lost that nobody proved to be garbage: {name}"


def read_all(log: Log) -> dict[Place, str]:
    """Every record of every topic by its place; a place that comes twice is a failure."""
    found: dict[Place, str] = {}
    for topic in log.topics():
        for place, name in _raw(log) if topic == RAW else _typed(log):
            assert place not in found, f"read twice: {place}"
            found[place] = name
    return found


def _raw(log: Log) -> list[tuple[Place, str]]:
    records = log.topic(RAW).read()
    return [((RAW, record.partition, record.offset), record.payload.decode()) for record in records]


def _typed(log: Log) -> list[tuple[Place, str]]:
    rows = log.topic(TYPED, schema="latest").read()
    return [((TYPED, row["_partition"], row["_offset"]), row["name"]) for row in rows]


def _go_on(log: Log, notes: Notes) -> None:
    """The log is fit for use: it takes a record in the next place, and seals everything."""
    notes.known.add("and on")
    topic = log.topic(RAW, partitions=PARTITIONS[RAW])
    assert topic.append(b"and on", partition=0).offset == topic.marks()[0].durable - 1
    log.seal()
    log.retain()
