"""A handle of another process takes up what the owner commits, and pays for what it asks about, not for the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

import holdfast
from holdfast.crypto.vault import Vault
from holdfast.journal.sqlite.stored_rows import StoredRows

pytestmark = pytest.mark.disk


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[Vault]:
    """Who has checked a stamp, each time."""
    checked: list[Vault] = []
    verify = Vault.verify

    def counted(vault: Vault, number: int, message: bytes, stamp: bytes) -> bool:
        checked.append(vault)
        return verify(vault, number, message, stamp)

    monkeypatch.setattr(Vault, "verify", counted)
    return checked


def test_a_look_at_one_topic_proves_no_more_than_that_topic(tmp_path: Path, proofs: list[Vault]) -> None:
    with holdfast.open(tmp_path) as log:
        topics = [log.topic(f"t{number}") for number in range(40)]
        with log.transaction() as tx:
            for number in range(40):
                tx.put(f"s{number}", "key", b"body")
        with holdfast.open(tmp_path, read_only=True) as reader:
            mine, vault = reader.topic("t7"), reader._journal._state.vault
            for topic in topics:
                topic.append(b"record")
            log.seal()
            proofs.clear()
            assert mine.marks()[0].sealed == 1
            # The log's own row, a head, a watermark; where it is shipped to.
            assert sum(one is vault for one in proofs) <= 4
            for _ in range(100):  # behind a seal the owner trims, which is news once more
                proofs.clear()
                assert mine.marks()[0].sealed == 1
                if vault not in proofs:
                    break
            assert vault not in proofs


def test_what_was_not_looked_at_is_taken_up_when_it_is(tmp_path: Path) -> None:
    with holdfast.open(tmp_path) as log:
        one, two = log.topic("one", partitions=2), log.topic("two")
        with holdfast.open(tmp_path, read_only=True) as reader:
            for partition in (0, 1):
                one.append(b"x", partition=partition)
            two.append(b"y")
            assert [mark.durable for mark in reader.topic("one").marks()] == [1, 1]
            assert [record.payload for record in reader.topic("two").read()] == [b"y"]
            two.append(b"z")
            assert len(list(reader.topic("one").read())) == 2
            assert [mark.durable for mark in reader.topic("two").marks()] == [2]
            assert reader.reconcile(deep=True).findings == ()


def test_new_topics_schemas_and_policies_are_found(tmp_path: Path) -> None:
    first = pa.schema([("a", pa.int64())])
    second = pa.schema([("a", pa.int64()), ("b", pa.string())])
    with holdfast.open(tmp_path) as log:
        log.topic("raw").append(b"before")
        with holdfast.open(tmp_path, read_only=True) as reader:
            rows = log.topic("rows", schema=first, partitions=3)
            rows.append({"a": 1}, partition=2)
            assert reader.topics() == ["raw", "rows"]
            assert [row["a"] for row in reader.topic("rows", schema="latest").read()] == [1]
            log.topic("rows", schema=second).append({"a": 2, "b": "two"}, partition=2)
            assert [dict(row) for row in reader.topic("rows", schema="latest").read()][-1]["b"] == "two"
            log.set_retention("raw", records_max=1)
            log.set_retention("raw", records_max=2)
            reader.retain(dry_run=True)
            assert reader._journal.policies["raw"].records_max == 2


def test_a_row_that_is_not_proved_is_not_taken_for_the_truth(tmp_path: Path) -> None:
    """What was edited behind the owner's back is found by its readers, as when the log is opened."""
    with holdfast.open(tmp_path) as log:
        topic = log.topic("orders")
        topic.append_batch([b"1", b"2", b"3"])
        log.seal()
        with holdfast.open(tmp_path, read_only=True) as reader:
            mine = reader.topic("orders")
            assert mine.marks()[0].durable == 3
            log.space("s").put("k", b"v")
            _edit(tmp_path, "UPDATE heads SET next_offset = 9")
            with pytest.raises(holdfast.Corrupt):
                list(mine.read())


def test_an_item_of_a_space_that_has_not_changed_is_proved_by_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    space_items = StoredRows.space_items

    def counted(rows: StoredRows, space_id: int, body_bytes_max: int) -> Any:
        loaded.append(space_id)
        return space_items(rows, space_id, body_bytes_max)

    with holdfast.open(tmp_path) as log, holdfast.open(tmp_path, read_only=True) as reader:
        for number in range(5):
            log.space("stock").put(f"k{number}", b"%d" % number)
        assert reader.space("stock").get("k1") == b"1"
        monkeypatch.setattr(StoredRows, "space_items", counted)
        assert reader.space("stock").get("k2") == b"2"
        assert not loaded
        log.space("stock").put("k2", b"two")
        assert reader.space("stock").get("k2") == b"two"
        assert reader.space("stock").get("k3") == b"3"
        assert len(loaded) == 1


def _edit(path: Path, sql: str) -> None:
    connection: Any = apsw.Connection(str(path / "durable.db"))
    with connection:
        connection.execute(sql)
    connection.close()


def test_a_reader_that_outlives_owners_sees_what_each_of_them_writes(tmp_path: Path) -> None:
    """Each owner writes a file of groups, and removes it at its end: no number may mean two files to a reader."""
    seen: list[list[bytes]] = []
    reader: holdfast.Log | None = None
    for number in range(4):
        with holdfast.open(tmp_path) as log:
            log.topic("t").append(b"%d" % number)
            reader = reader or holdfast.open(tmp_path, read_only=True)
            seen.append([record.payload for record in reader.topic("t").read()])
    assert reader is not None
    reader.close()
    assert seen == [[b"%d" % number for number in range(length)] for length in range(1, 5)]
