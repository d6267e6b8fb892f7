from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Keyring, Settings
from holdfast.crypto.vault import Vault
from holdfast.journal.commit import writer
from holdfast.journal.proving.inspected_database import control_rows
from holdfast.model.control_rows import stamped
from tests.cli.conftest import PATIENCE, Owner, Run, Spawn, objects, segment_files, tamper
from tests.segments.planting import wait_for

pytestmark = pytest.mark.disk


def test_status_in_json_is_complete(run: Run, log: Path) -> None:
    """One object says who, what, how large and how far, as documented."""
    result = run("status", log, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    (found,) = objects(result.stdout)
    with holdfast.open(log, read_only=True) as opened:
        assert found.pop("log_id") == opened.id
    assert found.pop("created").startswith("20")
    assert found.pop("database_bytes") == (log / "durable.db").stat().st_size
    assert found.pop("path") == str(log)
    tail_bytes = found.pop("tail_bytes")
    assert tail_bytes > 10 * len("payload-0")
    zero = {"sealed": 0, "shipped": None, "settled": 0, "segments": 0, "segment_bytes": 0, "first": 0}
    unknown = {"unshipped": None, "unsettled_segments": None, "stranded": None}
    idle = {"appended": 0, "durable": 0, "tail_records": 0, "tail_bytes": 0, **zero, **unknown}
    full = {"appended": 10, "durable": 10, "tail_records": 10, "tail_bytes": tail_bytes}
    assert found == {
        "owner_pid": None,
        "epoch": 1,
        "encrypted": False,
        "keys": [],
        "verified": True,
        "wal_bytes": 0,
        "records": 10,
        "tail_records": 10,
        "segments": 0,
        "segment_bytes": 0,
        "shipping": None,
        "topics": [
            {"topic": "idle", "kind": "raw", "partitions": [{"partition": n, **idle} for n in (0, 1)]},
            {"topic": "orders", "kind": "raw", "partitions": [{"partition": 0, **full, **zero, **unknown}]},
        ],
        "problems": [],
        "consumers": {},
        "tables": [],
    }


def test_status_in_text_is_plain_and_aligned(run: Run, log: Path) -> None:
    """Away from a terminal the table is aligned text without colours or frames."""
    result = run("status", log)
    assert result.exit_code == 0
    table = result.stdout[result.stdout.index("topic ") :].splitlines()
    assert table[0].split() == [
        "topic",
        "partition",
        "first",
        "appended",
        "durable",
        "sealed",
        "shipped",
        "settled",
        "tail",
        "segments",
    ]
    assert [line.split()[:5] for line in table[1:]] == [
        ["idle", "0", "0", "0", "0"],
        ["idle", "1", "0", "0", "0"],
        ["orders", "0", "0", "10", "10"],
    ]
    assert len({len(line) for line in table}) == 1
    assert result.stdout.isascii()


def test_status_names_the_owner(run: Run, owner: Owner, log: Path) -> None:
    """While another process owns the log, status shows its pid, the log's epoch and its write-ahead log."""
    (found,) = objects(run("status", log, "--json").stdout)
    assert (found["owner_pid"], found["epoch"], found["records"]) == (owner.pid, 2, 11)
    assert found["wal_bytes"] > 0


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_a_directory_without_a_log_exits_with_1(run: Run, path: str) -> None:
    """Where there is no log, status says so and creates nothing."""
    result = run("status", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: there is no log" in result.stderr
    assert os.listdir() == []


def test_an_encrypted_log_without_its_key_is_shown_and_not_verified(run: Run, secret_log: Path) -> None:
    """Without the key the clear numbers are shown, keys by name only, and it says that nothing was verified."""
    (found,) = objects(run("status", secret_log, "--json").stdout)
    assert (found["encrypted"], found["verified"], found["records"]) == (True, False, 1)
    assert found["keys"] == [{"scheme": "aes-256-gcm-salted", "key_id": "k1"}]
    result = run("status", secret_log)
    assert result.exit_code == 0
    assert "nothing was verified" in result.stdout
    assert "nothing was verified" in result.stderr


def test_an_encrypted_log_with_its_key_is_verified(run: Run, secret_log: Path) -> None:
    """With the key the stamps are verified, and a forged one is found."""
    (found,) = objects(run("status", secret_log, "--json", "--keyring", "file:keys").stdout)
    assert (found["verified"], found["problems"]) == (True, [])
    tamper(secret_log, "UPDATE topics SET created_us = created_us + 1")
    assert run("status", secret_log).exit_code == 0
    assert run("status", secret_log, "--keyring", "file:keys").exit_code == 3


def test_damage_that_needs_no_key_is_found_without_it(run: Run, secret_log: Path) -> None:
    """A tail that is cut is found without the key as well."""
    tamper(secret_log, "DELETE FROM entries")
    assert run("status", secret_log).exit_code == 3


def test_all_keys_in_use_are_named(run: Run, tmp_path: Path, keyring: Keyring, secret_log: Path) -> None:
    """After a rotation status names the old and the new key, each once."""
    with holdfast.open(secret_log, keyring=keyring) as opened:
        opened.rotate_key(keyring.rotated("k2"))
    (found,) = objects(run("status", secret_log, "--json").stdout)
    assert [key["key_id"] for key in found["keys"]] == ["k1", "k2"]


def test_a_wrong_key_is_refused(run: Run, tmp_path: Path, secret_log: Path) -> None:
    """Another key under the same name is not damage: exit code 1."""
    Keyring.generate().save(tmp_path / "other")
    result = run("status", secret_log, "--keyring", "file:other")
    assert (result.exit_code, "is not the key" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE heads SET next_offset = 12 WHERE next_offset = 10", "a head does not match its stamp"),
        ("DELETE FROM entries WHERE seq = 5", "a head and its last entry disagree"),
        ("UPDATE topics SET partitions = 3 WHERE name = 'idle'", "a topic has lost a partition's head"),
        ("DELETE FROM log", "the database has lost the log's own row"),
        ("DROP TABLE heads", "a table cannot be read to its end table=heads"),
        ("UPDATE heads SET number = -1 WHERE partition_id = 2", "a head is out of range"),
        ("UPDATE topics SET partitions = 2147483648 WHERE id = 2", "a topic has lost a partition's head"),
        ("UPDATE topics SET name = CAST(x'ff' AS TEXT) WHERE id = 2", "a stored value is not what it must be"),
    ],
)
def test_damage_is_listed_with_exit_code_3(run: Run, log: Path, sql: str, message: str) -> None:
    """Whatever is damaged is listed, in text and in JSON, and the rest is still shown."""
    tamper(log, sql)
    result = run("status", log)
    assert (result.exit_code, message in result.stdout) == (3, True)
    assert "orders" in result.stdout or "heads" in message
    found = run("status", log, "--json")
    (status,) = objects(found.stdout)
    assert found.exit_code == 3
    assert any(message in problem["message"] for problem in status["problems"])
    assert all(set(problem) == {"message", "topic", "partition", "offset", "hint"} for problem in status["problems"])


def test_a_destroyed_database_is_damage(run: Run, log: Path) -> None:
    """A database that was overwritten is damage, and the rest is still shown."""
    (log / "durable.db").write_bytes(b"not a database " * 1000)
    result = run("status", log, "--json")
    assert result.exit_code == 3
    (found,) = objects(result.stdout)
    assert (found["epoch"], found["topics"], len(found["problems"])) == (None, [], 1)


def test_a_lost_database_is_damage(run: Run, log: Path) -> None:
    """A log whose database is gone or emptied exits with 3: it is not an empty log."""
    (log / "durable.db").write_bytes(b"")
    assert run("status", log).exit_code == 3
    (log / "durable.db").unlink()
    assert run("status", log).exit_code == 3


def test_a_newer_log_is_refused(run: Run, log: Path) -> None:
    """A log of a newer holdfast is refused with the remedy, not called damaged."""
    tamper(log, "PRAGMA user_version = 999")
    result = run("status", log)
    assert (result.exit_code, "another version of holdfast" in result.stderr) == (1, True)


def test_a_partition_put_back_alone_is_damage(run: Run, tmp_path: Path) -> None:
    """One partition's older head and entries, each row good in itself, are found by what the log's row says."""
    path = tmp_path / "two"
    with holdfast.open(path, settings=Settings()) as opened:
        topic = opened.topic("t", partitions=2)
        topic.append(b"1", partition=0)
    database = apsw.Connection(str(path / "durable.db"))
    older = database.execute("SELECT * FROM heads WHERE number=0").fetchone()
    database.close()
    with holdfast.open(path, settings=Settings()) as opened:
        opened.topic("t").append(b"2", partition=0)
        opened.topic("t").append(b"3", partition=1)
    assert run("status", path).exit_code == 0
    database = apsw.Connection(str(path / "durable.db"))
    database.execute("REPLACE INTO heads VALUES (?,?,?,?,?,?,?)", older)
    database.execute("DELETE FROM entries WHERE partition_id=? AND first_offset=1", (older[0],))
    database.close()
    for verb in ("status", "inspect"):
        assert run(verb, path).exit_code == 3


def test_marks_tell_what_is_sealed(run: Run, sealed_log: Path) -> None:
    """Sealed and settled are the watermark, beside the tail and the segments; without a store nothing is shipped."""
    (found,) = objects(run("status", sealed_log, "--json").stdout)
    orders = next(topic for topic in found["topics"] if topic["topic"] == "orders")["partitions"][0]
    sizes = [file.stat().st_size for file in segment_files(sealed_log)]
    assert {name: orders[name] for name in ("first", "durable", "sealed", "shipped", "settled")} == {
        "first": 0,
        "durable": 35,
        "sealed": 30,
        "shipped": None,
        "settled": 30,
    }
    assert (orders["tail_records"], orders["segments"], orders["segment_bytes"]) == (5, 3, sum(sizes))
    assert (found["records"], found["tail_records"], found["segments"]) == (38, 6, 4)
    assert found["segment_bytes"] == sum(sizes) + segment_files(sealed_log, "rows")[0].stat().st_size


def test_what_retention_removed_is_not_counted(run: Run, sealed_log: Path) -> None:
    """After retention the records, segments and bytes are those that are left; the marks have not moved."""
    with holdfast.open(sealed_log) as opened:
        opened.set_retention("orders", records_max=1)
        opened.retain()
    (found,) = objects(run("status", sealed_log, "--json").stdout)
    orders = next(topic for topic in found["topics"] if topic["topic"] == "orders")["partitions"][0]
    assert (orders["first"], orders["sealed"], orders["segments"]) == (20, 30, 1)
    assert orders["segment_bytes"] == segment_files(sealed_log)[0].stat().st_size
    assert found["records"] == 15 + 3


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE watermarks SET sealed_offset = 20 WHERE sealed_offset = 30", "a watermark does not match its stamp"),
        ("UPDATE schemas SET version = 2", "a schema does not match its stamp"),
        ("DELETE FROM segments WHERE number = 2", "the manifest does not end at its watermark"),
        ("DROP TABLE watermarks", "a table cannot be read to its end table=watermarks"),
    ],
)
def test_damage_to_segments_is_listed(run: Run, sealed_log: Path, sql: str, message: str) -> None:
    """Watermarks, schemas and the end of the manifest are checked like heads and tails."""
    tamper(sealed_log, sql)
    result = run("status", sealed_log)
    assert (result.exit_code, message in result.stdout) == (3, True)


