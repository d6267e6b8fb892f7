"""Golden files: what was written once is read for ever, and what is written today is written as before.

`tests/golden/make.py` made the files; they are never made again for a version that was released. The
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
from pathlib import Path
from typing import Any

import apsw
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.golden import make

import holdfast
from holdfast import Corrupt, HoldfastError, Invalid, Keyring, Log, Receipt, Record, Settings
from holdfast.crypto import chain
from holdfast.crypto.cipher import AesGcmCipher
from holdfast.journal import frame
from holdfast.journal.columns import Columns
from holdfast.journal.entry import header_of
from holdfast.journal.migrations import migrations

pytestmark = pytest.mark.unit

GOLDEN = Path(make.__file__).parent
DOCUMENTS = GOLDEN.parents[1] / "docs" / "formats"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
VECTORS = json.loads((GOLDEN / "vectors.json").read_text(encoding="utf-8"))
KEYRINGS: dict[str, Keyring | None] = {"plain": None, "sealed": make.ROTATED, "schema-1": None}


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a golden log that may be opened."""

    def copy(name: str) -> Path:
        shutil.copytree(GOLDEN / name, tmp_path / name)
        return tmp_path / name

    return copy


def opened(path: Path, **given: Any) -> Log:
    return holdfast.open(path, settings=Settings(), **given)


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
    found = {
        (name, number): list(log.topic(name).read(partition=number))
        for name in log.topics()
        for number in range(log.topic(name).partitions)
    }
    return {place: records for place, records in found.items() if records}


# -- logs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(KEYRINGS))
def test_a_golden_log_is_read_exactly(golden: Callable[[str], Path], name: str) -> None:
    """Owner and reader find every record of an old log, with every field as it was put in."""
    path = golden(name)
    with opened(path, keyring=KEYRINGS[name], read_only=True) as log:
        assert not log.problems
        assert read_all(log) == wanted(name)
    with opened(path, keyring=KEYRINGS[name]) as log:
        assert read_all(log) == wanted(name)


@pytest.mark.parametrize("name", list(KEYRINGS))
def test_a_golden_log_goes_on(golden: Callable[[str], Path], name: str) -> None:
    """An old log takes new records after its old ones: keys keep their partitions, idempotency keys their receipts."""
    path = golden(name)
    with opened(path, keyring=KEYRINGS[name]) as log:
        for key, receipt in EXPECTED[name]["receipts"].items():
            assert log.topic(receipt[0]).append(b"again", idempotency_key=key) == Receipt(*receipt)
        keyed = [(place, record) for place, records in wanted(name).items() for record in records if record.key]
        for (topic, partition), record in keyed:
            fresh = log.topic(topic).append(b"new", key=record.key)
            assert fresh.partition == partition
            assert fresh.offset >= len(wanted(name)[topic, partition])
    with opened(path, keyring=KEYRINGS[name]) as log:
        for place, records in wanted(name).items():
            assert read_all(log)[place][: len(records)] == records


def test_an_old_schema_is_upgraded_in_place(golden: Callable[[str], Path]) -> None:
    """A database of schema 1 becomes one of the newest schema when its owner opens it, and keeps its records."""
    path = golden("schema-1")
    newest = migrations()[-1][0]
    assert (dump(path)["user_version"], "idempotency" in dump(path)) == (1, False)
    with opened(path) as log:
        first = log.topic("orders").append(b"new", idempotency_key="new")
        assert log.topic("orders").append(b"new", idempotency_key="new") == first
    assert (dump(path)["user_version"], len(dump(path)["idempotency"])) == (newest, 1)


@pytest.mark.parametrize("name", list(KEYRINGS))
def test_the_same_rows_are_written_today(tmp_path: Path, name: str) -> None:
    """With clock, randomness and keys fixed, today's code stores exactly the rows of the golden files."""
    if name == "schema-1":
        expected = make.make_schema_1(tmp_path / name)
    else:
        expected = make.make_log(tmp_path / name, make.FIRST if name == "sealed" else None)
    assert expected == EXPECTED[name]
    assert dump(tmp_path / name) == dump(GOLDEN / name)
    for file in ("FORMAT", "LOCK"):
        assert (tmp_path / name / file).read_bytes() == (GOLDEN / name / file).read_bytes()


def dump(path: Path) -> dict[str, Any]:
    """All rows of a database and what its head says; the file itself is not touched."""
    connection = apsw.Connection(
        f"file:{path / 'durable.db'}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    schema = connection.execute("SELECT name, type, sql FROM sqlite_schema ORDER BY name").fetchall()
    tables = {
        name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()
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


# -- vectors ----------------------------------------------------------------------------------------------


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


def test_stamps_and_seals_keep_their_bytes() -> None:
    """Canonical rows, stamps, the key commitment and sealed bodies are the golden ones, and the seals open."""
    vectors = make.make_vectors()
    assert vectors["stamps"] == VECTORS["stamps"]
    assert vectors["sealing"] == VECTORS["sealing"]
    context = make.LOG_ID + (5).to_bytes(8, "big")
    cipher = AesGcmCipher(make.KEYS["golden-1"], make.SALT, context, sealing=False)
    for sealed in VECTORS["sealing"]["sealed"]:
        assert cipher.open(bytes.fromhex(sealed), b"the same header") == b"the same body"


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
    """0001 has a section for each table, with each of its columns, and none that is not there."""
    connection = apsw.Connection(":memory:")
    for _, script in migrations():
        connection.execute(script)
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^#|\Z)", document("0001"), flags=re.DOTALL | re.MULTILINE))
    stored = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'")]
    assert sorted(sections) == sorted(stored)
    for name in stored:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        assert re.findall(r"^\| `(\w+)` \|", sections[name], flags=re.MULTILINE) == columns


def test_the_documented_header_is_the_header() -> None:
    """The table of 0002 says of every byte of a header what it is."""
    place, entry = make.ENTRIES["every field its own"]
    head, topic = header_of(place, entry), b"orders.v1"
    fields: dict[str, Any] = {
        "magic": b"hfe", "version": 1, "log_id": make.LOG_ID, "partition": 3, "topic_length": 9, "topic": topic,
        "schema": bytes(16), **entry._asdict(),
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
    assert examples("0001") == {"message": message, "stamp": stamp}


def test_the_worked_example_of_sealing_is_right() -> None:
    """0003: subkeys, commitment, sealed body, digest and stamp of the same record in a keyed log."""
    master, salt, context = bytes(range(32)), bytes(range(64, 96)), bytes(range(16)) + struct.pack(">Q", 1)
    aead, mac, commitment = (
        hkdf(master, salt, b"holdfast 1 " + use + b"|" + context) for use in (b"aead", b"mac", b"commitment")
    )
    header, counter = worked_header(1), bytes(8)
    sealed = counter + AESGCM(aead).encrypt(b"hfj1" + counter, worked_body(), header)
    digest = worked_digest(header, sealed)
    stamp = blake3(head_row(digest, 1), key=mac).digest()
    assert examples("0003") == {
        "master": master, "salt": salt, "context": context, "aead": aead, "mac": mac, "commitment": commitment,
        "header": header, "sealed": sealed, "digest": digest, "stamp": stamp,
    }  # fmt: skip
