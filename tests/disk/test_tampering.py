"""Tampering: whatever somebody changes in a stored log is refused, or changes nothing that is read.

Two small logs with the same records, one with keys and one without, are prepared once: raw and typed topics, records
in the tail and in segments, some of them expired, and spaces. Each test damages a copy with plain SQLite or with bytes,
then opens it as its owner would, reads everything, loads all spaces and reconciles (refused with a typed error, or
exactly the records that were written) and with `read_only=True` (everything outside the damage is still readable).

Without keys, digests find accidents; somebody who recomputes them is not found, and nothing here says so.
What cannot be found even with keys is said in docs/formats/0003-encryption.md, and has its test here too.

The normal run samples with a fixed seed; the soak run does all of it. Every test also proves that no error
and no log record shows a secret.
"""

from __future__ import annotations

import base64
import itertools
import logging
import resource
import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw
import pyarrow as pa
import pytest
from tests.sampling import Some

import holdfast
from holdfast import Corrupt, HoldfastError, Invalid, Keyring, Log, Receipt, Record, Settings, Topic
from holdfast.crypto import digests
from holdfast.journal.session_access import ForwardedRows
from holdfast.journal.sqlite.migrations import migrations
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.model.control_rows import ShipmentRow, ShippingRow
from holdfast.model.entry import Entry, Place, header_of
from holdfast.model.record_columns import Columns
from holdfast.segments.retention.retention import Retention
from holdfast.testing.manual_clock import ManualClock

pytestmark = pytest.mark.disk


@pytest.fixture(autouse=True)
def retention_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's own retention would expire records while they are being read; tests that want it call retain()."""
    monkeypatch.setattr(Retention, "check", lambda self, now: now + 3600)


MASTER, NEWER, OTHER = b"MASTER-KEY-0123456789-abcdefghij", b"NEWER-KEY-9876543210-jihgfedcba.", bytes(range(32))
FIRST = Keyring({"k1": MASTER})
ROTATED = Keyring({"k2": NEWER, "k1": MASTER})
INNER = (b"PAYLOAD", b"KEY-OF", b"KIND-OF", b"HEADER-NAME", b"HEADER-VALUE")
"""Marks of all that an encrypted log hides."""
SECRETS = [
    *(mark.decode() for mark in INNER),
    *(text for key in (MASTER, NEWER) for text in (key.decode(), key.hex(), base64.b64encode(key).decode())),
]
PLAIN_SETTINGS = Settings.from_mapping({"journal": {"group_file_bytes": 0}, "segments": {"seal_on_close": False}})
"""All of it goes through the database: what files of groups add is in test_group_files."""
NARROW = pa.schema([("name", pa.string()), ("cents", pa.int64())])
WIDE = pa.schema([*NARROW, ("note", pa.string())])

Where = tuple[str, int]
Item = Record | dict[str, Any] | tuple[bytes, int, bytes]
Records = dict[Where, list[Item]]
Rows = dict[str, list[dict[str, Any]]]
Files = dict[str, bytes]


SPACE = -1
"""In place of a partition: this is not a topic, but a space."""


# -- the subject ------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """One stored entry or segment: its row's columns without the blobs, and whose it is."""

    topic: str
    partition: int
    partition_id: int
    seq: int
    """Of an entry; 0 and below for segments, which have none."""
    first: int
    count: int
    key_epoch: int