@pytest.mark.parametrize("damage", ["missing", "size_mismatch"])
def test_a_segment_whose_file_is_gone_or_cut_is_damage(run: Run, sealed_log: Path, damage: str) -> None:
    """Status does not say verified over a file that is not there: it looks at each, and exits with 3."""
    file = segment_files(sealed_log)[1]
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    result = run("status", sealed_log, "--json")
    assert result.exit_code == 3
    (status,) = objects(result.stdout)
    assert status["verified"] is False
    assert [(one["topic"], one["offset"]) for one in status["problems"]] == [("orders", 10)]
    assert damage.replace("_", " ") in status["problems"][0]["message"]


DAMAGE = [
    "UPDATE heads SET next_offset = 20 WHERE partition_id = 1",
    "DELETE FROM entries WHERE partition_id = 1",
    "UPDATE topics SET created_us = 1 WHERE id = 1",
    "UPDATE topics SET name = CAST(x'ff' AS TEXT) WHERE id = 1",
    "DELETE FROM heads WHERE partition_id = 1",
    "UPDATE heads SET number = -1 WHERE partition_id = 1",
    "UPDATE epochs SET pid = 1",
    "DELETE FROM epochs",
    "UPDATE log SET groups = 99",
    "UPDATE segments SET size = 1 WHERE number = 2",
    "DELETE FROM segments WHERE number = 1",
    "UPDATE watermarks SET sealed_offset = 99 WHERE segments = 3",
    "UPDATE schemas SET version = 2",
    "UPDATE schemas SET topic_id = 77, version = 0",
    "DELETE FROM schemas",
    "INSERT INTO spaces VALUES (1, x'00', 0, x'00', 0, x'00')",
    "DELETE FROM shipping",
    "UPDATE shipping SET shipped_seq = 9999",
    "DELETE FROM shipments WHERE partition_id = 1",
    "UPDATE shipments SET shipped_offset = 99 WHERE partition_id = 1",
]


