"""What a pass promises on either side, over the log's own files and over the objects of its store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from holdfast import Invalid, Log, Unavailable
from holdfast.reconcile.reconcile_pass import Reconciler
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.store import layout
from holdfast.store.port import Body
from tests.segments.planting import TEN, after_judging, files, fill, folder, unreadable
from tests.shipping.conftest import Root

pytestmark = pytest.mark.store

FOLDER = layout.segments_folder("orders", 0)


class Compared:
    """A log with sealed and settled segments, compared with its own files or with its store."""

    def __init__(self, log: Log, root: Root, where: str) -> None:
        self.log, self.root, self.where = log, root, where
        self._paths = files(log, "orders")

    def reconcile(self, **options: Any) -> ReconcileReport:
        return self.log.reconcile(remote=self.where == "store", **options)

    @property
    def reconciler(self) -> Reconciler:
        return self.log._store.reconciler() if self.where == "store" else self.log._maintenance._reconciler

    def lose(self, number: int = 1) -> Callable[[], object]:
        """Take a segment away, such that a repair finds it again; returns what puts it back."""
        path, key = self._paths[number], f"{FOLDER}/{self._paths[number].name}"
        if self.where == "store":
            self.root.store.delete([key])
            return lambda: self.root.store.create(key, Body.of(path.read_bytes()))
        aside = self.log.path / "quarantine" / str(number)
        aside.parent.mkdir(exist_ok=True)
        path.rename(aside)
        return lambda: aside.rename(path)

    def plant(self) -> int:
        """Damage of many kinds; returns how much."""
        self.lose(3)
        keys = [f"{FOLDER}/{self._paths[0].name}", f"{FOLDER}/notes.txt"]
        keys += [layout.manifest_key("orders", 1, 1), layout.topic_key("orders", 1)] * (self.where == "store")
        keys += ["topics/ghost/notes.txt", "notes.txt"] * (self.where == "log")
        for key in keys:
            path = self.log.path / "segments" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            self.root.replace(key, b"what is this") if self.where == "store" else path.write_bytes(b"what is this")
        return 1 + len(keys)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """A pass fails in the middle, meanwhile."""
        if self.where == "store":
            self.root.faults.fail("/segments/", times=1)
        with unreadable(folder(self.log, "orders")) if self.where == "log" else nullcontext():
            yield


@pytest.fixture(params=["log", "store"])
def side(request: pytest.FixtureRequest, open_shipped: Callable[..., Log], root: Root) -> Compared:
    log = open_shipped(segments=TEN)
    log.topic("orders", partitions=2)
    fill(log, "orders", 4)
    fill(log, "orders", 2, partition=1)
    log.ship(20)
    return Compared(log, root, request.param)


def test_a_missing_segment_is_found_by_every_pass_and_put_back_by_one_that_repairs(side):
    side.lose()
    for deep in (False, True):
        report = side.reconcile(deep=deep)
        assert [(found.kind, found.number) for found in report.findings] == [("missing", 1)]
        assert (report.repairs, report.mode, report.deep, report.where) == ((), "report", deep, side.where)
    report = side.reconcile(fix=True, deep=True)
    assert (report.findings, [repair.action for repair in report.repairs]) == ((), ["restored"])
    assert side.reconcile(deep=True).clean


# -- units ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_unit_after_unit_gives_the_same_as_one_pass_whatever_the_size_of_units(side, deep):
    count = side.plant()
    whole = side.reconcile(deep=deep)
    assert len(whole.findings) == count
    for size in (1, 2, 1000):
        side.reconciler.unit_segments = size
        reports = [side.reconcile(deep=deep, limit=1)]
        while not reports[-1].complete:
            reports.append(side.reconcile(deep=deep, limit=1))
        assert len(reports) > 6 // size
        report = reports[-1]
        assert report.findings == whole.findings
        assert (report.segments, report.files, report.in_flight) == (whole.segments, whole.files, whole.in_flight)
        assert (report.bytes_expected, report.bytes_actual) == (whole.bytes_expected, whole.bytes_actual)


def test_an_unfinished_pass_says_so_and_is_not_published(side):
    report = side.reconcile(limit=1)
    assert (report.complete, report.completed_us) == (False, None)
    assert side.reconciler.last is None


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_must_be_above_zero(side, limit):
    with pytest.raises(Invalid):
        side.reconcile(limit=limit)


# -- who repairs ----------------------------------------------------------------------------------------------


def test_of_two_passes_one_repairs_and_the_other_reports_and_says_so(side):
    side.lose()
    first = side.reconcile(fix=True, limit=1)
    assert (first.mode, first.fixes_skipped) == ("fix", None)
    second = side.reconcile(fix=True, deep=True)
    assert (second.mode, second.fixes_skipped) == ("report", "another pass is repairing at this moment")
    assert second.repairs == ()
    assert len(second.findings) + len(first.repairs) == 1  # unless the first was quicker


def test_two_passes_at_the_same_time_repair_once(side):
    for number in range(4):
        side.lose(number)
    together = threading.Barrier(2)
    reports: list[ReconcileReport] = []

    def run(deep: bool) -> None:
        together.wait(30)
        reports.append(side.reconcile(fix=True, deep=deep))

    threads = [threading.Thread(target=run, args=(deep,)) for deep in (False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    restored = [repair.path for report in reports for repair in report.repairs if repair.action == "restored"]
    assert len(restored) == len(set(restored)) == 4
    assert side.reconcile(deep=True).clean


def test_a_pass_that_only_reports_neither_needs_nor_takes_the_right_to_repair(side):
    side.reconciler.begin(fix=False, deep=False).step()
    assert side.reconcile(fix=True, limit=1).mode == "fix"
    report = side.reconcile()
    assert (report.complete, report.mode, report.fixes_skipped) == (True, "report", None)


def test_the_right_to_repair_is_given_back_on_completion(side):
    assert side.reconcile(fix=True).mode == "fix"
    while not side.reconcile(fix=True, limit=1).complete:
        assert side.reconciler.fixing.locked()
    assert not side.reconciler.fixing.locked()


def test_the_right_to_repair_is_given_back_on_an_error(side):
    side.lose()
    with side.failing(), pytest.raises(Unavailable):
        side.reconcile(fix=True)
    report = side.reconcile(fix=True)
    assert (report.mode, report.findings, len(report.repairs)) == ("fix", (), 1)


def test_a_handle_that_only_looks_repairs_nothing(side, open_shipped):
    observer = Compared(open_shipped(read_only=True), side.root, side.where)
    with pytest.raises(Invalid, match="reading only"):
        observer.reconcile(fix=True)
    assert observer.reconcile().clean


# -- races ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fix", [False, True])
def test_a_segment_that_came_back_meanwhile_is_in_flight_and_no_finding(side, monkeypatch, fix):
    after_judging(monkeypatch, side.lose())
    report = side.reconcile(fix=fix)
    assert (report.findings, report.repairs, report.in_flight) == ((), (), 1)


def test_what_is_found_is_logged_without_payloads(side, caplog):
    side.lose()
    side.reconcile(deep=True)
    (line,) = [record for record in caplog.records if getattr(record, "action", "") == "reconcile"]
    assert line.findings == {"missing": 1}
    assert "orders" not in caplog.text
