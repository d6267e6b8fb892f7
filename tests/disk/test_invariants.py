"""The invariants and requirements that the journal inherits, one test each, by their numbers."""

from __future__ import annotations

import shutil
import threading
import tracemalloc

import apsw
import pytest
from tests.failing_commits import fail_commits
from tests.stalled import stalled

from holdfast import Closed, Corrupt, Invalid, OutcomeUnknown
from holdfast.journal.sqlite.migrations import migrations
from holdfast.model.control_rows import DiskFailed

pytestmark = pytest.mark.disk


def test_inv_4_what_was_buffered_before_an_acked_entry_is_durable_with_it(open_log, tmp_path):
    """Flush before commit: at the moment of the acknowledgement, a copy of the disk holds the predecessors too."""
    topic = open_log(journal={"flush_interval_ms": 3_600_000}).topic("t")
    with stalled(topic):
        for i in range(300):
            assert topic.offer(b"buffered %d" % i)
        ticket = topic.submit(b"acked")
    receipt = ticket.result()
    shutil.copytree(tmp_path / "log", tmp_path / "copy", ignore=shutil.ignore_patterns("*-shm", "SOCKET"))
    found = [r.payload for r in open_log("copy").topic("t").read(end=receipt.offset + 1)]
    assert found == [b"buffered %d" % i for i in range(300)] + [b"acked"]


def test_inv_11_sizes_and_versions_are_checked_before_anything_is_decoded(open_log, tmp_path):
    """A payload over the limit is refused on write; a stored one over it is refused on read, without being fetched."""
    log = open_log(journal={"payload_bytes_max": 1000, "batch_bytes_max": 1000, "group_bytes_max": 1000})
    topic = log.topic("t")
    with pytest.raises(Invalid, match="too large"):
        topic.append(b"x" * 1001)
    topic.append(b"x" * 1000)
    log.close()
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"))
    db.execute("UPDATE entries SET body=zeroblob(100000000)")
    db.close()
    looking = open_log(journal={"payload_bytes_max": 1000, "batch_bytes_max": 1000}, read_only=True)
    tracemalloc.start()
    with pytest.raises(Corrupt, match="larger than the limits"):
        list(looking.topic("t").read())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_inv_12_nobody_ever_hangs_on_the_writer(open_log, monkeypatch):
    """The writer dies while 32 threads wait: each of them comes back with a typed error."""
    log = open_log()
    topic = log.topic("t")
    fail_commits(topic, monkeypatch, DiskFailed("planted"))
    outcomes: list[type] = []

    def append():
        try:
            topic.append(b"x", timeout=60)
        except (Closed, OutcomeUnknown) as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=append) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(outcomes) == 32
    with pytest.raises(Closed):
        log.close()


def test_inv_14_the_journal_has_a_database_of_its_own_with_numbered_migrations(open_log, tmp_path):
    """durable.db is the journal's alone, and its schema version is that of the newest migration."""
    open_log().topic("t").append(b"x")
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert db.pragma("user_version") == len(migrations())
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))
    db.close()


def test_fr_de_04_an_intent_is_durable_before_its_effect_and_the_result_after(open_log, tmp_path):
    """When a guarded effect runs, its intent is on disk; a crash between the two shows the intent alone."""
    topic = open_log().topic("steps")
    intent = topic.append(b"intent", kind="intent", idempotency_key="step-1/intent")
    shutil.copytree(
        tmp_path / "log", tmp_path / "crashed", ignore=shutil.ignore_patterns("*-shm", "SOCKET")
    )  # the effect runs here
    topic.append(b"result", kind="result", idempotency_key="step-1/result")
    after_crash = open_log("crashed").topic("steps")
    assert [r.kind for r in after_crash.read()] == ["intent"]
    assert after_crash.append(b"intent", kind="intent", idempotency_key="step-1/intent") == intent
    assert [r.kind for r in topic.read()] == ["intent", "result"]


def test_fr_de_11_an_acked_append_times_out_and_says_that_the_outcome_is_unknown(open_log):
    """The caller is never blocked longer than its time-out, and the key resolves what became of it."""
    topic = open_log().topic("t")
    with stalled(topic), pytest.raises(OutcomeUnknown) as caught:
        topic.append(b"x", timeout=0.02, idempotency_key="k")
    assert topic.append(b"x", idempotency_key=caught.value.idempotency_key).offset == 0
    assert len(list(topic.read())) == 1


def test_fr_de_12_a_restarted_writer_goes_on_without_gap_or_duplicate(open_log):
    """Offsets and seq continue exactly where the last commit ended, also after everything in between was empty."""
    offsets, seqs = [], []
    for turn in range(4):
        log = open_log()
        for _ in range(turn):
            receipt = log.topic("t").append(b"x")
            offsets.append(receipt.offset)
            seqs.append(receipt.seq)
        log.close()
    assert offsets == list(range(6))
    assert seqs == list(range(1, 7))
