"""A store that forgets: what it acknowledged is sent again, or nothing more is acknowledged there until it is rebuilt.

Objects are removed and put back as somebody would who can write to the store; then the machine is lost, and everything
that was acknowledged as shipped must be there after a restore.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import Closed, Corrupt, Invalid, Log, Unavailable
from holdfast.log.local_parts import parts_of
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument, LogDocument, StartDocument
from holdfast.shipping.refill.partition_gaps import examine
from holdfast.shipping.refill.store_loss import LostSpan, StoreForgot
from holdfast.store import layout
from holdfast.store.port import Body
from tests.segments.planting import ROWS, TEN, fill, wait_for
from tests.shipping.conftest import Root, mark

pytestmark = pytest.mark.store

STRICT = {"claim_check_interval_ms": 0}
"""Every acknowledgement looks for the own claim: what happens does not depend on the clock."""

ALL_AT_ONCE = {"send_when_idle": True, "batch_size_threshold": 1}


def payloads(log: Log, topic: str = "orders", partition: int = 0) -> list[bytes]:
    return [record.payload for record in log.topic(topic).read(partition=partition)]


def restored(root: Root, path: Path, topic: str = "orders") -> list[bytes]:
    """What a restore brings back after the machine was lost."""
    holdfast.restore(root.url, path, copy=True)
    with holdfast.open(path) as log:
        return payloads(log, topic)


def ship_one_by_one(log: Log, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.topic("orders").append(b"%d" % number, durability="shipped")


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def batch_keys(root: Root) -> list[str]:
    return [key for key in root.keys(layout.TAIL) if layout.parse_batch_key(key) is not None]


def empty(root: Root) -> None:
    root.store.delete(root.keys())


def put_back(root: Root, objects: dict[str, bytes]) -> None:
    """The store as it was at another time."""
    empty(root)
    for key, data in objects.items():
        root.store.create(key, Body.of(data))


def claims(root: Root) -> list[EpochDocument]:
    return [documents.decode(root.store.get(key), key, EpochDocument) for key in root.keys(layout.EPOCHS)]


# -- a missing commit batch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [0, 3, 7])
def test_a_missing_commit_batch_is_sent_again_before_anything_is_acknowledged(
    open_shipped, root, tmp_path, lines, gone
):
    """Whichever it is: after the next acknowledgement a restore has everything, and it was reported."""
    log = open_shipped(shipping=ALL_AT_ONCE)
    ship_one_by_one(log, 0, 8)
    log.close()
    root.store.delete([batch_keys(root)[gone]])
    log = open_shipped(shipping=ALL_AT_ONCE)
    with log.subscribe() as events:
        ship_one_by_one(log, 8, 1)
        resent = next(event for event in events if event.kind == "resent")
    assert restored(root, tmp_path / "new") == numbers(9)
    assert (resent.first_seq, resent.last_seq, resent.records) == (gone + 1, 8, 8 - gone)
    assert log.stats().shipping.resent_total == 8 - gone
    assert len(lines("tail_resent")) == 1
    log.close()
    log = open_shipped(shipping=ALL_AT_ONCE)
    ship_one_by_one(log, 9, 1)
    assert (log.stats().shipping.resent_total, restored(root, tmp_path / "later")) == (0, numbers(10))


def test_nothing_is_acknowledged_while_a_hole_is_there(open_shipped, root, faults):
    """What is missing cannot be sent yet: neither does anything count that comes behind it, and the marks say so."""
    log = open_shipped(shipping=ALL_AT_ONCE)
    ship_one_by_one(log, 0, 5)
    log.close()
    root.store.delete([batch_keys(root)[1]])
    gate = faults.hold(layout.batch_key(2, 2, 2))
    log = open_shipped(shipping=ALL_AT_ONCE)
    ticket = log.topic("orders").submit(b"5")
    assert gate.arrived.wait(20)
    faults.wait_seen("create", layout.batch_key(2, 6, 6))
    with pytest.raises(Unavailable):
        ticket.shipped(0.3)
    assert mark(log).shipped == 1
    gate.open()
    ticket.shipped(20)
    assert mark(log).shipped == 6


def test_commits_that_were_sealed_and_trimmed_since_come_back_in_segments(open_shipped, open_log, root, tmp_path):
    """The journal does not have them any more: what is acknowledged next waits for their segments."""
    log = open_shipped(segments=TEN)
    ship_one_by_one(log, 0, 6)
    log.close()
    log = open_log(segments=TEN)
    log.topic("orders").append_batch(numbers(12)[6:])
    log.seal()
    log.close()
    root.store.delete(batch_keys(root)[1:3])
    log = open_shipped(segments=TEN)
    ship_one_by_one(log, 12, 1)
    assert restored(root, tmp_path / "new") == numbers(13)


def test_batches_behind_a_hole_that_somebody_else_had_heard_of_are_never_deleted(open_shipped, root, tmp_path):
    """A restore stopped at a hole; its owner goes on and tidies up, and what it did not adopt stays where it is."""
    log = open_shipped(shipping=ALL_AT_ONCE, segments=TEN)
    ship_one_by_one(log, 0, 9)
    log.close()
    keys = batch_keys(root)
    root.store.delete([keys[4]])
    with pytest.raises(Corrupt, match="acknowledged as shipped are missing"):
        holdfast.restore(root.url, tmp_path / "second")
    holdfast.restore(root.url, tmp_path / "second", accept_loss=True)
    log = open_shipped("second", shipping=ALL_AT_ONCE, segments=TEN)
    fill(log, "orders", 3)
    log.ship(20)
    log.close()
    assert set(keys[5:]) <= set(batch_keys(root))
    assert not set(keys[:4]) & set(batch_keys(root))


# -- missing manifest objects and segments ------------------------------------------------------------------


def two_partitions(log: Log) -> None:
    log.topic("orders", partitions=2)
    fill(log, "orders", 4, partition=0)
    fill(log, "orders", 3, partition=1)
    log.ship(20)
    log.close()


@pytest.mark.parametrize("what", ["manifest", "files", "both", "newest"])
def test_one_partition_that_is_gone_is_brought_back_at_the_next_claim(open_shipped, root, tmp_path, lines, what):
    """Only its manifest, only its files, all of it, or the newest object alone."""
    two_partitions(open_shipped(segments=TEN))
    whole = root.objects()
    folders = {"manifest": [layout.manifest_folder("orders", 1)], "files": [layout.segments_folder("orders", 1)]}
    gone = [key for name in folders if what in (name, "both") for folder in folders[name] for key in root.keys(folder)]
    root.store.delete(gone or [layout.manifest_key("orders", 1, 2)])
    log = open_shipped(segments=TEN)
    log.topic("orders").append(b"next", durability="shipped", partition=1)
    log.ship(20)
    assert log.reconcile(remote=True, deep=True).clean
    assert len(lines("store_refilled")) == 1
    assert {key: data for key, data in root.objects().items() if key in whole} == {
        key: data for key, data in whole.items() if not key.startswith(layout.TAIL)
    } | {key: data for key, data in root.objects().items() if key.startswith(layout.TAIL) and key in whole}
    log.close()
    holdfast.restore(root.url, tmp_path / "new", copy=True)
    with holdfast.open(tmp_path / "new") as copy:
        assert len(payloads(copy, partition=1)) == 3 * ROWS + 1


@pytest.mark.parametrize("what", ["manifest", "file"])
def test_what_is_missing_further_back_is_found_beside_the_shipping(open_shipped, root, tmp_path, lines, what):
    """The newest objects are there; the rest is compared by name once the log ships."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 4)
    log.ship(20)
    log.close()
    file = next(key for key in root.keys(layout.segments_folder("orders", 0)) if f"{1:020d}-" in key)
    gone = layout.manifest_key("orders", 0, 1) if what == "manifest" else file
    before = root.objects()[gone]
    root.store.delete([gone])
    log = open_shipped(segments=TEN)
    log.topic("orders").append(b"x", durability="shipped")
    wait_for(lambda: lines("store_refilled") != [])
    assert (root.objects()[gone], len(lines("store_refilled"))) == (before, 1)
    log.topic("orders").append(b"y", durability="shipped")
    log.close()
    assert len(restored(root, tmp_path / "new")) == 4 * ROWS + 2


