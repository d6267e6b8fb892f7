"""Make the golden files anew: `python -m tests.golden.make`, from the repository's root.

Run it only when a format got a new version, and from the first release on keep the files of the old one under another
name: what was written once must be read forever. Everything is fixed: clock, randomness, keys and pid; so two runs
store the same rows. (Two versions of SQLite may still lay the same rows out in other bytes, and two of Arrow the same
columns.)

    plain/, sealed/                 whole logs: raw and typed topics, tails, segments, a segment that expired, spaces,
                                    sessions of producers
    store/, store-sealed/           a store's root with one of each object, but for segment files; and the same, signed
    group-file/, group-file-sealed/ logs as a crash leaves them: their newest groups are in a file alone
    bundle/                         two segments of sealed/, their blocks in one file
    table/                          a table of a pipeline, and what must be read of it
    damaged/                        logs and objects that must be refused, each in its own way
    expected.json                   what was put into them, and what their segments are
    vectors.json                    frames, headers, digests, stamps, chain values and encrypted bodies as hex
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw
import msgspec
import pyarrow as pa
from tests.golden.make_table import make_table

import holdfast
from holdfast import Keyring, Log, Receipt, Record, Settings
from holdfast.crypto import digests as chain
from holdfast.crypto.cipher import AesGcmCipher, KeySource
from holdfast.crypto.key_hashes import DIGESTS, HashCipher
from holdfast.crypto.signatures import Signer
from holdfast.crypto.vault import KeyEpoch
from holdfast.journal.session_access import ForwardedRows
from holdfast.journal.state.spaces import header as space_header
from holdfast.journal.state.spaces import stored_name, weight_of
from holdfast.journal.time_keeper import TimeKeeper
from holdfast.model import frame
from holdfast.model.control_rows import (
    LIVE,
    EpochRow,
    HeadRow,
    ItemRow,
    KeyRow,
    LogRow,
    PolicyRow,
    SchemaRow,
    SegmentRow,
    ShipmentRow,
    ShippingRow,
    SpaceRow,
    TopicRow,
    WatermarkRow,
)
from holdfast.model.entry import Entry, Place, header_of
from holdfast.model.record import NOW
from holdfast.model.record_columns import Columns, Extra
from holdfast.model.segment import NO_CHAIN, Segment, SegmentFacts, SegmentHead, chain_value
from holdfast.root.objects import checkpoint, commit_batch, documents, key_object, signature_place
from holdfast.root.objects.commit_batch import CommitBatch, TailEntry, TailKey
from holdfast.root.objects.documents import AnyDocument, ManifestDocument
from holdfast.root.objects.key_object import KeyObject, StoredKey
from holdfast.segments.file.bundle_writer import BundleWriter
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.store import layout
from holdfast.testing.manual_clock import ManualClock

HERE = Path(__file__).parent
KEYS = {"golden-1": bytes(range(32)), "golden-2": bytes(range(32, 64))}
FIRST = Keyring({"golden-1": KEYS["golden-1"]})
ROTATED = Keyring({"golden-2": KEYS["golden-2"], "golden-1": KEYS["golden-1"]})
SETTINGS = Settings.from_mapping(
    {"journal": {"group_file_bytes": 0}, "segments": {"seal_on_close": False}, "disk": {"free_bytes_min": 0}}
)
"""All goes through the database, without files of groups; `group-file/` has one."""
FILED = Settings.from_mapping(
    {"journal": {"group_file_bytes": "64KiB"}, "segments": {"seal_on_close": False}, "disk": {"free_bytes_min": 0}}
)
NARROW = pa.schema([("sensor", pa.string()), ("celsius", pa.float64())])
WIDE = pa.schema([*NARROW, ("tags", pa.list_(pa.string()))])

Expected = dict[str, Any]


def make(target: Path) -> None:
    """Write all golden files into a directory."""
    expected = {name: make_one(target / name) for name in MAKERS}
    make_group_file(target / "group-file")
    make_group_file(target / "group-file-sealed", FIRST)
    make_store(target / "store")
    make_signed_store(target / "store-sealed")
    make_bundle(target / "bundle", target / "sealed")
    make_table(target / "table")
    make_damaged(target / "damaged")
    _write_json(target / "expected.json", expected)
    _write_json(target / "vectors.json", make_vectors())


def make_one(path: Path) -> Expected:
    """Write one whole log; its name says which."""
    return MAKERS[path.name](path)


def make_bundle(path: Path, log: Path) -> None:
    """The segments of one partition of an encrypted log as one file; no key is needed."""
    path.mkdir(parents=True)
    with BundleWriter(path / "bundle", FileShape()) as bundle:
        for segment in sorted((log / "segments/topics/events/0/segments").glob("*.parquet")):
            with SegmentReader(segment, None, None, None) as reader:
                bundle.add(reader)
        facts = bundle.finish()
    (path / "bundle").rename(path / layout.segment_name(bundle.head.number, facts.sha256))


# -- logs -------------------------------------------------------------------------------------------------


@contextmanager
def fixed(path: Path, clock: ManualClock, keyring: Keyring | None = None) -> Iterator[Log]:
    """An open log of which every stored byte is determined."""
    with (
        patch("os.getpid", return_value=4242),
        patch.object(TimeKeeper, "write", lambda _: None),  # it is of the moment at which the log was open
        holdfast.open(path, settings=SETTINGS, keyring=keyring, clock=clock) as log,
    ):
        yield log


class Scribe:
    """Appends records and keeps what was put in, by the receipts that came back."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.records: dict[str, list[Expected]] = {}
        self.receipts: dict[str, list[Any]] = {}
        self.rows: list[Expected] = []
        self.spaces: Expected = {}
        self.sessions: list[Any] = []

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

    def append_rows(self, log: Log, topic: str, schema: pa.Schema, rows: list[Expected]) -> None:
        """Rows of a typed topic, in a group of their own; in the end all of them have the columns of the newest."""
        self._clock.advance(1.5)
        receipts = log.topic(topic, schema=schema).append(rows)
        for receipt, row in zip(receipts, rows, strict=True):
            place = {"_partition": receipt.partition, "_offset": receipt.offset, "_time": self._clock.now_us()}
            self.rows.append(place | {name: row.get(name) for name in WIDE.names})

    def write_spaces(self, log: Log) -> None:
        """Items that are put, replaced and deleted, with and without a record; a space that is dropped."""
        change = log._journal.spaces.change
        partition = log._journal.topics["users.v1"][0]
        self._clock.advance(1.5)
        change("dropped", [(b"k", 0, b"gone")], timeout=10).result()
        change("dropped", drop=True, timeout=10).result()
        first = [(b"snapshot", 0, b"old"), (b"\x00\xff", -1, b""), (b"b", 7, b"seventh"), (b"a", 7, b"7" * 3000)]
        change("größe/\udcff", first, timeout=10).result()
        record = Columns([b"with a change"], [self._clock.now_us()])
        ticket = change("größe/\udcff", [(b"snapshot", 0, b"new")], [b"b"], append=(partition, record), timeout=10)
        ticket.result()
        stored = Record(b"with a change")
        self._note(Receipt("users.v1", 0, partition.durable - 1, 0), stored, {})
        change("empty", [(b"k", 0, b"x")], timeout=10).result()
        change("empty", deletes=[b"k"], timeout=10).result()
        kept = [first[1], (b"snapshot", 0, b"new"), first[3]]
        self.spaces = {
            stored_name("empty").hex(): [],
            stored_name("größe/\udcff").hex(): [[key.hex(), number, body.hex()] for key, number, body in kept],
        }

    def write_sessions(self, log: Log) -> None:
        """Two processes that share the log, of which one takes its answers, and a producer."""
        sent = [(b"a" * 16, 1, 1), (b"b" * 16, 1, 1), (b"a" * 16, 2, 2), (b"b" * 16, 2, 1)]
        self.send(log, "users.v1", [*sent, (b"device-7", 1, 0), (b"device-7", 2, 0)])

    def send(self, log: Log, topic: str, sent: list[tuple[bytes, int, int]]) -> None:
        """One record for each number of each session; a floor of 0 means a producer."""
        journal = log._journal
        partition = journal.topics[topic][0]
        for session, sequence, floor in sent:
            self._clock.advance(1.5)
            rows = ForwardedRows(partition, [(b"sent %d" % sequence, self._clock.now_us(), None, None)], 6)
            put = journal.sessions.put(session, sequence, floor, [rows], 10) if floor else None
            put = put or journal.sessions.produce(session, sequence, rows, 10)
            assert put.wait(10)
            ((outcome,),) = [one.runs for one in put.outcomes()]
            self._note(Receipt(topic, 0, outcome.first, outcome.seq), Record(b"sent %d" % sequence), {})
            self.sessions.append([session.hex(), sequence, floor, outcome.first, outcome.seq])

    def forget(self, place: str, count: int) -> None:
        """The oldest records of a partition are gone."""
        del self.records[place][:count]

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

    def expectations(self) -> Expected:
        """What a reader must find."""
        found: Expected = {"records": self.records, "receipts": self.receipts}
        found |= {"rows": self.rows} if self.rows else {}
        found |= {"spaces": self.spaces} if self.spaces else {}
        return found | ({"sessions": self.sessions} if self.sessions else {})


