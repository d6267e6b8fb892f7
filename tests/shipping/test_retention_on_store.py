"""What goes and what stays, here and on the store: floors, expiries, leases, and the leftovers of earlier epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Log
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument, FloorDocument, LeaseDocument
from holdfast.store import layout
from holdfast.store.port import Body
from holdfast.testing.manual_clock import ManualClock
from tests.segments.planting import TEN, fill, offsets
from tests.shipping.conftest import Root, mark

pytestmark = pytest.mark.store

NEVER = {"interval_ms": 3_600_000}
DAY_S = 86_400.0


# -- here ---------------------------------------------------------------------------------------------------


def test_nothing_goes_here_that_is_not_settled(open_quiet, faults):
    """Whatever the limits say; it goes once the store has it."""
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10})
    faults.away()
    topic = fill(log, "orders", 5)
    assert log.retain().removed == ()
    assert offsets(topic) == list(range(50))
    faults.heal()
    log.ship(20)
    assert len(log.retain().removed) == 4
    assert offsets(topic) == list(range(40, 50))


def test_what_is_settled_goes_though_the_rest_is_not(open_quiet, faults):
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10})
    fill(log, "orders", 2)
    log.ship(20)
    faults.away()
    topic = fill(log, "orders", 3)
    assert [item.number for item in log.retain().removed] == [0, 1]
    assert offsets(topic) == list(range(20, 50))


def test_a_topics_own_policy_does_not_lower_the_floor(open_quiet, faults):
    log = open_quiet(segments=TEN, retention=NEVER)
    faults.away()
    fill(log, "orders", 3)
    log.set_retention("orders", records_max=1, bytes_max=1)
    assert log.retain().removed == ()


def test_the_disk_budget_does_not_lower_the_floor(open_quiet, faults):
    log = open_quiet(segments=TEN, retention={**NEVER, "disk_bytes_max": 1000, "headroom_bytes": 1})
    faults.away()
    fill(log, "orders", 3)
    report = log.retain()
    assert report.removed == ()
    assert report.bytes_short > 0


def test_with_allow_unsettled_segments_go_that_the_store_never_saw(open_quiet, faults, root):
    """They get manifest objects without files and an expiry; what is left is shipped."""
    faults.away()
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10, "allow_unsettled": True})
    fill(log, "orders", 5)
    assert len(log.retain().removed) == 4
    faults.heal()
    log.ship(20)
    assert mark(log).settled == 50
    assert root.segments("orders") == [4]
    assert [document.number for document in root.manifest("orders")] == [0, 1, 2, 3, 4]
    assert root.numbers(layout.expired_folder("orders", 0)) == [4]


def test_a_file_that_retention_takes_while_it_waits_for_the_store_is_given_up(open_quiet, faults, root):
    """Its upload had begun; it goes the way of all that was never shipped, and nothing is held up."""
    log = open_quiet(segments=TEN, retention={**NEVER, "records_max": 10, "allow_unsettled": True})
    failing = faults.fail("/segments/")
    fill(log, "orders", 3)
    faults.wait_seen("create", "/segments/")
    assert len(log.retain().removed) == 2
    failing.end()
    log.ship(10)
    assert mark(log).settled == 30


# -- retirement on the store --------------------------------------------------------------------------------


def expiries(root: Root) -> list[ExpiredDocument]:
    keys = root.keys(layout.expired_folder("orders", 0))
    return [documents.decode(root.store.get(key), key, ExpiredDocument) for key in keys]


def open_with_clock(open_quiet: Callable[..., Log], clock: ManualClock, **shipping: Any) -> Log:
    return open_quiet(segments=TEN, retention=NEVER, shipping=shipping, clock=clock)


def test_old_segments_are_retired_first_and_removed_after_the_delay(open_quiet, root, sweep):
    """The expiry says where the partition begins now; files stay for as long as readers may need them."""
    clock = ManualClock()
    log = open_with_clock(open_quiet, clock, store_bytes_max=1, delete_after_ms=DAY_S * 1000)
    fill(log, "orders", 3)
    log.ship(20)
    sweep(log)
    (document,) = expiries(root)[-1:]
    assert (document.upto, document.first, document.expired_us) == (2, 20, clock.now_us())
    assert root.segments("orders") == [0, 1, 2]
    clock.advance(DAY_S - 1)
    sweep(log)
    assert root.segments("orders") == [0, 1, 2]
    clock.advance(DAY_S)
    sweep(log)
    assert root.segments("orders") == [2]
    assert [d.number for d in root.manifest("orders")] == [0, 1, 2]
    assert offsets(log.topic("orders")) == list(range(30))


def test_segments_are_retired_by_age(open_quiet, root, sweep):
    clock = ManualClock()
    log = open_with_clock(open_quiet, clock, store_age_max_ms=DAY_S * 1000, delete_after_ms=0)
    fill(log, "orders", 2)
    clock.advance(DAY_S / 2)
    fill(log, "orders", 2)
    log.ship(20)
    sweep(log)
    assert expiries(root) == []
    clock.advance(DAY_S / 2 + 1)
    sweep(log)
    assert [document.upto for document in expiries(root)] == [2]
    clock.advance(1)
    sweep(log)
    assert root.segments("orders") == [2, 3]


def test_the_newest_segment_stays_on_the_store(open_quiet, root, sweep):
    """However old and however large; the partition's beginning is never lost."""
    clock = ManualClock()
    log = open_with_clock(open_quiet, clock, store_age_max_ms=1, store_bytes_max=1, delete_after_ms=0)
    fill(log, "orders", 2)
    log.ship(20)
    clock.advance(DAY_S)
    sweep(log)
    clock.advance(DAY_S)
    sweep(log)
    assert root.segments("orders") == [1]
    assert expiries(root)[-1].upto == 1


