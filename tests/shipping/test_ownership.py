"""Whose root it is, and who may go on: stores left out, exchanged and confused; copies, rollbacks and zombies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Closed, Corrupt, Invalid, Log
from holdfast.results import Unshipped
from holdfast.root.objects import documents
from holdfast.root.objects.documents import EpochDocument, LogDocument
from holdfast.store import layout
from holdfast.store.port import Body
from tests.segments.planting import TEN, fill, offsets, wait_for
from tests.shipping.conftest import Root, mark
from tests.shipping.flaky import Faults

pytestmark = pytest.mark.store


@pytest.fixture
def other(make_root: Callable[..., Root]) -> Root:
    """Another root."""
    return make_root()


def copy(log: Log, name: str) -> Path:
    """A copy of a log's directory, as a backup or a cloned machine would have it; the log may be open, and idle."""
    target = log.path.with_name(name)
    shutil.copytree(log.path, target, ignore=shutil.ignore_patterns("SOCKET"))
    return target


def firsts(root: Root) -> list[int]:
    return [entry.first for batch in root.batches() for entry in batch.entries]


# -- which store --------------------------------------------------------------------------------------------


def test_the_root_says_whose_it_is(open_shipped, root):
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    document = documents.decode(root.store.get(layout.LOG), layout.LOG, LogDocument)
    assert document.log == log.id


def test_a_store_that_is_left_out_is_missed(open_shipped, open_log, lines):
    """The log opens with a warning, marks stay, and retention keeps what the store does not have."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    log.close()
    log = open_log(segments=TEN, retention={"records_max": 1, "interval_ms": 3_600_000})
    assert len(lines("store_left_out")) == 1
    assert "open it with store=" in lines("store_left_out")[0]
    topic = fill(log, "orders", 2)
    new = fill(log, "new", 2)
    assert (mark(log).settled, mark(log).shipped) == (10, 10)
    assert (mark(log, "new").settled, mark(log, "new").shipped) == (0, 0)
    log.retain()
    assert offsets(topic) == list(range(10, 30))
    assert offsets(new) == list(range(20))
    with pytest.raises(Invalid, match="ships to no store"):
        topic.append(b"no", durability="shipped")


def test_a_store_that_was_left_out_catches_up(open_shipped, open_log, root):
    log = open_shipped(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    log.close()
    log = open_log(segments=TEN)
    fill(log, "orders", 2)
    fill(log, "new", 1).append(b"x")
    log.close()
    log = open_shipped(segments=TEN)
    log.ship(20)
    log.topic("new").append(b"x", durability="shipped")
    assert (mark(log).settled, mark(log, "new").shipped) == (30, 12)
    assert root.segments("orders") == [0, 1, 2]


def test_another_store_is_refused(open_shipped, other):
    """Before anything is written there; the log's own one is still its own."""
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")
    log.close()
    with pytest.raises(Invalid, match=f"not to {other.url}"):
        open_shipped(to=other)
    assert other.keys() == []
    log = open_shipped()
    log.topic("orders").append(b"x", durability="shipped")