def make_log(path: Path, keyring: Keyring | None = None) -> Expected:
    """A log with everything in it: a tail, then segments, spaces and sessions, in three ownerships."""
    clock = ManualClock(seed=2026)
    scribe = Scribe(clock)
    _write_tail(path, keyring, clock, scribe)
    clock.advance(3600)
    with fixed(path, clock, keyring and ROTATED) as log:
        _write_segments(log, scribe)
        scribe.write_spaces(log)
        scribe.write_sessions(log)
    return scribe.expectations() | {"segments": segments_of(path), "arrow": pa.__version__}


def _write_segments(log: Log, scribe: Scribe) -> None:
    """Segments of two partitions, the oldest expired, a tail behind them; and a typed topic of two versions."""
    log.topic("events", partitions=2)
    scribe.append(log, "events", b"expired", partition=0, key=b"k", headers={"h": b"v"})
    scribe.append(log, "events", b"expired, too", partition=0)
    _seal(log, "events")
    batch = [Record(b"", key=b"c-1", kind="made"), Record(b"b", time=7), Record(b"c", headers={"trace": b"\x01"})]
    scribe.append_batch(log, "events", batch, partition=0)
    _seal(log, "events")
    scribe.append(log, "events", b"\x00\xff" * 20, partition=0)
    _seal(log, "events")
    scribe.append(log, "events", b"of the other partition", partition=1, time=-1)
    _seal(log, "events")
    log.set_retention("events", records_max=4)
    log.retain()
    scribe.forget("events/0", 2)
    scribe.append(log, "events", b"in the tail", partition=0)
    scribe.append_rows(log, "readings", NARROW, [{"sensor": "a", "celsius": 21.5}, {"sensor": None, "celsius": -0.0}])
    _seal(log, "readings")
    scribe.append_rows(log, "readings", WIDE, [{"sensor": "grüß", "tags": ["x", None]}])
    log.topic("values", codec="json")
    scribe.append(log, "values", b'{"id":1}')


