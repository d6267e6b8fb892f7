"""Members of a consumer in several processes share the partitions, and each record is consumed by one of them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

import holdfast
from holdfast import Invalid, Log, OutcomeUnknown
from holdfast.log.consumers.members import Members
from holdfast.log.consumers.stored_positions import StoredPosition, position_items
from holdfast.owner.consumer_calls import RemoteMember
from tests.sharing.members import ENVIRON
from tests.sharing.shared_logs import join, shared

pytestmark = pytest.mark.crash


class Consuming:
    """A process that consumes, and what it said."""

    def __init__(self, directory: Path, patience: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sharing.consuming", str(directory), str(patience)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRON,
        )
        self.given: list[str] = []
        self.answers: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait(lambda: "ready" in self.answers)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *rest = line.split()
            with self._more:
                if word == "given":
                    self.given += rest
                else:
                    self.answers.append(line.strip())
                self._more.notify_all()

    def wait(self, happened: object) -> None:
        with self._more:
            assert self._more.wait_for(happened, 60), (self.given, self.answers)  # type: ignore[arg-type]

    def commit(self) -> str:
        """What came of a commit."""
        assert self.process.stdin is not None
        before = len(self.answers)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.wait(lambda: len(self.answers) > before)
        return self.answers[-1].split()[0]

    def partitions(self) -> set[int]:
        """Of which partitions it was given something."""
        return {int(one.split(":")[0]) for one in self.given}

    def end(self, *, kill: bool = False) -> None:
        assert self.process.stdin is not None
        if kill:
            self.process.kill()
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def fill(log: Log, count: int = 1) -> None:
    for partition in range(4):
        log.topic("orders", partitions=4).append_batch([b"x"] * count, partition=partition)


def test_partitions_are_shared_out_among_processes_and_move_when_one_is_killed(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, owner):
        fill(log)
        one = Consuming(log.path, 60)
        one.wait(lambda: len(one.given) == 4)
        assert one.commit() == "committed"
        two = Consuming(log.path, 60)
        status = log.consumers("orders")[0]
        assert (status.members, status.lag) == (2, 0)
        fill(log)
        two.wait(lambda: len(two.given) == 2)
        one.wait(lambda: len(one.given) == 6)
        assert sorted(one.given[4:] + two.given) == ["0:1", "1:1", "2:1", "3:1"]
        assert two.commit() == "committed"
        fill(log)
        two.wait(lambda: len(two.given) == 4)
        two.end(kill=True)  # what it was given and has not committed comes again, elsewhere
        one.wait(lambda: len(one.given) >= 10)
        assert one.commit() == "committed"
        assert sorted(set(one.given + two.given)) == sorted(f"{p}:{o}" for p in range(4) for o in range(3))
        owner.kill()  # the positions stay, and the member comes again by itself
        fill(log)
        one.wait(lambda: len(one.given) >= 14)
        assert one.commit() == "committed"
        assert log.consumers("orders")[0].lag == 0
        assert len(one.given) == len(set(one.given))
        one.end()


def test_the_lag_of_a_member_counts_what_was_acknowledged(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, _):
        fill(log)
        topic = log.topic("orders")
        with topic.consumer("billing") as consumer:
            behind = consumer.lag
            for number in range(1, 20):
                topic.append(b"more", partition=0)
                assert consumer.lag == behind + number


def test_of_two_processes_that_work_on_a_record_one_commits_it(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, _):
        fill(log, 2)
        one = Consuming(log.path, 60)
        one.wait(lambda: len(one.given) == 8)
        two = Consuming(log.path, 0)  # it does not wait for what the other has under way
        two.wait(lambda: len(two.given) == 4)
        assert one.commit() == "refused"
        assert two.commit() == "committed"
        one.wait(lambda: len(one.given) == 12)  # what is left to it is given out again
        assert one.commit() == "committed"
        assert log.consumers("orders")[0].lag == 0
        one.end()
        two.end()


def test_a_position_is_committed_with_a_transaction_of_a_member(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, owner), join(tmp_path / "log") as other:
        fill(log)
        with log.topic("orders").consumer("billing") as consumer:
            for _ in range(2):
                with log.transaction() as tx:
                    for record in consumer.poll(1):
                        tx.append("bills", record.payload)
                    tx.consumed(consumer)
            owner.kill()
            with log.transaction() as tx:
                for record in consumer.poll(1):
                    tx.append("bills", record.payload)
                tx.consumed(consumer)
            assert consumer.lag == 1
            while other.consumers()[0].members == 0:  # it comes again by itself
                consumer.poll(1, timeout=0.01)
            with pytest.raises(Invalid, match="in use"):
                other.forget_consumer("billing", "orders")
        assert other.topic("bills").marks()[0].durable == 3
        with other.topic("orders").consumer("billing") as again:
            assert len(again.poll(10)) == 1
            again.commit()
            assert again.poll(10, timeout=0) == []
        other.forget_consumer("billing", "orders")
        assert log.consumers() == []


def test_forgetting_a_consumer_is_not_asked_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has done it and its answer is lost: asked again, the next one would say that there is no consumer."""
    with shared(tmp_path / "log") as (log, _):
        log.topic("orders").consumer("billing").close()
        link = log._journal.link
        call = link.call

        def unanswered(name, *arguments):
            call(name, *arguments)
            raise OutcomeUnknown("the log's owner ended before it answered")

        with monkeypatch.context() as patch:
            patch.setattr(link, "call", unanswered)
            with pytest.raises(OutcomeUnknown):
                log.forget_consumer("billing", "orders")
        assert log.consumers() == []


