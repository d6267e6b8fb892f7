"""The writer: what fails alone, what fails together, what stops it, and that nobody is left waiting."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.failing_commits import fail_commits, refuse_next_commit
from tests.stalled import stalled

import holdfast
from holdfast import Closed, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.journal.queue.group import Run
from holdfast.journal.queue.ticket import UnitTicket
from holdfast.journal.state.operations import CreateTopic
from holdfast.model.control_rows import DiskFailed
from holdfast.model.record_columns import Columns

pytestmark = pytest.mark.disk


def run_of(topic, *payloads):
    """A run that can be put into a unit; the queue gives it its group."""
    partition = topic._partitions.parts[0]
    return Run(topic._journal._queue._open, partition, Columns(list(payloads), [0] * len(payloads)))


def put_unit(topic, *payloads, scope=None, reissue=False, failing=False):
    """A unit of records; a failing one declares a topic that exists already, behind its records."""
    operations = [run_of(topic, *payloads)]
    if failing:
        operations.append(CreateTopic(topic.name, 1))
    return topic._journal._queue.put_control(operations, scope=scope, reissue=reissue)


def settle(unit):
    UnitTicket(unit, 5).result()


def test_a_failing_unit_fails_alone(open_log):
    """A unit that fails gets no offset; its neighbours in the same group commit, densely."""
    topic = open_log().topic("t")
    with stalled(topic):
        before = topic.submit(b"before")
        bad = put_unit(topic, b"bad 1", b"bad 2", failing=True)
        good = put_unit(topic, b"good")
        after = topic.submit(b"after")
    assert (before.result().offset, after.result().offset) == (0, 2)
    good.check_stored()
    with pytest.raises(Invalid):
        bad.check_stored()
    assert [r.payload for r in topic.read()] == [b"before", b"good", b"after"]


def test_offsets_of_a_failed_unit_are_given_to_the_next(open_log, keyring):
    """After a failed unit the partition's chain of entries still holds: everything reads back, also reopened."""
    log = open_log(keyring=keyring)
    topic = log.topic("t")
    with stalled(topic):
        for i in range(20):
            put_unit(topic, b"bad", failing=True)
            topic.submit(b"%d" % i, idempotency_key=f"k{i}")
    log.flush()
    assert [r.payload for r in topic.read()] == [b"%d" % i for i in range(20)]
    log.close()
    log = open_log(keyring=keyring)
    assert log.topic("t").append(b"7", idempotency_key="k7").offset == 7


def test_a_scope_never_has_a_hole(open_log):
    """When a unit of a causal scope fails, later ones fail with the same cause until it is issued again."""
    topic = open_log().topic("t")
    with stalled(topic):
        units = [
            put_unit(topic, b"1", scope="a"),
            put_unit(topic, b"2", scope="a", failing=True),
            put_unit(topic, b"3", scope="a"),
            put_unit(topic, b"other", scope="b"),
        ]
    topic._journal._queue.barrier().signal.sleep(lambda: units[-1].group.done, 5)
    units[0].check_stored()
    units[3].check_stored()
    for unit in units[1:3]:
        with pytest.raises(Invalid) as caught:
            unit.check_stored()
        assert "refused a row" in caught.value.message
    later = put_unit(topic, b"4", scope="a")
    with pytest.raises(Invalid):
        settle(later)
    for payload, reissue in ((b"2", True), (b"3", False), (b"4", False)):
        settle(put_unit(topic, payload, scope="a", reissue=reissue))
    assert [r.payload for r in topic.read()] == [b"1", b"other", b"2", b"3", b"4"]


def test_a_refused_group_breaks_the_scopes_in_it(open_log, monkeypatch):
    """A scope whose unit was lost with its whole group is broken too."""
    topic = open_log().topic("t")
    refuse_next_commit(topic, monkeypatch, Unavailable("the disk is full; nothing was written"))
    with pytest.raises(Unavailable):
        settle(put_unit(topic, b"1", scope="a"))
    with pytest.raises(Unavailable):
        settle(put_unit(topic, b"2", scope="a"))
    settle(put_unit(topic, b"1", scope="a", reissue=True))
    settle(put_unit(topic, b"2", scope="a"))
    assert [r.payload for r in topic.read()] == [b"1", b"2"]


def test_a_failed_group_commit_leaves_no_hole_behind(open_log, monkeypatch):
    """A group that the disk refused is gone as a whole, predecessors included; the next one takes its offsets.

    The original committed the acknowledged entry although its buffered predecessors were lost.
    """
    log = open_log()
    topic = log.topic("t")
    topic.append(b"0")
    with stalled(topic):
        assert topic.offer(b"offered")
        acked = topic.submit(b"acked")
        # the group that stalls commits; the one behind it, with both records, is refused
        refuse_next_commit(topic, monkeypatch, Unavailable("the disk is full; nothing was written"), skip=1)
    with pytest.raises(Unavailable):
        acked.result()
    with pytest.raises(Unavailable):  # raised once: nobody waits for the offered one
        log.flush()
    log.flush()
    assert [r.payload for r in topic.read()] == [b"0"]
    assert topic.append(b"next").offset == 1
    assert log.stats().journal.failed_groups_total == 1