# -- emptied, made anew, put back -----------------------------------------------------------------------------


@pytest.fixture(params=["memory", "directory"])
def place(request: pytest.FixtureRequest, make_root: Callable[..., Root], tmp_path: Path) -> Root:
    return make_root("memory" if request.param == "memory" else tmp_path / "store")


def test_a_store_that_was_emptied_between_two_runs_is_not_taken_for_a_new_one(open_shipped, place, lines, tmp_path):
    """The log opens and takes records, nothing is written there and nothing acknowledged; one call brings it back."""
    log = open_shipped(to=place, segments=TEN)
    fill(log, "orders", 2)
    ship_one_by_one(log, 0, 3)
    log.ship(20)
    log.close()
    before = len(claims(place))
    empty(place)
    log = open_shipped(to=place, segments=TEN)
    ticket = log.topic("orders").submit(b"durable here")
    with pytest.raises(StoreForgot, match="forgotten claims") as caught:
        ticket.shipped(20)
    assert "--rebuild-store" in caught.value.hint
    assert place.keys() == []
    stats = log.stats().shipping
    assert stats.forgotten is not None
    assert (stats.alarm.cause, stats.ended) == ("forgotten", None)
    assert len(lines("shipping_alarm")) == 1
    report = log.rebuild_store()
    ticket.shipped(20)
    log.ship(20)
    assert (report.segments, report.manifests, report.is_new, report.lost) == (2, 2, True, ())
    assert (log.stats().shipping.forgotten, log.stats().shipping.alarm) == (None, None)
    assert [claim.epoch for claim in claims(place)] == list(range(1, before + 2))
    assert log.reconcile(remote=True, deep=True).clean
    expected = payloads(log)
    log.close()
    assert restored(place, tmp_path / "new") == expected


