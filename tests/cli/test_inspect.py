from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import Keyring
from holdfast.journal.groups.unfolded_rows import UnfoldedRows
from holdfast.journal.sqlite.entry_walk import EntryWalk
from holdfast.journal.sqlite.sqlite_backend import SqliteBackend
from tests.cli.conftest import Run, objects, tamper

pytestmark = pytest.mark.disk


def by_type(text: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in objects(text):
        found.setdefault(line["type"], []).append(line)
    return found


def checks(found: dict[str, list[dict[str, Any]]], type: str) -> set[str]:
    return {value for line in found[type] for name, value in line.items() if name.endswith("_check")}


def test_a_sound_log_is_shown_whole(run: Run, log: Path) -> None:
    """Every kind of row is there, every check is ok, and there is no problem."""
    result = run("inspect", log, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = by_type(result.stdout)
    assert {name: len(lines) for name, lines in found.items()} == {
        "format": 1,
        "log": 1,
        "epoch": 1,
        "topic": 2,
        "head": 3,
        "entry": 5,
    }
    for name in found:
        assert checks(found, name) == {"ok"}
    assert [(line["first"], line["end"], line["count"]) for line in found["entry"]] == [
        (n, n + 2, 2) for n in range(0, 10, 2)
    ]
    assert found["log"][0]["next_seq"] == 6
    assert found["head"][0]["link"] == found["entry"][-1]["digest"]
    assert len(found["entry"][-1]["digest"]) == 12


def test_what_was_shipped_is_shown(run: Run, sealed_log: Path, tmp_path: Path) -> None:
    """Where the log is shipped to and how far each partition is there, checked; by topic only that topic's."""
    assert "shipping" not in by_type(run("inspect", sealed_log, "--json").stdout)
    with holdfast.open(sealed_log, store=tmp_path / "store") as opened:
        opened.ship(30)
    found = by_type(run("inspect", sealed_log, "--json").stdout)
    (shipping,) = found["shipping"]
    assert (shipping["root"], shipping["copy"]) == ((tmp_path / "store").as_uri(), False)
    assert checks(found, "shipping") == checks(found, "shipment") == {"ok"}
    orders = next(line for line in found["shipment"] if line["topic"] == "orders")
    assert {name: orders[name] for name in ("slots", "settled_segments", "settled_offset", "shipped_offset")} == {
        "slots": 3,
        "settled_segments": 3,
        "settled_offset": 30,
        "shipped_offset": 35,
    }
    chosen = by_type(run("inspect", sealed_log, "--topic", "rows", "--json").stdout)
    assert [line["topic"] for line in chosen["shipment"]] == ["rows"]


@pytest.mark.parametrize(
    ("sql", "type", "check"),
    [
        ("UPDATE shipping SET shipped_seq = 0", "shipping", "stamp_check"),
        ("UPDATE shipments SET slots = 9 WHERE settled_offset = 30", "shipment", "stamp_check"),
        ("UPDATE shipments SET settled_offset = 34 WHERE settled_offset = 30", "shipment", "shipment_check"),
        ("UPDATE shipments SET settled_segments = 4, slots = 4 WHERE slots = 3", "shipment", "shipment_check"),
    ],
)
def test_a_forged_row_of_what_was_shipped_is_bad(
    run: Run, sealed_log: Path, tmp_path: Path, sql: str, type: str, check: str
) -> None:
    """The row itself says what is wrong with it: its stamp, or that it is further than its partition."""
    with holdfast.open(sealed_log, store=tmp_path / "store") as opened:
        opened.ship(30)
    tamper(sealed_log, sql)
    found = by_type(run("inspect", sealed_log, "--json").stdout)
    assert [line[check] for line in found[type]].count("BAD") == 1


def test_text_has_the_same_fields(run: Run, log: Path) -> None:
    """In text each part has its title, and the columns are the fields of the JSON."""
    text = run("inspect", log).stdout
    for title in ("FORMAT", "log", "epochs", "topics", "heads", "entries"):
        assert f"-- {title}\n" in text
    entry = by_type(run("inspect", log, "--json").stdout)["entry"][0]
    assert text[text.index("-- entries\n") :].splitlines()[1].split() == [name for name in entry if name != "type"]


def test_the_database_itself_or_a_copy_can_be_named(run: Run, log: Path, tmp_path: Path) -> None:
    """PATH may be durable.db, or a copy of it away from its log."""
    assert run("inspect", log / "durable.db", "--json").stdout == run("inspect", log, "--json").stdout
    shutil.copy(log / "durable.db", tmp_path / "copy.db")
    found = by_type(run("inspect", tmp_path / "copy.db", "--json").stdout)
    assert found["format"][0]["format_check"] == "absent"
    assert checks(found, "entry") == {"ok"}


@pytest.mark.parametrize(("number", "seqs"), [("2", [4, 5]), ("0", []), ("all", [1, 2, 3, 4, 5])])
def test_entries_chooses_the_newest(run: Run, log: Path, number: str, seqs: list[int]) -> None:
    """--entries takes the newest so many, or all."""
    found = by_type(run("inspect", log, "--entries", number, "--json").stdout)
    assert [line["seq"] for line in found.get("entry", [])] == seqs
    assert len(found.get("epoch", [])) == min(1, len(seqs))


def test_entries_shows_twenty_by_default(run: Run, tmp_path: Path) -> None:
    """Of many entries and epochs the newest twenty are shown."""
    for _ in range(22):
        with holdfast.open(tmp_path / "many") as opened:
            opened.topic("orders").append(b"x")
    found = by_type(run("inspect", tmp_path / "many", "--json").stdout)
    assert [line["seq"] for line in found["entry"]] == list(range(3, 23))
    assert [line["number"] for line in found["epoch"]] == list(range(3, 23))


def test_entries_must_be_a_number(run: Run, log: Path) -> None:
    """Anything but a number or 'all' is wrong usage."""
    for number in ("many", "-1", "²", "9" * 30):
        assert run("inspect", log, "--entries", number).exit_code == 2


def test_topic_filters(run: Run, log: Path) -> None:
    """With --topic only that topic's rows are shown; an unknown topic exits with 1."""
    with holdfast.open(log) as opened:
        opened.topic("idle").append(b"x", partition=1)
    found = by_type(run("inspect", log, "--topic", "idle", "--json").stdout)
    assert [line["topic"] for line in found["topic"]] == ["idle"]
    assert [line["partition"] for line in found["head"]] == [0, 1]
    assert [(line["topic"], line["partition"]) for line in found["entry"]] == [("idle", 1)]
    assert run("inspect", log, "--topic", "nothing").exit_code == 1


def test_records_are_listed_by_size(run: Run, log: Path) -> None:
    """With --records each entry is followed by its records: where, when and how large, never what."""
    with holdfast.open(log) as opened:
        opened.topic("orders").append(b"12345", key=b"123", kind="12", headers={"h": b"v"}, time=0)
    result = run("inspect", log, "--records", "--entries", 1, "--json")
    lines = objects(result.stdout)
    assert [line["type"] for line in lines[-2:]] == ["entry", "record"]
    assert lines[-1] == {
        "type": "record",
        "topic": "orders",
        "partition": 0,
        "offset": 10,
        "time": "1970-01-01T00:00:00.000000Z",
        "time_us": 0,
        "key_bytes": 3,
        "kind_bytes": 2,
        "headers_bytes": 6,
        "payload_bytes": 5,
    }
    text = run("inspect", log, "--records").stdout
    assert "-- records of entry 6\n" in text
    assert "payload-" not in text


def test_reveal_shows_payloads_after_a_warning(run: Run, log: Path) -> None:
    """--reveal prints what is in the records, and warns on stderr."""
    result = run("inspect", log, "--reveal", "--json")
    records = by_type(result.stdout)["record"]
    assert [line["payload"] for line in records] == [f"payload-{n}" for n in range(10)]
    assert (records[0]["key"], records[0]["payload_bytes"]) == (None, 9)
    assert "warning: payloads, keys and headers follow" in result.stderr
    assert "payload-9" in run("inspect", log, "--reveal").stdout


def test_idempotency_keys_are_counted(run: Run, log: Path) -> None:
    """Remembered idempotency keys are counted, not shown."""
    with holdfast.open(log) as opened:
        opened.topic("orders").append(b"x", idempotency_key=b"unique")
    assert by_type(run("inspect", log, "--json").stdout)["log"][0]["idempotency_keys"] == 1


def test_what_is_not_there_exits_with_1(run: Run, tmp_path: Path) -> None:
    """A path without a log is not found."""
    for path in (tmp_path / "nowhere", tmp_path):
        assert run("inspect", path).exit_code == 1


# -- encrypted ------------------------------------------------------------------------------------------------


def test_without_the_key_digests_are_still_checked(run: Run, secret_log: Path) -> None:
    """Of an encrypted log without its key, digests, links and tails are checked, stamps and bodies are not."""
    result = run("inspect", secret_log, "--json")
    assert result.exit_code == 0
    assert "stamps and bodies are unchecked" in result.stderr
    found = by_type(result.stdout)
    entry = found["entry"][0]
    assert (entry["digest_check"], entry["link_check"], entry["body_check"]) == ("ok", "ok", "unchecked")
    assert (found["head"][0]["tail_check"], found["head"][0]["stamp_check"]) == ("ok", "unchecked")
    assert found["key_epoch"][0]["key_id"] == "k1"
    assert len(found["key_epoch"][0]["commitment"]) == 12
    tamper(secret_log, "UPDATE entries SET body = zeroblob(length(body))")
    damaged = run("inspect", secret_log, "--json")
    assert (damaged.exit_code, by_type(damaged.stdout)["entry"][0]["digest_check"]) == (3, "BAD")


def test_with_the_key_everything_is_checked(run: Run, secret_log: Path) -> None:
    """With the key every check of an encrypted log is ok, and records can be listed and revealed."""
    result = run("inspect", secret_log, "--json", "--reveal", "--keyring", "file:keys")
    assert result.exit_code == 0
    found = by_type(result.stdout)
    for name in set(found) - {"record"}:
        assert checks(found, name) == {"ok"}
    assert found["record"][0]["payload"] == "the-secret-payload"
    assert found["record"][0]["headers"] == {"h": "the-secret-header"}


@pytest.mark.parametrize("option", ["--records", "--reveal"])
def test_records_of_an_encrypted_log_need_the_key(run: Run, secret_log: Path, option: str) -> None:
    """Without the key records are refused, with the hint that names the option."""
    result = run("inspect", secret_log, option)
    assert result.exit_code == 1
    assert "hint: give --keyring" in result.stderr


def test_a_wrong_key_is_refused(run: Run, tmp_path: Path, secret_log: Path, log: Path) -> None:
    """Another key, or a key for a log that has none, is refused and not taken for damage."""
    Keyring.generate().save(tmp_path / "other")
    assert run("inspect", secret_log, "--keyring", "file:other").exit_code == 1
    assert run("inspect", secret_log, "--keyring", "file:other", "--entries", 0).exit_code == 1
    assert run("inspect", log, "--keyring", "file:other").exit_code == 1


def test_an_older_key_that_is_missing_leaves_its_rows_unchecked(
    run: Run, tmp_path: Path, secret_log: Path, keyring: Keyring
) -> None:
    """With the new key alone, what the old one sealed is unchecked and the rest is ok."""
    rotated = keyring.rotated("k2")
    with holdfast.open(secret_log, keyring=keyring) as opened:
        opened.rotate_key(rotated)
        opened.topic("orders").append(b"new")
    Keyring({"k2": rotated.key("k2")}).save(tmp_path / "new")
    result = run("inspect", secret_log, "--json", "--keyring", "file:new")
    assert result.exit_code == 0
    assert [line["body_check"] for line in by_type(result.stdout)["entry"]] == ["unchecked", "ok"]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE key_epochs SET commitment = zeroblob(32) WHERE number = 1",
        "UPDATE key_epochs SET salt = zeroblob(32) WHERE number = 1",
        "UPDATE key_epochs SET stamp = zeroblob(32) WHERE number = 1",
        "DELETE FROM key_epochs WHERE number = 1",
        "UPDATE log SET log_id = zeroblob(16)",
        "UPDATE log SET keyed = 0",
        "UPDATE key_epochs SET number = -1 WHERE number = 1",
        "DELETE FROM log",
    ],
)
def test_a_damaged_key_epoch_hides_only_its_own_rows(run: Run, secret_log: Path, keyring: Keyring, sql: str) -> None:
    """A damaged key epoch or log id is found; what other epochs sealed is still opened."""
    with holdfast.open(secret_log, keyring=keyring) as opened:
        opened.topic("orders").append(b"new")
    tamper(secret_log, sql)
    result = run("inspect", secret_log, "--json", "--keyring", "file:keys")
    assert result.exit_code == 3
    found = by_type(result.stdout)
    assert found["problem"]
    assert found["entry"][-1]["body_check"] == "ok"


