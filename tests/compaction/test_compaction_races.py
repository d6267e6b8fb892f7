"""Two compactors, lost replies, dead compactors, leases: one side or the other, and nothing in use goes."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest

import holdfast
from holdfast import Log, NotFound, Unavailable
from holdfast.clock import SystemClock
from holdfast.compaction import compactor
from holdfast.reader.lease import Lease
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import ReadOptions
from holdfast.results import CompactionReport
from holdfast.root.objects import documents
from holdfast.root.objects.documents import IntentDocument, RewriteDocument, SegmentDocument
from holdfast.root.rewrite_sweep import NOBODY, STALE_US, Grace, sweep
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.shared_stores import shared_store
from holdfast.store import layout
from holdfast.store.port import Body
from holdfast.store.store_settings import StoreSettings
from holdfast.testing import ManualClock
from tests.compaction.conftest import Compact, expected, files, payloads, ship
from tests.shipping.conftest import Root
from tests.shipping.flaky import Faults

pytestmark = pytest.mark.store

HOUR_US = 3_600_000_000
DAY_S = 86_400
REWRITES, INTENTS, SEGMENTS = "/_rewrites/", "/_intents/", "/segments/"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.repeated_create._CREATE_PAUSES_S", (0.001,) * 4)


class Running(Thread):
    """A compaction in a thread of its own."""

    def __init__(self, compact: Compact, **options: Any) -> None:
        super().__init__()
        self._compact, self._options = compact, options
        self.report: CompactionReport | None = None
        self.start()

    def run(self) -> None:
        self.report = self._compact(**self._options)

    def done(self) -> CompactionReport:
        self.join(30)
        assert self.report is not None
        return self.report


def number_of(root: Root, folder: str) -> int:
    return len(root.keys(f"topics/orders/0/{folder}"))


def swept(root: Root, now_us: int, *, delete_after_us: int = 0, leases: dict[tuple[str, int], int] | None = None):
    store = RootStore(root.store, RootTrust(None))
    grace = Grace(delete_after_us, 10 * HOUR_US)
    return sweep(store, store.log().log, "orders", 0, now_us, grace, leases or {})


def now() -> int:
    return SystemClock().now_us()


# -- replies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [INTENTS, SEGMENTS, REWRITES])
def test_a_lost_reply_is_no_loss(log: Log, root: Root, faults: Faults, compact: Compact, part: str):
    """The object is there, and is known by its nonce."""
    ship(log, 4)
    faults.lose(part)
    assert compact().files_after == 1
    assert payloads(root) == expected(12)
    assert (files(root), number_of(root, "_rewrites/"), number_of(root, "_intents/")) == (5, 1, 0)


@pytest.mark.parametrize("part", [INTENTS, SEGMENTS, REWRITES])
def test_a_store_that_stays_away_leaves_everything_as_it_was(
    log: Log, root: Root, faults: Faults, compact: Compact, part: str
):
    ship(log, 4)
    rule = faults.fail(part)
    with pytest.raises(Unavailable):
        compact()
    assert payloads(root) == expected(12)
    rule.end()
    assert compact().files_after == 1
    assert payloads(root) == expected(12)
    compact(delete_after_ms=0)
    assert (files(root), number_of(root, "_intents/")) == (1, 0), "what the first one left is gone"


def test_an_answer_that_never_came_counts_if_the_object_is_there(
    log: Log, root: Root, faults: Faults, compact: Compact
):
    """All replies are lost, and the compactor gives up: the swap has happened, and its files stay."""
    ship(log, 4)
    faults.lose(REWRITES, times=1)
    rule = faults.fail(REWRITES, verbs=("create", "get"))
    with pytest.raises(Unavailable):
        compact()
    rule.end()
    assert payloads(root) == expected(12)
    assert compact(delete_after_ms=0).removed_files == 4
    assert payloads(root) == expected(12)
    assert (files(root), number_of(root, "_intents/")) == (1, 0)


# -- two of them -------------------------------------------------------------------------------------------


def test_of_two_compactors_one_wins(log: Log, root: Root, faults: Faults, compact: Compact):
    """The other removes what it made, and nothing else."""
    ship(log, 6)
    gate = faults.hold(REWRITES, times=1)
    slow = Running(compact)
    assert gate.arrived.wait(20)
    assert compact().files_after == 1, "the second is faster"
    assert payloads(root) == expected(18)
    gate.open()
    assert slow.done().rewritten_files == 0
    assert payloads(root) == expected(18)
    assert (files(root), number_of(root, "_rewrites/"), number_of(root, "_intents/")) == (7, 1, 0)


def test_a_compaction_that_loses_goes_on_with_what_is_left(log: Log, root: Root, faults: Faults, compact: Compact):
    ship(log, 6)
    gate = faults.hold(REWRITES, times=1)
    slow = Running(compact)
    assert gate.arrived.wait(20)
    compact()
    ship(log, 4)
    gate.open()
    assert slow.done().files_after == 1
    assert payloads(root) == expected(30)


def test_a_loser_never_removes_files_of_the_winner(log: Log, root: Root, faults: Faults, compact: Compact):
    """Both rewrite the same rows in the same way: under one name, the loser would remove what is in use."""
    ship(log, 3)
    gate = faults.hold(SEGMENTS, times=1)
    slow = Running(compact)
    assert gate.arrived.wait(20)
    compact(delete_after_ms=0)
    assert compact(delete_after_ms=0).files_after == 1
    gate.open()
    slow.done()
    assert payloads(root) == expected(9)
    assert files(root) == 1


def test_a_source_that_goes_meanwhile_is_planned_again(log: Log, root: Root, faults: Faults, compact: Compact):
    """Another compaction replaced and removed the files between plan and work."""
    ship(log, 4)
    gate = faults.hold(INTENTS, times=1)
    slow = Running(compact)
    assert gate.arrived.wait(20)
    compact(delete_after_ms=0)
    compact(delete_after_ms=0)
    gate.open()
    assert slow.done().problems == ()
    assert payloads(root) == expected(12)
    assert (files(root), number_of(root, "_intents/")) == (1, 0)


def test_files_that_are_on_their_way_are_not_swept(log: Log, root: Root, faults: Faults, compact: Compact):
    """One compactor has uploaded its file and is about to swap; another one cleans up as early as it may."""
    ship(log, 3)
    compact()  # a closed number, and an intent that was left there
    leave_intent(root, number=0, nonce="a" * 16, begun_us=now())
    ship(log, 3)
    gate = faults.hold(REWRITES, times=1)
    slow = Running(compact)
    assert gate.arrived.wait(20)
    there = set(root.keys("topics/orders/0/segments/"))
    swept(root, now() + 1)
    assert there - set(root.keys("topics/orders/0/segments/")) == set(old_files(root)), "replaced ones only"
    gate.open()
    assert slow.done().files_after == 1
    assert payloads(root) == expected(18)


def old_files(root: Root) -> list[str]:
    return [one.key for one in root.manifest("orders")[:3] if isinstance(one, SegmentDocument)]


def leave_intent(root: Root, *, number: int, nonce: str, begun_us: int) -> None:
    intent = IntentDocument(
        log=root.manifest("orders")[0].log,
        topic="orders",
        partition=0,
        number=number,
        nonce=nonce,
        runs=((0, 3),),
        begun_us=begun_us,
        host="elsewhere",
        pid=1,
    )
    root.store.create(layout.intent_key("orders", 0, number, nonce), Body.of(documents.encode(intent)))


def leave_file(root: Root, number: int = 0) -> str:
    """A file that somebody uploaded for a rewrite that never was."""
    key = layout.segment_key("orders", 0, number, b"left behind".ljust(32))
    root.store.create(key, Body.of(b"left behind"))
    return key


# -- what the dead leave -----------------------------------------------------------------------------------


def test_files_of_a_dead_compactor_go_when_its_number_is_taken(log: Log, root: Root, compact: Compact):
    ship(log, 4)
    leave_intent(root, number=0, nonce="b" * 16, begun_us=now())
    left = leave_file(root)
    swept(root, now() + HOUR_US)
    assert root.store.head(left) is not None, "its intent is open: it may still be working"
    compact(delete_after_ms=86_400_000)
    assert root.store.head(left) is not None, "somebody may still be uploading"
    compact(delete_after_ms=0)
    assert root.store.head(left) is None
    assert (files(root), number_of(root, "_intents/")) == (1, 0)
    assert payloads(root) == expected(12)


def test_an_intent_that_is_open_for_long_is_closed_by_an_empty_rewrite(log: Log, root: Root, compact: Compact):
    """A compaction that wakes up later finds the number taken, by nobody; so the files can go."""
    ship(log, 1)
    leave_intent(root, number=0, nonce="b" * 16, begun_us=now())
    left = leave_file(root)
    swept(root, now() + STALE_US // 2)
    assert number_of(root, "_rewrites/") == 0
    swept(root, now() + 2 * STALE_US)
    key = layout.rewrite_key("orders", 0, 0)
    closing = documents.decode(root.store.get(key), key, RewriteDocument)
    assert (closing.nonce, closing.outputs) == (NOBODY, ())
    assert root.store.head(left) is None
    assert number_of(root, "_intents/") == 0
    assert payloads(root) == expected(3)
    ship(log, 4)
    assert compact().files_after == 1
    assert payloads(root) == expected(15)


def test_a_compaction_that_wakes_up_after_its_intent_was_closed_has_lost(
    log: Log, root: Root, faults: Faults, compact: Compact
):
    """Its files were removed meanwhile: a swap now would name files that are gone."""
    ship(log, 4)
    gate = faults.hold(REWRITES, times=1)
    slow = Running(compact)
    assert gate.arrived.wait(20)
    swept(root, now() + 2 * STALE_US)
    assert files(root) == 4, "its file is gone"
    assert payloads(root) == expected(12)
    gate.open()
    assert slow.done().files_after == 1, "it has begun again"
    assert payloads(root) == expected(12)


def test_a_cleaning_that_knows_no_intents_stops_the_swap(
    log: Log, root: Root, compact: Compact, monkeypatch: pytest.MonkeyPatch
):
    """A bucket's lifecycle, or the VACUUM of another table format, removed a file before it was in use."""
    ship(log, 4)
    upload = compactor.upload

    def swept_away(store, output, path) -> None:
        upload(store, output, path)
        root.store.delete([output.segment.key])

    monkeypatch.setattr(compactor, "upload", swept_away)
    with pytest.raises(Unavailable, match="removed before it was in use"):
        compact()
    assert number_of(root, "_rewrites/") == 0
    assert payloads(root) == expected(12)