def test_a_store_that_is_emptied_in_a_running_process_again_and_again_is_rebuilt(open_shipped, root, tmp_path):
    """Nothing is acknowledged from the moment on; numbers of claims are never used a second time."""
    log = open_shipped(segments=TEN, shipping=STRICT)
    count = 0
    for generation in range(3):
        ship_one_by_one(log, count, 4)
        if generation == 1:
            log.seal()
            log.ship(20)
        count += 4
        epochs = [claim.epoch for claim in claims(root)]
        empty(root)
        ticket = log.topic("orders").submit(b"%d" % count)
        count += 1
        with pytest.raises(StoreForgot, match="our claim"):
            ticket.shipped(20)
        with pytest.raises(StoreForgot):
            log.topic("orders").append(b"%d" % count, durability="shipped")
        count += 1
        log.rebuild_store()
        ticket.shipped(20)
        assert [claim.epoch for claim in claims(root)] == list(range(1, len(epochs) + 2))
    ship_one_by_one(log, count, 1)
    assert restored(root, tmp_path / "new") == numbers(count + 1)


def test_an_idle_log_finds_out_too(open_shipped, root):
    """Nothing is appended: the owner asks now and then."""
    log = open_shipped(shipping={**STRICT, "heartbeat_interval_ms": 20})
    ship_one_by_one(log, 0, 1)
    empty(root)
    wait_for(lambda: log.stats().shipping.forgotten is not None)


def test_a_store_that_comes_back_by_itself_is_shipped_on_to(open_shipped, root, tmp_path):
    """A directory that was not mounted: shipping goes on as if nothing had been."""
    log = open_shipped(shipping=STRICT)
    ship_one_by_one(log, 0, 3)
    objects = root.objects()
    empty(root)
    with pytest.raises(StoreForgot):
        log.topic("orders").append(b"3", durability="shipped")
    put_back(root, objects)
    wait_for(lambda: log.stats().shipping.forgotten is None)
    ship_one_by_one(log, 4, 1)
    assert restored(root, tmp_path / "new") == numbers(5)


def test_with_the_setting_a_store_is_rebuilt_without_asking(open_shipped, root, tmp_path):
    log = open_shipped(segments=TEN, shipping={**STRICT, "rebuild_store": True})
    fill(log, "orders", 2)
    log.ship(20)
    empty(root)
    ticket = log.topic("orders").submit(b"x")
    wait_for(lambda: mark(log).shipped == mark(log).durable == 21)
    ticket.shipped(20)
    log.ship(20)
    assert len(restored(root, tmp_path / "new")) == 21