def test_a_log_may_move_to_another_store_with_all_it_has(open_shipped, root, other):
    """Sealed and tail; the old root stays as it was, and the log does not go back by itself."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 2).append(b"x", durability="shipped")
    log.ship(20)
    log.close()
    before = root.objects()
    log = open_shipped(to=other, move=True, segments=TEN)
    log.ship(20)
    log.topic("orders").append(b"x", durability="shipped")
    assert (mark(log).settled, mark(log).shipped) == (20, 22)
    assert other.segments("orders") == [0, 1]
    assert sum(entry.count for batch in other.batches() for entry in batch.entries) == 2
    log.close()
    assert root.objects() == before
    log = open_shipped(to=other, segments=TEN)
    assert mark(log).settled == 20
    log.close()
    with pytest.raises(Invalid, match="is shipped to"):
        open_shipped(segments=TEN)


def test_another_logs_root_is_refused_at_open(open_shipped, root):
    """Nothing is written there; the directory is let go and can be opened again."""
    first = open_shipped("first")
    first.topic("orders").append(b"x", durability="shipped")
    before = root.objects()
    with pytest.raises(Invalid, match="belongs to another log"):
        open_shipped("second")
    assert root.objects() == before
    first.topic("orders").append(b"x", durability="shipped")


def test_a_root_that_was_refused_is_not_remembered(open_shipped, other):
    """A mistaken address must not bind the log to it: the right one is taken at the next open."""
    open_shipped("first").topic("orders").append(b"x", durability="shipped")
    with pytest.raises(Invalid, match="belongs to another log"):
        open_shipped("second")
    log = open_shipped("second", to=other)
    log.topic("orders").append(b"x", durability="shipped")


def test_another_logs_root_is_refused_when_the_store_is_back(open_shipped, root):
    """It was away at open: the log opened, nothing is written there, and those who wait learn of it. Appends go on."""
    first = open_shipped("first")
    first.topic("orders").append(b"x", durability="shipped")
    first.close()
    before = root.objects()
    root.faults.away()
    log = open_shipped("second", segments=TEN)
    topic = log.topic("orders")
    ticket = topic.submit(b"kept")
    root.faults.heal()
    with pytest.raises(Invalid, match="belongs to another log"):
        ticket.shipped(20)
    topic.append(b"goes on")
    log.seal()
    with pytest.raises(Invalid, match="belongs to another log"):
        log.ship(20)
    assert "belongs to another log" in (log.stats().shipping.ended or "")
    assert root.objects() == before
    assert log.unshipped() == (Unshipped("orders", 0, 0, 2),)


def test_claims_are_dense_and_say_who_made_them(open_shipped, root):
    for _ in range(3):
        log = open_shipped()
        log.topic("orders").append(b"x", durability="shipped")
        log.close()
    keys = root.keys(layout.EPOCHS)
    claims = [documents.decode(root.store.get(key), key, EpochDocument) for key in keys]
    assert [claim.epoch for claim in claims] == [1, 2, 3]
    assert {claim.purpose for claim in claims} == {"open"}
    assert len({claim.nonce for claim in claims}) == 3


def overtake(root: Root, log: Log, owner: str) -> None:
    """Claim the first number for somebody, while the log is about to."""
    claim = EpochDocument(log=log.id, epoch=1, purpose="open", owner=owner, nonce="0", claimed_us=0, host="h", pid=1)
    root.store.create(layout.epoch_key(1), Body.of(documents.encode(claim)))


def test_a_claim_that_the_same_owner_was_faster_with_is_made_above_it(open_shipped, faults, root):
    """Its process before this one, say, whose request arrived late."""
    log = open_shipped()
    gate = faults.hold("epochs/", times=1)
    ticket = log.topic("orders").submit(b"x")
    assert gate.arrived.wait(20)
    overtake(root, log, log._journal.shipping.owner.hex())
    gate.open()
    ticket.shipped(20)
    assert log.stats().shipping.epoch == 2


def test_a_claim_that_another_owner_was_faster_with_ends_shipping(open_shipped, faults, root):
    """Only a restore takes a log over; an owner that finds another one's claim is too late."""
    log = open_shipped()
    gate = faults.hold("epochs/", times=1)
    ticket = log.topic("orders").submit(b"x")
    assert gate.arrived.wait(20)
    overtake(root, log, "00" * 16)
    gate.open()
    with pytest.raises(Closed) as caught:
        ticket.shipped(20)
    assert caught.value.reason == "fenced"
    assert root.numbers(layout.EPOCHS) == [1]
    assert root.batches() == []


# -- rolled back --------------------------------------------------------------------------------------------


def rolled_back(open_shipped: Callable[..., Log], **options: object) -> Path:
    """A log whose directory was replaced by an older copy of itself."""
    log = open_shipped(**options)
    log.topic("orders").append(b"kept", durability="shipped")
    log.close()
    old = copy(log, "old")
    log = open_shipped(**options)
    for _ in range(10):
        log.topic("orders").append(b"lost", durability="shipped")
    log.close()
    shutil.rmtree(log.path)
    old.rename(log.path)
    return log.path