class Subject:
    """A log that was written once and is damaged again and again, always from the same state."""

    def __init__(self, path: Path, *, keyed: bool, seed: int = 1) -> None:
        self.path = path
        self.seed = seed
        self.keyring = ROTATED if keyed else None
        self.history: list[Rows] = []
        """All rows after each commit."""
        self.trees: list[Files] = []
        """All segment files after each commit."""
        self.states: list[Records] = []
        """All records after each commit."""
        self.receipts: dict[str, Receipt] = {}
        self.payloads: dict[str, bytes] = {}
        self._write(ManualClock(seed=seed), FIRST if keyed else None)
        self.files = files_in(path)
        self._segments = everything_in(path / "segments")
        self.records = self.states[-1]
        self.spans = self._spans()
        self.wholes = [Span(topic, partition, 0, 0, 0, 0, 0) for topic, partition in self.records]

    def _write(self, clock: ManualClock, keyring: Keyring | None) -> None:
        with holdfast.open(self.path, settings=PLAIN_SETTINGS, keyring=keyring, clock=clock) as log:
            log.topic("orders", partitions=2)
            self._append(log, clock, "orders", 0, idempotency_key="once-0")
            self._append(log, clock, "orders", 1)
            extras = {"key": b"KEY-OF", "kind": "KIND-OF", "headers": {"HEADER-NAME": b"HEADER-VALUE"}}
            log.topic("orders").append_batch([b"PAYLOAD a", Record(b"PAYLOAD b", **extras), b"PAYLOAD"], partition=0)
            self._keep(log)
            self._append(log, clock, "users", 0, **extras)
        with holdfast.open(self.path, settings=PLAIN_SETTINGS, keyring=keyring, clock=clock) as log:
            self._append(log, clock, "users", 0)
            if keyring is not None:
                log.rotate_key(ROTATED)
            self._append(log, clock, "orders", 1)
            self._append(log, clock, "orders", 0, idempotency_key="once-1")
            self._write_segments(log, clock)
            self._write_typed(log, clock)
            self._write_shipping(log)
            self._write_spaces(log, clock)
            self._write_sessions(log, clock)

    def _write_shipping(self, log: Log) -> None:
        """Marks of a store; there is none, and nothing here asks it."""
        journal = log._journal
        marks = [
            ShipmentRow(p.id, p.sealed.segments, p.sealed.segments, p.sealed.sealed_offset, p.sealed.sealed_offset)
            for p in journal.partitions.values()
        ]
        journal.settle(journal.note_shipped(ShippingRow("file:///store", b"o" * 16, 1, 1, 0), marks))
        self._keep(log)

    def _write_spaces(self, log: Log, clock: ManualClock) -> None:
        """Two spaces with items of the same keys and sizes, some replaced, one deleted, a record with one of them."""
        journal = log._journal
        users = journal.topics["users"][0]
        for keys, deletes in (((b"snapshot", b"a", b"b"), []), ((b"snapshot", b"c"), [b"a"]), ((b"b",), [])):
            for name in ("one", "two"):
                clock.advance(1)
                step = len(self.states)
                puts = [(key, 0 if key == b"snapshot" else step, b"PAYLOAD %d of %s" % (step, key)) for key in keys]
                append = (users, Columns([b"PAYLOAD with it"], [clock.now_us()])) if deletes else None
                journal.spaces.change(name, puts, deletes, append=append, timeout=20).result()
                self._keep(log)

    def _write_sessions(self, log: Log, clock: ManualClock) -> None:
        """Two processes that share the log, and a producer: each goes on, the second one's answers wait."""
        journal = log._journal
        users = journal.topics["users"][0]
        for sequence in (1, 2, 3):
            for session, floor in ((b"a" * 16, sequence), (b"b" * 16, 1), (b"device", 0)):
                clock.advance(1)
                rows = ForwardedRows(users, [(b"PAYLOAD of a session", clock.now_us(), None, None)], 20)
                if floor:
                    sent = journal.sessions.put(session, sequence, floor, [rows], 20)
                else:
                    sent = journal.sessions.produce(session, sequence, rows, 20)
                assert sent.wait(20)
                assert sent.outcomes()[0].error is None
                self._keep(log)

    def _write_segments(self, log: Log, clock: ManualClock) -> None:
        """Four segments of one partition, of which the first expires, one of another, and a tail behind them."""
        log.topic("events", partitions=2)
        for partition, sealed in ((0, 3), (1, 1)):
            for _ in range(sealed):
                self._append(log, clock, "events", partition)
                self._append(log, clock, "events", partition)
                self._seal(log, "events")
        log.set_retention("events", records_max=100)
        self._keep(log)
        log.set_retention("events", records_max=4)
        self._keep(log)
        log.retain()
        self._keep(log)
        self._append(log, clock, "events", 0)
        self._seal(log, "events")
        self._append(log, clock, "events", 0)

    def _write_typed(self, log: Log, clock: ManualClock) -> None:
        """A segment of a schema's first version, then a tail of its second."""
        rows = [{"name": "PAYLOAD a", "cents": 1}, {"name": None, "cents": 2}]
        log.topic("typed", schema=NARROW).append(rows, idempotency_key="typed-0")
        self._keep(log)
        self._seal(log, "typed")
        wide = log.topic("typed", schema=WIDE)
        for note in ("PAYLOAD x", "PAYLOAD y"):
            clock.advance(1)
            wide.append({"name": "b", "cents": 3, "note": note})
            self._keep(log)

    def _seal(self, log: Log, topic: str) -> None:
        """Seal, and wait until the roller has trimmed what it sealed."""
        log.seal(topic)
        below = (
            "SELECT count(*) FROM entries JOIN watermarks USING (partition_id)"
            " WHERE entries.first_offset < watermarks.sealed_offset"
        )
        deadline = time.monotonic() + 20
        while self.database().execute(below).fetchone() != (0,):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        self._keep(log)

    def _append(self, log: Log, clock: ManualClock, topic: str, partition: int, **given: Any) -> None:
        clock.advance(1)
        payload = b"PAYLOAD %d of %d" % (len(self.states), self.seed)
        receipt = log.topic(topic).append(payload, partition=partition, **given)
        if "idempotency_key" in given:
            self.receipts[given["idempotency_key"]] = receipt
            self.payloads[given["idempotency_key"]] = payload
        self._keep(log)

    def _keep(self, log: Log) -> None:
        with self.database() as connection:
            self.history.append({table: rows_of(connection, table) for table in TABLES})
        self.trees.append(files_in(self.path, "segments"))
        self.states.append(all_records(log))

    def _spans(self) -> list[Span]:
        now = self.history[-1]
        names = {row["id"]: row["name"] for row in now["topics"]}
        heads = {row["partition_id"]: (names[row["topic_id"]], row["number"]) for row in now["heads"]}
        return [
            Span(
                *heads[row["partition_id"]],
                row["partition_id"],
                row["seq"],
                row["first_offset"],
                row["count"],
                row["key_epoch"],
            )
            for row in now["entries"]
        ] + [
            Span(
                *heads[row["partition_id"]],
                row["partition_id"],
                -row["number"],
                row["first_offset"],
                row["rows"],
                row["key_epoch"],
            )
            for row in now["segments"]
            if row["state"] == 1
        ]

    def database(self) -> apsw.Connection:
        """Plain SQLite, as anybody could use it; fast and careless. As a context manager it is one transaction."""
        connection = apsw.Connection(str(self.path / "durable.db"))
        connection.execute("PRAGMA synchronous=OFF")
        return connection

    def change(self, *statements: tuple[str, Sequence[Any]]) -> bool:
        """Run SQL on the database; False if SQLite itself refuses it."""
        connection = self.database()
        try:
            with connection:
                for sql, values in statements:
                    connection.execute(sql, values)
        except apsw.ConstraintError:
            return False
        finally:
            connection.close()
        return True

    def change_loosely(self, table: str, column: str, sql: str, value: Any, row: dict[str, Any]) -> bool:
        """Store a value of any type in a column: the schema forbids it only for as long as it is asked."""
        schema = dict(self.database().execute("SELECT name, sql FROM sqlite_schema WHERE type='table'"))
        loose = schema[table].replace("STRICT, ", "").replace("STRICT", "").replace("NOT NULL", "")
        rewrite = "UPDATE sqlite_schema SET sql=? WHERE name=?"
        self.change(("PRAGMA writable_schema=ON", ()), (rewrite, (loose, table)))
        changed = self.change(update(table, column, sql, value, row))
        self.change(("PRAGMA writable_schema=ON", ()), (rewrite, (schema[table], table)))
        return changed

    def put_back(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Write rows as they are over whatever stands there."""
        self.change(*(insert(table, row) for row in rows))

    def restore(self, **files: bytes | None) -> None:
        """Undo everything; `files` are written otherwise, or not at all (None)."""
        changed = {name.replace("_", "."): content for name, content in files.items()}
        for file in self.path.iterdir():
            if file.is_file():
                file.unlink()
        if everything_in(self.path / "segments") != self._segments:
            self.restore_files({name: content for name, content in self.files.items() if "/" in name})
        write_files(
            self.path, {name: content for name, content in {**self.files, **changed}.items() if "/" not in name}
        )

    def restore_files(self, tree: Files) -> None:
        """Let the segment files be those of another time."""
        shutil.rmtree(self.path / "segments", ignore_errors=True)
        write_files(self.path, dict(tree))

    def open(self, **given: Any) -> Log:
        """Open the log."""
        return holdfast.open(self.path, settings=PLAIN_SETTINGS, **{"keyring": self.keyring, **given})

    def own(self) -> Records:
        """Everything, as the owner reads it; what reconciliation finds is raised."""
        with self.open() as log:
            records = all_records(log)
            for finding in log.reconcile().findings:  # all files have been read by now
                raise Corrupt(f"reconciliation: {finding.kind}: {finding.detail}")
            return records

    def segment(self, topic: str, partition: int, number: int) -> tuple[dict[str, Any], Path]:
        """A segment's row and its file."""
        now = self.history[-1]
        (topic_id,) = [row["id"] for row in now["topics"] if row["name"] == topic]
        (head,) = [row for row in now["heads"] if (row["topic_id"], row["number"]) == (topic_id, partition)]
        place = (head["partition_id"], number)
        (row,) = [row for row in now["segments"] if (row["partition_id"], row["number"]) == place]
        name = f"{number:020d}-{row['sha256'][:8].hex()}.parquet"
        return row, self.path / "segments" / "topics" / topic / str(partition) / "segments" / name

    def look(self) -> dict[Span, list[Item] | HoldfastError]:
        """Every entry and segment on its own, and each partition as a whole, as somebody reads it who only looks."""
        found: dict[Span, list[Item] | HoldfastError] = {}
        with self.open(read_only=True) as log:
            for span in self.spans + self.wholes:
                start, end = (span.first, span.first + span.count) if span.count else (None, None)
                try:
                    found[span] = (
                        list(log._journal.spaces.load(span.topic))
                        if span.partition == SPACE
                        else list(topic_of(log, span.topic).read(start, end, partition=span.partition))
                    )
                except HoldfastError as error:
                    found[span] = note(error)
        return found

    def expected(self, span: Span) -> list[Item]:
        """The records of one entry or segment, or of a whole partition."""
        records = self.records[span.topic, span.partition]
        end = span.first + span.count
        return [item for item in records if not span.count or span.first <= offset_of(item) < end]


def offset_of(item: Item) -> int:
    assert not isinstance(item, tuple)
    return item.offset if isinstance(item, Record) else int(item["_offset"])


def topic_of(log: Log, name: str) -> Topic | TypedTopic:
    return log.topic(name, schema="latest") if name == "typed" else log.topic(name)


def all_records(log: Log) -> Records:
    """All records of all partitions, and all items of all spaces."""
    records: Records = {
        (name, number): list(topic_of(log, name).read(partition=number))
        for name in log.topics()
        for number in range(topic_of(log, name).partitions)
    }
    return records | {
        (name, SPACE): list(log._journal.spaces.load(name)) for name in log._journal.spaces.names() if name != "time"
    }


def files_in(path: Path, below: str = ".") -> Files:
    """All files of a log, or those below one of its folders, by their names relative to the log."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes() for file in (path / below).rglob("*") if file.is_file()
    }


def everything_in(path: Path) -> dict[str, bytes | None]:
    """All that is below a directory; directories have no content."""
    return {str(found): found.read_bytes() if found.is_file() else None for found in path.rglob("*")}


def write_files(path: Path, files: Mapping[str, bytes | None]) -> None:
    """Write files, and the directories that they need."""
    for name, content in files.items():
        if content is not None:
            (path / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (path / name).write_bytes(content)


def rows_of(connection: apsw.Connection, table: str) -> list[dict[str, Any]]:
    cursor = connection.execute(f"SELECT * FROM {table} ORDER BY {', '.join(KEYS[table])}")
    return [dict(zip(TABLES[table], row, strict=True)) for row in cursor]


def update(table: str, column: str, sql: str, value: Any, row: dict[str, Any]) -> tuple[str, list[Any]]:
    keys = KEYS[table]
    where = " AND ".join(f"{key}=?" for key in keys)
    return f"UPDATE {table} SET {column}={sql} WHERE {where}", [value, *(row[key] for key in keys)]


def insert(table: str, row: dict[str, Any]) -> tuple[str, list[Any]]:
    return f"INSERT OR REPLACE INTO {table} VALUES ({','.join('?' * len(row))})", list(row.values())


def _tables() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """All tables with their columns, and with their primary keys, as the migrations make them."""
    connection = apsw.Connection(":memory:")
    for _, script in migrations():
        connection.execute(script)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
    infos = {str(name): connection.execute(f"PRAGMA table_info({name})").fetchall() for name in names}
    columns = {name: [str(row[1]) for row in info] for name, info in infos.items()}
    return columns, {name: [str(row[1]) for row in info if row[5]] for name, info in infos.items()}


TABLES, KEYS = _tables()


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return {
        name: Subject(tmp_path_factory.mktemp(name) / "log", keyed="keyed" in name, seed=seed)
        for seed, name in enumerate(("plain", "keyed", "plain sibling", "keyed sibling"))
    }


@pytest.fixture(params=["plain", "keyed"])
def subject(subjects: dict[str, Subject], request: pytest.FixtureRequest) -> Subject:
    subjects[request.param].restore()
    return subjects[request.param]


@pytest.fixture
def keyed(subjects: dict[str, Subject]) -> Subject:
    subjects["keyed"].restore()
    return subjects["keyed"]


# -- what must hold ---------------------------------------------------------------------------------------


class Ears(logging.Handler):
    """Hears every error and every log record, and keeps nothing of them but the secrets they showed."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.reported: set[str] = set()

    def hear(self, *texts: str) -> None:
        self.reported |= {secret for secret in SECRETS for text in texts if secret in text}

    def emit(self, record: logging.LogRecord) -> None:
        self.hear(logging.Formatter().format(record), repr(vars(record)))


ears = Ears()


def note(error: HoldfastError) -> HoldfastError:
    """Search an error and its causes for secrets."""
    link: BaseException | None = error
    while link is not None:
        ears.hear(str(link), repr(link), repr(vars(link)))
        link = link.__cause__ or link.__context__
    return error


@pytest.fixture(autouse=True)
def _nothing_secret_is_told() -> Iterator[None]:
    """No error and no log record of any test shows a payload, key, kind, header or master key."""
    logger = logging.getLogger("holdfast")
    before = logger.level, logger.propagate
    logger.addHandler(ears)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False  # a soak run logs more than pytest should keep
    ears.reported.clear()
    yield
    logger.removeHandler(ears)
    logger.setLevel(before[0])  # not by its attribute: loggers below remember what they were set to
    logger.propagate = before[1]
    assert not ears.reported


@pytest.fixture
def _little_memory() -> Iterator[None]:
    """A damaged number must not make us ask for all the memory there is."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    # Whatever other tests have mapped before is there already: threads and Arrow's pools reserve more than they use.
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 4 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def owner_faults(
    subject: Subject, refusals: tuple[type[HoldfastError], ...] = (Corrupt,), *, must: bool = False
) -> list[str]:
    """What is wrong with what the owner gets: nothing if it was refused or, unless it must be, is what was written."""
    try:
        found = subject.own()
    except refusals as error:
        note(error)
        return []
    except Exception as error:
        return [f"owner: {type(error).__name__}: {error}"]
    if found != subject.records:
        return ["owner: other records"]
    return ["owner: not refused"] if must else []


def looker_faults(subject: Subject, harmed: set[Span], refusals: tuple[type[HoldfastError], ...] = ()) -> list[str]:
    """What is wrong with what a reader gets: nothing if all but `harmed` is there and none of it is wrong."""
    try:
        found = subject.look()
    except refusals as error:
        note(error)
        return []
    except Exception as error:
        return [f"observer: {type(error).__name__}: {error}"]
    lost = [span for span in subject.spans if span not in harmed and found[span] != subject.expected(span)]
    return [f"observer: {found[s]} at {s}" for s in lost] + [
        f"observer: other records at {s}" for s in wrong(subject, found)
    ]


def wrong(subject: Subject, found: dict[Span, list[Item] | HoldfastError]) -> list[Span]:
    """Where a reader got something that was not written there; less than was written is not wrong, but of a space."""
    return [
        span
        for span, records in found.items()
        if isinstance(records, list) and not _is_allowed(span, records, subject.expected(span))
    ]


def _is_allowed(span: Span, found: list[Item], expected: list[Item]) -> bool:
    return found in ([], expected) if span.partition == SPACE else _is_part(found, expected)


def _is_part(found: list[Item], expected: list[Item]) -> bool:
    """Whether all that was found is expected, in this order; a row may lack columns of a lost version of its schema."""
    left = iter(expected)
    return all(any(_is_less(item, other) for other in left) for item in found)


def _is_less(item: Item, other: Item) -> bool:
    return item == other or (isinstance(item, dict) and isinstance(other, dict) and item.items() <= other.items())


# -- (a) every column of every row ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2**32 - 1, 2**40, 2**63 - 1])
def test_a_key_epoch_that_nothing_needs_cannot_stop_the_log(keyed: Subject, number: int) -> None:
    """A damaged row of a key epoch without entries is refused as Corrupt, or appending goes on."""
    keyed.own()
    keyed.own()
    keyed.change(("UPDATE key_epochs SET number=? WHERE number=4", (number,)))
    try:
        with keyed.open() as log:
            log.topic("users").append(b"PAYLOAD")
    except Corrupt as error:
        note(error)


@pytest.mark.parametrize("bits", [pytest.param(1, id="few"), pytest.param(8, id="all", marks=pytest.mark.soak)])
def test_a_changed_format_file_is_refused(subject: Subject, bits: int) -> None:
    """Each bit of FORMAT: another id is Corrupt, another version Invalid; only the case of its letters is free."""
    content = subject.files["FORMAT"]
    for place in range(len(content)):
        for bit in range(bits):
            changed = bytearray(content)
            changed[place] ^= 1 << (place + bit) % 8
            subject.restore(FORMAT=bytes(changed))
            assert owner_faults(subject, (Corrupt, Invalid)) == [], (place, bit)


FEW, ALL = pytest.param(True, id="few"), pytest.param(False, id="all", marks=pytest.mark.soak)

READ_BY_OWNER = {
    "log", "key_epochs", "topics", "heads", "entries", "watermarks", "segments", "schemas", "policies", "shipping",
    "shipments", "spaces", "space_items", "sessions",
}  # fmt: skip
"""The tables of which opening the log, reading everything and reconciling reads every row."""


def _columns() -> Iterator[Any]:
    for name in ("plain", "keyed"):
        for table, columns in TABLES.items():
            for column in columns if (name, table) != ("plain", "key_epochs") else ():
                yield pytest.param(name, table, column, id=f"{name}-{table}.{column}")


def changes(value: Any) -> Iterator[tuple[str, Any]]:
    """Other values for a stored one, each with the SQL that makes it."""
    if isinstance(value, int):
        for other in sorted({value + 1, value - 1, 0, 2**40, 2**63 - 1} - {value}):
            yield "?", other
        return
    cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
    raw = value.encode() if isinstance(value, str) else value
    for place in range(len(raw)):
        for mask in (0x80, 1 << place % 7) if isinstance(value, str) else (1 << place % 8,):
            yield cast, raw[:place] + bytes([raw[place] ^ mask]) + raw[place + 1 :]
    for other in (raw + b"\0", raw[:-1], b""):
        if other != raw:
            yield cast, other


class Change(NamedTuple):
    """One value changed in one row."""

    table: str
    column: str
    row: dict[str, Any]
    sql: str
    value: Any

    def harmed(self, subject: Subject) -> set[Span]:
        """The entries that this may take away from a reader."""
        row = self.row
        match self.table, self.column:
            case "key_epochs", _:
                stamped = self._topics_under(subject, row["number"])
                under = {span for span in subject.spans if span.key_epoch == row["number"] or span.topic in stamped}
                # A reader of a segment proves the row before it, too.
                return under | {span for span in subject.spans if span.seq <= 0}
            case "topics", _:
                return self._of_topic(subject, row["id"])
            case "schemas", _:
                return self._of_topic(subject, row["topic_id"]) | self._of_topic(subject, self.value)
            case ("heads", _) | ("watermarks", _) | ("entries", "first_offset"):
                places = (row["partition_id"], self.value if self.column == "partition_id" else None)
                return {span for span in subject.spans if span.partition_id in places}
            case "entries", "partition_id":
                return {span for span in subject.spans if span.partition_id in (row["partition_id"], self.value)}
            case "entries", _:
                return {span for span in subject.spans if span.seq == row["seq"]}
            case "segments", _:
                places = (row["partition_id"], self.value if self.column == "partition_id" else None)
                return {span for span in subject.spans if span.seq <= 0 and span.partition_id in places}
            case _:
                return set()

    def _of_topic(self, subject: Subject, topic_id: Any) -> set[Span]:
        mine = {head["partition_id"] for head in subject.history[-1]["heads"] if head["topic_id"] == topic_id}
        return {span for span in subject.spans if span.partition_id in mine}

    def _topics_under(self, subject: Subject, key_epoch: int) -> set[str]:
        """Typed topics with a schema that was stamped under a key epoch: without it no row can be read."""
        now = subject.history[-1]
        ids = {row["topic_id"] for row in now["schemas"] if row["key_epoch"] == key_epoch}
        return {row["name"] for row in now["topics"] if row["id"] in ids}

    def must_be_refused(self, subject: Subject) -> bool:
        """Whether opening the log and reading everything reads this row; of the ownerships only the newest."""
        newest = self.row is subject.history[-1][self.table][-1]
        return self.table in READ_BY_OWNER or (self.table == "epochs" and newest)

    def refusals(self) -> tuple[type[HoldfastError], ...]:
        """Wrong keys and lost keys look the same: there the caller may be asked to check the keyring."""
        asks_for_key = self.table == "key_epochs" or (self.table, self.column) == ("log", "keyed")
        return (Corrupt, Invalid) if asks_for_key else (Corrupt,)


def all_changes(subject: Subject, table: str, column: str, few: bool) -> list[Change]:
    """Every change of a column; or a few, most of them in the newest row."""
    rows = [
        [Change(table, column, row, sql, value) for sql, value in changes(row[column])]
        for row in subject.history[-1][table]
    ]
    if not few:
        return [change for row in rows for change in row]
    random, newest = Random(f"{table}.{column}"), rows[-1]
    some = newest if len(newest) < 6 else [newest[0], *random.sample(newest[1:-3], 2), *newest[-3:]]
    others = [row for row in rows[:-1] if row]
    return [*some, *(random.choice(row) for row in [*others[:1], *random.sample(others[1:], len(others) > 1)])]


def apply(subject: Subject, change: Change) -> bool:
    subject.restore()
    return subject.change(update(change.table, change.column, change.sql, change.value, change.row))


@pytest.mark.sampled(1, each=("name", "table", "few"))
@pytest.mark.parametrize("few", [FEW, ALL])
@pytest.mark.parametrize(("name", "table", "column"), list(_columns()))
def test_a_changed_value_is_refused_or_does_not_matter(
    subjects: dict[str, Subject], name: str, table: str, column: str, few: bool
) -> None:
    """Each byte and each number of each row: Corrupt when the row is read; else all records are as written."""
    subject, faults = subjects[name], []
    for change in all_changes(subject, table, column, few):
        if apply(subject, change):
            refusals = change.refusals()
            found = owner_faults(subject, refusals, must=change.must_be_refused(subject))
            found += looker_faults(subject, change.harmed(subject), refusals[1:])
            faults += [f"{[change.row[k] for k in KEYS[table]]}: {change.value!r}: {fault}" for fault in found]
    assert not faults


STRANGERS: list[tuple[str, Any]] = [("?", None), ("?", 5), ("?", "text"), ("?", b"bytes")]
NO_TEXT: list[tuple[str, Any]] = [("CAST(? AS TEXT)", b"PAYLOAD \xff")]
"""Values, and the SQL that stores them; the last one says that it is text, and is none."""


WITH_ROWS = [
    (name, table) for name in ("plain", "keyed") for table in TABLES if (name, table) != ("plain", "key_epochs")
]


def strangers(subject: Subject, table: str, values: list[tuple[str, Any]]) -> Iterator[Change]:
    """Values of other types in each column of a table's newest row, one after the other."""
    row = subject.history[-1][table][-1]
    for column in TABLES[table][1:]:
        for sql, value in values:
            if type(value) is not type(row[column]) or sql != "?":
                subject.restore()
                if subject.change_loosely(table, column, sql, value, row):
                    yield Change(table, column, row, sql, value)


@pytest.mark.sampled(3, each="name")
@pytest.mark.parametrize(("name", "table"), WITH_ROWS)
def test_a_value_of_another_type_is_refused(subjects: dict[str, Subject], name: str, table: str) -> None:
    """A number that has become text or nothing, as one flipped bit in a row's head makes it, is Corrupt."""
    faults = []
    for change in strangers(subjects[name], table, STRANGERS):
        found = owner_faults(subjects[name], change.refusals(), must=change.must_be_refused(subjects[name]))
        faults += [f"{change.column}={change.value!r}: {fault}" for fault in found]
    assert not faults


@pytest.mark.sampled(3, each="name")
@pytest.mark.parametrize(("name", "table"), WITH_ROWS)
def test_a_value_that_is_no_text_is_refused(subjects: dict[str, Subject], name: str, table: str) -> None:
    """Bytes that a flipped bit has declared to be text are Corrupt; no codec's error shows them to the caller."""
    faults = []
    for change in strangers(subjects[name], table, NO_TEXT):
        found = owner_faults(subjects[name], change.refusals(), must=change.must_be_refused(subjects[name]))
        faults += [f"{change.column}: {fault}" for fault in found]
    assert not faults


@pytest.mark.sampled(3, each="name")
@pytest.mark.parametrize(("name", "table"), WITH_ROWS)
def test_a_value_of_another_type_leaves_the_rest_readable(subjects: dict[str, Subject], name: str, table: str) -> None:
    """A reader learns of such a row, and reads everything that it does not concern."""
    faults = []
    for change in strangers(subjects[name], table, STRANGERS[:1]):
        found = looker_faults(subjects[name], change.harmed(subjects[name]), change.refusals()[1:])
        faults += [f"{change.column}={change.value!r}: {fault}" for fault in found]
    assert not faults


@pytest.mark.parametrize("few", [FEW, ALL])
@pytest.mark.parametrize("column", [column for column in TABLES["idempotency"] if column != "hash"])
def test_a_changed_idempotency_key_is_refused_when_it_is_asked_for(subject: Subject, column: str, few: bool) -> None:
    """A repeat gets its original receipt, or Corrupt; never another receipt and never a second record."""
    faults = []
    for change in all_changes(subject, "idempotency", column, few):
        if apply(subject, change):
            with subject.open() as log:
                faults += [f"{change.value!r}: {fault}" for fault in repeat_faults(subject, log)]
                log._journal._writer.failure = None  # what was refused above would be raised again by close()
    assert not faults


def test_a_changed_idempotency_id_forgets_no_other_key(subject: Subject) -> None:
    """One row that pretends to be much newer does not push all others out of the window."""
    subject.change(("UPDATE idempotency SET id=? WHERE id=2", (2**40,)))
    with subject.open() as log:
        log.topic("orders").append(b"PAYLOAD", idempotency_key="another")
        faults = repeat_faults(subject, log)
        log._journal._writer.failure = None
    assert not faults


def test_a_lost_idempotency_key_is_a_forgotten_one(subject: Subject) -> None:
    """A key whose row or hash is gone is not known any more: the repeat is a new record, and only that."""
    for sql in ("UPDATE idempotency SET hash=x'00'", "DELETE FROM idempotency"):
        subject.restore()
        subject.change((sql + " WHERE id=1", ()))
        with subject.open() as log:
            assert log.topic("orders").append(b"PAYLOAD again", idempotency_key="once-0", partition=0).offset == 5
            assert (
                log.topic("orders").append(subject.payloads["once-1"], idempotency_key="once-1")
                == subject.receipts["once-1"]
            )


def repeat_faults(subject: Subject, log: Log) -> list[str]:
    faults = []
    for key, receipt in subject.receipts.items():
        try:
            again = log.topic("orders").append(subject.payloads[key], idempotency_key=key)
        except Corrupt as error:
            note(error)
        except Invalid as error:  # without keys a row of another log passes, whose key is in use for other content
            faults += [] if subject.keyring is None else [str(error)]
        else:
            faults += [] if again == receipt else [f"another receipt: {again}"]
    return faults


# -- (b) rows in other places, older rows, lost rows ------------------------------------------------------


def assert_refused(subject: Subject) -> None:
    """The owner is refused, and a reader gets nothing wrong."""
    with pytest.raises(Corrupt) as caught:
        subject.own()
    note(caught.value)
    assert not wrong(subject, subject.look())


TRADES = [
    ("first_offset",), ("partition_id",), ("partition_id", "first_offset"), ("seq",), ("body",), ("digest", "body"),
    ("link", "digest", "body"), ("group_number", "key_epoch", "time_min", "time_max", "link", "digest", "body"),
]  # fmt: skip
PAIRS = [(1, 7), (1, 2), (1, 4)]
"""Of one partition; of two partitions; of two topics."""


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param(PAIRS, id="sampled"),
        pytest.param([(a, b) for a in range(1, 8) for b in range(1, a)], id="all", marks=pytest.mark.soak),
    ],
)
def test_swapped_entries_are_refused(subject: Subject, pairs: list[tuple[int, int]], some: Some[Any]) -> None:
    """Two entries of one partition, two partitions or two topics cannot trade places, times, links or bodies."""
    rows = {row["seq"]: row for row in subject.history[-1]["entries"]}
    for (one, two), columns in some(list(itertools.product(pairs, TRADES)), 8):
        subject.restore()
        first = rows[one] | {column: rows[two][column] for column in columns}
        second = rows[two] | {column: rows[one][column] for column in columns}
        gone = ("DELETE FROM entries WHERE seq IN (?, ?)", (one, two))
        if first not in rows.values() and subject.change(gone, insert("entries", first), insert("entries", second)):
            assert_refused(subject)