@pytest.mark.parametrize("sql", DAMAGE)
def test_who_opens_a_damaged_log_learns_what_status_shows(run: Run, sealed_log: Path, tmp_path: Path, sql: str) -> None:
    """There is one examination: an owner is refused with its first problem, a reader has them all, as status has."""
    ship(sealed_log, tmp_path / "store")
    tamper(sealed_log, sql)
    with holdfast.open(sealed_log, read_only=True) as opened:
        messages = [problem.message for problem in opened.problems]
    with pytest.raises(holdfast.Corrupt) as refused:
        holdfast.open(sealed_log)
    (status,) = objects(run("status", sealed_log, "--json").stdout)
    assert messages
    assert refused.value.message == messages[0]
    # Opening proves the present ownership, status those before it as well.
    assert messages == [found["message"] for found in status["problems"] if "epoch 1 " not in found["message"]]


def test_what_lies_behind_a_damaged_row_is_still_shown(run: Run, sealed_log: Path) -> None:
    """One value that is not what it must be costs its row, not the rest of its table."""
    tamper(sealed_log, "UPDATE topics SET name = CAST(x'ff' AS TEXT) WHERE id = 1")
    (found,) = objects(run("status", sealed_log, "--json").stdout)
    assert [topic["topic"] for topic in found["topics"]] == ["idle", "rows"]
    assert "table=topics column=name" in found["problems"][0]["message"]


