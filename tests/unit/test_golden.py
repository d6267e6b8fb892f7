"""Golden files: what was written once is read forever, and what is written today is written as before.

`tests/golden/make.py` made the files; they are never made again for a version that was released, and none was. The
documents in docs/formats/ are held to the same bytes: their worked examples are computed here with nothing
but struct, hashes and AES, and their tables are compared with what the code does.
"""

from __future__ import annotations

import hmac
import json
import re
import shutil
import struct
from collections.abc import Callable
from hashlib import sha256
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pyarrow as pa
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.golden import make

import holdfast
from holdfast import Corrupt, HoldfastError, Invalid, Keyring, Log, Receipt, Record, Settings
from holdfast.clock import SystemClock
from holdfast.crypto import digests as chain
from holdfast.crypto.cipher import AesGcmCipher, KeySource
from holdfast.crypto.key_hashes import DIGESTS, HashCipher
from holdfast.crypto.signatures import Signer
from holdfast.journal.session_access import ForwardedRows, Outcome, RunOutcome
from holdfast.journal.sessions.session_state import SessionState, StagedSession
from holdfast.journal.sqlite import migrations
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from holdfast.journal.state import spaces
from holdfast.journal.time_keeper import TimeKeeper
from holdfast.model import frame
from holdfast.model.entry import Entry, Place, header_of, is_whole
from holdfast.model.record_columns import Columns
from holdfast.model.segment import chain_value
from holdfast.root.objects import checkpoint, commit_batch, documents, key_object
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import AnyDocument
from holdfast.root.objects.key_object import KeyObject
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore

pytestmark = pytest.mark.unit

GOLDEN = Path(make.__file__).parent
DOCUMENTS = GOLDEN.parents[1] / "docs" / "formats"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
VECTORS = json.loads((GOLDEN / "vectors.json").read_text(encoding="utf-8"))
TYPED = "readings"
KEYRINGS: dict[str, Keyring | None] = {"plain": None, "sealed": make.ROTATED}


def files_in(path: Path) -> list[str]:
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a golden log that may be opened."""

    def copy(name: str) -> Path:
        shutil.copytree(GOLDEN / name, tmp_path / name)
        return tmp_path / name

    return copy


def opened(path: Path, **given: Any) -> Log:
    settings = Settings.from_mapping({"segments": {"seal_on_close": False}})
    return holdfast.open(path, settings=settings, **given)


def wanted(name: str) -> dict[tuple[str, int], list[Record]]:
    """The records that were put into a golden log."""
    found = {}
    for place, rows in EXPECTED[name]["records"].items():
        topic, _, partition = place.partition("/")
        found[topic, int(partition)] = [
            Record(
                bytes.fromhex(row["payload"]),
                None if row["key"] is None else bytes.fromhex(row["key"]),
                row["kind"],
                None if row["headers"] is None else {name: bytes.fromhex(v) for name, v in row["headers"].items()},
                row["time"],
                row["offset"],
                int(partition),
            )
            for row in rows
        ]
    return found


def read_all(log: Log) -> dict[tuple[str, int], list[Record]]:
    """All records of the raw topics."""
    found = {
        (name, number): list(log.topic(name).read(partition=number))
        for name in log.topics()
        if name != TYPED
        for number in range(log.topic(name).partitions)
    }
    return {place: records for place, records in found.items() if records}


def read_rows(log: Log) -> list[dict[str, Any]]:
    """All rows of the typed topic, their times as numbers."""
    if TYPED not in log.topics():
        return []
    table = log.topic(TYPED, schema="latest").read().to_arrow()
    times = table.column("_time").cast(pa.int64()).to_pylist()
    return [row | {"_time": time} for row, time in zip(table.to_pylist(), times, strict=True)]


# -- logs -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def time_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a log knows is of the moment at which it was open; `disk/test_wrong_clock.py` is about it."""
    monkeypatch.setattr(TimeKeeper, "write", lambda self: None)


@pytest.mark.parametrize("name", list(KEYRINGS))
def test_a_golden_log_is_read_exactly(golden: Callable[[str], Path], name: str) -> None:
    """Owner and reader find every record, with every field as it was put in."""
    path = golden(name)
    rows = EXPECTED[name]["rows"]
    with opened(path, keyring=KEYRINGS[name]) as log:
        assert (read_all(log), read_rows(log)) == (wanted(name), rows)
        assert log.reconcile(deep=True).clean
    with opened(path, keyring=KEYRINGS[name], read_only=True) as log:
        assert not log.problems
        assert (read_all(log), read_rows(log)) == (wanted(name), rows)


@pytest.mark.parametrize("name", list(KEYRINGS))
def test_a_golden_log_is_read_without_a_trace(golden: Callable[[str], Path], name: str) -> None:
    """A reader of a log leaves every file of it as it is."""
    path = golden(name)
    with opened(path, keyring=KEYRINGS[name], read_only=True) as log:
        assert (read_all(log), read_rows(log)) == (wanted(name), EXPECTED[name]["rows"])
    for file in files_in(GOLDEN / name):
        assert (path / file).read_bytes() == (GOLDEN / name / file).read_bytes()