def test_what_was_given_out_before_a_takeover_is_committed_after_it(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, owner), join(tmp_path / "log") as other:
        fill(log, 2)
        with log.topic("orders").consumer("billing") as consumer:
            given = consumer.poll(2)
            owner.kill()
            while other.consumers()[0].members == 0:  # it comes again by itself
                assert consumer.partitions == (0, 1, 2, 3)
            given += consumer.poll(2)
            consumer.commit()
            for _ in range(4):
                given += consumer.poll(10, timeout=0)
            consumer.commit()
            assert consumer.lag == 0
        places = [(record.partition, record.offset) for record in given]
        assert len(places) == len(set(places)) == 8


def test_a_member_whose_thread_has_ended_gives_its_partitions_back(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, _), join(tmp_path / "log") as other:
        fill(log)
        consumer = log.topic("orders").consumer("billing")
        thread = threading.Thread(target=consumer.poll)
        thread.start()
        thread.join()
        with other.topic("orders").consumer("billing", patience=600) as next_one:
            given: list[tuple[int, int]] = []
            while len(given) < 4:
                given += [(record.partition, record.offset) for record in next_one.poll(10, timeout=1)]
            next_one.commit()
        assert sorted(given) == [(0, 0), (1, 0), (2, 0), (3, 0)]
        with pytest.raises(Invalid, match="another member"):
            consumer.commit()
        consumer.close()


def test_members_of_one_process_share_with_each_other_too(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, _):
        fill(log)
        topic = log.topic("orders")
        with topic.consumer("billing") as one:
            assert one.partitions == (0, 1, 2, 3)
            with topic.consumer("billing", patience=0) as two:
                for consumer in (one, two):
                    for _ in range(50):
                        if len(consumer.partitions) == 2:
                            break
                        one.poll(1, timeout=0.02)
                        one.commit()
                        two.poll(1, timeout=0.02)
                        two.commit()
                assert sorted(one.partitions + two.partitions) == [0, 1, 2, 3]
                assert log.consumers()[0].members == 2
            with pytest.raises(Invalid, match="named"), topic.consumer("billing", partitions=[1]):
                topic.consumer("billing", partitions=[1])


def test_a_transaction_that_is_refused_moves_no_position(tmp_path: Path) -> None:
    """As in a log of one's own: the holder of the records tries again; nothing is given out twice by itself."""
    with shared(tmp_path / "log") as (member, _), holdfast.open(tmp_path / "alone") as alone:
        for log in (member, alone):
            fill(log)
            log.topic("out").append(b"first", idempotency_key="once")
            with log.topic("orders").consumer("billing") as consumer:
                given = consumer.poll(1, timeout=60)
                before = consumer.position
                with pytest.raises(Invalid, match="idempotency key"), log.transaction() as tx:
                    tx.append("out", b"something else", idempotency_key="once")
                    tx.consumed(consumer)
                assert consumer.position == before
                with log.transaction() as tx:
                    tx.append("out", b"made of it")
                    tx.consumed(consumer)
                while len(given) < 4:
                    given += consumer.poll(10, timeout=60)
                assert sorted((record.partition, record.offset) for record in given) == [(n, 0) for n in range(4)]


class Nobody:
    is_gone = False

    def tell(self, name: str, body: bytes) -> None:
        pass


