"""Retention on a store with rewrites: what holds anything that is not retired stays, all else goes in the end."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Closed, Log
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument, LeaseDocument
from holdfast.store import layout
from holdfast.store.port import Body
from holdfast.testing.manual_clock import ManualClock
from tests.rewriting import Compactor
from tests.segments.planting import TEN, fill

pytestmark = pytest.mark.store

NEVER = {"interval_ms": 3_600_000}
DAY_S = 86_400.0


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def shipped(open_quiet, clock, sweep):
    """A log whose segments are retired by age, each of its own day."""
    shipping = {"store_age_max_ms": 2.5 * DAY_S * 1000, "delete_after_ms": 0}
    log = open_quiet(segments=TEN, retention=NEVER, shipping=shipping, clock=clock)
    for _ in range(4):
        fill(log, "orders", 1)
        clock.advance(DAY_S)
    log.ship(20)
    return log


def retire(log: Log, clock: ManualClock, sweep, days: float = 0) -> None:
    clock.advance(days * DAY_S)
    sweep(log)  # retires
    clock.advance(1)
    sweep(log)  # removes


def test_a_long_file_stays_until_all_of_it_is_retired(shipped, root, clock, sweep):
    """Two of its three segments are; the files that it replaced go, and so does it when the third one is."""
    long = Compactor(root.store).rewrite((0, 3)).outputs[0].segment.key
    retire(shipped, clock, sweep)
    assert root.numbers(layout.expired_folder("orders", 0)) == [2]
    assert root.segments("orders") == [0, 2, 3]
    assert long in root.keys("topics/")
    retire(shipped, clock, sweep, days=1)
    assert root.numbers(layout.expired_folder("orders", 0)) == [2, 3]
    assert root.segments("orders") == [3]


def test_what_an_open_intent_announces_is_not_removed(shipped, root, clock, sweep):
    """A compactor is about to swap in a file that begins with a retired segment; its own files are retired as usual."""
    compactor = Compactor(root.store)
    compactor.intend((1, 4))
    long = compactor.written(1, 4).segment.key
    retire(shipped, clock, sweep)
    assert root.segments("orders") == [1, 2, 3]
    assert long in root.keys("topics/")


def test_what_a_compactor_left_that_was_too_late_goes(shipped, root, clock, sweep):
    """Another rewrite has its number, and its intent is gone."""
    compactor = Compactor(root.store)
    intent = compactor.intend((1, 4))
    long = compactor.written(1, 4).segment.key
    compactor.rewrite((2, 4))
    root.store.delete([intent])
    retire(shipped, clock, sweep)
    assert long not in root.keys("topics/")
    assert root.segments("orders") == [2, 2, 3]


def test_nothing_is_removed_where_a_rewrite_is_damaged(shipped, root, clock, sweep, lines):
    """Nobody knows which files hold what is not retired; the other partitions do not suffer."""
    Compactor(root.store).rewrite((0, 3))
    key = layout.rewrite_key("orders", 0, 0)
    whole = root.store.get(key)
    root.replace(key, whole[:-20])
    retire(shipped, clock, sweep)
    assert root.segments("orders") == [0, 0, 1, 2, 3]
    assert lines("rewrite_damaged")
    root.replace(key, whole)
    retire(shipped, clock, sweep)
    assert root.segments("orders") == [0, 2, 3]


# -- what was compacted, without retention --------------------------------------------------------------------


@pytest.fixture
def kept(open_quiet, clock, sweep):
    """A log whose store keeps everything."""
    log = open_quiet(segments=TEN, retention=NEVER, shipping={"delete_after_ms": DAY_S * 1000}, clock=clock)
    fill(log, "orders", 4)
    log.ship(20)
    return log


def test_the_owner_removes_what_was_replaced_once_readers_had_their_time(kept, root, clock, sweep):
    """Nobody else may ever compact this root again."""
    Compactor(root.store).rewrite((0, 3), now_us=clock.now_us())
    clock.advance(DAY_S - 1)
    sweep(kept)
    assert root.segments("orders") == [0, 0, 1, 2, 3]
    clock.advance(DAY_S)
    sweep(kept)
    assert root.segments("orders") == [0, 3]
    assert kept.reconcile(remote=True, deep=True).clean


def test_a_clock_that_is_wrong_for_a_moment_gives_readers_no_less_time(kept, root, clock, sweep):
    Compactor(root.store).rewrite((0, 3), now_us=clock.now_us())
    sweep(kept)
    clock.jump(400 * DAY_S)
    clock.advance(3_601)
    sweep(kept)
    assert root.segments("orders") == [0, 0, 1, 2, 3]


def test_a_lease_keeps_what_was_replaced(kept, root, clock, sweep):
    until = clock.now_us() + 3 * int(DAY_S) * 10**6
    lease = LeaseDocument(log=kept.id, reader="spark", until_us=until, needs={"orders": {"0": 1}})
    root.store.create(layout.lease_key("spark", 1), Body.of(documents.encode(lease)))
    Compactor(root.store).rewrite((0, 3), now_us=clock.now_us())
    clock.advance(2 * DAY_S)
    sweep(kept)
    assert root.segments("orders") == [0, 1, 2, 3]
    clock.advance(2 * DAY_S)
    sweep(kept)
    assert root.segments("orders") == [0, 3]


def test_nothing_is_swept_by_an_owner_that_was_overtaken(kept, root, clock, sweep, tmp_path):
    """The fence is asked before anything goes."""
    Compactor(root.store).rewrite((0, 3), now_us=clock.now_us())
    claim = documents.decode(root.store.get(layout.epoch_key(1)), layout.epoch_key(1), EpochDocument)
    other = msgspec.structs.replace(claim, epoch=2, purpose="restore", nonce="other", owner="f" * 32)
    root.store.create(layout.epoch_key(2), Body.of(documents.encode(other)))
    clock.advance(2 * DAY_S)
    with pytest.raises(Closed):
        sweep(kept)
    assert root.segments("orders") == [0, 0, 1, 2, 3]