@pytest.mark.parametrize("name", list(KEYRINGS))
def test_a_golden_log_goes_on(golden: Callable[[str], Path], name: str) -> None:
    """An old log takes new records after its old ones: keys keep their partitions, idempotency keys their receipts."""
    path = golden(name)
    with opened(path, keyring=KEYRINGS[name]) as log:
        for key, receipt in EXPECTED[name]["receipts"].items():
            topic, (record,) = (
                log.topic(receipt[0]),
                log.topic(receipt[0]).read(receipt[2], receipt[2] + 1, partition=receipt[1]),
            )
            same = {"key": record.key, "kind": record.kind, "headers": record.headers, "idempotency_key": key}
            again = topic.append(record.payload, **same)
            assert (again, again.repeated) == (Receipt(*receipt), True)
            with pytest.raises(Invalid, match="already in use for other content"):
                topic.append(b"again", idempotency_key=key)
        keyed = [(place, record) for place, records in wanted(name).items() for record in records if record.key]
        for (topic, partition), record in keyed:
            fresh = log.topic(topic).append(b"new", key=record.key)
            assert fresh.partition == partition
            assert fresh.offset > wanted(name)[topic, partition][-1].offset
        log.seal()
        assert log.reconcile(deep=True).clean
    with opened(path, keyring=KEYRINGS[name]) as log:
        for place, records in wanted(name).items():
            assert read_all(log)[place][: len(records)] == records
        assert read_rows(log) == EXPECTED[name]["rows"]


SECOND = """
ALTER TABLE log ADD COLUMN colour INTEGER NOT NULL DEFAULT 0;
CREATE TABLE colours (name TEXT PRIMARY KEY) STRICT;
"""
"""What a second version of the database might bring."""


@pytest.mark.parametrize("name", list(KEYRINGS))
def test_a_log_is_migrated_by_its_owner_alone(golden: Callable[[str], Path], name: str) -> None:
    """A reader is asked to open it once as its owner, and has changed nothing; a migration changes no row;
    and an older holdfast refuses what came of it.
    """
    path, scripts = golden(name), [*migrations.migrations(), (2, SECOND)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrations, "migrations", lambda: scripts)
        with pytest.raises(Invalid, match="older holdfast") as caught:
            opened(path, keyring=KEYRINGS[name], read_only=True)
        assert caught.value.hint
        assert dump(path) == dump(GOLDEN / name)
        backend = SqliteBackend(path / "durable.db")
        migrations.migrate(backend)
        backend.close()
        before, after = dump(GOLDEN / name), dump(path)
        assert (before["user_version"], after["user_version"]) == (1, 2)
        for table in set(before) - {"schema", "user_version", "application_id"}:
            assert [row[: len(old)] for row, old in zip(after[table], before[table], strict=True)] == before[table]
        for read_only in (False, True):
            with opened(path, keyring=KEYRINGS[name], read_only=read_only) as log:
                assert read_all(log) == wanted(name)
    with pytest.raises(Invalid, match=r"another version of holdfast wrote this log .* version=2 known=1"):
        opened(path, keyring=KEYRINGS[name])