def _seal(log: Log, topic: str) -> None:
    """Seal, and wait until the entries are trimmed: which commit comes next must not depend on chance."""
    log.seal(topic)
    wanted = sum(mark.durable - mark.sealed for name in log.topics() for mark in log.marks(name))
    connection = apsw.Connection(str(log.path / "durable.db"), flags=apsw.SQLITE_OPEN_READONLY)
    deadline = time.monotonic() + 20
    while connection.execute("SELECT coalesce(sum(count), 0) FROM entries").get != wanted:
        assert time.monotonic() < deadline, "the entries are not trimmed"
        time.sleep(0.001)
    connection.close()


def segments_of(path: Path) -> list[Expected]:
    """What the manifest says of each segment, with the name of its file."""
    names = (
        "topic", "partition", "number", "first_offset", "rows", "time_min", "time_max", "low", "high", "state",
        "key_id", "schema", "content", "chain", "file",
    )  # fmt: skip
    sql = (
        "SELECT name, heads.number, s.number, first_offset, rows, time_min, time_max, low, high, state, key_id,"
        " lower(hex(schema)), lower(hex(content)), lower(hex(chain)),"
        " printf('%020d', s.number) || '-' || lower(hex(substr(sha256, 1, 8))) || '.parquet'"
        " FROM segments s JOIN heads USING (partition_id) JOIN topics ON topics.id = topic_id"
        " ORDER BY partition_id, s.number"
    )
    connection = apsw.Connection(
        f"file:{path / 'durable.db'}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    found = [dict(zip(names, row, strict=True)) for row in connection.execute(sql)]
    connection.close()
    return found


def _write_tail(path: Path, keyring: Keyring | None, clock: ManualClock, scribe: Scribe) -> None:
    """Raw records in two ownerships, the key rotated in the second if there is one."""
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


def make_group_file(path: Path, keyring: Keyring | None = None) -> None:
    """A log as a crash leaves it: some of its groups are in a file alone."""
    clock = ManualClock(seed=2026)
    running = path.with_name(f"{path.name}-running")
    with (
        patch("os.getpid", return_value=4242),
        patch.object(TimeKeeper, "write", lambda _: None),  # it is of the moment at which the log was open
        patch("holdfast.journal.commit.writer._FOLD_S", 3600.0),
        holdfast.open(running, settings=FILED, keyring=keyring, clock=clock) as log,
    ):
        log.topic("orders", partitions=2)
        for number in range(3):
            log.topic("orders").append(b"order %d" % number, key=b"k", partition=number % 2)
        log.topic("orders").append_batch([b"one", b"two"], partition=1)
        log.topic("events", schema=NARROW).append([{"sensor": "a", "celsius": 1.5}])
        Scribe(clock).send(log, "orders", [(b"a" * 16, 1, 1), (b"device-7", 1, 0), (b"a" * 16, 2, 2)])
        shutil.copytree(running, path, ignore=shutil.ignore_patterns("*-shm", "SOCKET"))
    shutil.rmtree(running)


MAKERS: dict[str, Callable[[Path], Expected]] = {"plain": make_log, "sealed": lambda path: make_log(path, FIRST)}


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
    _make_damaged_segments(path)
    _make_damaged_space(path / "item-back")
    _make_damaged_store(path / "store")


def _make_small(path: Path) -> None:
    clock = ManualClock(seed=3)
    with fixed(path, clock) as log:
        for payload in (b"one", b"two", b"three"):
            log.topic("t").append(payload)


def _make_damaged_segments(path: Path) -> None:
    """Three segments of one record each, and damage to the second."""
    for name in ("segment-gone", "segment-flipped", "watermark-back"):
        older = _make_small_sealed(path / name)
        (second,) = (path / name / "segments/topics/t/0/segments").glob(f"{1:020d}-*")
        match name:
            case "segment-gone":
                second.unlink()
            case "segment-flipped":
                content = bytearray(second.read_bytes())
                content[40] ^= 1
                second.write_bytes(content)
            case "watermark-back":
                _execute(path / name, f"INSERT OR REPLACE INTO watermarks VALUES ({','.join('?' * len(older))})", older)


def _make_damaged_space(path: Path) -> None:
    """Two spaces, in one of which an item is as it was before."""
    with fixed(path, ManualClock(seed=5)) as log:
        change = log._journal.spaces.change
        for name in ("s", "t"):
            change(name, [(b"k", 0, b"old")], timeout=10).result()
        change("s", [(b"k", 0, b"new")], timeout=10).result()
    _execute(path, "UPDATE space_items SET body=? WHERE space_id=1", (b"old",))


def _make_small_sealed(path: Path) -> tuple[Any, ...]:
    """Returns the watermark's row as it was after the second segment."""
    older: tuple[Any, ...] = ()
    with fixed(path, ManualClock(seed=4)) as log:
        for payload in (b"one", b"two", b"three"):
            connection = apsw.Connection(str(path / "durable.db"), flags=apsw.SQLITE_OPEN_READONLY)
            older = connection.execute("SELECT * FROM watermarks").fetchone() or ()
            connection.close()
            log.topic("t").append(payload)
            _seal(log, "t")
    return older


def _execute(path: Path, sql: str, values: tuple[Any, ...] = ()) -> None:
    connection = apsw.Connection(str(path / "durable.db"))
    connection.execute(sql, values)
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
        [b"a", b"", b"c"], [1, 2, 3], {0: (b"k", b"made", b"\x81\xa1h\xc4\x01v"), 2: (None, "größer".encode(), None)}
    ),
}