FORGERIES: list[dict[str, Any]] = [
    {"seq": 100}, {"partition_id": 2}, {"first_offset": 3}, {"count": 2}, {"group_number": 1}, {"kind": 2},
    {"codec": 1}, {"key_epoch": 1}, {"key_epoch": 0}, {"time_min": 1}, {"time_max": 2**60},
    {"link": b"0123456789abcdef"}, {"body": bytes(60)}, {"body": b""},
]  # fmt: skip


def forge(subject: Subject, which: int, **columns: Any) -> dict[str, Any]:
    """Change an entry of `orders` and make its digest anew, as anybody can; returns the new row."""
    now = subject.history[-1]
    row = next(row for row in now["entries"] if row["seq"] == which) | columns
    number = next(head["number"] for head in now["heads"] if head["partition_id"] == row["partition_id"])
    place = Place(now["log"][0]["log_id"], "orders", number)
    row["digest"] = digests.digest(header_of(place, Entry(*list(row.values())[:14])), row["body"])
    subject.change(("DELETE FROM entries WHERE seq=?", (which,)), insert("entries", row))
    return row


def assert_unreadable(subject: Subject, partition: int, offset: int) -> None:
    with subject.open(read_only=True) as log, pytest.raises(Corrupt) as caught:
        list(log.topic("orders").read(offset, offset + 1, partition=partition))
    note(caught.value)