def test_a_migration_that_fails_leaves_the_version_before(
    golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is one transaction, with its number in it."""
    path, scripts = golden("plain"), [*migrations.migrations(), (2, SECOND), (3, "CREATE TABLE broken")]
    monkeypatch.setattr(migrations, "migrations", lambda: scripts)
    with pytest.raises(HoldfastError):
        opened(path)
    connection = apsw.Connection(str(path / "durable.db"))
    assert connection.pragma("user_version") == 2
    assert connection.execute("SELECT count(*) FROM colours").get == 0
    connection.close()


def test_a_database_from_before_is_refused_in_one_sentence(golden: Callable[[str], Path]) -> None:
    """What holdfast wrote before its first release has another mark; it is not taken for damage, and not touched."""
    path = golden("plain")
    connection = apsw.Connection(str(path / "durable.db"))
    connection.execute("PRAGMA application_id=0x48464A31; PRAGMA user_version=9")
    connection.close()
    before = (path / "durable.db").read_bytes()
    for read_only in (False, True):
        with pytest.raises(Invalid, match="no database of this holdfast") as caught:
            opened(path, read_only=read_only)
        assert "before its first release" in caught.value.hint
    assert (path / "durable.db").read_bytes() == before


@pytest.mark.parametrize("name", list(KEYRINGS))
def test_the_same_rows_are_written_today(tmp_path: Path, name: str) -> None:
    """With clock, randomness and keys fixed, today's code stores exactly the rows of the golden files.

    How another version of Arrow compresses and lays out a file is its own affair; so then are sizes and hashes of
    files, and the content of encrypted ones, which is that of compressed blocks.
    """
    expected = make.make_one(tmp_path / name)
    found, golden_rows = dump(tmp_path / name), dump(GOLDEN / name)
    if EXPECTED[name].get("arrow", pa.__version__) == pa.__version__:
        assert (expected, found) == (EXPECTED[name], golden_rows)
    else:
        hashes = {"file", *(("content", "chain") if KEYRINGS[name] else ())}
        assert without(hashes, expected["segments"]) == without(hashes, EXPECTED[name]["segments"])
        depending = {"segments", "log", "watermarks"} if KEYRINGS[name] else {"segments"}
        assert {t: found[t] for t in found.keys() - depending} == {t: golden_rows[t] for t in found.keys() - depending}
    for file in ("FORMAT", "LOCK"):
        assert (tmp_path / name / file).read_bytes() == (GOLDEN / name / file).read_bytes()


@pytest.mark.parametrize("keyring", [None, make.FIRST], ids=["plain", "sealed"])
def test_groups_in_a_golden_file_are_read_and_written_as_ever(tmp_path: Path, keyring: Keyring | None) -> None:
    """A log that crashed has its newest groups in a file alone: readers and the next owner find them; the same bytes
    are written today.
    """
    name = "group-file" if keyring is None else "group-file-sealed"
    golden, made = tmp_path / "golden", tmp_path / name
    shutil.copytree(GOLDEN / name, golden)
    make.make_group_file(made, keyring)
    (file,) = (path.name for path in (golden / "groups").iterdir())
    assert (made / "groups" / file).read_bytes() == (golden / "groups" / file).read_bytes()
    check_group_file(golden, keyring)


def check_group_file(golden: Path, keyring: Keyring | None) -> None:
    """Readers see all of it, and so does the next owner."""
    for read_only in (True, False, True):
        with holdfast.open(golden, keyring=keyring, settings=make.SETTINGS, read_only=read_only) as log:
            assert not log.problems
            assert [(r.partition, r.payload) for r in log.topic("orders").read()] == [
                (0, b"order 0"),
                (0, b"order 2"),
                (0, b"sent 1"),
                (0, b"sent 1"),
                (0, b"sent 2"),
                (1, b"order 1"),
                (1, b"one"),
                (1, b"two"),
            ]
            assert [row["sensor"] for row in log.topic("events", schema="latest").read()] == ["a"]
            assert log._journal.sessions.last(b"a" * 16) == 2
            assert log._journal.sessions.last_produced(b"device-7") == 1


@pytest.mark.parametrize("name", ["plain", "sealed"])
def test_golden_sessions_are_answered_as_ever(golden: Callable[[str], Path], name: str) -> None:
    """What was sent under a number is answered as it was then, and not written again."""
    path = golden(name)
    with opened(path, keyring=KEYRINGS[name]) as log:
        journal = log._journal
        users = journal.topics["users.v1"][0]
        before = users.durable
        for session, sequence, floor, first, seq in EXPECTED[name]["sessions"]:
            rows, sender = ForwardedRows(users, [(b"other", 1, None, None)], 5), bytes.fromhex(session)
            if not floor:
                again = journal.sessions.produce(sender, sequence, rows, 10)
            elif (sender, sequence) != (b"a" * 16, 1):
                again = journal.sessions.put(sender, sequence, floor, [rows], 10)
            else:  # its sender had the answer
                with pytest.raises(holdfast.OutcomeUnknown):
                    journal.sessions.put(sender, sequence, floor, [rows], 10)
                continue
            ((run,),) = [one.runs for one in again.outcomes()]
            assert (run.first, run.seq, run.repeated) == (first, seq, not floor)
        assert users.durable == before


def test_answers_are_written_as_documented() -> None:
    """0015: the worked example of what a session was answered."""
    staged = StagedSession(SessionState(b"m" + bytes(16), 0))
    staged.take(5, 1, (Outcome(None, (RunOutcome(1, 10, 7, 3),)),), 64)
    assert staged.row(0, 0).answers == examples("0015")["answers"]


@pytest.mark.parametrize("name", ["plain", "sealed"])
def test_the_segments_are_those_that_were_sealed(name: str) -> None:
    """Names, content digests and chain values of the golden segments are the recorded ones; live ones have a file."""
    segments = EXPECTED[name]["segments"]
    assert make.segments_of(GOLDEN / name) == segments
    live = {f"segments/topics/{s['topic']}/{s['partition']}/segments/{s['file']}" for s in segments if s["state"] == 1}
    assert {file for file in files_in(GOLDEN / name) if file.endswith(".parquet")} == live
    assert {s["state"] for s in segments} == {1, 3}
    assert {bool(int(s["schema"], 16)) for s in segments} == {False, True}


@pytest.mark.parametrize("name", ["plain", "sealed"])
def test_the_chain_can_be_computed_by_hand(name: str) -> None:
    """0005: each chain value follows from the one before, the segment's place and its content."""
    log_id = bytes.fromhex((GOLDEN / name / "FORMAT").read_text().split("\n")[1])
    before: dict[tuple[str, int], bytes] = {}
    for s in EXPECTED[name]["segments"]:
        place = s["topic"], s["partition"]
        fields = ["segment", before.get(place, bytes(32)), log_id, *place, s["number"], s["first_offset"], s["rows"]]
        message = msgspec.msgpack.encode([*fields, bytes.fromhex(s["content"])])
        before[place] = blake3(message, derive_key_context="holdfast 1 segment chain").digest()
        assert before[place].hex() == s["chain"]


@pytest.mark.parametrize("name", list(KEYRINGS))
@pytest.mark.parametrize("read_only", [False, True], ids=["owner", "reader"])
def test_golden_spaces_are_loaded_exactly(golden: Callable[[str], Path], name: str, read_only: bool) -> None:
    """Owner and reader find every space, with every item as it was put in, in its order."""
    with opened(golden(name), keyring=KEYRINGS[name], read_only=read_only) as log:
        journal = log._journal
        found = {
            spaces.stored_name(space).hex(): [[k.hex(), n, body.hex()] for k, n, body in journal.spaces.load(space)]
            for space in journal.spaces.names()
        }
    assert found == EXPECTED[name]["spaces"]


def without(names: set[str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def dump(path: Path) -> dict[str, Any]:
    """All rows of a database and what its head says; the file itself is not touched."""
    connection = apsw.Connection(
        f"file:{path / 'durable.db'}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    schema = connection.execute("SELECT name, type, sql FROM sqlite_schema ORDER BY name").fetchall()
    tables = {
        name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall())
        for name, kind, _ in schema
        if kind == "table"
    }
    numbers = {name: connection.pragma(name) for name in ("user_version", "application_id")}
    connection.close()
    return {"schema": schema, **numbers, **tables}


# -- damage -----------------------------------------------------------------------------------------------


REFUSED_AT_OPEN: dict[str, type[HoldfastError]] = {
    "truncated": Corrupt,
    "user-version": Invalid,
    "format-version": Invalid,
    "format-garbage": Corrupt,
    "database-gone": Corrupt,
}


@pytest.mark.parametrize("read_only", [False, True], ids=["owner", "reader"])
@pytest.mark.parametrize("name", list(REFUSED_AT_OPEN))
def test_a_damaged_log_is_refused(golden: Callable[[str], Path], name: str, read_only: bool) -> None:
    """Damage is Corrupt, a newer version is Invalid; the error has a remedy and the files stay as they are."""
    path = golden(f"damaged/{name}")
    with pytest.raises(REFUSED_AT_OPEN[name]) as caught:
        opened(path, read_only=read_only)
    assert type(caught.value) is REFUSED_AT_OPEN[name]
    assert caught.value.hint
    for file in (GOLDEN / "damaged" / name).iterdir():
        assert file.name == "LOCK" or (path / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("name", "message", "intact"),
    [("flipped-body", "digest", [0, 2]), ("frame-version", "unknown frame version=2", [])],
)
def test_a_damaged_entry_is_refused_where_it_is(
    golden: Callable[[str], Path], name: str, message: str, intact: list[int]
) -> None:
    """Reading a damaged entry raises Corrupt with its place; the entries around it are read."""
    with opened(golden(f"damaged/{name}")) as log:
        topic = log.topic("t")
        assert [record.offset for offset in intact for record in topic.read(offset, offset + 1)] == intact
        for offset in {0, 1, 2} - set(intact):
            with pytest.raises(Corrupt, match=message) as caught:
                list(topic.read(offset, offset + 1))
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, offset)


@pytest.mark.parametrize(("name", "kind"), [("segment-gone", "missing"), ("segment-flipped", "content_mismatch")])
def test_a_damaged_segment_is_refused_where_it_is(golden: Callable[[str], Path], name: str, kind: str) -> None:
    """Reading a lost or changed segment raises Corrupt with its place; the segments around it are read."""
    with opened(golden(f"damaged/{name}")) as log:
        topic = log.topic("t")
        assert [record.payload for n in (0, 2) for record in topic.read(n, n + 1)] == [b"one", b"three"]
        with pytest.raises(Corrupt) as caught:
            list(topic.read(1, 2))
        assert f"{1:020d}-" in str(caught.value.path)
        assert caught.value.hint
        findings = log.reconcile(deep=True).findings
        assert [(finding.kind, finding.topic, finding.number) for finding in findings] == [(kind, "t", 1)]


def test_a_watermark_that_was_put_back_is_refused(golden: Callable[[str], Path]) -> None:
    """A single older watermark is Corrupt for the owner; a reader learns of it, and reads nothing wrong."""
    path = golden("damaged/watermark-back")
    with pytest.raises(Corrupt, match="vouches for") as caught:
        opened(path)
    assert caught.value.hint
    with opened(path, read_only=True) as log:
        assert log.problems
        assert [record.payload for record in log.topic("t").read(0, 2)] == [b"one", b"two"]


def test_an_item_that_was_put_back_is_refused(golden: Callable[[str], Path]) -> None:
    """A single older item of a space is Corrupt when the space is loaded or changed; other spaces are as they were."""
    with opened(golden("damaged/item-back")) as log:
        journal = log._journal
        for refused in (
            lambda: journal.spaces.load("s"),
            lambda: journal.spaces.change("s", [(b"other", 0, b"")], timeout=10).result(),
        ):
            with pytest.raises(Corrupt, match=r"not those that its row says .* space='s'") as caught:
                refused()
            assert caught.value.hint
        assert journal.spaces.load("t") == [(b"k", 0, b"old")]


# -- vectors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(VECTORS["typed frames"]))
def test_a_typed_frame_keeps_its_bytes(name: str) -> None:
    """Rows of a typed topic give the golden frame, and the golden frame gives the rows."""
    vector = VECTORS["typed frames"][name]
    times, message = bytes.fromhex(vector["times"]), bytes.fromhex(vector["message"])
    assert (frame.typed_head(vector["count"], times) + message).hex() == vector["body"]
    count, found_times, found_message = frame.decode_typed(bytes.fromhex(vector["body"]))
    assert (count, bytes(found_times), bytes(found_message)) == (vector["count"], times, message)


@pytest.mark.parametrize("name", list(make.CHAINS))
def test_a_chain_value_keeps_its_bytes(name: str) -> None:
    """The chain value of a segment is the golden one."""
    assert chain_value(*make.CHAINS[name]).hex() == VECTORS["chains"][name]


@pytest.mark.parametrize("name", list(VECTORS["frames"]))
def test_a_frame_keeps_its_bytes(name: str) -> None:
    """Records give the golden frame, and the golden frame gives the records."""
    vector = VECTORS["frames"][name]
    extras = {
        int(i): tuple(None if value is None else bytes.fromhex(value) for value in extra)
        for i, extra in vector["extras"].items()
    }
    columns = Columns([bytes.fromhex(payload) for payload in vector["payloads"]], vector["times"], extras)
    assert frame.encode(columns).hex() == vector["body"]
    again = frame.decode(bytes.fromhex(vector["body"]))
    assert (again.payloads, again.times, again.extras) == (columns.payloads, columns.times, columns.extras)


@pytest.mark.parametrize("name", list(make.ENTRIES))
def test_a_header_keeps_its_bytes(name: str) -> None:
    """An entry's header and digest are the golden ones."""
    place, entry = make.ENTRIES[name]
    head = header_of(place, entry)
    assert VECTORS["entries"][name] == {"header": head.hex(), "digest": chain.digest(head, entry.body).hex()}


def test_items_of_spaces_keep_their_bytes() -> None:
    """Headers and weights of items are the golden ones."""
    assert make.make_vectors()["items"] == VECTORS["items"]


def test_stamps_and_encrypted_bodies_keep_their_bytes() -> None:
    """Canonical rows, stamps, the key commitment and encrypted bodies are the golden ones, and they decrypt."""
    vectors = make.make_vectors()
    assert vectors["stamps"] == VECTORS["stamps"]
    cipher = AesGcmCipher(make.SOURCE, encrypts=False)
    assert vectors["sealing"] == VECTORS["sealing"]
    for encrypted in VECTORS["sealing"]["sealed"]:
        assert cipher.decrypt(bytes.fromhex(encrypted), b"the same header") == b"the same body"


# -- the store --------------------------------------------------------------------------------------------

STORE_CHECKPOINT = layout.checkpoint_key("orders", 3, 2)


def entry_of(batch: CommitBatch, place: int) -> tuple[Place, Entry]:
    """An entry of a commit batch as the journal has it."""
    row = batch.entries[place]
    return Place(batch.log_id, row.topic, row.partition), Entry(row.seq, 0, *row[3:-1])


def decode_object(key: str, data: bytes) -> object:
    """An object of a store, by what its key says that it is."""
    if key.endswith(".arrow"):
        return commit_batch.decode(data, key)
    if key.endswith(".keys"):
        return key_object.decode(data, key)
    if key.endswith(".parquet"):
        return checkpoint.decode(data, key)
    if "/_manifest/" in key:
        return documents.decode_manifest(data, key)
    kind = type(make.store_documents()[key]) if key in make.store_documents() else documents.EpochDocument
    return documents.decode(data, key, kind)


def test_the_same_objects_are_written_today(tmp_path: Path) -> None:
    """Documents and commit batches have the golden bytes; how Arrow lays out a checkpoint is its own affair."""
    make.make_store(tmp_path)
    assert files_in(tmp_path) == files_in(GOLDEN / "store")
    for key in files_in(tmp_path):
        if key != STORE_CHECKPOINT:
            assert (tmp_path / key).read_bytes() == (GOLDEN / "store" / key).read_bytes(), key


def test_golden_objects_are_read_exactly() -> None:
    """Every document, commit batch and checkpoint of the golden root says what was put into it."""
    found = {key: decode_object(key, (GOLDEN / "store" / key).read_bytes()) for key in files_in(GOLDEN / "store")}
    stored = {key: d for key, d in found.items() if isinstance(d, documents.Document)}
    assert {key: msgspec.structs.replace(d, check="") for key, d in stored.items()} == make.store_documents()
    assert {key: b for key, b in found.items() if isinstance(b, CommitBatch)} == make.store_batches()
    assert {key: k for key, k in found.items() if isinstance(k, KeyObject)} == make.store_keys()
    assert found[STORE_CHECKPOINT] == make.manifest_objects()
    assert {type(d) for d in stored.values()} == set(AnyDocument.__args__)


def test_the_same_signatures_are_made_today(tmp_path: Path) -> None:
    """A signed root has the golden bytes, and its own keyring proves every object of it."""
    make.make_signed_store(tmp_path)
    assert files_in(tmp_path) == files_in(GOLDEN / "store-sealed") == files_in(GOLDEN / "store")
    root = RootStore(DirectoryStore(GOLDEN / "store-sealed", SystemClock()), RootTrust(Signer.of(make.FIRST)))
    for key in files_in(tmp_path):
        assert key == STORE_CHECKPOINT or (tmp_path / key).read_bytes() == (root.files.get(key))
        assert root.get(key) == (GOLDEN / "store" / key).read_bytes() or key == STORE_CHECKPOINT
        decode_object(key, root.get(key))
    assert root.trust.is_authentic


def test_golden_entries_on_the_store_are_those_of_the_journal() -> None:
    """Digests match, links lead from entry to entry, and encrypted bodies decrypt to the plain ones."""
    stored = [commit_batch.decode((GOLDEN / "store" / key).read_bytes(), key) for key in sorted(make.store_batches())]
    plain, encrypted, _ = stored
    cipher = make.store_cipher()
    (key,) = encrypted.keys
    assert (key.commitment, key.stamp) == (cipher.commitment, cipher.mac(make.KeyEpoch(*key[:5], b"").message()))
    for batch in (plain, encrypted):
        entries = [entry_of(batch, place) for place in range(len(batch.entries))]
        assert all(is_whole(*entry) for entry in entries)
        for _, run in groupby(entries, lambda entry: entry[0].prefix):
            assert all(b.link == a.digest for (_, a), (_, b) in pairwise(run))
    for number, row in enumerate(plain.entries):
        place, entry = entry_of(encrypted, number)
        assert cipher.decrypt(entry.body, header_of(place, entry)) == row.body


def test_golden_idempotency_keys_are_encrypted_and_come_back() -> None:
    """In a log with keys nothing on the store shows the hashes; a reader with the key gets them."""
    found = [key_object.decode((GOLDEN / "store" / key).read_bytes(), key) for key in make.store_keys()]
    cipher = make.store_cipher()
    known, digests = HashCipher(make.LOG_ID, cipher.mac), HashCipher(make.LOG_ID, cipher.mac, DIGESTS)
    plain, encrypted = found
    assert [row.hash for row in plain.rows] == make.IDEMPOTENCY
    assert [known.decrypt(row.hash) for row in encrypted.rows] == make.IDEMPOTENCY
    assert not any(row.hash in make.IDEMPOTENCY for row in encrypted.rows)
    assert [digests.decrypt(row.digest) for row in encrypted.rows] == make.DIGESTED
    assert [row.digest for row in plain.rows] == make.DIGESTED


@pytest.mark.parametrize("key", files_in(GOLDEN / "damaged" / "store"))
def test_a_damaged_object_is_refused(key: str) -> None:
    """Damage is Corrupt with the object's key, a newer format is Invalid; both have a remedy."""
    how, _, key = key.partition("/")
    kind = Invalid if how == "newer" else Corrupt
    with pytest.raises(kind) as caught:
        decode_object(key, (GOLDEN / "damaged" / "store" / how / key).read_bytes())
    assert type(caught.value) is kind
    assert key in str(caught.value)
    assert caught.value.hint


# -- documents --------------------------------------------------------------------------------------------


def document(number: str) -> str:
    (path,) = DOCUMENTS.glob(f"{number}-*.md")
    return path.read_text(encoding="utf-8")


def examples(number: str) -> dict[str, bytes]:
    """The worked example of a document: lines `name = hex` between ```hex and ```."""
    blocks = re.findall(r"```hex\n(.*?)```", document(number), flags=re.DOTALL)
    lines = [line for block in blocks for line in re.sub(r"\n +", " ", block).splitlines()]
    return {name.strip(): bytes.fromhex(value) for name, _, value in (line.partition("=") for line in lines)}


def test_every_format_is_listed() -> None:
    """The index names every format document, and each says its number and version."""
    index = (DOCUMENTS / "README.md").read_text(encoding="utf-8")
    numbered = sorted(path.name for path in DOCUMENTS.glob("0*.md"))
    assert numbered == sorted(set(re.findall(r"\((\d{4}-[a-z-]+\.md)\)", index)))
    for name in numbered:
        text = (DOCUMENTS / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {name[:4]} ")
        assert re.search(r"^Version:? ", text, flags=re.MULTILINE)


def test_every_table_and_column_is_documented() -> None:
    """0001 and 0005 have a section for each table, with each of its columns, and none that is not there."""
    connection = apsw.Connection(":memory:")
    for _, script in migrations.migrations():
        connection.execute(script)
    text = document("0001") + document("0005")
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^#|\Z)", text, flags=re.DOTALL | re.MULTILINE))
    stored = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
    assert sorted(sections) == sorted(stored)
    for name in stored:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        assert re.findall(r"^\| `(\w+)` \|", sections[name], flags=re.MULTILINE) == columns


@pytest.mark.parametrize("example", ["every field its own", "rows of a typed topic"])
def test_the_documented_header_is_the_header(example: str) -> None:
    """The table of 0002 says of every byte of a header what it is."""
    place, entry = make.ENTRIES[example]
    head, topic = header_of(place, entry), b"orders.v1"
    fields: dict[str, Any] = {
        "magic": b"hfe", "version": 1, "log_id": make.LOG_ID, "partition": 3, "topic_length": 9, "topic": topic,
        **entry._asdict(), "schema": entry.schema or bytes(16),
    }  # fmt: skip
    rows = re.findall(r"^\| ([\dn+]+) \| ([\dn]+) \| (\w+) \| `(\w+)` \|", document("0002"), flags=re.MULTILINE)
    at = 0
    for offset, size, kind, name in rows:
        start, length = (
            sum(len(topic) if term == "n" else int(term) for term in text.split("+")) for text in (offset, size)
        )
        assert start == at, name
        at = start + length
        value = fields[name] if kind == "bytes" else fields[name].to_bytes(length, "little", signed=kind[0] == "i")
        assert head[start:at] == value, name
    assert at == len(head)


def hkdf(master: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA-256 with one block of output, by hand."""
    return hmac.digest(hmac.digest(salt, master, sha256), info + b"\x01", sha256)


def worked_header(key_epoch: int) -> bytes:
    log_id = bytes(range(16))
    where = b"hfe" + bytes([1]) + log_id + struct.pack("<IH", 0, 1) + b"t"
    return where + struct.pack("<IQQQIBB16sqq16s", key_epoch, 1, 2, 0, 1, 1, 0, bytes(16), 5, 5, bytes(16))


def worked_body() -> bytes:
    head = struct.pack("<BBHI", 1, 2, 0, 1)
    return head + struct.pack("<q", 5) + struct.pack("<I", 2) + struct.pack("<I", 1) + b"hi" + b"k"


def worked_digest(header: bytes, body: bytes) -> bytes:
    return blake3(header + blake3(body).digest()).digest(length=16)


def head_row(link: bytes, key_epoch: int) -> bytes:
    """The canonical bytes of a head row, as MessagePack by hand."""
    return b"\x97" + b"\xa5heads" + bytes([1, 1, 0, 1]) + b"\xc4\x10" + link + bytes([key_epoch])


def test_the_worked_example_of_an_entry_is_right() -> None:
    """0002: header, frame and digest of one record in a plain log."""
    header, body = worked_header(0), worked_body()
    assert examples("0002") == {"header": header, "body": body, "digest": worked_digest(header, body)}


def test_the_worked_example_of_a_control_row_is_right() -> None:
    """0001: canonical bytes and plain stamp of the head that the entry of 0002 leaves."""
    message = head_row(examples("0002")["digest"], 0)
    stamp = blake3(message, derive_key_context="holdfast 1 control row").digest()
    assert examples("0001").items() >= {"message": message, "stamp": stamp}.items()


def test_the_worked_example_of_an_item_is_right() -> None:
    """0001: header and weight of an item of a space, as MessagePack by hand."""
    header = b"\x96\xabspace_items\xc4\x10" + bytes(range(16)) + b"\x01\xc4\x01k\x07\x00"
    weighed = b"holdfast 1 item|" + header + blake3(b"hi").digest()
    weight = blake3(weighed, derive_key_context="holdfast 1 control row").digest()
    found = examples("0001")
    assert (found["header"], found["weight"]) == (header, weight)
    assert set(found) == {"header", "weight", "message", "stamp"}


def test_the_worked_example_of_a_chain_value_is_right() -> None:
    """0005: canonical bytes and chain value of a partition's first segment, as MessagePack by hand."""
    log_id, content = bytes(range(16)), bytes(range(32, 64))
    message = b"\x99\xa7segment\xc4\x20" + bytes(32) + b"\xc4\x10" + log_id
    message += b"\xa1t" + bytes([0, 0, 0, 1]) + b"\xc4\x20" + content
    value = blake3(message, derive_key_context="holdfast 1 segment chain").digest()
    assert examples("0005") == {"message": message, "chain": value}
    assert VECTORS["chains"]["first of a partition"] == value.hex()


def test_the_worked_example_of_encryption_is_right() -> None:
    """0003: keys, commitment, salt, encrypted body, digest and stamp of that record with keys."""
    master, salt, context = bytes(range(32)), bytes(range(64, 96)), bytes(range(16)) + struct.pack(">Q", 1)
    uses = (b"aead", b"mac", b"commitment", b"salt", b"body")
    aead, mac, commitment, *own = (hkdf(master, salt, b"holdfast 1 " + use + b"|" + context) for use in uses)
    header, body, fresh = worked_header(1), worked_body(), bytes(range(96, 120))
    tag = AESGCM(own[1]).encrypt(bytes(12), b"", body)
    body_salt = blake3(fresh + tag + header, key=own[0]).digest(length=24)
    body_key = blake3(b"hfj1" + body_salt, key=aead).digest()
    encrypted = body_salt + AESGCM(body_key).encrypt(b"hfj1" + bytes(8), body, header)
    digest = worked_digest(header, encrypted)
    stamp = blake3(head_row(digest, 1), key=mac).digest()
    assert examples("0003") == {
        "master": master,
        "salt": salt,
        "context": context,
        "aead": aead,
        "mac": mac,
        "commitment": commitment,
        "salt_key": own[0],
        "tag_key": own[1],
        "fresh": fresh,
        "body_salt": body_salt,
        "body_key": body_key,
        "header": header,
        "encrypted": encrypted,
        "digest": digest,
        "stamp": stamp,
    }
    source = KeySource(master, salt, context)
    assert AesGcmCipher(source, encrypts=True, random=lambda count: fresh).encrypt(body, header) == encrypted


def store_sections() -> dict[str, list[str]]:
    """The tables of 0006, by the heading above them: what stands in the first column, in backquotes."""
    sections = re.findall(r"^###? ([^\n]+)\n(.*?)(?=^#|\Z)", document("0006"), flags=re.DOTALL | re.MULTILINE)
    return {title: re.findall(r"^\| `([\w.]+)`", text, flags=re.MULTILINE) for title, text in sections}


@pytest.mark.parametrize("kind", AnyDocument.__args__, ids=lambda kind: kind.__name__)
def test_every_field_of_a_document_is_documented(kind: type[documents.Document]) -> None:
    """0006 has a section for each kind of document, with each of its own fields in their order, and no others."""
    shared = ["format", "log", "check"]
    own = [name for name in kind.__struct_fields__ if name not in shared]
    (title,) = (t for t in store_sections() if f"`{kind.__struct_config__.tag}`" in t)
    assert store_sections()[title] == own
    assert store_sections()["Documents"] == ["type", *shared]


def test_every_column_of_the_store_is_documented() -> None:
    """0006 lists the columns of commit batches and checkpoints in their order, and what stands in the metadata."""
    *_, batch = make.store_batches().values()
    pairs = [name.decode() for name in commit_batch._metadata(batch)]
    assert store_sections()["The commit batch"] == [*commit_batch.SCHEMA.names, *pairs]
    *_, keys = make.store_keys().values()
    pairs = [name.decode() for name in key_object._metadata(keys)]
    assert store_sections()["The object of keys"] == [*key_object.SCHEMA.names, *pairs]
    assert store_sections()["The checkpoint"] == checkpoint.SCHEMA.names


def test_the_documented_head_is_the_head() -> None:
    """0006 says of every byte between the schema and the first buffer of a commit batch what it is."""
    *_, batch = make.store_batches().values()
    data = commit_batch.encode(batch)
    head = data[8 + int.from_bytes(data[4:8], "little") :]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([^|]+) \|", document("0006"), flags=re.MULTILINE)
    at = 0
    for start, size, value in rows:
        assert int(start) == at, value
        at += int(size)
        numbers = re.findall(r"\b(\d+) as (u8|u16|u32|i16|i32|u64)\b", value)
        if numbers:
            wanted = b"".join(int(n).to_bytes(int(kind[1:]) // 8, "little") for n, kind in numbers)
            assert head[int(start) : at] == wanted.ljust(int(size), b"\0"), value
    assert at == commit_batch.STREAM.struct.size


def test_the_worked_example_of_a_document_is_right() -> None:
    """0006: the check of a document, with nothing but a hash."""
    (line,) = re.findall(r"```json\n(.*?)```", document("0006"), flags=re.DOTALL)
    blank = re.sub(r'"check":"[0-9a-f]{32}"', '"check":""', line.rstrip("\n"))
    check = blake3(blank.encode(), derive_key_context="holdfast 1 store document").digest(length=16)
    assert json.loads(line)["check"] == check.hex()
    assert documents.encode(documents.decode(line.encode(), "k", documents.FloorDocument)) == line.encode()


def test_every_key_is_documented() -> None:
    """The table of the layout in 0006 has a pattern for every object of the golden root, and for segments."""
    table = document("0006").partition("## The root")[2].partition("##")[0]
    patterns = [
        re.sub(r"<[^>]+>", "[^/]+", re.escape(text).replace("\\<", "<").replace("\\>", ">").replace("\\ ", " "))
        for text in re.findall(r"^\| `([^`]+)`", table, flags=re.MULTILINE)
    ]
    keys = [*files_in(GOLDEN / "store"), layout.segment_key("orders", 3, 0, bytes(32))]
    assert {key for key in keys if not any(re.fullmatch(p, key) for p in patterns)} == set()
    assert [p for p in patterns if not any(re.fullmatch(p, key) for key in keys)] == []