LOG_ID, LINK, SALT = bytes(range(16)), bytes(range(0xA0, 0xB0)), bytes(range(64, 96))
SOURCE = KeySource(KEYS["golden-1"], SALT, LOG_ID + (5).to_bytes(8, "big"))
FINGERPRINT = bytes(range(0x20, 0x30))
ENTRIES: dict[str, tuple[Place, Entry]] = {
    "first of a partition": (Place(LOG_ID, "t", 0), Entry(1, 1, 0, 1, 2, 1, 0, 0, 5, 5, chain.NO_LINK, b"", b"body")),
    "every field its own": (
        Place(LOG_ID, "orders.v1", 3),
        Entry(0x0102030405, 77, 0x060708, 0x0A0B, 0x0C0D0E, 1, 0, 0x1112, -2, 2**62, LINK, b"", b"sealed body"),
    ),
    "rows of a typed topic": (
        Place(LOG_ID, "orders.v1", 3),
        Entry(0x0102030405, 77, 0x060708, 3, 4, 2, 0, 0, -2, 2**62, LINK, b"", b"typed body", FINGERPRINT),
    ),
}
TYPED_FRAMES: dict[str, tuple[int, bytes, bytes]] = {
    "one time for all": (3, struct.pack("<q", 5), b"an Arrow message"),
    "own times": (2, struct.pack("<2q", -1, 2**62), b"an Arrow message"),
    "one row": (1, struct.pack("<q", 5), b""),
}
CHAIN, CONTENT = bytes(range(0xC0, 0xE0)), bytes(range(32, 64))
CHAINS: dict[str, tuple[SegmentHead, int, bytes]] = {
    "first of a partition": (
        SegmentHead(
            log_id=LOG_ID, topic="t", partition=0, number=0, first=0, epoch=1, schema=bytes(16), previous=NO_CHAIN
        ),
        1,
        CONTENT,
    ),
    "every field its own": (
        SegmentHead(
            log_id=LOG_ID,
            topic="orders.v1",
            partition=3,
            number=7,
            first=2**40,
            epoch=9,
            schema=FINGERPRINT,
            previous=CHAIN,
        ),
        1000,
        CONTENT,
    ),
}
ROWS = {
    "log": LogRow(
        LOG_ID, 1_700_000_000_000_000, 1, 2, 3, 4, 5, 6, 7, 8, 9, bytes(range(96, 128)), 10, 11, 12, 13, 14, 15, 16,
        bytes(range(64, 96)), 5, b"",
    ),
    "epochs": EpochRow(2, 1_700_000_000_000_000, 4242, 5, b""),
    "key_epochs": KeyEpoch(5, "aes-256-gcm-salted", "golden-1", SALT, bytes(32), b""),
    "topics": TopicRow(1, "orders", 3, "json", -1, 5, b""),
    "heads": HeadRow(4, 1, 2, 2**40, LINK, 5, b""),
    "idempotency": KeyRow(6, LINK, 4, 2**40, 9, FINGERPRINT, 5, b""),
    "shipping": ShippingRow("memory://golden", bytes(range(16)), 3, 2**40, 1, 4, "an alarm", "an end", "an error", 5),
    "shipments": ShipmentRow(4, 8, 7, 2**40, 2**41, 5),
    "watermarks": WatermarkRow(4, 8, 2**40, CHAIN, 2, 2**30, 5, b""),
    "segments": SegmentRow(
        partition_id=4,
        number=7,
        first_offset=2**40,
        rows=1000,
        size=4096,
        time_min=-1,
        time_max=2**60,
        low=-2,
        high=2**61,
        sha256=bytes(range(32)),
        content=CONTENT,
        footer=LINK,
        chain=CHAIN,
        schema=FINGERPRINT,
        key_id="golden-1",
        epoch=9,
        sealed_us=1_700_000_000_000_000,
        state=LIVE,
        key_epoch=5,
        stamp=b"",
    ),
    "schemas": SchemaRow(1, 2, FINGERPRINT, b"a serialized schema", 1_700_000_000_000_000, 5, b""),
    "policies": PolicyRow(1, 0, 3_600_000_000, 1000, 5, b""),
    "spaces": SpaceRow(3, "größe".encode(), 2, bytes(range(128, 160)), 5, b""),
}  # fmt: skip
ITEMS = {
    "every field its own": ItemRow(3, b"\x00key", -7, 5, b"sealed body"),
    "an empty body": ItemRow(1, b"", 0, 0, b""),
}