@pytest.mark.parametrize("forged", FORGERIES, ids=lambda forged: next(iter(forged)))
def test_an_entry_with_a_forged_digest_is_refused_by_its_cipher(keyed: Subject, forged: dict[str, Any]) -> None:
    """A forger who changes an entry and makes its digest anew cannot encrypt it."""
    row = forge(keyed, 7, **forged)
    assert_unreadable(keyed, row["partition_id"] - 1, row["first_offset"])
    assert_refused(keyed)


@pytest.mark.parametrize("forged", [{"count": 2}, {"kind": 2}, {"codec": 1}], ids=lambda forged: next(iter(forged)))
def test_an_entry_that_contradicts_itself_is_refused(subjects: dict[str, Subject], forged: dict[str, Any]) -> None:
    """Although its digest fits, an entry of an unknown kind or codec, or of too few records, is not read."""
    subjects["plain"].restore()
    forge(subjects["plain"], 7, **forged)
    assert_unreadable(subjects["plain"], 0, 4)


def test_an_entry_with_a_forged_digest_is_refused_by_its_successor(subject: Subject) -> None:
    """Also without keys an entry's digest is not its own affair: the next entry names it."""
    forge(subject, 3, group_number=1)
    assert_refused(subject)
    with subject.open(read_only=True) as log, pytest.raises(Corrupt):
        list(log.topic("orders").read(reverse=True, partition=0))


def graft(subject: Subject) -> bytes:
    """Put in an entry of the log's own twin, which went another way after both were the same; returns its payload."""
    twin = {}
    for name, idle in (("theirs", 0), ("mine", 1)):
        subject.restore()
        for _ in range(idle):
            subject.own()
        with subject.open() as log:
            for n in range(2):
                log.topic("orders").append(f"PAYLOAD {name} {n}".encode(), partition=0)
        with subject.database() as connection:
            twin[name] = {table: rows_of(connection, table) for table in ("key_epochs", "entries")}
    (entry,) = [row for row in twin["theirs"]["entries"] if row["seq"] == subject.history[-1]["log"][0]["next_seq"]]
    (key_epoch,) = [row for row in twin["theirs"]["key_epochs"] if row["number"] == entry["key_epoch"]]
    subject.put_back("key_epochs", [key_epoch])
    subject.put_back("entries", [entry])
    return b"PAYLOAD theirs 0"


def test_an_entry_of_a_twin_is_refused_by_its_successor(keyed: Subject) -> None:
    """An authentic entry from a copy of the log that went on by itself does not fit between the log's own."""
    graft(keyed)
    with keyed.open() as log:
        for reverse in (False, True):
            with pytest.raises(Corrupt) as caught:
                list(log.topic("orders").read(reverse=reverse, partition=0))
            note(caught.value)


def test_a_plain_entry_in_an_encrypted_log_is_refused(subjects: dict[str, Subject], keyed: Subject) -> None:
    """A keyed log takes no entry that says it is plain, however well its digest fits."""
    row = next(row for row in subjects["plain"].history[-1]["entries"] if row["seq"] == 7)
    place = Place(keyed.history[-1]["log"][0]["log_id"], "orders", 0)
    digest = digests.digest(header_of(place, Entry(*list(row.values())[:14])), row["body"])
    keyed.put_back("entries", [row | {"digest": digest}])
    assert isinstance(keyed.look()[next(span for span in keyed.spans if span.seq == 7)], Corrupt)
    assert_refused(keyed)