def test_lost_key_epochs_are_damage_only_for_who_has_the_key(run: Run, secret_log: Path) -> None:
    """Without key epochs an encrypted log is still one: unchecked without the key, damaged with it."""
    tamper(secret_log, "DELETE FROM key_epochs")
    assert run("inspect", secret_log).exit_code == 0
    assert run("inspect", secret_log, "--keyring", "file:keys").exit_code == 3


# -- damaged --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "type", "field", "bad"),
    [
        ("UPDATE entries SET body = zeroblob(length(body)) WHERE seq = 3", "entry", "digest_check", [2]),
        ("UPDATE entries SET first_offset = 100 WHERE seq = 3", "entry", "digest_check", [2]),
        ("UPDATE entries SET count = -1 WHERE seq = 3", "entry", "digest_check", [2]),
        ("UPDATE entries SET link = zeroblob(16) WHERE seq = 3", "entry", "link_check", [2]),
        ("DELETE FROM entries WHERE seq = 3", "entry", "link_check", [2]),
        ("DELETE FROM entries WHERE seq = 5", "head", "tail_check", [0]),
        ("UPDATE heads SET next_offset = 8 WHERE next_offset = 10", "head", "tail_check", [0]),
        ("UPDATE heads SET link = x'11' WHERE partition_id = 2", "head", "tail_check", [1]),
        ("UPDATE heads SET stamp = x'00' WHERE partition_id = 2", "head", "stamp_check", [1]),
        ("UPDATE topics SET stamp = x'00' WHERE id = 2", "topic", "stamp_check", [1]),
        ("UPDATE epochs SET pid = 1", "epoch", "stamp_check", [0]),
        ("UPDATE log SET groups = 99", "log", "stamp_check", [0]),
    ],
)
def test_damage_is_shown_in_its_place_and_the_rest_is_still_shown(
    run: Run, log: Path, sql: str, type: str, field: str, bad: list[int]
) -> None:
    """A changed row is BAD where it lies, a problem is listed, all other rows are there: exit code 3."""
    tamper(log, sql)
    result = run("inspect", log, "--json")
    assert result.exit_code == 3
    found = by_type(result.stdout)
    assert [i for i, line in enumerate(found[type]) if line[field] == "BAD"] == bad
    assert set(found) == {"format", "log", "epoch", "topic", "head", "entry", "problem"}
    assert len(found["entry"]) >= 4
    text = run("inspect", log)
    assert (text.exit_code, "BAD" in text.stdout, "\nproblems: " in text.stdout) == (3, True, True)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DELETE FROM log", "the database has lost the log's own row"),
        ("DELETE FROM heads WHERE partition_id = 2", "a topic has lost a partition's head"),
        ("DELETE FROM topics WHERE name = 'idle'", "a head belongs to no topic"),
        ("UPDATE heads SET number = -1 WHERE partition_id = 2", "a head is out of range"),
        ("UPDATE entries SET partition_id = 77 WHERE seq = 2", "an entry belongs to no partition"),
        ("UPDATE log SET next_seq = 77", "the sequence does not end where it should"),
        ("UPDATE log SET log_id = zeroblob(16)", "the database belongs to another log"),
        ("UPDATE topics SET partitions = 2147483648 WHERE id = 2", "a topic has lost a partition's head"),
        ("UPDATE entries SET seq = 9223372036854775807 WHERE seq = 2", "the sequence does not end where it should"),
        ("DROP TABLE idempotency", "a table cannot be read to its end table=idempotency"),
        ("UPDATE entries SET body = zeroblob(100000000) WHERE seq = 2", "an entry is larger than the limits allow"),
    ],
)
def test_whatever_is_lost_is_named(run: Run, log: Path, sql: str, message: str) -> None:
    """Lost, orphaned and oversized rows are problems; all entries that are left are still shown and checked."""
    tamper(log, sql)
    result = run("inspect", log, "--json")
    found = by_type(result.stdout)
    assert result.exit_code == 3
    assert any(message in problem["message"] for problem in found["problem"])
    assert len(found["entry"]) == 5
    assert [line["digest_check"] for line in found["entry"]].count("ok") >= 4