def make_vectors() -> Expected:
    """Pure values: what each codec must give for each input, today and forever."""
    cipher = store_cipher()
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
        "typed frames": {
            name: {
                "count": count,
                "times": times.hex(),
                "message": message.hex(),
                "body": (frame.typed_head(count, times) + message).hex(),
            }
            for name, (count, times, message) in TYPED_FRAMES.items()
        },
        "chains": {name: chain_value(*vector).hex() for name, vector in CHAINS.items()},
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
        "items": {
            name: {
                "header": (head := space_header(LOG_ID, *item[:-1])).hex(),
                "plain": f"{weight_of(chain.plain_stamp, head, item.body):064x}",
                "keyed": f"{weight_of(cipher.mac, head, item.body):064x}",
            }
            for name, item in ITEMS.items()
        },
        "sealing": {
            "commitment": cipher.commitment.hex(),
            "mac": cipher.mac(b"a message").hex(),
            "sealed": [cipher.encrypt(b"the same body", b"the same header").hex() for _ in range(2)],
        },
    }


# -- the store --------------------------------------------------------------------------------------------

_NOW = 1_700_000_000_000_000
_SCHEMA_VERSION = documents.SchemaVersion(FINGERPRINT.hex(), "YSBzZXJpYWxpemVkIHNjaGVtYQ==")