def test_no_intent_reaches_what_is_not_settled(log: Log, root: Root, compact: Compact):
    """The owner uploads a segment before its manifest object: a forged intent must not make others remove it."""
    ship(log, 3)
    compact()
    on_its_way = leave_file(root, number=3)
    intent = IntentDocument(
        log=root.manifest("orders")[0].log,
        topic="orders",
        partition=0,
        number=0,
        nonce="c" * 16,
        runs=((3, 4),),
        begun_us=0,
        host="",
        pid=0,
    )
    root.store.create(layout.intent_key("orders", 0, 0, "c" * 16), Body.of(documents.encode(intent)))
    compact(delete_after_ms=0)
    assert root.store.head(on_its_way) is not None


def test_an_intent_that_makes_no_sense_stops_the_cleaning_alone(log: Log, root: Root, compact: Compact):
    """Files of its rewrite may be on their way: nothing goes, and that is reported; compaction itself goes on."""
    ship(log, 3)
    key = layout.intent_key("orders", 0, 7, "d" * 16)
    root.store.create(key, Body.of(b"nonsense"))
    report = compact(delete_after_ms=0)
    assert report.files_after == 1
    assert key in report.problems[0]
    assert files(root) == 4
    root.store.delete([key])
    assert compact(delete_after_ms=0).removed_files == 3


