"""A store that forgot: what was acknowledged as shipped and is not there stops a restore, and nothing is removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Corrupt, Log, Settings
from holdfast.results import RestoreReport
from holdfast.store import layout
from tests.segments.planting import TEN
from tests.shipping.conftest import Root

pytestmark = pytest.mark.store

Bring = Callable[..., RestoreReport]


@pytest.fixture
def bring(root: Root, tmp_path: Path) -> Bring:
    """Bring the log back from `root` into a directory of this name."""

    def bring_back(name: str = "back", **options: Any) -> RestoreReport:
        return holdfast.restore(root.url, tmp_path / name, settings=Settings(), **options)

    return bring_back


def batch_keys(root: Root) -> list[str]:
    return [key for key in root.keys(layout.TAIL) if layout.parse_batch_key(key) is not None]


def ship(log: Log, count: int, start: int = 0) -> None:
    """So many records, each acknowledged as shipped in a batch of its own."""
    for n in range(start, start + count):
        log.topic("orders").append(b"%d" % n, durability="shipped")


def payloads(log: Log) -> list[bytes]:
    return [record.payload for record in log.topic("orders").read()]


@pytest.fixture
def forgetful(open_shipped: Callable[..., Log], root: Root) -> str:
    """Twelve batches were acknowledged, the store forgot the sixth; its key."""
    log = open_shipped()
    ship(log, 12)
    log.close()
    keys = batch_keys(root)
    root.store.delete([keys[5]])
    return keys[5]


def test_every_batch_says_what_had_been_acknowledged(open_shipped, root):
    """Each was cut after the one before it was acknowledged; a retry sends the same bytes."""
    log = open_shipped()
    root.faults.lose(".arrow", times=3)
    ship(log, 5)
    assert [batch.acked for batch in root.batches()] == [0, 1, 2, 3, 4]
    assert log.stats().shipping.resolved_total > 0


def test_a_hole_below_what_was_acknowledged_stops_the_takeover(bring, root, forgetful):
    """Nobody is shut out, nothing is removed, and the hint says what to do."""
    before = root.objects()
    for options in ({}, {"copy": True}):
        with pytest.raises(Corrupt, match=r"acknowledged as shipped are missing from=6 acknowledged=12") as caught:
            bring(**options)
        assert "--accept-loss" in caught.value.hint
    assert root.objects() == before


def test_a_restore_that_insists_gets_what_comes_before_the_hole_and_says_so(
    open_shipped, bring, root, forgetful, lines
):
    report = bring(accept_loss=True)
    assert (report.records, report.cut_batches, report.cut_records) == (5, 6, 6)
    assert (report.acknowledged_seq, report.lost_commits) == (12, 7)
    (line,) = lines("restored_with_loss")
    assert "7 commits" in line
    assert "6 records" in line
    assert payloads(open_shipped("back")) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_lies_behind_the_loss_is_never_removed(open_shipped, bring, root, forgetful, sweep):
    """The new owner ships, settles and sweeps, opens again, is reconciled with fixes; the evidence stays."""
    evidence = batch_keys(root)[5:]
    bring(accept_loss=True)
    for _ in range(2):
        log = open_shipped("back", segments=TEN)
        ship(log, 8, 100)
        log.seal()
        log.ship(20)
        sweep(log)
        report = log.reconcile(remote=True, fix=True)
        assert report.evidence == 6
        assert report.clean
        log.close()
    assert [key for key in batch_keys(root) if key in evidence] == evidence
    assert len(evidence) == 6


def test_the_next_restore_is_not_stopped_by_a_loss_that_was_accepted(open_shipped, bring, root, forgetful, sweep):
    """What older owners had heard of is over; what the new one had heard of is not."""
    bring(accept_loss=True)
    log = open_shipped("back")
    ship(log, 4, 100)
    expected = payloads(log)
    log.close()
    report = bring("again")
    assert (report.lost_commits, report.records) == (0, 9)
    again = open_shipped("again")
    assert payloads(again) == expected
    ship(again, 3, 200)
    again.close()
    root.store.delete([batch_keys(root)[-2]])
    with pytest.raises(Corrupt, match="acknowledged as shipped are missing"):
        bring("third")


def test_what_was_on_its_way_is_no_damage(open_shipped, bring, root, faults):
    """Batches behind one that never arrived: nobody heard of them, and a takeover leaves them out."""
    log = open_shipped(shipping={"batch_size_threshold": 1})
    ship(log, 3)
    faults.fail("00000000000000000004-", times=None)
    for n in range(3, 9):
        log.topic("orders").append(b"%d" % n)
    faults.wait_seen("create", "00000000000000000009-")
    faults.wait(lambda: len(batch_keys(root)) == 8)
    report = bring()
    assert (report.records, report.cut_batches, report.cut_records, report.lost_commits) == (3, 5, 5, 0)
    faults.heal()


def test_garbage_of_an_owner_that_was_overtaken_still_goes(open_shipped, bring, root, faults, sweep):
    """It shows that nothing was lost: then it is garbage, as ever."""
    log = open_shipped(shipping={"batch_size_threshold": 1})
    ship(log, 3)
    faults.fail(layout.batch_key(1, 4, 4), times=None)
    for n in range(3, 6):
        log.topic("orders").append(b"%d" % n)
    faults.wait(lambda: len(batch_keys(root)) == 5)
    bring()
    back = open_shipped("back", segments=TEN)
    ship(back, 2, 100)
    back.seal()
    back.ship(20)
    sweep(back)
    assert batch_keys(root) == []
    faults.heal()


def test_what_was_adopted_was_acknowledged_too(open_shipped, bring, root):
    """A restored log tells its readers that all of it is shipped; a batch that goes then is a loss."""
    log = open_shipped()
    ship(log, 4)
    log.close()
    bring()
    root.store.delete([batch_keys(root)[-1]])
    with pytest.raises(Corrupt, match="from=4 acknowledged=4"):
        bring("again")


def test_a_damaged_batch_can_be_given_up(open_shipped, bring, root, lines):
    """It is as if it were missing; it stays where it is."""
    log = open_shipped()
    ship(log, 8)
    log.close()
    key = batch_keys(root)[3]
    data = bytearray(root.store.get(key))
    data[-40] ^= 1
    root.replace(key, bytes(data))
    with pytest.raises(Corrupt) as caught:
        bring()
    assert caught.value.path == key
    report = bring(accept_loss=True)
    assert (report.records, report.lost_commits) == (3, 5)
    assert lines("restore_left_out")
    assert any("damaged" in claim for claim in report.not_proved)
    assert len(batch_keys(root)) == 8


def test_a_loss_at_the_end_is_known_from_a_later_epoch_too(open_shipped, bring, root):
    """Opened again, the same owner's batches say what it heard in its life before."""
    log = open_shipped()
    ship(log, 6)
    log.close()
    log = open_shipped()
    ship(log, 2, 6)
    log.close()
    missing = next(key for key in batch_keys(root) if layout.parse_batch_key(key).first_seq == 3)
    root.store.delete([missing])
    with pytest.raises(Corrupt, match="from=3"):
        bring()