@pytest.mark.sampled(3, each="name")
@pytest.mark.parametrize("table", [table for table in TABLES if table != "epochs"])
@pytest.mark.parametrize("name", ["plain", "keyed"])
def test_rows_of_another_log_are_refused(subjects: dict[str, Subject], name: str, table: str) -> None:
    """Rows cannot move between two logs, although both have the same key, topics and partitions."""
    subject, theirs = subjects[name], subjects[name + " sibling"].history[-1]
    allowed = (Corrupt, Invalid) if table == "key_epochs" else (Corrupt,)
    for rows in (theirs[table], *([row] for row in theirs[table])):
        subject.restore()
        subject.put_back(table, rows)
        found = outcome(subject.look)
        assert isinstance(found, allowed) or not wrong(subject, found)
        if table == "idempotency":
            with subject.open() as log:
                assert repeat_faults(subject, log) == []
                log._journal._writer.failure = None
        assert owner_faults(subject, allowed) == []


def test_the_database_of_another_log_is_refused(subjects: dict[str, Subject], keyed: Subject) -> None:
    """A whole database under another log's FORMAT is not taken for that log's."""
    keyed.restore(durable_db=subjects["keyed sibling"].files["durable.db"])
    with pytest.raises(Corrupt, match="another log") as caught:
        keyed.own()
    note(caught.value)


ROLLBACKS: dict[str, Callable[[dict[str, list[dict[str, Any]]]], list[tuple[str, list[dict[str, Any]]]]]] = {
    "head": lambda old: [("heads", old["heads"][:1])],
    "heads": lambda old: [("heads", old["heads"])],
    "log": lambda old: [("log", old["log"])],
    "head and log": lambda old: [("heads", old["heads"][:1]), ("log", old["log"])],
    "heads and log": lambda old: [("heads", old["heads"]), ("log", old["log"])],
    "heads, watermarks and policies": lambda old: [(name, old[name]) for name in ("heads", "watermarks", "policies")],
    "everything but entries": lambda old: [(name, old[name]) for name in TABLES if name != "entries"],
}


@pytest.mark.sampled(1, each="rows")
@pytest.mark.parametrize("rows", list(ROLLBACKS))
@pytest.mark.parametrize("step", [0, 4, 5])
def test_older_control_rows_are_refused(subject: Subject, rows: str, step: int) -> None:
    """A head, the log's row, or both, put back as they once were, no longer fit the entries."""
    for table, old in ROLLBACKS[rows](subject.history[step]):
        subject.put_back(table, old)
    with pytest.raises(Corrupt) as caught:
        subject.own()
    note(caught.value)
    assert not wrong(subject, subject.look())


def test_a_deleted_entry_is_missed(subject: Subject, some: Some[dict[str, Any]]) -> None:
    """First, middle or last, raw or typed: the hole is refused, and everything else can still be read."""
    for row in some(subject.history[-1]["entries"], 6):
        subject.restore()
        subject.change(delete("entries", row))
        assert_refused(subject)
        assert looker_faults(subject, {span for span in subject.spans if span.seq == row["seq"]}) == []


def delete(table: str, row: dict[str, Any]) -> tuple[str, list[Any]]:
    where = " AND ".join(f"{key}=?" for key in KEYS[table])
    return f"DELETE FROM {table} WHERE {where}", [row[key] for key in KEYS[table]]


@pytest.mark.parametrize("table", [table for table in TABLES if table not in ("epochs", "entries", "idempotency")])
def test_a_deleted_control_row_is_missed(keyed: Subject, table: str) -> None:
    """A log without its own row, or any key epoch, topic, head, watermark, segment, schema, policy, space or item."""
    for row in keyed.history[-1][table]:
        keyed.restore()
        keyed.change(delete(table, row))
        with pytest.raises(Corrupt) as caught:
            keyed.own()
        note(caught.value)
        found = outcome(keyed.look)
        assert isinstance(found, Corrupt) or not wrong(keyed, found)


def test_an_older_log_row_of_the_same_length_is_refused(subject: Subject) -> None:
    """The log's row of an earlier ownership is refused, although nothing was appended since."""
    subject.own()
    subject.put_back("log", subject.history[-1]["log"])
    assert_refused(subject)


def test_an_entry_repeated_at_the_end_is_refused(subject: Subject) -> None:
    """What was appended once cannot be appended again by copying rows."""
    row = next(row for row in subject.history[-1]["entries"] if row["seq"] == 7)
    seq = subject.history[-1]["log"][0]["next_seq"]
    subject.put_back("entries", [row | {"seq": seq, "first_offset": 5, "link": row["digest"]}])
    assert_refused(subject)


def test_a_tail_cut_without_the_log_row_is_refused(subject: Subject) -> None:
    """The newest entry and its head put back together still contradict the log's own row."""
    old = subject.history[5]
    subject.change(("DELETE FROM entries WHERE seq=7", ()), *(insert("heads", row) for row in old["heads"]))
    assert_refused(subject)


FILLERS: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "a row of no partition": {"seq": 5, "partition_id": 999},
    "a row before the beginning": {"seq": 5, "first_offset": -10},
    "a row of another partition": {"seq": 5, "partition_id": 1, "first_offset": -10},
}
"""What may stand in for an entry that was taken out, so that the number of rows is right."""


@pytest.mark.parametrize("filler", list(FILLERS))
def test_a_partition_rolled_back_alone_is_refused(subject: Subject, filler: str) -> None:
    """One partition's newest entry and head put back, all else as it is: the log's row knows better."""
    old = subject.history[3]["heads"][-1]
    row = subject.history[-1]["entries"][4]
    subject.change(("DELETE FROM entries WHERE seq=5", ()), insert("heads", old))
    subject.put_back("entries", [row | columns for columns in (FILLERS[filler],) if columns is not None])
    assert_refused(subject)


def test_a_topic_deleted_with_all_its_rows_is_missed(subject: Subject) -> None:
    """A topic cannot vanish with its heads and entries."""
    subject.change(
        ("DELETE FROM topics WHERE name='users'", ()),
        ("DELETE FROM heads WHERE partition_id=3", ()),
        ("DELETE FROM entries WHERE partition_id=3", ()),
    )
    assert_refused(subject)


def roll_back(subject: Subject, rows: Rows) -> None:
    """Let the database be that of another time."""
    subject.restore()
    subject.change(*((f"DELETE FROM {table}", ()) for table in TABLES))
    for table in TABLES:
        subject.put_back(table, rows[table])


def test_a_rollback_of_everything_is_an_older_log(subject: Subject, some: Some[Any]) -> None:
    """All rows and files put back as they once were are that older log; without a store nobody can tell."""
    steps = list(enumerate(zip(subject.history, subject.trees, subject.states, strict=True)))
    for step, (rows, files, records) in some(steps, 8):
        roll_back(subject, rows)
        subject.restore_files(files)
        assert subject.own() == records, step


def test_an_older_database_beside_newer_segments_is_found(subject: Subject, some: Some[Any]) -> None:
    """Files of segments that a database does not list are reported, unless all their records are still in its tail."""
    for rows, records in some(list(zip(subject.history[:-1], subject.states[:-1], strict=True)), 8):
        roll_back(subject, rows)
        found = outcome(subject.own)
        assert isinstance(found, Corrupt) or found == records


def test_a_database_that_forgot_sealed_records_does_not_open(subject: Subject) -> None:
    """No offset is given away twice: a segment with records that the database does not know stops the owner."""
    step = next(n for n, records in enumerate(subject.states) if len(records.get(("events", 0), ())) == 3)
    roll_back(subject, subject.history[step])
    with pytest.raises(Corrupt, match="older than its segments") as caught:
        subject.open()
    note(caught.value)


# -- (b2) the manifest ------------------------------------------------------------------------------------


def older_versions(subject: Subject, table: str) -> list[dict[str, Any]]:
    """All rows that a table once held and does not hold any more."""
    now = subject.history[-1][table]
    older: list[dict[str, Any]] = []
    for rows in subject.history:
        older += [row for row in rows[table] if row not in now and row not in older]
    return older


@pytest.mark.parametrize("table", ["watermarks", "policies", "spaces"])
def test_a_single_older_row_is_refused(subject: Subject, table: str) -> None:
    """One partition's watermark, one topic's policy or one space put back alone: the log's row knows better."""
    older = older_versions(subject, table)
    assert len(older) >= {"watermarks": 4, "policies": 1, "spaces": 4}[table]
    for row in older:
        subject.restore()
        subject.put_back(table, [row])
        with pytest.raises(Corrupt, match=r"vouches for|does not end at its watermark") as caught:
            subject.open()
        note(caught.value)
        assert not wrong(subject, subject.look())


def test_a_seal_undone_by_hand_is_refused(subject: Subject) -> None:
    """The newest segment's row deleted and its watermark put back, with or without the log's own row."""
    for with_log in (False, True):
        subject.restore()
        older = next(row for row in reversed(older_versions(subject, "watermarks")))
        newest = [row for row in subject.history[-1]["segments"] if row["partition_id"] == older["partition_id"]][-1]
        step = max(n for n, rows in enumerate(subject.history) if older in rows["watermarks"])
        subject.change(delete("segments", newest), insert("watermarks", older))
        if with_log:
            subject.put_back("log", subject.history[step]["log"])
        assert_refused(subject)


def test_a_row_of_a_state_that_has_passed_removes_nothing_and_is_found(subject: Subject) -> None:
    """An expired segment's row put back as it was, live or expiring: the records left are there, and it is reported."""
    older = older_versions(subject, "segments")
    assert older
    for row in older:
        subject.restore()
        subject.put_back("segments", [row])
        before = files_in(subject.path, "segments")
        assert owner_faults(subject) == []
        assert files_in(subject.path, "segments") == before