def test_an_old_copy_of_the_store_is_distinguished_from_the_store(open_shipped, root, tmp_path):
    """Older claims, older floors, older segments: not a hole to be filled quietly, and not a log that was overtaken."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    ship_one_by_one(log, 0, 2)
    log.ship(20)
    log.close()
    old = root.objects()
    log = open_shipped(segments=TEN)
    fill(log, "orders", 3)
    ship_one_by_one(log, 0, 3)
    log.ship(20)
    log.close()
    put_back(root, old)
    log = open_shipped(segments=TEN)
    with pytest.raises(StoreForgot):
        log.topic("orders").append(b"x", durability="shipped")
    log.rebuild_store()
    log.topic("orders").append(b"y", durability="shipped")
    log.seal()
    log.ship(20)
    expected = payloads(log)
    assert {finding.garbage for finding in log.reconcile(remote=True, fix=True).findings} <= {True}
    assert log.reconcile(remote=True, deep=True).clean
    log.close()
    assert restored(root, tmp_path / "new") == expected


def test_an_old_copy_of_the_same_ownership_is_filled_at_the_next_open(open_shipped, root, tmp_path):
    """The claim is there; what came after it is not."""
    log = open_shipped(segments=TEN)
    ship_one_by_one(log, 0, 2)
    old = root.objects()
    fill(log, "orders", 2)
    ship_one_by_one(log, 0, 2)
    log.ship(20)
    expected = payloads(log)
    log.close()
    put_back(root, old)
    log = open_shipped(segments=TEN)
    log.topic("orders").append(b"x", durability="shipped")
    log.ship(20)
    log.close()
    assert restored(root, tmp_path / "new") == [*expected, b"x"]


def test_a_root_that_is_another_logs_now_is_left_alone(open_shipped, root, make_root):
    """The bucket was mistaken for another one, or given away: nothing is written, also not by a rebuild."""
    log = open_shipped()
    ship_one_by_one(log, 0, 2)
    log.close()
    other = open_shipped("other", to=(elsewhere := make_root()))
    other.topic("theirs").append(b"x", durability="shipped")
    other.close()
    put_back(root, elsewhere.objects())
    before = root.objects()
    log = open_shipped()
    with pytest.raises(StoreForgot, match="another log"):
        log.topic("orders").append(b"x", durability="shipped")
    with pytest.raises(StoreForgot, match="another log"):
        log.rebuild_store()
    assert root.objects() == before
    assert len(payloads(log)) == 3


def test_what_only_the_store_had_is_given_up_only_when_somebody_insists(open_quiet, root, tmp_path):
    """Retention removed it here, the store has lost it: it is listed; a rebuild stops before it writes anything."""
    log = open_quiet(segments=TEN)
    fill(log, "orders", 4)
    log.ship(20)
    log.set_retention("orders", records_max=2 * ROWS)
    log.retain()
    log.close()
    empty(root)
    log = open_quiet(segments=TEN)
    with pytest.raises(StoreForgot, match=f"{2 * ROWS} records that were there alone") as caught:
        log.rebuild_store()
    assert "--accept-loss" in caught.value.hint
    assert root.keys() == []
    report = log.rebuild_store(accept_loss=True)
    assert report.lost == (LostSpan("orders", 0, 0, 2 * ROWS, 2),)
    log.topic("orders").append(b"x", durability="shipped")
    log.ship(20)
    assert log.reconcile(remote=True, deep=True).clean
    log.close()
    restore = holdfast.restore(root.url, tmp_path / "new")
    assert (restore.records, restore.expired) == (2 * ROWS + 1, 2)


def test_a_lost_segment_that_only_the_store_had_stops_acknowledgements(open_quiet, root):
    """Found at the next open, without a rebuild: it is not passed over, and not given up by itself."""
    log = open_quiet(segments=TEN, shipping={"rebuild_store": True})
    fill(log, "orders", 3)
    log.ship(20)
    log.set_retention("orders", records_max=1)
    log.retain()
    log.close()
    root.store.delete(root.keys(layout.segments_folder("orders", 0)))
    log = open_quiet(segments=TEN, shipping={"rebuild_store": True})
    with pytest.raises(StoreForgot, match="there alone"):
        log.topic("orders").append(b"x", durability="shipped")
    epochs = [claim.epoch for claim in claims(root)]
    log.rebuild_store(accept_loss=True)
    log.topic("orders").append(b"y", durability="shipped")
    assert len(claims(root)) == len(epochs) + 1


def test_a_loss_further_back_is_reported_once_and_stays(open_quiet, root, lines):
    """The newest objects are there, one that only the store had is not: the alarm does not come and go."""
    log = open_quiet(segments=TEN)
    fill(log, "orders", 4)
    log.ship(20)
    log.set_retention("orders", records_max=2 * ROWS)
    log.retain()
    log.close()
    root.store.delete(root.keys(layout.segments_folder("orders", 0))[:1])
    log = open_quiet(segments=TEN)
    log.topic("orders").append(b"x")
    wait_for(lambda: log.stats().shipping.alarm is not None and log.stats().shipping.alarm.attempts >= 2)
    with pytest.raises(StoreForgot, match="there alone"):
        log.topic("orders").append(b"y", durability="shipped")
    assert lines("shipping_recovered") == []
    assert log.rebuild_store(accept_loss=True).lost[0].records == ROWS
    log.topic("orders").append(b"z", durability="shipped")


def test_nothing_is_removed_here_while_the_store_has_forgotten(open_quiet, root):
    """What was settled is so no more: this may be the only copy."""
    log = open_quiet(segments=TEN, shipping=STRICT)
    fill(log, "orders", 4)
    log.ship(20)
    empty(root)
    with pytest.raises(StoreForgot):
        log.topic("orders").append(b"x", durability="shipped")
    log.set_retention("orders", records_max=1)
    assert log.retain().removed == ()
    log.rebuild_store()
    log.ship(20)
    assert len(log.retain().removed) > 0


# -- claims ---------------------------------------------------------------------------------------------------


def test_a_missing_claim_is_filled_in_so_that_the_owner_it_overtook_finds_out(open_shipped, root, lines):
    """An owner asks for the number after its own: a hole there would let it in again."""
    for _ in range(4):
        log = open_shipped()
        log.topic("orders").append(b"x", durability="shipped")
        log.close()
    root.store.delete([layout.epoch_key(2), layout.epoch_key(3)])
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    assert [claim.epoch for claim in claims(root)] == [1, 2, 3, 4, 5]
    assert len(lines("claims_filled")) == 1


def test_a_missing_log_document_is_written_again(open_shipped, root, lines):
    """The claims are ours: it is the root that we know."""
    log = open_shipped()
    ship_one_by_one(log, 0, 1)
    log.close()
    before = root.objects()[layout.LOG]
    root.store.delete([layout.LOG])
    log = open_shipped()
    ship_one_by_one(log, 1, 1)
    assert root.objects()[layout.LOG] == before
    assert len(lines("store_repaired")) == 1


def test_an_owner_that_was_overtaken_does_not_rebuild_the_store_of_its_successor(open_shipped, root, tmp_path):
    log = open_shipped()
    ship_one_by_one(log, 0, 2)
    holdfast.restore(root.url, tmp_path / "second")
    with pytest.raises(Closed) as caught:
        log.rebuild_store()
    assert caught.value.reason == "fenced"


def test_an_owner_that_was_overtaken_may_rebuild_an_emptied_store_and_its_successor_still_goes_on(
    open_shipped, root, tmp_path
):
    """Nothing on the store tells the first that there is another one. The other one does not take what it finds there
    for its own, though it has the same numbers; and the first finds out.
    """
    first = open_shipped(shipping=STRICT)
    ship_one_by_one(first, 0, 2)
    holdfast.restore(root.url, tmp_path / "second")
    second = open_shipped("second", shipping=STRICT)
    second.topic("orders").append(b"2", durability="shipped")
    empty(root)
    first.rebuild_store()
    first.topic("orders").append(b"stranded", durability="shipped")
    with pytest.raises(StoreForgot):
        second.topic("orders").append(b"3", durability="shipped")
    second.rebuild_store()
    second.topic("orders").append(b"4", durability="shipped")
    assert restored(root, tmp_path / "new") == numbers(5)
    with pytest.raises(Closed):
        first.topic("orders").append(b"no", durability="shipped")
    assert restored(root, tmp_path / "later") == numbers(5)


def test_a_rebuild_after_takeovers_keeps_what_is_there(open_shipped, root, tmp_path):
    """Slots have starts among them; of those that are missing nobody knows what they said, and any will do."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    log.close()
    for name in ("second", "third"):
        holdfast.restore(root.url, tmp_path / name)
        log = open_shipped(name, segments=TEN)
        fill(log, "orders", 2)
        log.ship(20)
        log.close()
    assert sum(isinstance(document, StartDocument) for document in root.manifest("orders")) == 2
    whole = root.objects()
    for missing in ([2], [1, 2], [2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7], [5], [7], [4, 5, 6]):
        put_back(root, whole)
        root.store.delete([layout.manifest_key("orders", 0, slot) for slot in missing])
        log = open_shipped("third", segments=TEN)
        log.rebuild_store()
        log.topic("orders").append(b"x", durability="shipped")
        log.ship(20)
        expected = payloads(log)
        log.close()
        whole = {key: data for key, data in root.objects().items() if not key.startswith(layout.TAIL)} | {
            key: data for key, data in root.objects().items() if key.startswith(layout.TAIL)
        }
        assert restored(root, tmp_path / f"copy{len(expected)}") == expected


