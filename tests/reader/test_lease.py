"""A reader's lease: what it says, when it is renewed, and that retention on the store waits for it."""

from __future__ import annotations

import pytest

from holdfast.reader.lease import Lease
from holdfast.root.numbered_objects import numbered
from holdfast.root.objects import documents
from holdfast.root.objects.documents import LeaseDocument
from holdfast.store import layout
from holdfast.store.memory import MemoryStore
from holdfast.store.port import AlreadyExists, Body
from holdfast.testing.manual_clock import ManualClock
from tests.reader.manifests import LOG
from tests.segments.planting import TEN, fill

HOUR_S, DAY_S = 3600, 86_400
FOLDER = f"{layout.LEASES}nightly/"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore("leases", clock)


@pytest.fixture
def lease(store: MemoryStore, clock: ManualClock) -> Lease:
    return Lease(store, LOG, "nightly", HOUR_S, clock)


def standing(store: MemoryStore) -> dict[int, LeaseDocument]:
    """Leases of the reader, by number."""
    keys = numbered(store, FOLDER)
    return {layout.parse_number(key) or 0: documents.decode(store.get(key), key, LeaseDocument) for key in keys}


@pytest.mark.unit
def test_a_lease_says_what_is_needed_and_until_when(lease, store, clock):
    lease.renew({("orders", 10): 3, ("orders", 2): 5, ("a", 0): 0})
    (document,) = standing(store).values()
    assert document.needs == {"a": {"0": 0}, "orders": {"2": 5, "10": 3}}
    assert (document.log, document.reader) == (LOG, "nightly")
    assert document.until_us == clock.now_us() + HOUR_S * 10**6


@pytest.mark.unit
def test_renewing_writes_the_next_number_and_leaves_only_that(lease, store):
    for segment in range(3):
        lease.renew({("orders", 0): segment})
    assert {number: document.needs for number, document in standing(store).items()} == {2: {"orders": {"0": 2}}}


@pytest.mark.unit
def test_another_run_of_the_same_reader_goes_on_with_the_numbers(lease, store, clock):
    lease.renew({("orders", 0): 1})
    Lease(store, LOG, "nightly", HOUR_S, clock).renew({("orders", 0): 2})
    assert list(standing(store)) == [1]


@pytest.mark.unit
def test_a_lease_is_due_at_first_and_then_after_a_third_of_its_time(lease, clock):
    """So that two renewals may fail before it runs out."""
    assert lease.is_due()
    lease.renew({})
    assert not lease.is_due()
    clock.advance(HOUR_S / 3 - 1)
    assert not lease.is_due()
    clock.advance(1)
    assert lease.is_due()


@pytest.mark.unit
def test_the_old_lease_stands_until_the_new_one_does(lease, store, monkeypatch):
    """At every moment there is one: nothing that is needed is free to go in between."""
    lease.renew({("orders", 0): 1})
    there: list[int] = []
    delete = store.delete

    def looked(keys: list[str]) -> None:
        there.append(len(standing(store)))
        delete(keys)

    monkeypatch.setattr(store, "delete", looked)
    lease.renew({("orders", 0): 2})
    assert there == [2]


@pytest.mark.unit
def test_a_number_that_is_taken_meanwhile_leaves_the_lease_due(lease, store, monkeypatch):
    """A twin was faster; nothing is removed, and the next trigger looks again."""
    lease.renew({("orders", 0): 1})
    clock_due = lease._due

    def taken(key: str, body: Body) -> None:
        raise AlreadyExists(key)

    monkeypatch.setattr(store, "create", taken)
    lease.renew({("orders", 0): 2})
    assert (list(standing(store)), lease._due) == ([0], clock_due)


@pytest.mark.unit
def test_a_lease_that_is_given_up_is_gone(lease, store):
    lease.renew({("orders", 0): 1})
    lease.end()
    assert standing(store) == {}
    assert lease.is_due()


@pytest.mark.unit
def test_readers_do_not_touch_each_others_leases(store, clock):
    one, other = (Lease(store, LOG, name, HOUR_S, clock) for name in ("nightly", "hourly"))
    one.renew({("orders", 0): 1})
    other.renew({("orders", 0): 5})
    other.end()
    assert [document.needs for document in standing(store).values()] == [{"orders": {"0": 1}}]


@pytest.mark.store
def test_retention_on_the_store_waits_for_what_a_lease_needs(open_shipped, shipped_store, sweep):
    clock = ManualClock()
    log = open_shipped(
        segments=TEN,
        retention={"interval_ms": 3_600_000},
        shipping={"store_bytes_max": 1, "delete_after_ms": 0},
        clock=clock,
    )
    fill(log, "orders", 4)
    log.ship(20)
    lease = Lease(shipped_store, log.id, "nightly", 10 * DAY_S, clock)
    lease.renew({("orders", 0): 2})
    for _ in range(3):
        clock.advance(DAY_S)
        sweep(log)
    assert len(list(shipped_store.list("topics/orders/0/segments/"))) == 2
    lease.end()
    for _ in range(3):
        clock.advance(DAY_S)
        sweep(log)
    assert len(list(shipped_store.list("topics/orders/0/segments/"))) == 1