SEGMENT_FILLERS: dict[str, dict[str, Any]] = {
    "a row of no partition": {"partition_id": 999},
    "a row of another partition": {"partition_id": 1},
    "a row behind the newest": {"number": 99, "first_offset": 2**40},
    "a row before the first": {"number": -1, "first_offset": -10},
}


@pytest.mark.parametrize("filler", list(SEGMENT_FILLERS))
def test_a_segment_row_that_was_taken_out_is_missed_although_the_count_is_right(subject: Subject, filler: str) -> None:
    """First, middle or newest, live or expired: some other row in its place does not hide that it is gone."""
    for row in subject.history[-1]["segments"]:
        subject.restore()
        subject.change(delete("segments", row), insert("segments", row | SEGMENT_FILLERS[filler]))
        assert_refused(subject)


def test_the_newest_segments_row_is_proved_when_the_log_is_opened(subject: Subject) -> None:
    """A watermark whose segment is changed, or gone with another row in its place, is refused before any read."""
    rows = subject.history[-1]["segments"]
    newest = [
        row for row in rows if (row["partition_id"], row["number"] + 1) not in [tuple(r.values())[:2] for r in rows]
    ]
    assert len(newest) == 3
    for row in newest:
        for changed in ({"partition_id": 999}, {"state": 3}, {"size": 1}, {"stamp": bytes(32)}):
            subject.restore()
            subject.change(delete("segments", row), insert("segments", row | changed))
            with pytest.raises(Corrupt, match="does not end at its watermark") as caught:
                subject.open()
            note(caught.value)


def test_segment_rows_cannot_trade_places(subject: Subject) -> None:
    """Two rows of one partition, or of two, with their places or with their contents traded, are refused."""
    rows = subject.history[-1]["segments"]
    places = ("partition_id", "number", "first_offset")
    contents = ("rows", "size", "sha256", "content", "footer", "chain")
    times = ("time_min", "time_max", "low", "high")
    for one, two in ((0, 1), (1, 2), (2, 3), (1, 4), (3, 5)):  # the first four are of one partition
        for columns in (places, places[:1], contents, times, ("state",), ("key_epoch", "stamp")):
            first = rows[one] | {column: rows[two][column] for column in columns}
            second = rows[two] | {column: rows[one][column] for column in columns}
            subject.restore()
            gone = delete("segments", rows[one]), delete("segments", rows[two])
            if first not in rows and subject.change(*gone, insert("segments", first), insert("segments", second)):
                assert owner_faults(subject, must=True) == [], (one, two, columns)


def test_watermarks_cannot_trade_places(subject: Subject) -> None:
    """What one partition says about itself cannot be said about another."""
    rows = subject.history[-1]["watermarks"]
    for one in rows:
        for two in rows:
            if one is not two:
                subject.restore()
                subject.put_back("watermarks", [two | {"partition_id": one["partition_id"]}])
                assert_refused(subject)