def test_heads_are_vouched_for(run: Run, tmp_path: Path) -> None:
    """Heads that the log's own row does not vouch for are damage, good as each row may be."""
    path = tmp_path / "log"
    with holdfast.open(path) as log:
        log.topic("t").append(b"x")
    row = control_rows(path / "durable.db").log
    assert row is not None
    forged = stamped(row._replace(heads=bytes(32)), Vault(row.log_id))
    connection = apsw.Connection(str(path / "durable.db"))
    connection.execute("UPDATE log SET heads=?, stamp=?", (forged.heads, forged.stamp))
    connection.close()
    result = run("status", path)
    assert result.exit_code == 3
    assert "problems: 1\n  the heads are not those" in result.stdout


def test_lost_segments_take_no_bytes(run: Run, sealed_log: Path) -> None:
    """A segment that was given up as lost is not counted among the bytes on the disk."""
    tamper(sealed_log, "UPDATE segments SET state = 4 WHERE number = 1")
    (found,) = objects(run("status", sealed_log, "--json").stdout)
    orders = next(topic for topic in found["topics"] if topic["topic"] == "orders")["partitions"][0]
    first, _, last = (file.stat().st_size for file in segment_files(sealed_log))
    assert orders["segment_bytes"] == first + last


def ship(path: Path, store: Path) -> None:
    """Ship a log as an owner does who leaves the tail in the journal."""
    with holdfast.open(path, store=store) as opened:
        opened.ship(30)
        for marks in opened.marks("orders"):
            assert marks.settled == marks.sealed


