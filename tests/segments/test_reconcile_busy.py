"""Reconciliation beside a busy log: writers, seals, retention and repairs at full speed, and not one false finding.

The claim is not that the log is clean after it came to rest, but that no pass, of whatever kind and from whatever
process, reports anything at any moment; and that real damage in the middle of all that is found by every pass.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Keyring, Log
from holdfast.reconcile.reconcile_report import ReconcileReport
from holdfast.store import layout
from tests.observer import observing
from tests.segments.planting import files, folder

BATCH = 4
KEPT = 3 * BATCH
PARTS = (("a", 0), ("a", 1), ("b", 0), ("b", 1))

LOOKER = """
    import json, sys, threading
    import holdfast
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    keyring = holdfast.Keyring.from_file(sys.argv[2]) if sys.argv[2] else None
    deep = False
    with holdfast.open(sys.argv[1], read_only=True, keyring=keyring) as log:
        while not stop.is_set():
            report = log.reconcile(deep=deep)
            found = [[f.kind, f.topic, f.partition, f.number, f.name, f.detail] for f in report.findings]
            print(json.dumps({"deep": deep, "found": found, "in_flight": report.in_flight}), flush=True)
            deep = not deep
"""


PATIENCE = 60


class Busy:
    """A log in which everything happens at once, and everybody who looks at it."""

    def __init__(self, log: Log, keyring: Keyring | None) -> None:
        self.log = log
        self.reports: list[ReconcileReport] = []
        self.errors: list[BaseException] = []
        self.looks: list[dict[str, Any]] = []
        self._keyring = keyring
        self._stop = threading.Event()

    def run(self, seconds: float, is_enough: Callable[[Busy], bool]) -> None:
        """Keep everybody busy for so long, and on a slow machine until enough has happened."""
        self._note_every_report()
        threads = [threading.Thread(target=self._guarded, args=(self._write, *part)) for part in PARTS]
        threads += [threading.Thread(target=self._guarded, args=(act,)) for act in (self._seal, self._retain)]
        threads += [threading.Thread(target=self._guarded, args=(self._reconcile, deep)) for deep in (False, True)]
        with self._looking():
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + seconds + PATIENCE
            while not self._stop.wait(seconds) and not is_enough(self) and time.monotonic() < deadline:
                pass
            self._stop.set()
            for thread in threads:
                thread.join()

    def _note_every_report(self) -> None:
        reconciler = self.log._maintenance._reconciler
        publish = reconciler.publish

        def note(report: ReconcileReport) -> None:
            self.reports.append(report)
            publish(report)

        reconciler.publish = note  # type: ignore[method-assign]

    def _guarded(self, act: Callable[..., None], *args: object) -> None:
        try:
            while not self._stop.is_set():
                act(*args)
        except BaseException as error:
            self.errors.append(error)
            self._stop.set()

    def _write(self, name: str, partition: int) -> None:
        topic = self.log.topic(name)
        first = topic.marks()[partition].durable
        topic.append_batch([b"%d" % (first + i) for i in range(BATCH)], partition=partition, timeout=30)
        # Segments of four records are made more slowly than records: sealing is kept at work, but not drowned.
        topic.wait_sealed(first - 5 * BATCH, 30, partition=partition)

    def _seal(self) -> None:
        self.log.seal(timeout=30)
        time.sleep(0.01)

    def _retain(self) -> None:
        self.log.retain()
        time.sleep(0.005)

    def _reconcile(self, deep: bool) -> None:
        self.log.reconcile(deep=deep)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Another process looks too, read-only, all the while."""
        keys = ""
        if self._keyring is not None:
            keys = str(self.log.path.with_name("keys"))
            self._keyring.save(keys)
        with observing(LOOKER, str(self.log.path), keys, looks=self.looks):
            yield


def open_busy(open_log: Callable[..., Log], keyring: Keyring | None, *, fix: bool) -> Busy:
    log = open_log(
        segments={"rows_max": BATCH, "idle_ratio": 0, "seal_on_close": False},
        retention={"interval_ms": 1, "records_max": KEPT},
        reconcile={"pass_interval_ms": 1, "idle_ratio": 0, "unit_segments": 50, "fix": fix},
        keyring=keyring,
    )
    for name in ("a", "b"):
        log.topic(name, partitions=2)
    return Busy(log, keyring)


def check_all_is_readable(log: Log) -> None:
    log.seal(timeout=60)
    log.retain()
    for name, partition in PARTS:
        topic = log.topic(name)
        got = list(topic.read(partition=partition))
        end = topic.marks()[partition].durable
        assert [record.offset for record in got] == list(range(end - len(got), end))
        assert all(record.payload == b"%d" % record.offset for record in got)
        assert len(got) >= KEPT
    report = log.reconcile(deep=True)
    assert (report.findings, report.in_flight) == ((), 0)
    assert report.files == log.stats().segments.segments