def test_a_healthy_store_is_not_changed_by_a_rebuild(open_shipped, root, tmp_path):
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    before = root.objects()
    report = log.rebuild_store()
    assert (report.manifests, report.segments, report.records, report.is_new) == (0, 0, 0, False)
    log.topic("orders").append(b"x", durability="shipped")
    assert {key: data for key, data in root.objects().items() if key in before} == before


def test_a_log_without_a_store_has_none_to_rebuild(open_log):
    with pytest.raises(Invalid, match="ships to no store"):
        open_log().rebuild_store()


def test_an_altered_log_document_does_not_stop_shipping(open_shipped, root, lines):
    """The claims are ours: it was altered, and is not another log's root. Reconciliation repairs it."""
    log = open_shipped()
    ship_one_by_one(log, 0, 1)
    log.close()
    before = root.objects()[layout.LOG]
    for altered in (documents.encode(LogDocument(log="00" * 16, created_us=1)), b"{}"):
        root.store.delete([layout.LOG])
        root.store.create(layout.LOG, Body.of(altered))
        log = open_shipped()
        log.topic("orders").append(b"x", durability="shipped")
        assert lines("store_damaged")
        assert log.reconcile(remote=True, fix=True).clean
        assert root.objects()[layout.LOG] == before
        log.close()