def test_a_row_that_claims_another_key_epoch_is_found(run: Run, log: Path) -> None:
    """In a log without keys a row that names a key epoch is damage."""
    tamper(log, "UPDATE topics SET key_epoch = 7 WHERE id = 1")
    result = run("inspect", log, "--json")
    assert result.exit_code == 3
    assert any("key_epoch=7" in problem["message"] for problem in by_type(result.stdout)["problem"])


def test_a_damaged_format_file_does_not_hide_the_database(run: Run, log: Path) -> None:
    """A FORMAT that cannot be read is a problem, and the database is shown."""
    (log / "FORMAT").write_text("nonsense")
    result = run("inspect", log, "--json")
    found = by_type(result.stdout)
    assert (result.exit_code, found["format"][0]["format_check"]) == (3, "BAD")
    assert checks(found, "entry") == {"ok"}


@pytest.mark.parametrize("content", [b"", b"not a database " * 1000])
def test_a_destroyed_database_is_reported_after_what_is_left(run: Run, log: Path, content: bytes) -> None:
    """When the database is no database, FORMAT is still shown and the damage is reported."""
    (log / "durable.db").write_bytes(content)
    result = run("inspect", log, "--json")
    assert (result.exit_code, set(by_type(result.stdout))) == (3, {"format", "problem"})