def test_of_two_commits_that_follow_the_same_position_one_is_refused(tmp_path: Path) -> None:
    """Whichever member has the partition or owns the log by then: the same records would be consumed twice."""
    turns = count(1)

    def comes(log: Log) -> tuple[Members, RemoteMember]:
        members = log._consumers.members_at(("c", "t"), {})
        member = RemoteMember(Nobody(), b"token", None, turns)  # type: ignore[arg-type]
        member.id = members.join(member, 0.0)
        return members, member

    def commit(
        log: Log, members: Members, member: RemoteMember | None, to: int, after: StoredPosition
    ) -> StoredPosition:
        kept = StoredPosition(to, time.time_ns(), after=after.at)
        members.begin_forwarded(None if member is None else member.id, {0: kept}).queued(
            log._journal.spaces.change("consumers", position_items(("c", "t"), {0: kept}), timeout=60)
        )
        log.flush()
        members.settle()
        return kept

    with holdfast.open(tmp_path / "log") as log:
        log.topic("t").append_batch([b"1", b"2", b"3"])
        members, first = comes(log)
        begin = members.kept(0)
        members.leave(first.id)  # its connection is cut
        _, second = comes(log)
        one = commit(log, members, second, 2, begin)
        members.leave(second.id)
        for member in (None, comes(log)[1]):
            with pytest.raises(Invalid, match="another member"):
                commit(log, members, member, 3, begin)
    with holdfast.open(tmp_path / "log") as log:
        members = log._consumers.members_at(("c", "t"), {})
        with pytest.raises(Invalid, match="another member"):
            commit(log, members, None, 3, begin)
        two = StoredPosition(3, time.time_ns(), after=one.at)
        three = StoredPosition(2, two.at + 1, after=two.at)
        several = [members.begin_forwarded(None, {0: kept}) for kept in (two, three)]  # they came in one group
        for committing in several:
            committing.failed()
        commit(log, members, None, 3, one)
        assert members.committed(0) == 3


@pytest.mark.parametrize("moves", [False, True], ids=["another partition", "the same partition"])
def test_a_commit_that_fails_drops_nothing_that_another_member_of_the_process_has_in_hand(
    tmp_path: Path, moves: bool
) -> None:
    """It would write what it makes of that without a position, and make it again when it comes again."""
    with shared(tmp_path / "log") as (log, _):
        fill(log)
        topic = log.topic("orders")
        with topic.consumer("c", partitions=[0]) as one, topic.consumer("c", partitions=[1]) as other:
            assert len(one.poll(1)) == len(other.poll(1)) == 1
            members, answer = one._members, Answer()
            with members.lock:
                late = members.begin(one._id, {0: 1})
                assert late is not None
                late.queued(answer)  # type: ignore[arg-type]
            if moves:
                one.close()
                other.close()
                other = topic.consumer("c", partitions=[0])
                assert len(other.poll(1)) == 1
            answer.done = True
            other.commit()
            assert other.committed == ('{"0":1}' if moves else '{"1":1}')
            other.close()


class Answer:
    """A commit whose answer comes late: nobody knows what became of it."""

    done = is_stored = False

    @property
    def unit(self) -> Answer:
        return self

    error = OutcomeUnknown("nobody knows")


def test_what_was_given_out_behind_a_commit_that_fails_is_not_dropped_unsaid(tmp_path: Path) -> None:
    """Else what was made of it would be written without a position, and made again when it comes again."""
    with shared(tmp_path / "log") as (log, _):
        fill(log, 2)
        with log.topic("orders").consumer("c", partitions=[0]) as consumer:
            assert len(consumer.poll(1)) == 1
            members = consumer._members
            assert len(consumer.poll(1)) == 1
            with members.lock:
                members._failed(OutcomeUnknown("nobody knows"), consumer._id, {0: StoredPosition(1, time.time_ns())})
            with pytest.raises(Invalid, match="another member"), log.transaction() as tx:
                tx.append("out", b"made of it")
                tx.consumed(consumer)
            assert len(consumer.poll(2) + consumer.poll(1, timeout=0)) == 2
            consumer.commit()


def test_what_a_commit_of_unknown_outcome_consumed_does_not_come_again_if_it_is_stored(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as (log, _):
        topic = log.topic("t")
        topic.append_batch([b"%d" % number for number in range(4)])
        with topic.consumer("c", start="first") as consumer:
            assert [record.payload for record in consumer.poll(2)] == [b"0", b"1"]
            members = consumer._members
            before = members._shares[0].kept
            consumer.commit()
            with members.lock:  # as if its answer had been lost for good
                members.settle()
                members._shares[0].kept = members._shares[0].submitted = before
                members._failed(OutcomeUnknown("nobody knows"), consumer._id, {0: StoredPosition(2, time.time_ns())})
            assert [record.payload for record in consumer.poll(2)] == [b"2", b"3"]
            consumer.commit()


def test_a_commit_that_is_stored_before_it_is_noted_as_queued_takes_no_partition_away(tmp_path: Path) -> None:
    """The owner may say so while the thread that commits is not back from the queue."""
    with shared(tmp_path / "log") as (log, _):
        topic = log.topic("t")
        topic.append_batch([b"%d" % number for number in range(4)])
        with topic.consumer("c", start="first") as consumer:
            assert len(consumer.poll(2)) == 2
            gather = consumer._journal.spaces.gather

            def slowly(*given, **named):
                ticket = gather(*given, **named)
                ticket.wait(60)
                consumer._members.changed()
                return ticket

            consumer._journal.spaces.gather = slowly
            consumer.commit()
            assert [record.payload for record in consumer.poll(2)] == [b"2", b"3"]
            consumer.commit()
            assert consumer.lag == 0