def test_a_rolled_back_directory_is_noticed_before_anything_is_overwritten(open_shipped, root):
    """Offsets would be given away a second time: appends are refused, with the way out in the hint."""
    rolled_back(open_shipped)
    before = root.objects()
    log = open_shipped()
    with pytest.raises(Corrupt, match="rolled back"):
        log.topic("orders").submit(b"second").shipped(20)
    with pytest.raises(Corrupt, match="rolled back") as caught:
        log.topic("orders").append(b"third")
    assert "restore" in caught.value.hint
    log.close()
    assert {key: data for key, data in root.objects().items() if key in before} == before
    assert firsts(root) == list(range(11))


def test_a_rolled_back_directory_is_noticed_though_all_batches_were_removed(open_shipped, root):
    """The floor tells."""
    log = open_shipped(segments=TEN)
    log.topic("orders").append(b"0", durability="shipped")
    log.close()
    old = copy(log, "old")
    log = open_shipped(segments=TEN)
    log.topic("orders").append_batch([b"%d" % i for i in range(1, 10)])
    log.topic("orders").append(b"10", durability="shipped")
    log.seal()
    log.ship(20)
    log.close()
    assert root.batches() == []
    shutil.rmtree(log.path)
    old.rename(log.path)
    log = open_shipped(segments=TEN)
    with pytest.raises(Corrupt, match="rolled back"):
        log.topic("orders").submit(b"again").shipped(20)
    with pytest.raises(Corrupt, match="rolled back"):
        log.topic("orders").append(b"again")


def test_a_rolled_back_directory_is_noticed_though_it_went_on_while_the_store_was_away(open_shipped, root):
    """It has more commits by then than the store; they are others under the same numbers, and do not count."""
    rolled_back(open_shipped)
    before = root.objects()
    root.faults.away()
    log = open_shipped()
    tickets = [log.topic("orders").submit(b"other") for _ in range(20)]
    tickets[-1].result()
    for _ in range(15):
        log.topic("orders").append(b"one by one")
    root.faults.heal()
    with pytest.raises(Corrupt):
        tickets[0].shipped(20)
    assert mark(log).shipped == 1
    with pytest.raises(Corrupt):
        log.topic("orders").append(b"no")
    log.close()
    assert {key: data for key, data in root.objects().items() if key in before} == before


def test_without_commit_batches_a_rolled_back_directory_overwrites_nothing(open_shipped, root):
    """Its segment finds its slot taken by another one."""
    only = {"commit_batches": False}
    log = open_shipped(segments=TEN, shipping=only)
    fill(log, "orders", 1)
    log.ship(20)
    log.close()
    old = copy(log, "old")
    log = open_shipped(segments=TEN, shipping=only)
    fill(log, "orders", 1)
    log.ship(20)
    log.close()
    shutil.rmtree(log.path)
    old.rename(log.path)
    before = root.objects()
    log = open_shipped(segments=TEN, shipping=only)
    topic = log.topic("orders")
    topic.append_batch([b"x"] * 10)
    topic.wait_sealed(20, 20)
    with pytest.raises(Corrupt):
        log.ship(20)
    assert mark(log).settled == 10
    assert {key: data for key, data in root.objects().items() if key in before} == before


# -- two copies ---------------------------------------------------------------------------------------------


def test_of_two_copies_the_one_that_claims_later_goes_on_and_the_other_is_fenced(open_shipped, root):
    """Its appends are refused, what it did not ship is listed and stays readable, those who wait learn of it."""
    first = open_shipped("first")
    first.topic("orders").append(b"both", durability="shipped")
    first.flush()
    wait_for(lambda: first._store.shipper._journal.shipping.shipped_seq == 1)
    copy(first, "second")
    second = open_shipped("second")
    second.topic("orders").append(b"second", durability="shipped")
    events = first.subscribe()
    ticket = first.topic("orders").submit(b"stranded")
    with pytest.raises(Closed) as caught:
        ticket.shipped(20)
    assert caught.value.reason == "fenced"
    with pytest.raises(Closed) as caught:
        first.topic("orders").append(b"no")
    assert caught.value.reason == "fenced"
    assert first.unshipped() == (Unshipped("orders", 0, 1, 1),)
    assert [record.payload for record in first.topic("orders").read()] == [b"both", b"stranded"]
    assert events.get(20).kind == "accepted"
    with pytest.raises(Closed) as caught:
        events.get(20)
    assert caught.value.reason == "fenced"
    second.topic("orders").append(b"goes on", durability="shipped")
    assert mark(second).shipped == 3
    assert first.stats().shipping.ended is not None