def test_a_lost_database_is_reported_after_what_is_left(run: Run, log: Path) -> None:
    """When the database is gone, FORMAT is still shown and the damage is reported."""
    (log / "durable.db").unlink()
    result = run("inspect", log, "--json")
    assert (result.exit_code, set(by_type(result.stdout))) == (3, {"format", "problem"})


def test_a_broken_page_hides_only_what_lies_on_it(run: Run, tmp_path: Path) -> None:
    """When a page of the database cannot be read, the entries on other pages are still shown."""
    path = tmp_path / "pages"
    with holdfast.open(path) as opened:
        topic = opened.topic("orders")
        for _ in range(40):
            topic.append(b"x" * 2000)
    connection = apsw.Connection(str(path / "durable.db"))
    leaves = connection.execute("SELECT pageno FROM dbstat WHERE name='entries' AND pagetype='leaf'").fetchall()
    size = int(connection.pragma("page_size"))
    connection.close()
    with (path / "durable.db").open("r+b") as file:
        file.seek((leaves[len(leaves) // 2][0] - 1) * size)
        file.write(b"\xff" * size)
    result = run("inspect", path, "--entries", "all", "--json")
    assert result.exit_code == 3
    found = by_type(result.stdout)
    assert any("entries cannot be read seq=" in problem["message"] for problem in found["problem"])
    assert 30 < len(found["entry"]) < 40
    assert {line["digest_check"] for line in found["entry"]} == {"ok"}
    assert {line["link_check"] for line in found["entry"]} <= {"ok", "unchecked"}


def test_a_tree_out_of_order_does_not_hold_it_up(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the database answers every question for the next entry with the same one, it is shown once, and it ends."""

    class Stuck:
        def __init__(self, connection: apsw.Connection) -> None:
            self._real, self.connection, self.late = connection, self, UnfoldedRows()

        def execute(self, sql: str, values: tuple[int, ...] = ()) -> apsw.Cursor:
            return self._real.execute(sql, (*values[:-1], 2) if values else ())

    @contextmanager
    def stuck(backend: SqliteBackend) -> Iterator[Stuck]:
        yield Stuck(backend.connection)

    monkeypatch.setattr(SqliteBackend, "reading", stuck)

    problems: list[holdfast.Corrupt] = []
    backend = SqliteBackend(log / "durable.db", read_only=True)
    stored = list(EntryWalk(backend, 0, problems, 2**20).newest(None, None))
    backend.close()
    assert [row.entry.seq for row in stored] == [2]
    assert "entries cannot be read seq=3..5" in problems[0].message


def test_a_forged_body_is_found_by_decoding(run: Run, log: Path) -> None:
    """A body that is no frame, under a digest that was made to fit, is found."""
    from holdfast.crypto import digests
    from holdfast.journal.state.partition import Partition
    from holdfast.model.entry import Entry, header_of
    from holdfast.signals import Signal

    connection = apsw.Connection(str(log / "durable.db"))
    entry = Entry._make(connection.execute("SELECT * FROM entries WHERE seq=5").fetchone()[:14])
    log_id = connection.execute("SELECT log_id FROM log").get
    place = Partition(entry.partition_id, "orders", 0, log_id, Signal()).place
    digest = digests.digest(header_of(place, entry), b"forged")
    connection.execute("UPDATE entries SET body=?, digest=? WHERE seq=5", (b"forged", digest))
    connection.close()
    result = run("inspect", log, "--json")
    entry_line = by_type(result.stdout)["entry"][-1]
    assert (result.exit_code, entry_line["digest_check"], entry_line["body_check"]) == (3, "ok", "BAD")


def test_inspection_works_while_the_log_is_written(run: Run, log: Path) -> None:
    """A log that its owner writes to meanwhile is shown as of one moment, without false alarms."""
    with holdfast.open(log) as opened:
        topic = opened.topic("orders")
        for _ in range(5):
            tickets = [topic.submit(b"x") for _ in range(500)]
            assert run("inspect", log, "--json", "--entries", "all").exit_code == 0
            for ticket in tickets:
                ticket.result()


# -- segments and rows ----------------------------------------------------------------------------------------


def test_segments_and_watermarks_are_shown_and_checked(run: Run, sealed_log: Path) -> None:
    """Every segment of the manifest has its line, stamp and chain are checked, and so is each watermark's end."""
    result = run("inspect", sealed_log, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = by_type(result.stdout)
    assert {line["state"] for line in found["segment"]} == {"live"}
    assert [(line["topic"], line["number"], line["first"], line["end"]) for line in found["segment"]] == [
        ("orders", 0, 0, 10),
        ("orders", 1, 10, 20),
        ("orders", 2, 20, 30),
        ("rows", 0, 0, 2),
    ]
    assert [(line["topic"], line["segments"], line["sealed_offset"]) for line in found["watermark"]] == [
        ("orders", 3, 30),
        ("rows", 1, 2),
    ]
    for name in ("segment", "watermark", "schema", "head"):
        assert checks(found, name) == {"ok"}
    assert found["watermark"][0]["chain"] == found["segment"][2]["chain"]


def test_the_entry_after_a_sealed_one_has_nothing_to_be_linked_to(run: Run, sealed_log: Path) -> None:
    """The first entry of a tail whose beginning was sealed is unchecked; all others are linked."""
    with holdfast.open(sealed_log) as opened:
        opened.topic("orders").append(b"next")
    entries = [
        line for line in by_type(run("inspect", sealed_log, "--json").stdout)["entry"] if line["topic"] == "orders"
    ]
    assert [line["link_check"] for line in entries] == ["unchecked", "ok"]


def test_a_log_that_is_sealed_whole_is_sound(run: Run, sealed_log: Path) -> None:
    """Without any entry left, heads end where their watermarks end, and nothing is wrong."""
    assert run("seal", sealed_log).exit_code == 0
    result = run("inspect", sealed_log, "--json")
    assert result.exit_code == 0
    found = by_type(result.stdout)
    assert "entry" not in found
    assert checks(found, "head") == {"ok"}


def test_segments_are_the_newest_of_each_partition(run: Run, sealed_log: Path) -> None:
    """--entries bounds them per partition, --topic chooses; the first one shown is checked as well."""
    found = by_type(run("inspect", sealed_log, "--entries", 2, "--topic", "orders", "--json").stdout)
    assert [(line["number"], line["chain_check"]) for line in found["segment"]] == [(1, "ok"), (2, "ok")]
    assert {line["topic"] for name in ("topic", "head", "watermark", "segment", "entry") for line in found[name]} == {
        "orders"
    }
    assert "segment" not in by_type(run("inspect", sealed_log, "--entries", 0, "--json").stdout)


def test_expired_segments_stay_in_the_chain(run: Run, sealed_log: Path) -> None:
    """What retention removed is shown as expired, its policy has a line, and the chain is whole."""
    run("retain", sealed_log, "--topic", "orders", "--records", 1)
    found = by_type(run("inspect", sealed_log, "--json").stdout)
    assert [line["state"] for line in found["segment"]] == ["expired", "expired", "live", "live"]
    assert checks(found, "segment") == checks(found, "policy") == {"ok"}
    assert found["policy"][0]["records_max"] == 1


@pytest.mark.parametrize(
    ("sql", "type", "field", "bad"),
    [
        ("UPDATE segments SET size = 1 WHERE number = 1", "segment", "stamp_check", [1]),
        ("UPDATE segments SET content = zeroblob(32) WHERE number = 1", "segment", "chain_check", [1]),
        ("UPDATE segments SET chain = zeroblob(32) WHERE number = 1", "segment", "chain_check", [1, 2]),
        ("DELETE FROM segments WHERE number = 1", "segment", "chain_check", [1]),
        ("DELETE FROM segments WHERE number = 2", "watermark", "seal_check", [0]),
        ("UPDATE watermarks SET first_offset = 5 WHERE segments = 3", "watermark", "stamp_check", [0]),
        ("UPDATE watermarks SET sealed_offset = 99 WHERE segments = 3", "watermark", "seal_check", [0]),
        ("UPDATE schemas SET created_us = 1", "schema", "stamp_check", [0]),
        ("DELETE FROM entries WHERE partition_id = 1", "head", "tail_check", [0]),
        ("UPDATE entries SET first_offset = 31 WHERE partition_id = 1", "entry", "link_check", [0]),
    ],
)
def test_damage_to_the_manifest_is_shown_in_its_place(
    run: Run, sealed_log: Path, sql: str, type: str, field: str, bad: list[int]
) -> None:
    """A changed or lost row of the manifest is BAD where it lies, and a problem is listed: exit code 3."""
    tamper(sealed_log, sql)
    result = run("inspect", sealed_log, "--json")
    found = by_type(result.stdout)
    assert (result.exit_code, bool(found["problem"])) == (3, True)
    assert [i for i, line in enumerate(found[type]) if line[field] == "BAD"] == bad


def test_typed_entries_are_shown_and_decoded(run: Run, sealed_log: Path) -> None:
    """A typed entry has its kind and its schema; its rows are listed without their columns, and revealed with them."""
    found = by_type(run("inspect", sealed_log, "--topic", "rows", "--records", "--json").stdout)
    (entry,) = found["entry"]
    assert (entry["kind"], entry["count"], entry["body_check"]) == ("typed", 1, "ok")
    assert entry["schema"] == found["schema"][0]["fingerprint"]
    place = {"topic": "rows", "partition": 0, "offset": 2, "time": "1970-01-01T00:00:02.000000Z", "time_us": 2000000}
    assert found["row"] == [{"type": "row", **place}]
    revealed = by_type(run("inspect", sealed_log, "--topic", "rows", "--reveal", "--json").stdout)
    assert revealed["row"] == [{"type": "row", **place, "row": {"a": 2, "s": "two"}}]
    assert "two" not in run("inspect", sealed_log, "--records").stdout
    assert "two" in run("inspect", sealed_log, "--reveal").stdout


def test_a_typed_entry_without_its_schema_is_damage(run: Run, sealed_log: Path) -> None:
    """When the schema of an entry is gone its rows cannot be decoded, and that is said."""
    tamper(sealed_log, "DELETE FROM schemas")
    found = by_type(run("inspect", sealed_log, "--topic", "rows", "--json").stdout)
    assert found["entry"][0]["body_check"] == "BAD"
    assert any("its schema is not known" in problem["message"] for problem in found["problem"])


def test_inspection_works_while_the_log_is_sealed_and_expires(run: Run, sealed_log: Path) -> None:
    """A log whose owner seals, trims and expires meanwhile is shown without false alarms."""
    with holdfast.open(sealed_log) as opened:
        opened.set_retention("orders", records_max=20)
        topic = opened.topic("orders")
        for _ in range(5):
            tickets = [topic.submit(b"x") for _ in range(500)]
            opened.seal("orders")
            assert run("inspect", sealed_log, "--json", "--entries", "all").exit_code == 0
            for ticket in tickets:
                ticket.result()


def test_a_topic_that_begins_later_is_sound(run: Run, tmp_path: Path) -> None:
    """Partitions that do not begin at offset 0 are checked from where they begin, empty or not."""
    with holdfast.open(tmp_path / "later") as opened:
        opened.topic("empty", first_offset=2**31)
        opened.topic("full", first_offset=2**31).append(b"x")
    result = run("inspect", tmp_path / "later", "--json")
    assert (result.exit_code, checks(by_type(result.stdout), "entry")) == (0, {"ok"})
