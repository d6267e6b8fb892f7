"""Members of one consumer share its partitions; of two that worked on one record only one gets it committed."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import threading
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

import holdfast
from holdfast import Invalid
from holdfast.testing import ManualClock
from tests.sampling import examples
from tests.stalled import stalled

pytestmark = pytest.mark.disk

PARTITIONS = 4


@pytest.fixture
def orders(open_log):
    topic = open_log().topic("orders", partitions=PARTITIONS)
    for number in range(PARTITIONS):
        topic.append_batch([b"%d" % n for n in range(10)], partition=number)
    return topic


def drain(*consumers):
    """All that they give out now, by partition and offset, committed after each poll."""
    seen = []
    while found := [record for one in consumers for record in one.poll(3, timeout=0)]:
        seen += [(record.partition, record.offset) for record in found]
        for one in consumers:
            one.commit()
    return seen


def everything(count=10):
    return [(number, offset) for number in range(PARTITIONS) for offset in range(count)]


def test_partitions_are_shared_and_every_record_is_consumed_once(orders):
    first, second, third = (orders.consumer("billing") for _ in range(3))
    held = [*first.partitions, *second.partitions, *third.partitions]
    assert sorted(held) == [0, 1, 2, 3]
    assert {len(one.partitions) for one in (first, second, third)} == {1, 2}
    assert sorted(drain(first, second, third)) == everything()


def test_a_partition_moves_when_its_holder_has_committed_what_it_gave_out(orders):
    """Nothing is given out twice where everybody commits."""
    first = orders.consumer("billing")
    seen = [(record.partition, record.offset) for record in first.poll(4)]
    second = orders.consumer("billing")
    assert seen[0][0] in first.partitions
    first.commit()
    assert len(first.partitions) == len(second.partitions) == 2
    assert sorted(seen + drain(second, first)) == everything()


def test_one_who_closes_gives_its_partitions_back(orders):
    first, second = orders.consumer("billing"), orders.consumer("billing")
    given = second.poll(3)
    second.close()
    assert first.partitions == (0, 1, 2, 3)
    assert sorted(drain(first)) == everything()
    assert len(given) == 3


def test_one_whom_nobody_refers_to_gives_its_partitions_back(orders):
    first, second = orders.consumer("billing"), orders.consumer("billing")
    assert second.poll(3)
    del second
    gc.collect()
    assert first.partitions == (0, 1, 2, 3)


def test_one_whose_thread_died_gives_its_partitions_back(orders):
    """It is still referred to, and never closed; if somebody uses it again, it is a member again."""
    first, second = orders.consumer("billing"), orders.consumer("billing")
    thread = threading.Thread(target=second.poll, args=(3,))
    thread.start()
    thread.join()
    assert sorted(drain(first)) == everything()
    with pytest.raises(Invalid, match="another member"):
        second.commit()
    assert second.poll(3, timeout=0) == []
    assert len(second.partitions) == 2


def test_one_thread_may_read_and_another_commit(orders):
    """A member whose reader has ended is in use as long as somebody commits with it."""
    first, second = orders.consumer("billing"), orders.consumer("billing")
    seen = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: seen.extend(second.poll(3, timeout=0)))
        thread.start()
        thread.join()
        second.commit()
    assert len(seen) == 20
    assert sorted([(record.partition, record.offset) for record in seen] + drain(first)) == everything()


def test_one_whose_event_loop_is_closed_gives_its_partitions_back(orders):
    first, second = orders.consumer("billing"), orders.consumer("billing")
    asyncio.run(second.poll_async(3))
    assert sorted(drain(first)) == everything()


def test_one_who_waits_for_records_is_woken_for_partitions(orders):
    """It sleeps, another member dies, and its partitions come with what was not committed."""
    first = orders.consumer("billing")
    drain(first)
    second = orders.consumer("billing")
    first.poll(1, timeout=0)
    assert len(second.partitions) == 2
    seen = []

    def consume():
        seen.extend((record.partition, record.offset) for record in iter(lambda: next(second), None))

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    mine = first.partitions
    for number in mine:
        orders.append(b"new", partition=number)
    assert len(first.poll(2, timeout=10)) >= 1
    first.close()
    while len(seen) < 2:
        assert thread.is_alive()
    assert sorted(seen) == [(number, 10) for number in mine]
    second.close()
    thread.join(30)


def test_one_who_keeps_a_partition_too_long_loses_it_and_its_commit(open_log):
    """Its work is dropped as a whole, and it goes on with what it has."""
    clock = ManualClock()
    topic = open_log(clock=clock).topic("orders", partitions=2)
    for number in (0, 1):
        topic.append_batch([b"%d" % n for n in range(4)], partition=number)
    first = topic.consumer("billing")
    given = {record.partition for record in first.poll(4)} | {record.partition for record in first.poll(4)}
    assert given == {0, 1}
    second = topic.consumer("billing", patience=20)
    assert second.poll(9, timeout=0) == []
    clock.advance(19)
    assert second.poll(9, timeout=0) == []
    clock.advance(2)
    again = second.poll(9, timeout=0)
    assert len(again) == 4
    with pytest.raises(Invalid, match="another member") as caught:
        first.commit()
    assert "given out again" in caught.value.hint
    second.commit()
    assert len(first.poll(9, timeout=0)) == 4
    first.commit()
    assert {one.lag for one in topic._journal and [first, second]} == {0}


def test_no_partition_moves_while_its_commit_is_on_its_way(open_log):
    """Else the next member would begin too early, and a record would be consumed twice."""
    clock = ManualClock()
    topic = open_log(clock=clock).topic("orders", partitions=2)
    for number in (0, 1):
        topic.append_batch([b"%d" % n for n in range(4)], partition=number)
    first = topic.consumer("billing")
    seen = [(record.partition, record.offset) for _ in range(2) for record in first.poll(4)]
    with stalled(topic):
        ticket = first.submit_commit()
        second = topic.consumer("billing", patience=1)
        clock.advance(100)
        assert second.poll(9, timeout=0) == []
    ticket.result()
    assert sorted(seen + drain(first, second)) == [(n, at) for n in (0, 1) for at in range(4)]


def test_a_position_that_a_transaction_took_stays_with_it(open_log):
    """Until it has ended, nobody else commits it, and nobody else gets the partition."""
    clock = ManualClock()
    topic = open_log(clock=clock).topic("orders")
    topic.append_batch([b"%d" % n for n in range(4)])
    first = topic.consumer("billing")
    first.poll(2)
    committing = first.commit_operations()
    with pytest.raises(Invalid, match="transaction"):
        first.commit()
    first.close()
    second = topic.consumer("billing", patience=1)
    clock.advance(100)
    assert second.poll(9, timeout=0) == []
    ticket = topic._journal.transact(committing.operations, records=committing.records, size=committing.size, timeout=5)
    committing.queued(ticket)
    ticket.result()
    committing.stored()
    assert [record.offset for record in second.poll(9)] == [2, 3]


def test_what_a_transaction_gave_up_is_committed_by_the_next(open_log):
    topic = open_log().topic("orders")
    topic.append_batch([b"%d" % n for n in range(4)])
    consumer = topic.consumer("billing")
    consumer.poll(2)
    consumer.commit_operations().failed()
    assert consumer.committed == '{"0":0}'
    consumer.commit_operations()  # nobody holds it: it can never be queued
    gc.collect()
    consumer.commit()
    assert consumer.committed == '{"0":2}'


def test_members_that_name_partitions_have_those(orders):
    first = orders.consumer("billing", partitions=[0, 2])
    second = orders.consumer("billing")
    assert (first.partitions, second.partitions) == ((0, 2), (1, 3))
    with pytest.raises(Invalid, match="named this partition"):
        orders.consumer("billing", partitions=2)
    assert sorted(drain(first, second)) == everything()


def test_many_threads_that_come_and_go_consume_every_record(orders):
    """What was committed is exactly everything, and nothing that was committed is given out again."""
    committed, lock = Counter(), threading.Lock()
    left = threading.Semaphore(0)

    def work(rounds):
        for _ in range(rounds):
            with orders.consumer("billing") as consumer:
                for _ in range(3):
                    found = consumer.poll(2, timeout=0.05)
                    try:
                        consumer.commit()
                    except Invalid:
                        continue
                    with lock:
                        committed.update((record.partition, record.offset) for record in found)
        left.release()

    threads = [threading.Thread(target=work, args=(6,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    last = orders.consumer("billing")
    committed.update(drain(last))
    assert committed == Counter(everything())


class Twin(RuleBasedStateMachine):
    """Members come, go, read, commit and die as they like; whatever is committed was committed once and in order."""

    members = Bundle("members")

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.place = tempfile.TemporaryDirectory()
        self.log = holdfast.open(self.place.name, clock=self.clock, settings={"segments": {"seal_on_close": False}})
        self.topic = self.log.topic("orders", partitions=2)
        self.given = {}
        self.committed = Counter()
        self.appended = Counter()
        for number in (0, 1):
            self.append(number, 8)

    @rule(number=st.integers(0, 1), count=st.integers(1, 8))
    def more(self, number, count):
        self.append(number, count)

    def append(self, number, count):
        self.topic.append_batch([b"x"] * count, partition=number)
        self.appended[number] += count

    @rule(target=members)
    def join(self):
        member = self.topic.consumer("billing", patience=5)
        self.given[member] = []
        return member

    @rule(member=members, limit=st.integers(1, 4))
    def poll(self, member, limit):
        self.given[member] += member.poll(limit, timeout=0)

    @rule(member=members, limit=st.integers(0, 3))
    def poll_and_commit(self, member, limit):
        if limit:
            self.poll(member, limit)
        self.commit(member)

    def commit(self, member):
        given, self.given[member] = self.given[member], []
        try:
            member.commit()
        except Invalid:
            return
        self.committed.update((record.partition, record.offset) for record in given)

    @rule(target=members, member=consumes(members))
    def close(self, member):
        member.close()
        del self.given[member]
        return multiple()

    @rule()
    def wait(self):
        """The member that waits for a partition gets it."""
        for seconds in (0, 6):
            self.clock.advance(seconds)
            assert all(isinstance(member.partitions, tuple) for member in self.given)

    @invariant()
    def what_is_committed_was_committed_once(self):
        assert all(count == 1 for count in self.committed.values())
        for status in self.log.consumers():
            for line in status.partitions:
                done = {offset for number, offset in self.committed if number == line.partition}
                assert done == set(range(line.committed))

    def teardown(self):
        for member in self.given:
            member.close()
        last = self.topic.consumer("billing")
        while found := last.poll(100, timeout=0):
            self.committed.update((record.partition, record.offset) for record in found)
            last.commit()
        self.log.close()
        self.place.cleanup()
        assert self.committed == Counter(
            {(number, at): 1 for number, count in self.appended.items() for at in range(count)}
        )


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=examples(25), stateful_step_count=30, deadline=None)


@pytest.mark.soak
@pytest.mark.timeout(3600)
class TestLongTwin(Twin.TestCase):
    """The same, for longer."""

    settings = settings(max_examples=1000, stateful_step_count=50, deadline=None)