def test_a_fenced_log_cannot_settle_either(open_shipped, root):
    """No commit batch is under way; its segment arrives and does not count, and its slot stays free."""
    first = open_shipped("first", segments=TEN)
    first.topic("orders").append_batch([b"x"] * 5, durability="shipped")
    copy(first, "second")
    second = open_shipped("second", segments=TEN)
    second.topic("other").append(b"x", durability="shipped")
    first.seal()
    with pytest.raises(Closed) as caught:
        first.ship(20)
    assert caught.value.reason == "fenced"
    assert mark(first).settled == 0


def test_a_writer_that_slept_through_a_takeover_and_its_tidying_is_fenced(open_shipped, root):
    """The batches that it knew are gone, floors stand in their place; claims are never removed."""
    first = open_shipped("first", segments=TEN)
    first.topic("orders").append_batch([b"%d" % i for i in range(5)], durability="shipped")
    copy(first, "second")
    second = open_shipped("second", segments=TEN)
    second.topic("orders").append_batch([b"%d" % i for i in range(5, 10)], durability="shipped")
    fill(second, "orders", 3)
    second.ship(20)
    second.close()
    assert root.batches() == []
    before = root.objects()
    ticket = first.topic("orders").submit(b"stranded")
    with pytest.raises(Closed) as caught:
        ticket.shipped(20)
    assert caught.value.reason == "fenced"
    assert mark(first).shipped == 5
    assert {key: data for key, data in root.objects().items() if key in before} == before


def test_what_a_fenced_writer_left_behind_does_not_count_for_its_successor(open_shipped, root):
    """Its batches arrived after the takeover and were never acknowledged: the owner's next open passes them over."""
    first, slow = open_shipped("first"), root.faults
    first.topic("orders").append(b"both", durability="shipped")
    copy(first, "second")
    root.faults = Faults()
    slow.away()
    for _ in range(5):
        first.topic("orders").append(b"zombie")
    second = open_shipped("second")
    second.topic("orders").append(b"second", durability="shipped")
    question = slow.hold("epochs/", verbs=["head"])
    slow.back()
    wait_for(lambda: max(batch.last_seq for batch in root.batches()) == 6)
    question.open()
    with pytest.raises(Closed):
        first.topic("orders").submit(b"zombie").shipped(20)
    second.close()
    second = open_shipped("second")
    second.topic("orders").append(b"goes on", durability="shipped")
    assert mark(second).shipped == 3


@pytest.mark.parametrize("sealed", [False, True])
def test_of_two_copies_that_both_went_on_only_the_first_to_ship_does(open_shipped, root, sealed):
    """Both have a record under the same number; the one on the store counts, and the other is never taken for it."""
    log = open_shipped("first", segments=TEN)
    log.topic("orders").append(b"both", durability="shipped")
    log.close()
    copy(log, "second")
    first, second = open_shipped("first", segments=TEN), open_shipped("second", segments=TEN)
    first.topic("orders").append(b"first", durability="shipped")
    ticket = second.topic("orders").submit(b"second")
    if sealed:
        ticket.result()
        second.seal()
    with pytest.raises((Corrupt, Closed)):
        ticket.shipped(20)
    assert second.unshipped() == (Unshipped("orders", 0, 1, 1),)
    with pytest.raises((Corrupt, Closed)):
        second.topic("orders").append(b"no")
    first.topic("orders").append(b"goes on", durability="shipped")
    assert mark(first).shipped == 3


def test_a_store_that_overwrites_is_refused(open_shipped, root, monkeypatch):
    """A store that ignores create-only cannot tell two owners apart: nothing is shipped there."""
    store = type(root.store)
    monkeypatch.setattr(store, "create", lambda self, key, body: None)
    log = open_shipped()
    log.topic("orders").append(b"durable here")
    with pytest.raises(Invalid, match="overwrites"):
        log.topic("orders").append(b"not there", durability="shipped")
