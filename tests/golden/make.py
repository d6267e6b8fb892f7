"""Make the golden files anew: `python -m tests.golden.make`, from the repository's root.

Run it only when a format got a new version, and then keep the files of the old one under another name: what
was written once must be read for ever. Everything is fixed: clock, randomness, keys and pid; so two runs
store the same rows. (Two versions of SQLite may still lay the same rows out in other bytes.)

    plain/, sealed/   whole logs: two topics, four partitions, keys, kinds, headers, batches, idempotency keys
    schema-1/         a log whose database is at schema version 1, to be upgraded in place
    damaged/          logs that must be refused, each in its own way
    expected.json     what was put into them
    vectors.json      frames, headers, digests, stamps and seals as hex
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw

import holdfast
from holdfast import Keyring, Log, Receipt, Record, Settings
from holdfast.crypto import chain
from holdfast.crypto.cipher import AesGcmCipher
from holdfast.crypto.vault import KeyEpoch
from holdfast.journal import frame
from holdfast.journal.columns import Columns, Extra
from holdfast.journal.entry import Entry, Place, header_of
from holdfast.journal.migrations import migrate
from holdfast.journal.rows import EpochRow, HeadRow, KeyRow, LogRow, TopicRow
from holdfast.record import NOW
from holdfast.testing.manual_clock import ManualClock

HERE = Path(__file__).parent
KEYS = {"golden-1": bytes(range(32)), "golden-2": bytes(range(32, 64))}
FIRST = Keyring({"golden-1": KEYS["golden-1"]})
ROTATED = Keyring({"golden-2": KEYS["golden-2"], "golden-1": KEYS["golden-1"]})

Expected = dict[str, Any]


def make(target: Path) -> None:
    """Write all golden files into a directory."""
    expected = {
        "plain": make_log(target / "plain"),
        "sealed": make_log(target / "sealed", FIRST),
        "schema-1": make_schema_1(target / "schema-1"),
    }
    make_damaged(target / "damaged")
    _write_json(target / "expected.json", expected)
    _write_json(target / "vectors.json", make_vectors())


# -- logs -------------------------------------------------------------------------------------------------


@contextmanager
def fixed(path: Path, clock: ManualClock, keyring: Keyring | None = None) -> Iterator[Log]:
    """An open log of which every stored byte is determined."""
    with (
        patch("os.getpid", return_value=4242),
        holdfast.open(path, settings=Settings(), keyring=keyring, clock=clock) as log,
    ):
        yield log


class Scribe:
    """Appends records and keeps what was put in, by the receipts that came back."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.records: dict[str, list[Expected]] = {}
        self.receipts: dict[str, list[Any]] = {}

    def append(self, log: Log, topic: str, payload: bytes, **given: Any) -> None:
        """One record, in a group of its own."""
        self._clock.advance(1.5)
        receipt = log.topic(topic).append(payload, **given)
        self._note(receipt, Record(payload, given.get("key"), given.get("kind"), given.get("headers")), given)
        if "idempotency_key" in given:
            self.receipts[given["idempotency_key"]] = [topic, receipt.partition, receipt.offset, receipt.seq]

    def append_batch(self, log: Log, topic: str, records: list[Record], partition: int | None = None) -> None:
        """Records that commit together."""
        self._clock.advance(1.5)
        for receipt, record in zip(log.topic(topic).append_batch(records, partition=partition), records, strict=True):
            self._note(receipt, record, {} if record.time == NOW else {"time": record.time})

    def _note(self, receipt: Receipt, record: Record, given: Expected) -> None:
        stored = {
            "offset": receipt.offset,
            "time": given.get("time", self._clock.now_us()),
            "payload": record.payload.hex(),
            "key": None if record.key is None else record.key.hex(),
            "kind": record.kind,
            "headers": None if record.headers is None else {name: v.hex() for name, v in record.headers.items()},
        }
        self.records.setdefault(f"{receipt.topic}/{receipt.partition}", []).append(stored)

    def told(self) -> Expected:
        """What a reader must find."""
        return {"records": self.records, "receipts": self.receipts}


def make_log(path: Path, keyring: Keyring | None = None) -> Expected:
    """A log with everything in it: written in two ownerships, the key rotated in the second if there is one."""
    clock = ManualClock(seed=2026)
    scribe = Scribe(clock)
    with fixed(path, clock, keyring) as log:
        log.topic("orders", partitions=3)
        scribe.append(log, "orders", b"first", partition=0)
        scribe.append(log, "orders", b"", key=b"c-42", kind="created", idempotency_key="order-1")
        scribe.append(log, "users.v1", b"\x00\xff" * 20, headers={"trace": b"\x01\x02", "empty": b""})
        scribe.append_batch(log, "orders", [Record(b"b%d" % i) for i in range(5)], partition=1)
    clock.advance(3600)
    with fixed(path, clock, keyring) as log:
        scribe.append(log, "users.v1", b"negative time", time=-1, idempotency_key="user-1")
        if keyring is not None:
            log.rotate_key(ROTATED)
        mixed = [
            Record(b"own time", key=b"", time=7),
            Record("grüß".encode(), kind="größer", headers={"ключ": b"v"}),
            Record(b"plain neighbour"),
        ]
        scribe.append_batch(log, "orders", mixed, partition=2)
        scribe.append(log, "orders", b"last", key=b"c-42", kind="closed", headers={})
    return scribe.told()