@pytest.mark.parametrize("state", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("number", [1, 3])
def test_a_changed_state_removes_no_file(subject: Subject, number: int, state: int) -> None:
    """A flipped bit may say that a live segment has expired: nothing is removed because of it, not even by repair."""
    row, path = subject.segment("events", 0, number)
    subject.change(update("segments", "state", "?", state, row))
    assert owner_faults(subject, must=True) == []
    assert path.exists()
    for act in (Log.retain, lambda log: log.reconcile(fix=True, deep=True)):
        try:
            with subject.open() as log:
                act(log)
        except Corrupt as error:
            note(error)
        assert path.exists()
    subject.change(update("segments", "state", "?", 1, row))
    assert subject.own() == subject.records


@pytest.mark.parametrize("column", ["sha256", "size", "number", "first_offset"])
def test_repair_removes_nothing_on_the_word_of_a_damaged_row(subject: Subject, column: str) -> None:
    """Whatever a damaged row says, after repair every record is in the log's directory, and only moved if at all."""
    row, path = subject.segment("events", 0, 1)
    changed = b"x" * 32 if column == "sha256" else 77
    assert subject.change(update("segments", column, "?", changed, row))
    content = path.read_bytes()
    try:
        with subject.open() as log:
            log.reconcile(fix=True, deep=True)
    except Corrupt as error:
        note(error)
    assert content in files_in(subject.path).values()


@pytest.mark.parametrize("number", [2, 3, 9])
def test_a_marker_of_a_full_disk_counts_for_the_oldest_segment_only(subject: Subject, number: int) -> None:
    """Some file named `….expired` does not make the segments before it expire."""
    _, path = subject.segment("events", 0, 2)
    path.with_name(f"{number:020d}-{'0' * 16}.parquet.expired").touch()
    with subject.open() as log:
        assert all_records(log) == subject.records


def test_a_segment_that_was_emptied_behind_our_back_is_missed(subject: Subject) -> None:
    """A marker beside its file, or of another content, is no intention of ours: the segment stays."""
    _, path = subject.segment("events", 0, 1)
    path.with_name(path.name + ".expired").touch()
    with subject.open() as log:
        assert all_records(log) == subject.records


def _become_directory(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


FILE_DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "lost": lambda path, _: path.unlink(),
    "emptied": lambda path, _: path.write_bytes(b""),
    "cut": lambda path, _: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path, _: path.write_bytes(path.read_bytes() + b"\0"),
    "flipped": lambda path, _: path.write_bytes(path.read_bytes()[:50] + b"!" + path.read_bytes()[51:]),
    "another segment's content": lambda path, other: path.write_bytes(other.read_bytes()),
    "a directory": _become_directory,
}


@pytest.mark.sampled(1, each="damage")
@pytest.mark.parametrize("damage", list(FILE_DAMAGE))
@pytest.mark.parametrize(("topic", "number"), [("events", 1), ("events", 3), ("typed", 0)])
def test_a_damaged_segment_is_refused_where_it_is(subject: Subject, topic: str, number: int, damage: str) -> None:
    """A lost or changed file is reported when it is read; everything outside of it can be read."""
    row, path = subject.segment(topic, 0, number)
    _, other = subject.segment("events", 1, 0)
    FILE_DAMAGE[damage](path, other)
    assert owner_faults(subject, must=True) == []
    harmed = {s for s in subject.spans if (s.partition_id, s.seq) == (row["partition_id"], -number)}
    harmed |= {s for s in subject.spans if s.seq <= 0 and s.first == row["first_offset"] + row["rows"]}
    assert looker_faults(subject, harmed) == []


def test_two_segments_cannot_trade_files(subject: Subject) -> None:
    """Each file under the other one's name is refused, whether of one partition or of two."""
    for one, two in ((("events", 0, 1), ("events", 0, 2)), (("events", 0, 1), ("events", 1, 0))):
        subject.restore()
        (_, first), (_, second) = subject.segment(*one), subject.segment(*two)
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
        assert owner_faults(subject, must=True) == []


def graft_segment(subject: Subject) -> None:
    """Put in a segment of the log's own twin, row and file, which went another way after both were the same."""
    twin: dict[str, tuple[Rows, Files]] = {}
    for name, idle in (("theirs", 0), ("mine", 1)):
        subject.restore()
        for _ in range(idle):
            subject.own()
        with subject.open() as log:
            for n in range(2):
                log.topic("events").append(f"PAYLOAD {name} {n}".encode(), partition=0)
                log.seal("events")
        with subject.database() as connection:
            rows = {table: rows_of(connection, table) for table in ("key_epochs", "segments", "watermarks")}
        twin[name] = rows, files_in(subject.path, "segments")
    rows, files = twin["theirs"]
    (row,) = [row for row in rows["segments"] if row["number"] == 4]
    subject.put_back("key_epochs", [key for key in rows["key_epochs"] if key["number"] == row["key_epoch"]])
    subject.put_back("segments", [row])
    name = next(name for name in files if f"/{4:020d}-" in name)
    (subject.path / name).write_bytes(files[name])


def test_a_segment_of_a_twin_is_refused_by_its_successor(subject: Subject) -> None:
    """An authentic segment from a copy of the log that went on by itself does not fit between the log's own."""
    graft_segment(subject)
    for reverse in (False, True):
        with subject.open() as log, pytest.raises(Corrupt) as caught:
            list(log.topic("events").read(reverse=reverse, partition=0))
        note(caught.value)
    with subject.open() as log:
        assert {finding.kind for finding in log.reconcile(deep=True).findings} >= {"content_mismatch"}


def test_schema_versions_cannot_trade_places(subject: Subject) -> None:
    """Neither two versions of a schema nor the schema of another topic can stand in for one."""
    first, second = subject.history[-1]["schemas"]
    for rows in (
        [first | {"version": 2}, second | {"version": 1}],
        [first, second | {"fingerprint": first["fingerprint"], "definition": first["definition"]}],
        [first, first | {"version": 2}],
        [first, second | {"topic_id": 1, "version": 1}],
    ):
        subject.restore()
        subject.change(("DELETE FROM schemas", ()), *(insert("schemas", row) for row in rows))
        assert_refused(subject)


def test_a_typed_entry_cannot_pass_for_a_raw_one(subject: Subject) -> None:
    """Kind and schema of an entry are part of its header; what contradicts itself is refused even with its digest."""
    typed = next(row for row in subject.history[-1]["entries"] if row["kind"] == 2)
    raw = next(row for row in subject.history[-1]["entries"] if row["kind"] == 1)
    for row, columns in (
        (typed, {"kind": 1}),
        (typed, {"schema": b""}),
        (typed, {"kind": 1, "schema": b""}),
        (typed, {"schema": bytes(16)}),
        (raw, {"kind": 2}),
        (raw, {"schema": bytes(16)}),
        (raw, {"kind": 2, "schema": typed["schema"]}),
    ):
        subject.restore()
        subject.put_back("entries", [row | columns])
        assert_refused(subject)


# -- (b3) spaces ------------------------------------------------------------------------------------------


def items_of(subject: Subject, space_id: int) -> dict[bytes, dict[str, Any]]:
    return {row["key"]: row for row in subject.history[-1]["space_items"] if row["space_id"] == space_id}


def assert_space_refused(subject: Subject, *names: str) -> None:
    """Owner and reader are refused these spaces by name, also when they change them; all else is as it was."""
    for read_only in (False, True):
        with subject.open(read_only=read_only) as log:
            journal = log._journal
            for name in ("one", "two"):
                if name not in names:
                    assert journal.spaces.load(name) == subject.records[name, SPACE]
                    continue
                with pytest.raises(Corrupt, match=f"space={name!r}") as caught:
                    journal.spaces.load(name)
                note(caught.value)
                if not read_only:
                    with pytest.raises(Corrupt, match=f"space={name!r}") as caught:
                        journal.spaces.change(name, [(b"new", 0, b"")], timeout=20).result()
                    note(caught.value)


def test_an_older_item_is_refused(subject: Subject) -> None:
    """An item of a space put back alone as it once was, or one that was deleted, is refused when it is loaded."""
    older = older_versions(subject, "space_items")
    assert len(older) == 6
    for row in older:
        subject.restore()
        subject.put_back("space_items", [row])
        assert_space_refused(subject, {1: "one", 2: "two"}[row["space_id"]])


def test_a_lost_item_is_missed(subject: Subject) -> None:
    """Each item, and an item with another one in its place."""
    for key, row in items_of(subject, 1).items():
        for filler in (None, {"key": key + b"!"}):
            subject.restore()
            subject.change(delete("space_items", row))
            if filler is not None:
                subject.put_back("space_items", [row | filler])
            assert_space_refused(subject, "one")


def test_items_cannot_trade_places(subject: Subject) -> None:
    """Two items of one space with their bodies, numbers or keys traded are refused."""
    items = items_of(subject, 1)
    first, second = items[b"b"], items[b"c"]
    for columns in (("body",), ("body", "key_epoch"), ("number",), ("key",), ("number", "body"), ("key", "number")):
        subject.restore()
        traded = [
            one | {column: other[column] for column in columns} for one, other in ((first, second), (second, first))
        ]
        assert subject.change(
            delete("space_items", first), delete("space_items", second), *(insert("space_items", r) for r in traded)
        )
        assert_space_refused(subject, "one")


def test_an_item_cannot_move_to_another_space(subject: Subject) -> None:
    """Copied, moved or exchanged with the one of the same key: the spaces that it touches are refused."""
    one, two = items_of(subject, 1)[b"c"], items_of(subject, 2)[b"c"]
    extra = items_of(subject, 1)[b"b"] | {"space_id": 2, "key": b"copied"}
    moved = [delete("space_items", one), insert("space_items", one | {"space_id": 2, "key": b"moved"})]
    exchanged = [insert("space_items", one | {"space_id": 2}), insert("space_items", two | {"space_id": 1})]
    for changes_, names in (
        ([insert("space_items", extra)], ["two"]),
        ([insert("space_items", one | {"space_id": 2})], ["two"]),
        (moved, ["one", "two"]),
        (exchanged, ["one", "two"]),
        ([insert("space_items", one | {"space_id": 999})], []),
    ):
        subject.restore()
        assert subject.change(*changes_)
        if names:
            assert_space_refused(subject, *names)
        else:
            assert subject.own() == subject.records


def test_spaces_cannot_trade_names_or_items(subject: Subject) -> None:
    """Two rows with their names, sums or all but their ids traded do not open."""
    first, second = subject.history[-1]["spaces"]
    for columns in (("name",), ("sum",), ("items", "sum"), ("name", "items", "sum", "key_epoch", "stamp"), ("id",)):
        traded = [
            one | {column: other[column] for column in columns} for one, other in ((first, second), (second, first))
        ]
        subject.restore()
        assert subject.change(("DELETE FROM spaces", ()), *(insert("spaces", row) for row in traded))
        if traded != [first, second] or columns == ("sum",):
            with pytest.raises(Corrupt) as caught:
                subject.open()
            note(caught.value)


def test_a_whole_space_put_back_is_refused_at_opening(subject: Subject) -> None:
    """Its row and all its items as they once were fit each other, and not what the log's row vouches for."""
    for step in range(len(subject.history) - 6, len(subject.history) - 1):
        old = subject.history[step]
        subject.restore()
        for table, column in (("space_items", "space_id"), ("spaces", "id")):
            subject.change((f"DELETE FROM {table} WHERE {column}=1", ()))
            subject.put_back(table, [row for row in old[table] if row[column] == 1])
        if old["spaces"][:1] == subject.history[-1]["spaces"][:1]:
            continue
        with pytest.raises(Corrupt) as caught:
            subject.open()
        note(caught.value)


def test_a_space_deleted_with_all_its_items_is_missed(subject: Subject) -> None:
    """A space cannot vanish."""
    subject.change(("DELETE FROM spaces WHERE id=1", ()), ("DELETE FROM space_items WHERE space_id=1", ()))
    with pytest.raises(Corrupt) as caught:
        subject.open()
    note(caught.value)


@pytest.mark.parametrize(("table", "column"), [("spaces", "name"), ("spaces", "sum"), ("space_items", "key")])
def test_bytes_that_have_become_text_are_refused(subject: Subject, table: str, column: str) -> None:
    """One flipped bit makes text of a blob, with the same bytes: no search would ever find it again."""
    row = subject.history[-1][table][0]
    assert subject.change_loosely(table, column, "CAST(? AS TEXT)", row[column], row)
    with pytest.raises(Corrupt) as caught:
        subject.own()
    note(caught.value)


def test_a_space_is_not_lost_with_its_index(subject: Subject) -> None:
    """That there is no such space is not believed to an index alone: it is found, or reported."""
    wanted = subject.records["one", SPACE]
    root = subject.database().execute("SELECT rootpage FROM sqlite_schema WHERE name='sqlite_autoindex_spaces_1'").get
    content = bytearray(subject.files["durable.db"])
    page = slice((root - 1) * 4096, root * 4096)
    damaged = content[page].replace(b"one", b"oNe")
    assert damaged != content[page]
    content[page] = damaged
    subject.restore(durable_db=bytes(content))
    for read_only in (False, True):
        with subject.open(read_only=read_only) as log:
            assert log._journal.spaces.load("one") == wanted


# -- (c) bytes of the file --------------------------------------------------------------------------------


def outcome(read: Callable[[], Any]) -> Any:
    """What a call gives, or what it raises."""
    try:
        return read()
    except Exception as error:
        if isinstance(error, HoldfastError):
            note(error)
        return error


def flips(content: bytes, sample: int | None) -> Iterator[tuple[int, bytes]]:
    """The content with one byte changed: half of the places are where something is stored."""
    random = Random(sample)
    used = [place for place, byte in enumerate(content) if byte]
    places = (
        range(len(content))
        if sample is None
        else [random.choice(used) if n % 2 else random.randrange(len(content)) for n in range(sample)]
    )
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << random.randrange(8)
        yield place, bytes(changed)


FLIPS = [
    pytest.param(150, id="sampled"),
    pytest.param(None, id="all", marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
]


READ_ONLY_MARK = 18
"""The byte by which SQLite takes a file for one that may only be read: Unavailable, as if its mode said so."""


class Flip(NamedTuple):
    """What came of one flip: wrong records, and errors that are not of the kinds for damage."""

    place: int
    wrong: bool
    strange: list[str]


def judge(subject: Subject, place: int, content: bytes) -> Flip:
    subject.restore(durable_db=content)
    owned, looked = outcome(subject.own), outcome(subject.look)
    mistaken = not isinstance(owned, Exception) and owned != subject.records
    mistaken |= not isinstance(looked, Exception) and bool(wrong(subject, looked))
    errors = [error for error in (owned, looked) if isinstance(error, Exception)]
    return Flip(place, mistaken, [repr(error) for error in errors if not isinstance(error, (Corrupt, Invalid))])


@pytest.fixture(scope="module")
def flipped(subjects: dict[str, Subject], pytestconfig: pytest.Config) -> Callable[[str, int | None], list[Flip]]:
    """What came of every flip; done once for all tests that ask."""
    done: dict[tuple[str, int | None], list[Flip]] = {}

    def run(name: str, sample: int | None) -> list[Flip]:
        if (name, sample) not in done:
            subject, count = subjects[name], sample if sample is None or not pytestconfig.option.sample else sample // 4
            done[name, sample] = [judge(subject, *flip) for flip in flips(subject.files["durable.db"], count)]
        return done[name, sample]

    return run


@pytest.mark.core
@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("sample", FLIPS)
@pytest.mark.parametrize("name", ["plain", "keyed"])
def test_a_flipped_byte_never_gives_a_wrong_record(flipped: Callable[..., Any], name: str, sample: int | None) -> None:
    """Wherever in the file a bit flips: what is read is what was written, or nothing."""
    assert [flip.place for flip in flipped(name, sample) if flip.wrong] == []


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("sample", FLIPS)
@pytest.mark.parametrize("name", ["plain", "keyed"])
def test_a_flipped_byte_is_reported_in_our_own_words(
    flipped: Callable[..., Any], name: str, sample: int | None
) -> None:
    """Wherever in the file a bit flips: no error of SQLite, of Python or of a codec reaches the caller."""
    assert [flip for flip in flipped(name, sample) if flip.strange and flip.place != READ_ONLY_MARK] == []


# -- (d) cut files ----------------------------------------------------------------------------------------


def lengths(size: int, sample: int | None) -> list[int]:
    edges = {1000, *(page + d for page in range(0, size, 8192) for d in (-1, 0, 1) if page)}
    more = range(600, size, 97) if sample is None else Random(sample).sample(range(600, size), sample)
    return sorted({*(edge for edge in edges if edge < size), *more})


CUTS = [pytest.param(20, id="sampled"), pytest.param(None, id="all", marks=[pytest.mark.soak, pytest.mark.timeout(0)])]


@pytest.mark.parametrize("sample", CUTS)
def test_a_cut_database_is_refused(subject: Subject, sample: int | None, some: Some[int]) -> None:
    """A database file that lost its end is Corrupt, or only what was not asked for is lost; it is never wrong."""
    content = subject.files["durable.db"]
    for length in some(lengths(len(content), sample), 12):
        subject.restore(durable_db=content[:length])
        found = outcome(subject.look)
        assert isinstance(found, Corrupt) or not wrong(subject, found), length
        assert owner_faults(subject) == [], length


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("read_only", [False, True], ids=["owner", "observer"])
def test_an_emptied_database_is_corrupt(subject: Subject, read_only: bool, length: int) -> None:
    """FORMAT says that there is a log; a database without anything in it has lost it."""
    subject.restore(durable_db=subject.files["durable.db"][:length])
    with pytest.raises(Corrupt) as caught:
        subject.open(read_only=read_only).close()
    note(caught.value)


class Crash(NamedTuple):
    """The files of a log whose process died, and what was acknowledged after each commit."""

    files: dict[str, bytes]
    states: list[Records]


@pytest.fixture(scope="module", params=["plain", "keyed"])
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Crash:
    """A log with records in its database and more in its write-ahead log."""
    path = tmp_path_factory.mktemp("crashed")
    keyring = FIRST if request.param == "keyed" else None
    with holdfast.open(path, settings=PLAIN_SETTINGS, keyring=keyring, clock=ManualClock()) as log:
        log.topic("t", partitions=2).append(b"PAYLOAD settled", partition=0)
        states = [all_records(log)]
    with holdfast.open(path, settings=PLAIN_SETTINGS, keyring=keyring, clock=ManualClock()) as log:
        for n in range(6):
            log.topic("t").append(b"PAYLOAD %d" % n, partition=n % 2)
            states.append(all_records(log))
        files = {
            file.name: file.read_bytes()
            for file in path.iterdir()
            if not file.name.endswith("-shm") and file.name != "SOCKET"
        }
    assert len(files["durable.db-wal"]) > 6 * 8192
    return Crash(files, states)


def reopened(path: Path, files: dict[str, bytes], keyring: Keyring | None) -> Records:
    path.mkdir(exist_ok=True)
    for file in path.iterdir():
        file.unlink()
    for name, content in files.items():
        (path / name).write_bytes(content)
    with holdfast.open(path, settings=PLAIN_SETTINGS, keyring=keyring) as log:
        return all_records(log)


@pytest.mark.parametrize("sample", CUTS)
def test_a_cut_write_ahead_log_loses_only_its_end(
    crashed: Crash, tmp_path: Path, sample: int | None, request: pytest.FixtureRequest, some: Some[int]
) -> None:
    """What is left after a cut is the log as it was after one of its commits: never less, mixed or wrong."""
    keyring = FIRST if "keyed" in request.node.name else None
    wal = crashed.files["durable.db-wal"]
    assert reopened(tmp_path / "log", crashed.files, keyring) == crashed.states[-1]
    newest = 0
    for length in some(lengths(len(wal), sample), 12):
        found = reopened(tmp_path / "log", crashed.files | {"durable.db-wal": wal[:length]}, keyring)
        assert found in crashed.states, length
        assert crashed.states.index(found) >= newest, length
        newest = crashed.states.index(found)


@pytest.mark.parametrize("sample", CUTS)
def test_a_flip_in_the_write_ahead_log_loses_only_what_follows(
    crashed: Crash, tmp_path: Path, sample: int | None, request: pytest.FixtureRequest, some: Some[Any]
) -> None:
    """What is left after a flip is the log as it was after one of its commits."""
    keyring = FIRST if "keyed" in request.node.name else None
    for place, wal in some(list(flips(crashed.files["durable.db-wal"], sample or 5000)), 10):
        assert reopened(tmp_path / "log", crashed.files | {"durable.db-wal": wal}, keyring) in crashed.states, place


# -- (e) size ---------------------------------------------------------------------------------------------


BIG = 1 << 25


@pytest.mark.sampled(1, each="value")
@pytest.mark.parametrize(
    "sql", [pytest.param("zeroblob(?)", id="bytes"), pytest.param("CAST(zeroblob(?) AS TEXT)", id="text")]
)
@pytest.mark.parametrize(
    "value",
    [
        "entries.body",
        "entries.link",
        "entries.schema",
        "heads.link",
        "log.stamp",
        "topics.name",
        "watermarks.chain",
        "segments.key_id",
        "segments.footer",
        "schemas.definition",
        "policies.stamp",
    ],
)
def test_a_value_beyond_the_limit_is_refused_before_it_is_fetched(subject: Subject, value: str, sql: str) -> None:
    """A value that nobody could have written costs no memory: it is refused by its length, whatever its type."""
    assert PLAIN_SETTINGS.journal.entry_bytes_max < BIG
    table, _, column = value.partition(".")
    subject.change_loosely(table, column, sql, BIG, subject.history[-1][table][-1])
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt) as caught:
            subject.own()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    note(caught.value)
    assert peak < BIG // 8


# -- (f) keys ---------------------------------------------------------------------------------------------


class Toy:
    """Somebody's own cipher."""

    def __init__(self, name: str, key: bytes = b"toy") -> None:
        self.name = name
        self._key = key

    def mac(self, message: bytes) -> bytes:
        return blake2b(message, key=self._key, digest_size=32).digest()

    def encrypt(self, plaintext: bytes, associated: bytes) -> bytes:
        return self.mac(plaintext + associated) + plaintext[::-1]

    def decrypt(self, encrypted: bytes, associated: bytes) -> bytes:
        plaintext = encrypted[32:][::-1]
        if not compare_digest(self.mac(plaintext + associated), encrypted[:32]):
            raise ValueError("no")
        return plaintext


WRONG_KEYS: dict[str, tuple[str, dict[str, Any]]] = {
    "an encrypted log without a key": ("keyed", {"keyring": None}),
    "a plain log with a key": ("plain", {"keyring": FIRST}),
    "a plain log with a cipher": ("plain", {"keyring": None, "cipher": Toy("toy")}),
    "another key under the same id": ("keyed", {"keyring": Keyring({"k2": OTHER, "k1": MASTER})}),
    "another older key under the same id": ("keyed", {"keyring": Keyring({"k2": NEWER, "k1": OTHER})}),
    "without the current key": ("keyed", {"keyring": FIRST}),
    "without the older key": ("keyed", {"keyring": Keyring({"k2": NEWER})}),
    "with a cipher instead of a keyring": ("keyed", {"keyring": None, "cipher": Toy("toy")}),
}


@pytest.mark.parametrize("read_only", [False, True], ids=["owner", "observer"])
@pytest.mark.parametrize("case", list(WRONG_KEYS))
def test_wrong_keys_are_refused(subjects: dict[str, Subject], case: str, read_only: bool) -> None:
    """The wrong key, no key, or a key too many: Invalid, with a remedy, and nothing was written."""
    name, given = WRONG_KEYS[case]
    subjects[name].restore()
    with pytest.raises(Invalid) as caught:
        subjects[name].open(read_only=read_only, **given)
    assert note(caught.value).hint
    assert (subjects[name].path / "durable.db").read_bytes() == subjects[name].files["durable.db"]


def test_a_cipher_of_another_name_is_refused(tmp_path: Path) -> None:
    """A log is opened only by the cipher it was written with; one of the same name with another key reads nothing."""
    with holdfast.open(tmp_path / "log", settings=PLAIN_SETTINGS, cipher=Toy("toy-1")) as log:
        log.topic("t").append(b"PAYLOAD")

    def read(**given: Any) -> list[bytes]:
        with holdfast.open(tmp_path / "log", settings=PLAIN_SETTINGS, **given) as log:
            return [record.payload for record in log.topic("t").read()]

    for wrong_one, kind in (
        ({"cipher": Toy("toy-2")}, Invalid),
        ({"keyring": FIRST}, Invalid),
        ({"cipher": Toy("toy-1", b"another key")}, Corrupt),
    ):
        for read_only in (False, True):
            with pytest.raises(kind) as caught:
                read(read_only=read_only, **wrong_one)
            note(caught.value)
    assert read(cipher=Toy("toy-1")) == [b"PAYLOAD"]


# -- (g) plaintext ----------------------------------------------------------------------------------------


def test_an_encrypted_log_shows_no_plaintext(subjects: dict[str, Subject], crashed: Crash) -> None:
    """No payload, key, kind or header lies in any file of an encrypted log; in a plain one they do."""
    plain, encrypted = (b"".join(subjects[name].files.values()) for name in ("plain", "keyed"))
    assert [mark for mark in INNER if mark not in plain] == []
    assert [mark for mark in (*INNER, MASTER, NEWER) if mark in encrypted] == []
    wal = crashed.files["durable.db-wal"]
    assert (b"PAYLOAD" in wal) == (b"aes-256-gcm" not in wal)


# -- (h) secrets ------------------------------------------------------------------------------------------


def test_nothing_that_can_be_printed_shows_a_secret(keyed: Subject) -> None:
    """Logs, topics, stats, settings and keyrings can be printed anywhere."""
    with keyed.open() as log:
        things = [log, log.topic("orders"), log.stats(), log.settings, log.marks("orders"), FIRST, ROTATED]
        shown = " ".join(f"{thing} {thing!r}" for thing in things)
    assert [secret for secret in SECRETS if secret in shown] == []