def test_many_damaged_batches_can_be_given_up(open_shipped, bring, root):
    log = open_shipped()
    ship(log, 12)
    log.close()
    for key in batch_keys(root)[2::2]:
        root.replace(key, root.store.get(key)[:-1])
    assert bring(accept_loss=True).records == 2


def test_a_loss_that_an_interrupted_restore_accepted_is_still_a_loss(bring, root, forgetful, monkeypatch, lines):
    """Its start objects are there; run again it needs the word again, and reports the same."""
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.log_directory.Directory.adopt_rebuilt", _broken)
        with pytest.raises(holdfast.Unavailable):
            bring(accept_loss=True)
    assert any("start" in type(d).__name__.lower() for d in root.manifest("orders"))
    with pytest.raises(Corrupt, match="acknowledged as shipped are missing"):
        bring()
    report = bring(accept_loss=True)
    assert (report.epoch, report.lost_commits, report.records) == (2, 7, 5)


def _broken(_self: object) -> None:
    raise OSError(5, "the disk is broken")


def test_altered_keys_on_the_store_are_found_by_a_deep_look(open_shipped, root, sweep):
    log = open_shipped(segments=TEN)
    log.topic("orders").append(b"x", idempotency_key="k", durability="shipped")
    log.seal()
    log.ship(20)
    sweep(log)
    (key,) = [key for key in root.keys(layout.TAIL) if layout.parse_keys_key(key)]
    assert log.reconcile(remote=True, deep=True).clean
    root.replace(key, root.store.get(key)[:-1] + b"?")
    (finding,) = log.reconcile(remote=True, deep=True).findings
    assert (finding.kind, finding.name) == ("content_mismatch", key)