def make_schema_1(path: Path) -> Expected:
    """A log as the first schema held it: without the table of idempotency keys."""
    clock = ManualClock(seed=1)
    scribe = Scribe(clock)
    with (
        patch("holdfast.journal.journal.migrate", lambda backend: migrate(backend, upto=1)),
        fixed(path, clock) as log,
    ):
        log.topic("orders", partitions=2)
        scribe.append(log, "orders", b"old", partition=0, key=b"c-1", kind="created", headers={"h": b"v"})
        scribe.append_batch(log, "orders", [Record(b"older"), Record(b"oldest")], partition=1)
    return scribe.told()


# -- damage -----------------------------------------------------------------------------------------------


def make_damaged(path: Path) -> None:
    """Logs with one thing wrong in each."""
    for name in ("truncated", "flipped-body", "user-version"):
        _make_small(path / name)
    with patch.object(frame, "VERSION", 2):
        _make_small(path / "frame-version")
    database = path / "truncated" / "durable.db"
    database.write_bytes(database.read_bytes()[: 8192 * 4 + 100])
    flip = "UPDATE entries SET body = unhex(replace(hex(body), '74776F', '74776E')) WHERE seq=2"
    _execute(path / "flipped-body", flip)
    _execute(path / "user-version", "PRAGMA user_version=99")
    for name, content in {
        "format-version": b"holdfast log 99\n" + b"00" * 16 + b"\n",
        "format-garbage": b"\x00\xfe\xff garbage",
        "database-gone": b"holdfast log 1\n" + b"00" * 16 + b"\n",
    }.items():
        (path / name).mkdir(parents=True)
        (path / name / "FORMAT").write_bytes(content)


def _make_small(path: Path) -> None:
    clock = ManualClock(seed=3)
    with fixed(path, clock) as log:
        for payload in (b"one", b"two", b"three"):
            log.topic("t").append(payload)


def _execute(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path / "durable.db"))
    connection.execute(sql)
    assert connection.changes() == 1 or sql.startswith("PRAGMA")
    connection.close()


# -- vectors ----------------------------------------------------------------------------------------------


FRAMES: dict[str, Columns] = {
    "one record": Columns([b"hello"], [1_700_000_000_000_000]),
    "one time for all": Columns([b"a", b"", b"ccc"], [5, 5, 5]),
    "own times": Columns([b"a", b"b"], [-1, 2**62]),
    "keys": Columns([b"a", b"b"], [1, 2], {1: (b"c-42", None, None)}),
    "an empty key is not none": Columns([b"a", b"b"], [1, 2], {0: (b"", None, None)}),
    "everything": Columns(
        [b"a", b"", b"c"],
        [1, 2, 3],
        {0: (b"k", b"made", b"\x81\xa1h\xc4\x01v"), 2: (None, "größer".encode(), None)},
    ),
}

LOG_ID, LINK, SALT = bytes(range(16)), bytes(range(0xA0, 0xB0)), bytes(range(64, 96))
ENTRIES: dict[str, tuple[Place, Entry]] = {
    "first of a partition": (
        Place(LOG_ID, "t", 0),
        Entry(1, 1, 0, 1, 2, 1, 0, 0, 5, 5, chain.NO_LINK, b"", b"body"),
    ),
    "every field its own": (
        Place(LOG_ID, "orders.v1", 3),
        Entry(0x0102030405, 77, 0x060708, 0x0A0B, 0x0C0D0E, 1, 0, 0x1112, -2, 2**62, LINK, b"", b"sealed body"),
    ),
}
ROWS = {
    "log": LogRow(LOG_ID, 1_700_000_000_000_000, 1, 2, 3, 4, 5, 6, 7, 8, 9, bytes(range(96, 128)), 5, b""),
    "epochs": EpochRow(2, 1_700_000_000_000_000, 4242, 5, b""),
    "key_epochs": KeyEpoch(5, "aes-256-gcm", "golden-1", SALT, bytes(32), b""),
    "topics": TopicRow(1, "orders", 3, -1, 5, b""),
    "heads": HeadRow(4, 1, 2, 2**40, LINK, 5, b""),
    "idempotency": KeyRow(6, LINK, 4, 2**40, 9, 5, b""),
}


def make_vectors() -> Expected:
    """Pure values: what each codec must give for each input, today and for ever."""
    cipher = AesGcmCipher(KEYS["golden-1"], SALT, LOG_ID + (5).to_bytes(8, "big"), sealing=True)
    return {
        "frames": {
            name: {
                "payloads": [payload.hex() for payload in columns.payloads],
                "times": columns.times,
                "extras": {index: _hex(extra) for index, extra in columns.extras.items()},
                "body": frame.encode(columns).hex(),
            }
            for name, columns in FRAMES.items()
        },
        "entries": {
            name: {
                "header": header_of(place, entry).hex(),
                "digest": chain.digest(header_of(place, entry), entry.body).hex(),
            }
            for name, (place, entry) in ENTRIES.items()
        },
        "stamps": {
            table: {
                "message": row.message().hex(),
                "plain": chain.plain_stamp(row.message()).hex(),
                "keyed": cipher.mac(row.message()).hex(),
            }
            for table, row in ROWS.items()
        },
        "sealing": {
            "commitment": cipher.commitment.hex(),
            "sealed": [cipher.seal(b"the same body", b"the same header").hex() for _ in range(2)],
        },
    }


def _hex(extra: Extra) -> list[str | None]:
    return [None if value is None else value.hex() for value in extra]


def _write_json(path: Path, content: Expected) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for made in ("plain", "sealed", "schema-1", "damaged"):
        shutil.rmtree(HERE / made, ignore_errors=True)
    make(HERE)