def test_a_control_unit_is_never_refused_for_fullness(open_log):
    """The reserved lane works while the queue of records is full."""
    log = open_log(journal={"queue_records_max": 2})
    topic = log.topic("t")
    with stalled(topic):
        assert topic.offer(b"1")
        assert topic.offer(b"2")
        assert not topic.offer(b"3")
        unit = topic._journal._queue.put_control([CreateTopic("u", 2)])
    settle(unit)
    assert log.topic("u").partitions == 2


def poisoned(open_log, monkeypatch, error):
    log = open_log()
    topic = log.topic("t")
    topic.append(b"safe")
    fail_commits(topic, monkeypatch, error)
    return log, topic


@pytest.mark.parametrize("error", [DiskFailed("IOError: fsync"), RuntimeError("planted bug"), KeyboardInterrupt()])
def test_a_failed_sync_poisons_for_good(open_log, monkeypatch, error):
    """Waiters of the failed group learn that the outcome is unknown, everybody later gets Closed."""
    log, topic = poisoned(open_log, monkeypatch, error)
    with pytest.raises(OutcomeUnknown) as unknown:
        topic.append(b"lost?", idempotency_key="k")
    assert unknown.value.__cause__ is not None
    monkeypatch.undo()  # the disk is well again: the writer must not be
    for call in (lambda: topic.append(b"x"), lambda: topic.offer(b"x"), lambda: topic.submit(b"x"), topic.flush):
        with pytest.raises(Closed) as caught:
            call()
        assert caught.value.reason == "poisoned"
        assert "open it again" in caught.value.hint
    assert log.stats().journal.poisoned
    assert (topic._journal.pending_records, topic._journal.drain(0)) == (0, True)  # nobody waits for it
    assert [r.payload for r in topic.read()] == [b"safe"]
    with pytest.raises(Closed):
        log.close()
    log.close()
    again = open_log()
    assert [r.payload for r in again.topic("t").read()] == [b"safe"]
    again.topic("t").append(b"and on")