def manifest_objects() -> list[ManifestDocument]:
    """Two segments of one partition, and a takeover between them."""
    shared: Expected = {"log": LOG_ID.hex(), "topic": "orders", "partition": 3}
    first = SegmentHead(
        log_id=LOG_ID, topic="orders", partition=3, number=0, first=7, epoch=1, schema=bytes(16), previous=NO_CHAIN
    )
    second = SegmentHead(
        log_id=LOG_ID,
        topic="orders",
        partition=3,
        number=1,
        first=17,
        epoch=2,
        schema=FINGERPRINT,
        previous=chain_value(first, 10, CONTENT),
    )
    made: list[ManifestDocument] = []
    for head in (first, second):
        facts = SegmentFacts(
            rows=10,
            size=4096 + head.number,
            time_min=-1,
            time_max=2**60,
            sha256=bytes(range(32)),
            content=CONTENT,
            footer=LINK,
            key_id="golden-1" if head.number else "",
        )
        segment = Segment(head=head, facts=facts)
        made.append(documents.SegmentDocument.of(segment, slot=2 * head.number, chain=segment.chain, sealed_us=_NOW))
    start = documents.StartDocument(
        **shared, slot=1, epoch=2, nonce="0f" * 16, number=1, first=17, adopted_seq=0x0102030405
    )
    return [made[0], start, made[1]]


def store_documents() -> dict[str, AnyDocument]:
    """One document of each kind, by its key."""
    log = LOG_ID.hex()
    place: Expected = {"log": log, "topic": "orders", "partition": 3}
    claim: Expected = {"log": log, "nonce": "0f" * 16, "claimed_us": _NOW, "host": "größe", "pid": 4242}
    topic: Expected = {"log": log, "topic": "orders", "partitions": 4, "first_offset": 7}
    return {
        layout.LOG: documents.LogDocument(log=log, created_us=_NOW),
        layout.epoch_key(1): documents.EpochDocument(epoch=1, purpose="open", **claim),
        layout.epoch_key(2): documents.EpochDocument(epoch=2, purpose="restore", **claim),
        layout.topic_key("orders", 1): documents.TopicDocument(version=1, codec="json", **topic),
        layout.topic_key("orders", 2): documents.TopicDocument(
            version=2, schemas=(_SCHEMA_VERSION,), retention=documents.RetentionLimits(0, 3_600_000_000, 1000), **topic
        ),
        **{layout.manifest_key("orders", 3, d.slot): d for d in manifest_objects()},
        layout.floor_key(2, 9): documents.FloorDocument(log=log, epoch=2, seq=9),
        layout.frontier_key(2, 7): documents.FrontierDocument(
            log=log, epoch=2, number=7, seq=9, settled={"orders": {"3": 51}}
        ),
        layout.frontier_key(2, 8): documents.FrontierDocument(
            log=log, epoch=2, number=8, seq=9, settled={"orders": {"3": 51}}, keys=(1, 9)
        ),
        layout.adopted_key(2, 8): documents.AdoptedDocument(log=log, epoch=2, seq=8),
        layout.expired_key("orders", 3, 1): documents.ExpiredDocument(upto=1, first=17, expired_us=_NOW, **place),
        layout.lease_key("a-reader", 1): documents.LeaseDocument(
            log=log, reader="a-reader", until_us=_NOW, needs={"orders": {"3": 1}}
        ),
        **compaction_documents(),
        **sink_documents(),
    }


def compaction_documents() -> dict[str, AnyDocument]:
    """What compaction writes, in roots of the present format alone: a rewrite, one that tells all, and an intent."""
    place: Expected = {"log": LOG_ID.hex(), "topic": "orders", "partition": 3}
    first, _, second = manifest_objects()
    assert isinstance(first, documents.SegmentDocument)
    assert isinstance(second, documents.SegmentDocument)
    files = [
        documents.RewrittenFile(upto=at + 1, segment=msgspec.structs.replace(one, sha256=f"{at:02x}" * 32))
        for at, one in enumerate((first, second))
    ]
    nonces = ("0123456789abcdef", "fedcba9876543210")
    return {
        layout.rewrite_key("orders", 3, 0): documents.RewriteDocument(
            number=0, nonce=nonces[0], outputs=(files[0],), rewritten_us=_NOW, **place
        ),
        layout.rewrite_key("orders", 3, 1): documents.RewriteDocument(
            number=1, nonce=nonces[1], outputs=(files[1],), kept=(files[0],), rewritten_us=_NOW, **place
        ),
        layout.intent_key("orders", 3, 2, nonces[0]): documents.IntentDocument(
            number=2, nonce=nonces[0], runs=((0, 2), (2, 5)), begun_us=_NOW, host="größe", pid=4242, **place
        ),
    }