def lease(root: Root, log: Log, number: int, until_us: int, needs: dict[str, dict[str, int]]) -> None:
    document = LeaseDocument(log=log.id, reader="spark", until_us=until_us, needs=needs)
    root.store.create(layout.lease_key("spark", number), Body.of(documents.encode(document)))


def test_what_a_lease_needs_is_not_removed_while_it_holds(open_quiet, root, sweep):
    """The newest lease of a reader counts; one that ran out needs nothing."""
    clock = ManualClock()
    log = open_with_clock(open_quiet, clock, store_bytes_max=1, delete_after_ms=0)
    later = clock.now_us() + 10 * 86_400 * 10**6
    fill(log, "orders", 1)
    log.ship(20)
    lease(root, log, 1, later, {"orders": {"0": 0}})
    lease(root, log, 2, later, {"orders": {"0": 2}, "other": {"0": 0}})
    fill(log, "orders", 3)
    log.ship(20)
    for _ in range(2):
        clock.advance(DAY_S)
        sweep(log)
    assert expiries(root)[-1].upto == 3
    assert root.segments("orders") == [2, 3]
    clock.advance(20 * DAY_S)
    sweep(log)
    assert root.segments("orders") == [3]


@pytest.mark.parametrize(
    "shipping",
    [
        {"store_age_max_ms": 30 * DAY_S * 1000, "delete_after_ms": 0},
        {"store_bytes_max": 1, "delete_after_ms": DAY_S * 1000},
        {"store_bytes_max": 1, "delete_after_ms": 0},
    ],
    ids=["age", "delay", "lease"],
)
def test_a_clock_that_is_wrong_for_a_moment_removes_nothing_from_the_store(open_quiet, root, sweep, shipping):
    """No segment is too old for it, no delay over, and no lease has run out."""
    clock = ManualClock()
    log = open_with_clock(open_quiet, clock, **shipping)
    if not shipping["delete_after_ms"]:
        lease(root, log, 1, clock.now_us() + 10 * 86_400 * 10**6, {"orders": {"0": 0}})
    fill(log, "orders", 3)
    log.ship(20)
    clock.advance(1)
    sweep(log)
    clock.jump(400 * DAY_S)
    for _ in range(2):
        clock.advance(3_601)
        sweep(log)
    assert root.segments("orders") == [0, 1, 2]
    assert len(expiries(root)) == (1 if "store_bytes_max" in shipping else 0)


def test_retirement_goes_on_after_a_restart(open_quiet, root, sweep):
    clock = ManualClock()
    log = open_with_clock(open_quiet, clock, store_bytes_max=1, delete_after_ms=DAY_S * 1000)
    fill(log, "orders", 3)
    log.ship(20)
    log.close()
    assert expiries(root)[-1].upto == 2
    log = open_with_clock(open_quiet, clock, store_bytes_max=1, delete_after_ms=DAY_S * 1000)
    clock.advance(2 * DAY_S)
    fill(log, "orders", 1)
    log.ship(20)
    sweep(log)
    assert [document.upto for document in expiries(root)] == [2, 3]
    assert root.segments("orders") == [2, 3]