def test_a_dying_writer_releases_every_waiter(open_log, monkeypatch):
    """Threads, coroutines and followers all come back when the writer thread dies of a bug."""
    log, topic = poisoned(open_log, monkeypatch, RuntimeError("planted bug"))
    outcomes = []

    def wait(call):
        try:
            outcomes.append(call())
        except HoldfastError as error:
            outcomes.append(type(error))

    async def wait_async():
        try:
            return await topic.submit(b"x")
        except HoldfastError as error:
            return type(error)

    def loop():
        async def several():
            return await asyncio.gather(*[wait_async() for _ in range(5)])

        outcomes.extend(asyncio.run(several()))

    follower = topic.follow()
    threads = [threading.Thread(target=wait, args=(lambda: topic.append(b"x"),)) for _ in range(5)]
    threads += [threading.Thread(target=wait, args=(lambda: next(follower),)), threading.Thread(target=loop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(outcomes) == 11
    assert set(outcomes) <= {OutcomeUnknown, Closed}
    with pytest.raises(Closed):
        log.close()


class _Xor:
    """A cipher of the user's own; not a good one."""

    name = "xor"

    def encrypt(self, plaintext, associated):
        return bytes(b ^ 0x55 for b in plaintext)

    def decrypt(self, encrypted, associated):
        return bytes(b ^ 0x55 for b in encrypted)

    def mac(self, message):
        from blake3 import blake3

        return blake3(message, key=b"m" * 32).digest()


def test_a_failing_cipher_fails_only_what_it_was_to_encrypt(open_log):
    """An injected cipher that refuses one partition's records leaves the others alone."""

    class Moody(_Xor):
        def encrypt(self, plaintext, associated):
            if b"bad" in plaintext:
                raise ConnectionError("the HSM is away")
            return super().encrypt(plaintext, associated)

    topic = open_log(cipher=Moody()).topic("t", partitions=2)
    with stalled(topic):
        bad = topic.submit(b"bad", partition=0)
        good = topic.submit(b"good", partition=1)
    assert good.result().offset == 0
    with pytest.raises(Unavailable) as caught:
        bad.result()
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert topic.append(b"fine", partition=0).offset == 0


def test_a_failing_cipher_leaves_no_key_behind(open_log):
    """An idempotency key whose record could not be encrypted is not remembered: the retry writes."""
    trouble = [True]

    class Flaky(_Xor):
        def encrypt(self, plaintext, associated):
            if trouble[0] and b"refused" in plaintext:
                raise ConnectionError("the HSM is away")
            return super().encrypt(plaintext, associated)

    topic = open_log(cipher=Flaky()).topic("t")
    for _ in range(2):
        with pytest.raises(Unavailable):
            topic.append(b"refused", idempotency_key="k")
    assert topic.append(b"other").offset == 0
    trouble[0] = False
    assert topic.append(b"refused", idempotency_key="k").offset == 1
    assert topic.append(b"refused", idempotency_key="k").offset == 1


def test_a_group_with_an_error_before_its_commit_was_not_written(open_log, monkeypatch):
    """A defect before the commit poisons, but its waiters learn that nothing was written."""
    from holdfast.journal.commit.staging import Staging

    log = open_log()
    topic = log.topic("t")
    for step in ("framed", "head_rows"):  # on the way to a file, and into the database
        monkeypatch.setattr(Staging, step, lambda *_: 1 / 0)
    with pytest.raises(Closed) as caught:
        topic.append(b"x")
    assert caught.value.reason == "poisoned"
    monkeypatch.undo()
    with pytest.raises(Closed):
        log.close()
    assert list(open_log().topic("t").read()) == []


def test_the_queue_depth_is_true_and_returns_to_zero(open_log):
    """stats() shows what waits, and nothing once it is durable."""
    log = open_log()
    topic = log.topic("t")
    with stalled(topic):
        for _ in range(7):
            topic.offer(b"xyz")
        assert (log.stats().journal.queue_records, log.stats().journal.queue_bytes) == (7, 21)
    log.flush()
    stats = log.stats().journal
    assert (stats.queue_records, stats.queue_bytes, stats.records_total) == (0, 0, 7)
    assert stats.commit_seconds.count == stats.groups_total
    assert 0 < stats.commit_seconds.quantile(0.5) <= stats.commit_seconds.quantile(0.99)


def test_a_thousand_offers_are_a_thousand_rows(open_log):
    """Throughput is worth nothing if rows are missing: so they are counted."""
    log = open_log()
    topic = log.topic("t")
    accepted = sum(topic.offer(b"%d" % i) for i in range(1000))
    log.flush()
    assert accepted == 1000
    assert [r.payload for r in topic.read()] == [b"%d" % i for i in range(1000)]


def test_a_writer_gone_answers_at_once(open_log, monkeypatch):
    """A poisoned journal fails at once despite a long time-out."""
    log, topic = poisoned(open_log, monkeypatch, DiskFailed("x"))
    with pytest.raises(OutcomeUnknown):
        topic.append(b"x")
    started = threading.Event()
    with pytest.raises(Closed):
        started.set()
        topic.append(b"x", timeout=300)
    with pytest.raises(Closed):
        log.close()


def test_close_reports_what_was_lost(open_log, monkeypatch):
    """A buffered record that was accepted and could not be stored makes close() raise."""
    log = open_log(journal={"flush_interval_ms": 60_000})
    topic = log.topic("t")
    assert topic.offer(b"x")
    refuse_next_commit(topic, monkeypatch, Unavailable("the disk is full; nothing was written"))
    with pytest.raises(Unavailable):
        log.close()
    log.close()
    assert list(open_log().topic("t").read()) == []


def test_what_the_block_raised_matters_more(open_log, monkeypatch):
    """An exception inside `with` is not hidden by one from close()."""
    with pytest.raises(KeyError), open_log() as log:
        topic = log.topic("t")
        refuse_next_commit(topic, monkeypatch, Unavailable("the disk is full; nothing was written"))
        topic.offer(b"x")
        raise KeyError("the user's own")


def test_close_is_bounded_and_can_be_repeated(open_log):
    """close() never waits longer than its time-out, says so, and finishes when called again."""
    log = open_log()
    topic = log.topic("t")
    with stalled(topic):
        ticket = topic.submit(b"x")
        with pytest.raises(Unavailable, match="drain"):
            log.close(timeout=0.05)
        with pytest.raises(Closed):
            topic.submit(b"y")
    log.close()
    assert ticket.result().offset == 0


def test_flush_is_bounded(open_log):
    """flush() never waits longer than its time-out."""
    log = open_log()
    with stalled(log.topic("t")), pytest.raises(Unavailable, match="flush"):
        log.flush(timeout=0.02)
    log.flush()


def test_another_owner_fences_this_one(open_log, tmp_path):
    """If the lock was circumvented and another process took the log over, the old owner acknowledges nothing."""
    log = open_log()
    topic = log.topic("t")
    topic.append(b"mine")
    (tmp_path / "log" / "LOCK").unlink()
    with holdfast.open(tmp_path / "log") as other:
        with pytest.raises(HoldfastError) as caught:
            topic.append(b"stale")
        assert isinstance(caught.value, (OutcomeUnknown, Closed))
        with pytest.raises(Closed) as later:
            topic.append(b"stale")
        assert later.value.reason == "fenced"
        assert [r.payload for r in other.topic("t").read()] == [b"mine"]
    with pytest.raises(Closed):
        log.close()