def sink_documents() -> dict[str, AnyDocument]:
    """A topic that a sink writes: its document, a batch with a mark, and one without rows that keeps the mark."""
    log, first = LOG_ID.hex(), manifest_objects()[0]
    assert isinstance(first, documents.SegmentDocument)
    head = msgspec.structs.replace(first.segment.head, topic="spark", first=0)
    segment = Segment(head=head, facts=first.segment.facts)
    made = documents.SegmentDocument.of(segment, slot=0, chain=segment.chain, sealed_us=_NOW)
    end = documents.PartitionEnd(1, 1, made.end, made.chain)
    about: Expected = {"log": log, "topic": "spark", "committed_us": _NOW, "nonce": "0f" * 16, "ends": {"3": end}}
    return {
        layout.topic_key("spark", 1): documents.SinkTopicDocument(
            log=log, topic="spark", version=1, partitions=4, first_offset=0, schemas=(_SCHEMA_VERSION,)
        ),
        layout.sink_key("spark", 0): documents.SinkBatchDocument(
            number=0, writer="größe", batch=7, segments=(made,), marks={"größe": 7}, **about
        ),
        layout.sink_key("spark", 1): documents.SinkBatchDocument(
            number=1, writer="", batch=-1, segments=(), marks={"größe": 7}, **about
        ),
        layout.manifest_key("spark", 3, 0): made,
    }


def store_batches() -> dict[str, CommitBatch]:
    """The same entries plain and encrypted, and beside segments, by their keys. (No real root has all of these.)"""
    segments = [one for one in manifest_objects() if isinstance(one, documents.SegmentDocument)]
    made = [_commit_batch(1, None), _commit_batch(2, store_cipher())]
    made += [_commit_batch(3, store_cipher())._replace(segments=tuple(map(documents.checked, segments)))]
    return {layout.batch_key(batch.epoch, batch.first_seq, batch.last_seq): batch for batch in made}


def store_cipher() -> AesGcmCipher:
    """What the encrypted entries of the store are encrypted with: key epoch 5."""
    return AesGcmCipher(SOURCE, encrypts=True, random=ManualClock(seed=6).random_bytes)


IDEMPOTENCY = [bytes([0xE0 + n]) * 16 for n in range(3)]
"""Hashes of idempotency keys, before they are encrypted."""
DIGESTED = [bytes([0xD0 + n]) * 16 for n in range(3)]
"""Digests of what they stand for, before they are encrypted."""


def store_keys() -> dict[str, KeyObject]:
    """The same idempotency keys of a log without keys and of one with, by their keys."""
    made = []
    for epoch, cipher in ((3, None), (4, store_cipher())):
        rows = [
            StoredKey("orders" if n < 2 else "readings.v1", 3, 100 + n, 1 + n, *_encrypted(cipher, n)) for n in range(3)
        ]
        made.append(KeyObject(LOG_ID, epoch, 1, 9, _tail_key(cipher) if cipher else None, tuple(rows)))
    return {layout.keys_key(keys.epoch, keys.first_seq, keys.last_seq): keys for keys in made}


def _encrypted(cipher: AesGcmCipher | None, n: int) -> tuple[bytes, bytes]:
    """A hash and a digest as they lie on a store."""
    mac = cipher.mac if cipher else None
    return HashCipher(LOG_ID, mac).encrypt(IDEMPOTENCY[n]), HashCipher(LOG_ID, mac, DIGESTS).encrypt(DIGESTED[n])