def check_nothing_was_found(busy: Busy) -> None:
    """After the writers have stopped."""
    assert busy.errors == []
    assert [report.findings for report in busy.reports if report.findings] == []
    assert [report.repairs for report in busy.reports if report.repairs] == []
    assert [look for look in busy.looks if look["found"]] == []


def check_it_was_busy(busy: Busy) -> None:
    """A test in which nothing happens proves nothing."""
    stats = busy.log.stats().segments
    assert stats.expired_segments_total > 50
    assert any(report.in_flight for report in busy.reports)
    assert {(report.mode, report.deep) for report in busy.reports} >= {("fix", False), ("report", True)}
    assert {look["deep"] for look in busy.looks} == {False, True}


def was_busy(busy: Busy) -> bool:
    try:
        check_it_was_busy(busy)
    except AssertionError:
        return False
    return True


def run_busy(open_log: Callable[..., Log], keyring: Keyring | None, seconds: float) -> None:
    busy = open_busy(open_log, keyring, fix=True)
    busy.run(seconds, was_busy)
    check_nothing_was_found(busy)
    check_it_was_busy(busy)
    check_all_is_readable(busy.log)


@pytest.mark.disk
def test_a_busy_log_has_no_finding_in_any_pass(open_log, is_sampled):
    run_busy(open_log, None, 0.5 if is_sampled else 20)


@pytest.mark.disk
def test_a_busy_encrypted_log_has_no_finding_in_any_pass(open_log, keyring, is_sampled):
    run_busy(open_log, keyring, 0.5 if is_sampled else 6)


@pytest.mark.soak
@pytest.mark.parametrize("keyed", [False, True])
def test_a_busy_log_has_no_finding_for_ten_minutes(open_log, keyring, keyed):
    run_busy(open_log, keyring if keyed else None, 600)


Planted = set[tuple[str, str, int, int | None, str | None]]


def plant(log: Log) -> tuple[Planted, Planted]:
    """Damage of every kind in a topic that keeps everything: what every pass finds, and what only a deep one does."""
    paths = files(log, "kept")
    paths[1].unlink()
    os.truncate(paths[2], 100)
    content = bytearray(paths[3].read_bytes())
    content[60] ^= 1
    paths[3].write_bytes(bytes(content))
    place = folder(log, "kept")
    strangers = [
        place / "notes.txt",
        place / layout.segment_name(4, b"other hash"),
        place / layout.segment_name(900, b"dead orphan"),
        place / layout.temporary_name(901),
        folder(log, "ghost") / layout.segment_name(0, b"ghost"),
    ]
    for path in strangers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"what is this")
    ghost = strangers[4].relative_to(log.path / "segments").as_posix()
    found: Planted = {
        ("missing", "kept", 0, 1, paths[1].name),
        ("size_mismatch", "kept", 0, 2, paths[2].name),
        ("untracked", "kept", 0, None, strangers[0].name),
        ("untracked", "kept", 0, 4, strangers[1].name),
        ("untracked", "kept", 0, 900, strangers[2].name),
        ("untracked", "kept", 0, 901, strangers[3].name),
        ("untracked", "", -1, None, ghost),
    }
    return found, {("content_mismatch", "kept", 0, 3, paths[3].name)}


@pytest.mark.disk
@pytest.mark.sampled(1)
@pytest.mark.parametrize("keyed", [False, True])
def test_damage_in_a_busy_log_is_found_by_every_pass_and_nothing_else_is(open_log, keyring, keyed, is_sampled):
    with ExitStack() as later:
        busy = open_busy(open_log, keyring if keyed else None, fix=False)
        log = busy.log
        later.callback(log.close)
        log.topic("kept")
        log.set_retention("kept")
        fill_kept(log)
        shallow, deep = plant(log)
        busy.run(0.5 if is_sampled else 5, was_looked_at)
        assert busy.errors == []
        # A pass that was under way when the damage was planted may have seen half of it.
        reports = [report for report in busy.reports if report.started_us >= planted_us(log.path)]
        assert len(reports) > 20
        for report in reports:
            got = {(f.kind, f.topic, f.partition, f.number, f.name) for f in report.findings}
            assert got == (shallow | deep if report.deep else shallow)
        for look in busy.looks:
            got = {tuple(found[:5]) for found in look["found"]}
            assert got == (shallow | deep if look["deep"] else shallow)
        assert len(busy.looks) >= 2


def was_looked_at(busy: Busy) -> bool:
    """By passes of both kinds, here and from outside."""
    return len(busy.reports) > 30 and {report.deep for report in busy.reports} == {False, True} and len(busy.looks) >= 2


def fill_kept(log: Log) -> None:
    """Eight segments that retention leaves alone."""
    topic = log.topic("kept")
    for first in range(0, 8 * BATCH, BATCH):
        topic.append_batch([b"%d" % (first + i) for i in range(BATCH)], timeout=30)
        topic.wait_sealed(first + BATCH, 30)


def planted_us(path: Path) -> int:
    """When the last of the damage was done."""
    return (path / "segments" / "topics" / "ghost").stat().st_mtime_ns // 1000