def test_a_damaged_claim_of_our_own_is_still_our_own(open_shipped, root):
    """Nobody else can have had its number. One above it may be anybody's: nothing is written over that."""
    log = open_shipped()
    ship_one_by_one(log, 0, 1)
    log.close()
    root.store.delete([layout.epoch_key(1)])
    root.store.create(layout.epoch_key(1), Body.of(b"{}"))
    log = open_shipped()
    ship_one_by_one(log, 1, 1)
    assert log.stats().shipping.epoch == 2
    log.close()
    root.store.create(layout.epoch_key(3), Body.of(b"{}"))
    before = root.objects()
    log = open_shipped(shipping={"rebuild_store": True})
    with pytest.raises(StoreForgot, match="its owner is unknown"):
        log.topic("orders").append(b"x", durability="shipped")
    assert root.objects() == before


def test_a_listing_that_lags_is_not_taken_for_a_store_that_forgot(open_shipped, root, monkeypatch, lines):
    """Neither claims nor batches are gone because a listing does not have them yet."""
    log = open_shipped()
    ship_one_by_one(log, 0, 3)
    log.close()
    store, hidden = type(root.store), [layout.EPOCHS, layout.TAIL]
    complete = store.list

    def late(self, prefix, after=None):
        found = list(complete(self, prefix, after))
        if prefix in hidden:
            hidden.remove(prefix)
            return iter(found[:-1])
        return iter(found)

    monkeypatch.setattr(store, "list", late)
    log = open_shipped()
    ship_one_by_one(log, 3, 1)
    assert hidden == []
    assert (log.stats().shipping.resent_total, lines("shipping_alarm")) == (0, [])
    assert [claim.epoch for claim in claims(root)] == [1, 2]