# -- what readers need -------------------------------------------------------------------------------------


def test_a_lease_keeps_replaced_files(log: Log, root: Root, compact: Compact):
    ship(log, 4)
    lease = Lease(root.store, root.manifest("orders")[0].log, "nightly", 3600, SystemClock())
    lease.renew({("orders", 0): 2})
    compact()
    assert compact(delete_after_ms=0).removed_files == 2, "those before what the reader needs"
    assert sorted(root.segments("orders")) == [0, 2, 3]
    lease.renew({("orders", 0): 4})
    assert compact(delete_after_ms=0).removed_files == 2
    assert payloads(root) == expected(12)


def test_a_lease_does_not_keep_them_for_ever(log: Log, root: Root, compact: Compact):
    ship(log, 4)
    lease = Lease(root.store, root.manifest("orders")[0].log, "nightly", 3600, SystemClock())
    lease.renew({("orders", 0): 0})
    compact()
    assert compact(delete_after_ms=0, lease_delay_max_ms=86_400_000).removed_files == 0
    assert compact(delete_after_ms=0, lease_delay_max_ms=0).removed_files == 4


def test_a_sweep_without_rewrites_costs_two_requests(log: Log, root: Root, faults: Faults):
    ship(log, 4)
    store = RootStore(shared_store(root.url, StoreSettings(), SystemClock()), RootTrust(None))
    log_id = store.log().log
    before = len(faults.seen)
    sweep(store, log_id, "orders", 0, now(), Grace(0, 0), {})
    assert [request.verb for request in faults.seen[before:]] == ["list", "list"]


