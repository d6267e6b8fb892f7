"""Idempotency keys come back from the store with the records that they belong to: a repeat is recognised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest
from blake3 import blake3

import holdfast
from holdfast import Corrupt, Invalid, Log, Receipt, Settings
from holdfast.results import RestoreReport
from holdfast.root.objects import documents, key_object
from holdfast.root.objects.documents import ExpiredDocument
from holdfast.shipping.lanes import key_cover
from holdfast.store import layout
from holdfast.store.port import Body
from tests.segments.planting import TEN, wait_for
from tests.shipping.conftest import Root
from tests.shipping.test_restore import OwnCipher

pytestmark = pytest.mark.store

Bring = Callable[..., RestoreReport]


@pytest.fixture
def bring(root: Root, tmp_path: Path) -> Bring:
    """Bring the log back from `root` into a directory of this name."""

    def bring_back(name: str = "back", **options: Any) -> RestoreReport:
        settings = Settings.from_mapping({"journal": options.pop("journal", {})})
        return holdfast.restore(root.url, tmp_path / name, settings=settings, **options)

    return bring_back


def once(log: Log, names: range, **options: Any) -> list[Receipt]:
    """Append records with keys, each shipped; the same again are repeats."""
    orders = log.topic("orders", partitions=2)
    return [
        orders.append(b"%d" % n, partition=n % 2, idempotency_key=b"key-%d" % n, durability="shipped", **options)
        for n in names
    ]


def objects(root: Root) -> list[str]:
    return [key for key in root.keys(layout.TAIL) if layout.parse_keys_key(key) is not None]


def places(receipts: list[Receipt]) -> list[tuple[str, int, int]]:
    return [(receipt.topic, receipt.partition, receipt.offset) for receipt in receipts]


def settled(log: Log, sweep: Callable[[Log], None]) -> None:
    """All is in segments on the store, and the commit batches are gone."""
    log.seal()
    log.ship(20)
    sweep(log)


@pytest.mark.parametrize("lies", ["in batches", "in segments", "in both"])
@pytest.mark.parametrize("keys", ["plain", "keyring", "cipher"])
def test_a_repeat_after_a_restore_gets_the_receipt_of_its_original(
    open_shipped, bring, root, keyring, sweep, lies, keys
):
    secret = {"plain": {}, "keyring": {"keyring": keyring}, "cipher": {"cipher": OwnCipher()}}[keys]
    log = open_shipped(segments=TEN, **secret)
    first = once(log, range(12))
    if lies != "in batches":
        settled(log, sweep)
        assert [key for key in root.keys(layout.TAIL) if layout.parse_batch_key(key)] == []
        assert len(objects(root)) >= 1
    if lies == "in both":
        first += once(log, range(12, 20))
    log.close()
    report = bring(**secret)
    assert report.keys == len(first)
    back = open_shipped("back", **secret)
    again = once(back, range(len(first)))
    assert again == first
    assert all(receipt.repeated for receipt in again)
    for n in range(len(first)):  # what a key stands for came back with it
        with pytest.raises(Invalid, match="already in use for other content"):
            back.topic("orders").append(b"other", idempotency_key=b"key-%d" % n)
    fresh = once(back, range(50, 52))
    assert {receipt.offset for receipt in fresh} == {len(first) // 2}


def test_typed_rows_with_a_key_are_known_as_well(open_shipped, bring, root, sweep):
    log = open_shipped(segments=TEN)
    rows = log.topic("rows", schema=pa.schema({"n": pa.int64()}))
    given = [{"n": n} for n in range(5)]
    rows.append([{"n": -1}], durability="shipped")
    first = rows.append(given, idempotency_key="batch", durability="shipped")
    settled(log, sweep)
    log.close()
    assert bring().keys == 1
    back = open_shipped("back").topic("rows", schema="latest")
    assert list(back.append(given, idempotency_key="batch")) == list(first)
    with pytest.raises(Invalid, match="already in use for other content"):
        back.append(given[:4], idempotency_key="batch")


def test_three_generations_of_loss_know_all_keys(open_shipped, bring, root, sweep):
    """A restore of a restore of a restore: each generation seals and loses its batches, and knows those before it."""
    log, known = open_shipped(segments=TEN), []
    for generation in range(4):
        known += places(once(log, range(10 * generation, 10 * generation + 10)))
        if generation % 2:
            settled(log, sweep)
        log.close()
        report = bring(f"life-{generation}")
        assert report.keys == len(known)
        log = open_shipped(f"life-{generation}", segments=TEN)
        assert places(once(log, range(len(known)))) == known
    assert sum(1 for _ in log.topic("orders").read()) == len(known)


def test_without_commit_batches_keys_come_with_their_segments(open_shipped, bring, root, sweep):
    """Three generations, too: sequence numbers begin anew each time, and no key is taken for another's."""
    log, known = open_shipped(segments=TEN, shipping={"commit_batches": False}), []
    for generation in range(3):
        orders = log.topic("orders", partitions=2)
        for n in range(10 * generation, 10 * generation + 10):
            orders.append(b"%d" % n, partition=n % 2, idempotency_key=b"key-%d" % n)
            known.append(("orders", n % 2, n // 2))
        settled(log, sweep)
        log.close()
        assert bring(f"life-{generation}").keys == len(known)
        log = open_shipped(f"life-{generation}", segments=TEN, shipping={"commit_batches": False})
        orders = log.topic("orders")
        again = [orders.append(b"%d" % n, partition=n % 2, idempotency_key=b"key-%d" % n) for n in range(len(known))]
        assert places(again) == known


def test_the_key_is_there_before_the_segment_that_holds_its_record(open_shipped, bring, root, faults):
    """Trimmed before it was shipped: the record comes back from a segment that no object lists yet, with its key."""
    log = open_shipped(segments=TEN)
    once(log, range(2))
    faults.away()
    orders = log.topic("orders")
    first = [orders.append(b"%d" % n, partition=n % 2, idempotency_key=b"key-%d" % n) for n in range(2, 8)]
    log.seal()
    wait_for(lambda: not any(log._journal.sealed_entries(p, 1) for p in log._journal.partitions.values()))
    faults.hold("_manifest/", times=2)
    faults.back()
    wait_for(lambda: [mark.shipped for mark in log.marks("orders")] == [4, 4])
    report = bring()
    assert (report.records, report.keys) == (8, 8)
    back = open_shipped("back", segments=TEN)
    again = [
        back.topic("orders").append(b"%d" % n, partition=n % 2, idempotency_key=b"key-%d" % n) for n in range(2, 8)
    ]
    assert places(again) == places(first)


def test_a_key_whose_record_is_lost_is_forgotten(open_shipped, bring, root, faults):
    """A receipt for a record that is not there would be worse than a duplicate."""
    log = open_shipped()
    once(log, range(2))
    faults.hold(".arrow")
    log.topic("orders").append(b"lost", partition=0, idempotency_key="lost")
    report = bring()
    assert (report.records, report.keys) == (2, 2)
    back = open_shipped("back")
    assert back.topic("orders").append(b"lost", partition=0, idempotency_key="lost").offset == 1
    assert [r.payload for r in back.topic("orders").read(partition=0)] == [b"0", b"lost"]


def test_a_key_whose_record_has_expired_is_still_known(open_shipped, bring, root, sweep):
    log = open_shipped(segments=TEN)
    first = once(log, range(10))
    settled(log, sweep)
    expired = ExpiredDocument(log=log.id, topic="orders", partition=0, upto=1, first=5, expired_us=1)
    root.store.create(layout.expired_key("orders", 0, 1), Body.of(documents.encode(expired)))
    log.close()
    assert bring().keys == 10
    back = open_shipped("back", segments=TEN)
    assert places(once(back, range(10))) == places(first)


def test_the_window_bounds_what_comes_back_and_what_lies_on_the_store(open_shipped, bring, root, sweep, monkeypatch):
    """Old keys go with the objects that held them; small objects are merged."""
    monkeypatch.setattr(key_cover, "_ROWS_MAX", 16)
    log = open_shipped(segments=TEN, journal={"idempotency_keys_max": 20})
    for turn in range(12):
        once(log, range(6 * turn, 6 * turn + 6))
        settled(log, sweep)
    names = [layout.parse_keys_key(key) for key in objects(root)]
    rows = [row for key in objects(root) for row in key_object.decode(root.store.get(key), key).rows]
    assert 20 <= len(rows) < 60
    assert len(names) < 8
    log.close()
    report = bring(journal={"idempotency_keys_max": 20})
    assert report.keys == 20
    back = open_shipped("back", segments=TEN, journal={"idempotency_keys_max": 20})
    again = once(back, range(52, 72))
    assert [r.offset for r in again if r.partition == 0] == list(range(26, 36))


def test_many_small_objects_become_one(open_shipped, bring, root, sweep):
    log = open_shipped(segments=TEN)
    for turn in range(9):
        once(log, range(2 * turn, 2 * turn + 2))
        settled(log, sweep)
    assert len(objects(root)) < 5
    log.close()
    assert bring().keys == 18


@pytest.mark.parametrize("sealed", [False, True])
def test_hashes_on_a_store_do_not_tell_keys_of_an_encrypted_log(open_shipped, root, keyring, sweep, sealed):
    """An attacker who guesses a key can hash it; what lies on the store is something else."""
    log = open_shipped(segments=TEN, keyring=keyring)
    log.topic("orders").append(b"x", idempotency_key="order-4711", durability="shipped")
    guess = blake3(b"holdfast 1 idempotency\0orders\0order-4711").digest(length=16)
    assert log._journal._backend.find_key(guess) is not None
    if sealed:
        settled(log, sweep)
    held = [root.store.get(key) for key in root.keys(layout.TAIL)]
    assert any(b".keys" in key.encode() for key in root.keys(layout.TAIL)) == sealed
    assert not any(guess in data for data in held)


def test_a_restore_that_is_killed_later_brings_the_same_keys(open_shipped, bring, root, sweep, monkeypatch):
    log = open_shipped(segments=TEN)
    first = once(log, range(8))
    settled(log, sweep)
    first += once(log, range(8, 12))
    log.close()
    with monkeypatch.context() as patch:
        patch.setattr(
            "holdfast.log_directory.Directory.declare", lambda self, log_id: (_ for _ in ()).throw(OSError(5, "x"))
        )
        with pytest.raises(holdfast.Unavailable):
            bring()
    assert bring().keys == 12
    assert once(open_shipped("back", segments=TEN), range(12)) == first


# -- what is hostile --------------------------------------------------------------------------------------


@pytest.fixture
def held(open_shipped, root, sweep) -> str:
    """A log whose keys lie in one object; its key."""
    log = open_shipped(segments=TEN)
    once(log, range(6))
    settled(log, sweep)
    log.close()
    (key,) = objects(root)
    return key


def test_a_damaged_object_of_keys_is_refused_unless_the_loss_is_accepted(bring, root, held, lines):
    data = bytearray(root.store.get(held))
    data[len(data) // 2] ^= 1
    root.replace(held, bytes(data))
    with pytest.raises(Corrupt) as caught:
        bring()
    assert caught.value.path == held
    assert len(root.keys(layout.EPOCHS)) == 1
    report = bring(accept_loss=True)
    assert (report.records, report.keys) == (6, 0)
    assert any("damaged" in claim for claim in report.not_proved)
    assert lines("restore_left_out")


@pytest.mark.parametrize("gone", ["first", "middle", "last"])
def test_a_lost_object_of_keys_is_noticed_and_written_anew(open_shipped, bring, root, sweep, gone):
    """A restore would take a repeat for new; the log that has the keys puts them back when it opens."""
    log = open_shipped(segments=TEN)
    first = []
    for begin in (0, 4, 8):
        first += once(log, range(begin, begin + 4))
        settled(log, sweep)
    log.close()
    kept = objects(root)
    root.store.delete([kept[{"first": 0, "middle": 1, "last": 2}[gone]]])
    with pytest.raises(Corrupt, match="objects of idempotency keys are missing"):
        bring("refused")
    report = bring("copy", copy=True, accept_loss=True)
    assert report.keys == 8
    assert any("idempotency keys are missing" in line for line in report.not_proved)
    if gone == "first":  # what the window of keys has passed looks the same here
        return
    log = open_shipped(segments=TEN)
    once(log, range(20, 21))
    settled(log, sweep)
    log.close()
    assert bring().keys == 13
    assert once(open_shipped("back"), range(12)) == first


def test_rows_of_records_that_are_not_there_say_nothing(open_shipped, bring, root, held):
    """A hash cannot be led to an offset that somebody else will be given."""
    made = key_object.decode(root.store.get(held), held)
    rows = [row._replace(record=row.record + 1000) for row in made.rows]
    strange = [made.rows[-1]._replace(topic="nowhere"), made.rows[-1]._replace(partition=9)]
    root.replace(held, key_object.encode(made._replace(rows=[*rows, *strange])))
    assert bring().keys == 0


def test_an_object_that_is_too_large_is_not_fetched(bring, root, held, monkeypatch):
    monkeypatch.setattr(key_object, "BYTES_MAX", 100)
    with pytest.raises(Corrupt, match="too large"):
        bring()


def test_keys_of_another_log_are_refused(bring, root, held):
    made = key_object.decode(root.store.get(held), held)
    root.replace(held, key_object.encode(made._replace(log_id=bytes(16))))
    with pytest.raises(Corrupt, match="another log"):
        bring()
    assert len(root.keys(layout.EPOCHS)) == 1


def test_keys_that_cannot_be_read_stop_it_before_the_claim(open_shipped, bring, root, keyring, sweep):
    """They were encrypted under a key that the keyring has no more; the records are all under the newer one."""
    log = open_shipped(segments=TEN, keyring=keyring)
    once(log, range(4))
    settled(log, sweep)
    log.close()
    (key,) = objects(root)
    made = key_object.decode(root.bare(key), key)
    root.replace(key, key_object.encode(made._replace(key=made.key._replace(key_id="destroyed"))))
    root.sign(key, keyring)
    with pytest.raises(holdfast.Invalid, match="destroyed"):
        bring(keyring=keyring)
    assert len(root.keys(layout.EPOCHS)) == 1
    report = bring(keyring=keyring, accept_loss=True)
    assert (report.records, report.keys) == (4, 0)


def test_a_forged_key_of_the_directory_is_not_shipped(open_shipped, root, lines):
    """A row that its stamp does not vouch for gets no new stamp by way of the store."""
    log = open_shipped()
    once(log, range(2))
    log.close()
    connection = apsw.Connection(str(log.path / "durable.db"))
    connection.execute("INSERT INTO idempotency VALUES (3, ?, 1, 0, 3, x'', 0, ?)", (b"h" * 16, b"s" * 32))
    connection.close()
    again = open_shipped()
    again.topic("orders").append(b"x", durability="shipped")
    assert not any(b"h" * 16 in root.store.get(key) for key in root.keys(layout.TAIL))
    assert lines("keys_damaged")