def test_a_log_with_a_store_tells_how_far_it_is_there(run: Run, sealed_log: Path, tmp_path: Path) -> None:
    """The address, the marks, what is left and what it may cost, out of the database alone: the store is gone."""
    ship(sealed_log, tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    with holdfast.open(sealed_log) as opened:
        opened.topic("orders").append_batch([b"left", b"behind"])
        opened.seal("orders")
        opened.topic("orders").append(b"too")
    (found,) = objects(run("status", sealed_log, "--json").stdout)
    orders = next(topic for topic in found["topics"] if topic["topic"] == "orders")["partitions"][0]
    assert {name: orders[name] for name in ("durable", "sealed", "shipped", "settled")} == {
        "durable": 38,
        "sealed": 37,
        "shipped": 35,
        "settled": 30,
    }
    assert (orders["unshipped"], orders["unsettled_segments"]) == (3, 1)
    shipping = found["shipping"]
    assert shipping.pop("cost")["dollars_per_month"] == 2592.0
    assert shipping.pop("lag_bytes") > 0
    assert shipping.pop("shipped_seq") > 0
    assert shipping == {
        "store": (tmp_path / "store").as_uri(),
        "copy": False,
        "lag_records": 3,
        "unsettled_segments": 1,
        "fenced": False,
        "stranded_records": 0,
        "alarm": None,
        "ended": None,
        "last_error": None,
    }


def test_the_store_is_in_the_text(run: Run, sealed_log: Path, tmp_path: Path) -> None:
    """In text there are its address, what is not there yet, the cost, and two columns more."""
    without = run("status", sealed_log).stdout
    assert "store      none" in without
    assert "no store" in without[without.index("topic ") :].splitlines()[1]
    assert "no store" in run("topics", sealed_log).stdout.splitlines()[1]
    ship(sealed_log, tmp_path / "store")
    text = run("status", sealed_log).stdout
    assert f"store          {(tmp_path / 'store').as_uri()}\n" in text
    assert "not there yet  0 records, 0 bytes in commits; 0 segments\n" in text
    assert "cost           about 200 PUTs per second" in text
    assert text[text.index("topic ") :].splitlines()[0].split()[-2:] == ["unshipped", "unsettled"]


def test_the_cost_is_the_owners(run: Run, spawn: Spawn, log: Path, tmp_path: Path) -> None:
    """What is priced is what the owner ships with, not what the reader has set; its word outlives it."""
    environment = {**os.environ, "HOLDFAST_SHIPPING__PROFILE": "economy", "HOLDFAST_STORE__URL": f"{tmp_path}/store"}
    owner = spawn("append", log, "orders", "--lines", env=environment)
    assert owner.stdin is not None
    assert owner.stdout is not None
    owner.stdin.write(b"one\n")
    owner.stdin.flush()
    assert owner.stdout.readline()
    for _ in ("running", "ended"):
        (found,) = objects(run("status", log, "--json", HOLDFAST_SHIPPING__BATCH_TIMEOUT_MS="1").stdout)
        cost = found["shipping"]["cost"]
        assert (cost["profile"], cost["batch_timeout_ms"], cost["dollars_per_month"]) == ("economy", 5000, 2.59)
        owner.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(
    "note",
    [
        None,
        b"",
        b"[]",
        b'{"profile":"x","batch_timeout_ms":5,"commit_batches":true}',
        b"{" * 5000,
        b'{"profile":"","batch_timeout_ms":1e-300,"commit_batches":true}',
        b'{"profile":"","batch_timeout_ms":-1,"commit_batches":true}',
    ],
)
def test_a_cost_that_nobody_knows_is_none(run: Run, log: Path, tmp_path: Path, note: bytes | None) -> None:
    """Without the owner's word, or with one that is none, the cost is not guessed."""
    ship(log, tmp_path / "store")
    (log / "SHIPPING").unlink()
    if note is not None:
        (log / "SHIPPING").write_bytes(note)
    result = run("status", log, "--json")
    assert (result.exit_code, objects(result.stdout)[0]["shipping"]["cost"]) == (0, None)
    assert "cost           unknown" in run("status", log).stdout


def test_a_note_that_cannot_be_written_is_not_missed(log: Path, tmp_path: Path) -> None:
    """A log opens and ships where its note cannot be written."""
    (log / "SHIPPING.tmp").mkdir()
    (log / "SHIPPING.tmp" / "x").touch()
    ship(log, tmp_path / "store")
    assert not (log / "SHIPPING").exists()


def test_partitions_that_are_not_on_the_store_yet_count_from_their_beginning(
    run: Run, log: Path, tmp_path: Path
) -> None:
    """A topic that was made while the store was left out has shipped nothing, and does not begin below its own."""
    with holdfast.open(log, store=tmp_path / "store") as opened:
        opened.ship(30)
    with holdfast.open(log) as opened:
        opened.topic("later", first_offset=100).append(b"x")
    (found,) = objects(run("status", log, "--json").stdout)
    later = next(topic for topic in found["topics"] if topic["topic"] == "later")["partitions"][0]
    assert (later["shipped"], later["settled"], later["unshipped"]) == (100, 100, 1)
    assert found["problems"] == []


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE shipping SET root = 'file:///elsewhere'", "what was shipped does not match its stamp path="),
        (
            "UPDATE shipments SET settled_offset = 20 WHERE settled_offset = 30",
            "a shipment does not match its stamp path=",
        ),
        (
            "UPDATE shipments SET shipped_offset = 99 WHERE settled_offset = 30",
            "a shipment is further than its partition",
        ),
        ("INSERT INTO shipments VALUES (99, 0, 0, 0, 0, 0, x'00')", "a shipment belongs to no partition"),
        ("DROP TABLE shipments", "a table cannot be read to its end table=shipments"),
    ],
)
def test_damage_to_what_was_shipped_is_listed(
    run: Run, sealed_log: Path, tmp_path: Path, sql: str, message: str
) -> None:
    """Where the log is shipped to and how far are checked like all control rows, by status and by inspect."""
    ship(sealed_log, tmp_path / "store")
    tamper(sealed_log, sql)
    for verb in ("status", "inspect"):
        result = run(verb, sealed_log)
        assert (result.exit_code, message in result.stdout) == (3, True)


@pytest.mark.parametrize("spoil", [lambda file: os.truncate(file, 100), Path.unlink], ids=["cut", "gone"])
def test_a_file_of_groups_that_is_cut_off_or_gone_is_listed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    """An owner would refuse the log: then status says no "verified"."""
    monkeypatch.setattr(writer, "_FOLD_S", 0.05)
    with holdfast.open(tmp_path / "log", settings={"segments": {"seal_on_close": False}}) as opened:
        opened.topic("t").append(b"x")
        wait_for(lambda: not opened._journal._backend.filed.late.entries)
        copy = Path(shutil.copytree(opened.path, tmp_path / "copy", ignore=shutil.ignore_patterns("LOCK", "SOCKET")))
    assert objects(run("status", copy, "--json").stdout)[0]["verified"]
    spoil(min((copy / "groups").iterdir()))
    result = run("status", copy)
    assert (result.exit_code, "verified   no" in result.stdout) == (3, True)
    assert "a file of groups ends before what the database has of it" in result.stdout