def test_planning_again_costs_one_request_more_per_partition(log: Log, root: Root, faults: Faults, compact: Compact):
    ship(log, 4)
    compact()
    settled = SettledRoot.open(root.url, ReadOptions(topics=("orders",)))
    settled.files(("orders", 0))
    for ask in (settled.segments, settled.files):
        before = len(faults.seen)
        ask(("orders", 0))
        assert len(faults.seen) - before == (1 if ask == settled.segments else 2)


def test_a_reader_that_looked_at_the_manifest_first_would_be_wrong(
    log: Log, root: Root, faults: Faults, compact: Compact
):
    """A rewrite may speak of segments that were settled after somebody read the manifest: so rewrites come first."""
    from holdfast.reader.open_root import SettledRoot
    from holdfast.reader.read_options import ReadOptions

    ship(log, 2)
    settled = SettledRoot.open(root.url, ReadOptions(topics=("orders",)))
    settled.files(("orders", 0))
    gate = faults.hold("/_manifest/", verbs=("get", "list"), times=1)
    found: list[int] = []
    reader = Thread(target=lambda: found.append(len(settled.files(("orders", 0)))))
    reader.start()
    assert gate.arrived.wait(20)
    ship(log, 2)
    compact()
    gate.open()
    reader.join(30)
    assert found == [4], "the segments, though a file has taken their place since"
    assert len(settled.files(("orders", 0))) == 1


def test_a_file_of_an_earlier_compaction_may_be_replaced_under_a_read_too(log: Log, root: Root, compact: Compact):
    ship(log, 3)
    compact()
    batches = holdfast.read(root.url, "orders").batches()
    ship(log, 3)
    compact()
    assert payloads(root) == expected(18)
    compact(delete_after_ms=0)
    with pytest.raises(NotFound, match="taken the place"):
        list(batches)


# -- clocks that are wrong ---------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of compactions."""
    clock = ManualClock()
    monkeypatch.setattr("holdfast.compaction.compact_root.SystemClock", lambda: clock)
    return clock


def test_a_clock_that_nothing_supports_removes_nothing(open_shipped, root: Root, compact: Compact, clock, lines):
    """Not at 400 days ahead, and not after a week without records; records of any topic support it a day later."""
    log = open_shipped(clock=clock)
    ship(log, 4)
    compact()
    clock.jump(400 * DAY_S)
    assert (compact().removed_files, len(lines("clock_jump"))) == (0, 1)
    clock.jump(-400 * DAY_S)
    assert (compact().removed_files, len(lines("clock_jump"))) == (0, 1)
    clock.advance(8 * DAY_S)
    ship(log, 1, topic="others")
    assert compact().removed_files == 0
    clock.advance(DAY_S)
    assert compact().removed_files == 4
    assert payloads(root) == expected(12)


def test_a_caller_may_say_that_the_clock_is_right(open_shipped, compact: Compact, clock):
    ship(open_shipped(clock=clock), 4)
    compact()
    clock.jump(400 * DAY_S)
    assert compact(clock_jump_max_ms=1e13).removed_files == 4


def test_a_wrong_clock_ends_no_lease(open_shipped, root: Root, compact: Compact, clock):
    """Also where all that was replaced may go at once."""
    ship(open_shipped(clock=clock), 4)
    lease = Lease(root.store, root.manifest("orders")[0].log, "nightly", 3600, clock)
    lease.renew({("orders", 0): 0})
    compact()
    clock.jump(400 * DAY_S)
    assert compact(delete_after_ms=0).removed_files == 0
    lease.end()
    assert compact(delete_after_ms=0).removed_files == 4