# -- commit batches that are not needed any more ------------------------------------------------------------


def floors(root: Root) -> list[tuple[int, int]]:
    """Epoch and sequence number of the floors that stand."""
    return [floor for key in root.keys(layout.TAIL) if (floor := layout.parse_floor_key(key)) is not None]


def test_a_batch_goes_when_all_in_it_is_settled_and_a_floor_stands_for_it(open_shipped, faults, root):
    """The floor is written before anything is removed, and the fence is asked in between."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    log.close()
    assert root.batches() == []
    assert floors(root) == [(1, 2)]
    floor = layout.floor_key(1, 2)
    document = documents.decode(root.store.get(floor), floor, FloorDocument)
    assert (document.epoch, document.seq) == (1, 2)
    order = [(request.verb, request.key) for request in faults.done]
    removed = [place for place, (verb, key) in enumerate(order) if verb == "delete" and key.endswith(".arrow")]
    written = order.index(("create", floor))
    asked = [place for place, request in enumerate(order) if request == ("head", layout.epoch_key(2))]
    assert any(written < place < removed[0] for place in asked)


def test_a_batch_with_anything_unsettled_stays(open_shipped, root):
    """Two partitions in one batch, one of them sealed."""
    log = open_shipped(segments=TEN)
    both = log.topic("orders", partitions=2)
    both.append_batch([b"%d" % i for i in range(10)], partition=0)
    both.append(b"tail", partition=1, durability="shipped")
    both.wait_sealed(10, 20)
    log.ship(20)
    log.close()
    held = {(entry.topic, entry.partition) for batch in root.batches() for entry in batch.entries}
    assert ("orders", 1) in held


def test_a_batch_is_not_removed_before_those_in_front_of_it(open_shipped, root):
    """The floor says of everything below that it is settled: it stops at the first batch that is not."""
    log = open_shipped(segments=TEN)
    log.topic("slow").append(b"tail", durability="shipped")
    fill(log, "orders", 2)
    log.ship(20)
    log.close()
    assert floors(root) == []
    assert next(entry.topic for batch in root.batches() for entry in batch.entries) == "slow"


def test_leftovers_of_earlier_epochs_go_when_all_is_settled(open_shipped, root):
    log = open_shipped(segments=TEN)
    log.topic("orders").append_batch([b"%d" % i for i in range(5)], durability="shipped")
    log.close()
    assert len(root.batches()) == 1
    log = open_shipped(segments=TEN)
    log.topic("orders").append_batch([b"%d" % i for i in range(5, 10)], durability="shipped")
    log.topic("orders").wait_sealed(10, 20)
    log.ship(20)
    log.close()
    assert root.batches() == []
    assert [epoch for epoch, _ in floors(root)] == [2]  # how far depends on which lane was first


def test_a_floor_never_covers_what_an_earlier_epoch_left_unsettled(open_shipped, root):
    """A record of the epoch before is in no segment; batches behind it are settled, and still no floor passes it."""
    log = open_shipped(segments=TEN)
    log.topic("slow").append(b"tail", durability="shipped")
    log.close()
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2)
    log.ship(20)
    log.close()
    assert floors(root) == []
    assert "slow" in {entry.topic for batch in root.batches() for entry in batch.entries}


def test_older_floors_go_when_a_newer_one_stands(open_shipped, root):
    for _ in range(3):
        log = open_shipped(segments=TEN)
        log.topic("orders").append(b"x", durability="shipped")  # in a batch, before a segment can make that needless
        log.seal()
        log.ship(20)
        log.close()
    assert floors(root) == [(3, 3)]


def test_a_failing_removal_is_tried_again_and_holds_up_no_mark(open_shipped, faults, root):
    log = open_shipped(segments=TEN)
    faults.fail(verbs=["delete"], times=3)
    fill(log, "orders", 2)
    log.ship(20)
    log.topic("orders").append(b"x", durability="shipped")
    log.close()
    assert floors(root) == [(1, 2)]
    assert [batch.first_seq for batch in root.batches()] == [3]