def _commit_batch(epoch: int, cipher: AesGcmCipher | None) -> CommitBatch:
    bodies = [(1, frame.encode(columns), len(columns), b"") for columns in FRAMES.values()]
    bodies += [(2, frame.typed_head(*typed[:2]) + typed[2], typed[0], FINGERPRINT) for typed in TYPED_FRAMES.values()]
    links: dict[int, bytes] = {}
    entries = []
    for seq, (kind, body, count, schema) in enumerate(bodies, 11):  # 10 was settled before, and left out
        topic, key_epoch = ("orders" if kind == 1 else "readings.v1"), (5 if cipher else 0)
        link = links.get(kind, chain.NO_LINK)
        entry = Entry(seq, kind, 100 * seq, count, 2 * seq, kind, 0, key_epoch, -1, 2**62, link, b"", body, schema)
        head = header_of(Place(LOG_ID, topic, 3), entry)
        encrypted = bytes(cipher.encrypt(body, head)) if cipher else body
        links[kind] = chain.digest(head, encrypted)
        entry = entry._replace(digest=links[kind], body=encrypted)
        known = [(place, *_encrypted(cipher, place)) for place in range(0, min(count, 3), 2)]
        given = commit_batch.with_idempotent(known) if seq % 2 else b""
        entries.append(TailEntry(topic, 3, entry.seq, *entry[2:], given))
    keys = (_tail_key(cipher),) if cipher else ()
    return CommitBatch(LOG_ID, epoch, 10, 10 + len(bodies), keys, tuple(entries), 8)


def _tail_key(cipher: AesGcmCipher) -> TailKey:
    draft = KeyEpoch(5, cipher.name, "golden-1", SALT, cipher.commitment, b"")
    return TailKey(5, cipher.name, "golden-1", SALT, cipher.commitment, cipher.mac(draft.message()))


def store_objects() -> dict[str, bytes]:
    """All objects of the root, by their keys."""
    return {
        **{key: documents.encode(document) for key, document in store_documents().items()},
        **{key: commit_batch.encode(batch) for key, batch in store_batches().items()},
        **{key: key_object.encode(keys) for key, keys in store_keys().items()},
        layout.checkpoint_key("orders", 3, 2): checkpoint.encode(manifest_objects()),
    }


def make_store(path: Path) -> None:
    """A store's root with one of each object."""
    _write_objects(path, store_objects())


def make_signed_store(path: Path) -> None:
    """The same root as a log with keys writes it: every object but leases is signed."""
    signer = Signer.of(FIRST)
    assert signer is not None
    objects = store_objects()
    for key in filter(signature_place.is_signed_kind, objects):
        objects[key] = signature_place.attach(key, objects[key], signer.sign(LOG_ID.hex(), key, objects[key]))
    _write_objects(path, objects)


def _make_damaged_store(path: Path) -> None:
    """Objects with one thing wrong in each, under the keys that they would have."""
    objects = store_objects()
    batch, rows, log = layout.batch_key(1, 10, 19), layout.checkpoint_key("orders", 3, 2), layout.LOG
    keys = layout.keys_key(4, 1, 9)
    for key in (batch, layout.batch_key(3, 10, 19), keys, rows, log):
        data = objects[key]
        middle = len(data) // 2
        _write_objects(path / "flipped", {key: data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]})
        _write_objects(path / "truncated", {key: data[:-20]})
    _write_objects(path / "moved", {layout.batch_key(2, 10, 19): objects[batch]})
    _write_objects(path / "moved", {layout.checkpoint_key("orders", 2, 2): objects[rows]})
    _write_objects(path / "moved", {layout.keys_key(4, 2, 9): objects[keys]})
    _write_objects(path / "moved", {layout.epoch_key(3): objects[log]})
    newer = msgspec.structs.replace(store_documents()[log], format=2)
    modules = (checkpoint, commit_batch, key_object)
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "FORMAT", 2))
        _write_objects(
            path / "newer",
            {
                batch: commit_batch.encode(store_batches()[batch]),
                keys: key_object.encode(store_keys()[keys]),
                rows: checkpoint.encode(manifest_objects()),
                log: documents.encode(newer),
            },
        )


def _write_objects(path: Path, objects: dict[str, bytes]) -> None:
    for key, data in objects.items():
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        (path / key).write_bytes(data)


def _hex(extra: Extra) -> list[str | None]:
    return [None if value is None else value.hex() for value in extra]


def _write_json(path: Path, content: Expected) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def replace(made: Path, target: Path) -> None:
    """Put what was made in the place of what is there."""
    for folder in (path for path in made.iterdir() if path.is_dir()):
        shutil.rmtree(target / folder.name, ignore_errors=True)
        shutil.copytree(folder, target / folder.name)
    for file in made.glob("*.json"):
        shutil.copy(file, target / file.name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as workshop:
        make(Path(workshop))
        replace(Path(workshop), HERE)