def test_a_checkpoint_that_would_say_something_else_is_removed_with_what_it_says(open_shipped, root, tmp_path):
    """The manifest of a partition that was taken over is gone, but for its checkpoint: readers believe what is true."""
    log = open_shipped(segments=TEN, shipping={"checkpoint_every": 2})
    fill(log, "orders", 2)
    log.ship(20)
    wait_for(lambda: bool(root.keys(layout.checkpoints_folder("orders", 0))))
    log.close()
    holdfast.restore(root.url, tmp_path / "second")
    log = open_shipped("second", segments=TEN)
    fill(log, "orders", 3)
    log.ship(20)
    log.close()
    root.store.delete(root.keys(layout.manifest_folder("orders", 0)))
    log = open_shipped("second", segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    assert log.reconcile(remote=True, deep=True).clean
    expected = payloads(log)
    log.close()
    assert restored(root, tmp_path / "new") == expected
    assert holdfast.read(root.url, "orders").count() == 7 * ROWS


def test_retention_here_waits_for_the_stores_first_word(open_quiet, root, faults):
    """What was settled before this handle was opened may be gone: nothing is removed before the store was seen."""
    log = open_quiet(segments=TEN)
    fill(log, "orders", 4)
    log.ship(20)
    log.close()
    faults.away()
    log = open_quiet(segments=TEN)
    log.set_retention("orders", records_max=1)
    assert log.retain().removed == ()
    faults.heal()
    wait_for(lambda: len(log.retain().removed) > 0)


# -- being fenced is remembered -----------------------------------------------------------------------------


def fenced(open_shipped: Callable[..., Log], root: Root, tmp_path: Path) -> Log:
    log = open_shipped()
    ship_one_by_one(log, 0, 2)
    holdfast.restore(root.url, tmp_path / "second")
    ticket = log.topic("orders").submit(b"stranded")
    with pytest.raises(Closed):
        ticket.shipped(20)
    log.close()
    return log


@pytest.mark.parametrize("with_store", [True, False])
@pytest.mark.parametrize("is_away", [True, False])
def test_a_log_that_was_taken_over_stays_so_when_it_is_opened_again(
    open_shipped, open_log, root, tmp_path, faults, with_store, is_away
):
    """With its store or without, the store away or not: reading works, and not one more record is stranded."""
    fenced(open_shipped, root, tmp_path)
    if is_away:
        faults.away()
    log = open_shipped() if with_store else open_log()
    for _ in range(2):
        with pytest.raises(Closed) as caught:
            log.topic("orders").append(b"no")
        assert (caught.value.reason, bool(caught.value.hint)) == ("fenced", True)
    assert payloads(log) == [b"0", b"1", b"stranded"]
    if with_store:
        stats = log.stats().shipping
        assert (stats.fenced, stats.stranded_records, stats.lag_records) == (True, 1, 0)
        assert stats.ended is not None
        assert [(span.first, span.records) for span in log.unshipped()] == [(2, 1)]


def test_a_log_that_was_taken_over_while_it_was_closed_takes_no_record(open_shipped, root, tmp_path):
    """The store is asked before the first append, if it answers in time."""
    log = open_shipped()
    ship_one_by_one(log, 0, 2)
    log.close()
    holdfast.restore(root.url, tmp_path / "second")
    log = open_shipped()
    wait_for(lambda: log.stats().shipping.fenced)
    with pytest.raises(Closed):
        log.topic("orders").append(b"no")
    assert payloads(log) == [b"0", b"1"]


def test_a_log_that_was_taken_over_does_not_move_to_another_store(open_shipped, root, tmp_path, make_root):
    """Two logs of one id would go on beside each other."""
    fenced(open_shipped, root, tmp_path)
    elsewhere = make_root()
    with pytest.raises(Closed):
        open_shipped(to=elsewhere, move=True)
    assert elsewhere.keys() == []


def noted(log: Log) -> tuple[str, str]:
    """What a process that only looks reads about shipping."""
    with holdfast.open(log.path, read_only=True) as observer:
        row = observer._journal.shipping
        return row.alarm, row.last_error


def test_what_holds_shipping_up_is_written_down_for_others_until_it_has_passed(open_shipped, faults):
    log = open_shipped(shipping={"max_retry_attempts": 0})
    ship_one_by_one(log, 0, 1)
    faults.fail(".arrow")
    ticket = log.topic("orders").submit(b"1")
    wait_for(lambda: "does not answer" in noted(log)[0])
    assert "does not answer" in noted(log)[1]
    faults.heal()
    ticket.shipped(20)
    wait_for(lambda: noted(log) == ("", ""))


def test_marks_that_move_while_the_store_is_compared_with_them_are_no_loss(open_shipped, root):
    """Shipping does not begin anew for it."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    partition = log._journal.topics["orders"][0]
    before = partition.shipment

    class Busy:
        def __getattr__(self, name):
            return getattr(root.store, name)

        def list(self, prefix, after=None):
            log.topic("orders").append(b"x", durability="shipped")
            return root.store.list(prefix, after)

    assert examine(Busy(), parts_of(log).context.manifest, log.id, partition).is_whole
    assert partition.shipment != before
