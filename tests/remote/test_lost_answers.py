"""What a network does to appends: requests and answers are lost, servers die; everything acknowledged is there once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event, Thread

import pyarrow as pa
import pytest

from holdfast import Corrupt, Full, HoldfastError, Log, NotFound, OutcomeUnknown, Receipt, Unavailable
from holdfast.errors import Denied
from holdfast.journal.sessions.outcomes import Outcome, Repeat, RunOutcome
from holdfast.owner.wire import ANSWER, BYE, GroupAnswer, begin_frame
from holdfast.remote.http.exchange import Question
from tests.remote.cutting_proxy import CuttingProxy, Seen, response
from tests.remote.groups import NOWHERE
from tests.remote.served import ServedLog

pytestmark = pytest.mark.crash

SCHEMA = pa.schema([pa.field("id", pa.int64())])


def is_group(seen: Seen) -> bool:
    return seen.path == "/v1/groups"


def losing(proxy: CuttingProxy, random: Random, share: float) -> None:
    """Lose requests, answers and halves of answers, of everything that is asked."""

    def plan(seen: Seen) -> str:
        if random.random() < share:
            return random.choice(["lose_request", "lose_answer", "half_answer"])
        return "pass"

    proxy.plan = plan


def test_what_is_lost_on_its_way_is_written_once_and_in_order(
    served: ServedLog, proxy: CuttingProxy, name: str, seed: int
) -> None:
    with served.connect(proxy.url) as log:
        topic, typed = log.topic(name, partitions=2), log.topic(f"{name}-typed", schema=SCHEMA)
        losing(proxy, Random(seed), 0.3)
        receipts: dict[int, list[Receipt]] = {}

        def write(writer: int) -> None:
            found = receipts[writer] = []
            for number in range(12):
                payload = b"%d-%d" % (writer, number)
                kind = number % 4
                if kind == 0:
                    found.append(topic.append(payload, partition=writer % 2))
                elif kind == 1:
                    found.append(topic.append_batch([payload, payload + b"'"], partition=writer % 2)[0])
                elif kind == 2:
                    with log.transaction() as tx:
                        pending = tx.append(topic, payload, partition=writer % 2)
                        tx.put(name, payload, payload)
                    found.append(pending.receipt)
                else:
                    typed.append({"id": writer * 100 + number})
                    found.append(topic.append(payload, partition=writer % 2))

        threads = [Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        proxy.plan = lambda seen: "pass"
        assert proxy.cuts > 0
        assert [len(receipts[writer]) for writer in range(4)] == [12] * 4
        records = {(one.partition, one.offset): one.payload for one in topic.read()}
        assert len(records) == 4 * 12 + 4 * 3
        for writer, found in receipts.items():
            assert [records[one.partition, one.offset] for one in found] == [b"%d-%d" % (writer, n) for n in range(12)]
            assert [one.offset for one in found] == sorted(one.offset for one in found)
            assert not any(one.repeated for one in found)
        assert sorted(row["id"] for row in typed.read()) == sorted(w * 100 + n for w in range(4) for n in (3, 7, 11))
        assert len(log.space(name).items()) == 4 * 3


@pytest.mark.core
def test_a_killed_server_loses_nothing_and_repeats_nothing(mortal: ServedLog, name: str, seed: int) -> None:
    """Eight tasks of two loops and threads write and wait; the server is killed again and again."""
    random, stop = Random(seed), Event()
    acknowledged: dict[int, list[int]] = {}
    failures: list[BaseException] = []
    with mortal.connect() as log, mortal.connect() as other:
        topics = [log.topic(name), other.topic(name)]

        def write(writer: int) -> None:
            found = acknowledged[writer] = []
            number = 0
            try:
                while not stop.is_set():
                    topics[writer % 2].append(b"%d:%d" % (writer, number), timeout=60)
                    found.append(number)
                    number += 1
            except BaseException as error:
                failures.append(error)

        follower = other.topic(name).follow(0)
        followed: list[tuple[int, bytes]] = []
        threads = [Thread(target=write, args=(writer,)) for writer in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            wanted = len(followed) + random.randrange(20, 120)
            while len(followed) < wanted:
                record = next(follower)
                followed.append((record.offset, record.payload))
            mortal.restart()
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        records = [record.payload for record in log.topic(name).read()]
        while len(followed) < len(records):
            record = next(follower)
            followed.append((record.offset, record.payload))
    assert [offset for offset, _ in followed] == list(range(len(records)))
    assert [payload for _, payload in followed] == records
    for writer, numbers in acknowledged.items():
        own = [int(payload.split(b":")[1]) for payload in records if payload.startswith(b"%d:" % writer)]
        assert own == numbers == list(range(len(numbers)))


def test_without_a_server_the_outcome_is_unknown_and_the_ticket_still_settles(mortal: ServedLog, name: str) -> None:
    with mortal.connect() as log:
        topic = log.topic(name)
        topic.append(b"first")
        mortal.kill()
        with pytest.raises(OutcomeUnknown) as caught:
            topic.append(b"second", timeout=0.2, idempotency_key="k")
        assert caught.value.idempotency_key == b"k"
        assert caught.value.ticket is not None
        assert not caught.value.ticket.done
        mortal.start()
        assert caught.value.ticket.result(60).offset == 1  # type: ignore[union-attr]
        assert topic.append(b"second", idempotency_key="k").offset == 1
        assert [record.payload for record in topic.read()] == [b"first", b"second"]


def test_a_full_queue_refuses_what_it_cannot_keep(mortal: ServedLog, name: str) -> None:
    settings = {"journal": {"queue_records_max": 10, "group_records_max": 5}}
    with mortal.connect(settings=settings) as log:
        topic = log.topic(name)
        mortal.pause()
        tickets = [topic.submit(b"x", timeout=0) for _ in range(10)]
        assert topic.offer(b"y") is False
        with pytest.raises(Full):
            topic.submit(b"z", timeout=0.05)
        with pytest.raises(Full):
            asyncio.run(topic.append_async(b"z", timeout=0.05))
        mortal.go_on()
        assert [ticket.result(60).offset for ticket in tickets] == list(range(10))
        assert topic.offer(b"y") is True
        log.flush(60)
        assert sum(1 for _ in topic.read()) == 11


def test_closing_does_not_wait_for_ever_for_a_server_that_is_gone(mortal: ServedLog, name: str) -> None:
    log = mortal.connect()
    topic = log.topic(name)
    mortal.kill()
    tickets = [topic.submit(b"sent or not"), topic.submit(b"not sent")]
    with pytest.raises(Unavailable, match="given up"):
        log.close(timeout=0.3)
    for ticket in tickets:
        with pytest.raises((OutcomeUnknown, Unavailable)):
            ticket.result(0)
    with pytest.raises(HoldfastError):
        topic.append(b"later")
    log.close()


def test_no_room_at_the_server_is_asked_again_and_written_once(
    served: ServedLog, proxy: CuttingProxy, name: str
) -> None:
    refusals = iter([response(429, b'{"kind":"Full","message":"no","hint":""}', retry_after="0")] * 3 + [response(503)])
    with served.connect(proxy.url) as log:
        topic = log.topic(name)
        proxy.plan = lambda seen: next(refusals, "pass") if is_group(seen) else "pass"
        assert topic.append(b"x").offset == 0
        sent = [seen for seen in proxy.seen if is_group(seen)]
        assert len(sent) == 5
        assert len({(seen.headers["holdfast-session"], seen.body) for seen in sent}) == 1
        assert len({seen.body for seen in sent}) == 1
        assert len(list(topic.read())) == 1


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_refusal_after_a_lost_answer_proves_nothing(
    served: ServedLog, proxy: CuttingProxy, name: str, in_doubt: bool
) -> None:
    """It may have been written by the attempt before: that is never called a failure."""
    denied = response(403, b'{"kind":"Denied","message":"revoked","hint":"ask"}')
    actions = iter((["lose_answer"] if in_doubt else []) + [denied])
    with served.connect(proxy.url) as log:
        topic = log.topic(name)
        proxy.plan = lambda seen: next(actions, "pass") if is_group(seen) else "pass"
        with pytest.raises(OutcomeUnknown if in_doubt else Denied, match="revoked"):
            topic.append(b"x")
        assert len(list(topic.read())) == (1 if in_doubt else 0)


@pytest.mark.parametrize("status", [200, 302])
def test_a_server_of_another_version_in_mid_life_is_no_reason_to_end(
    served: ServedLog, proxy: CuttingProxy, name: str, status: int
) -> None:
    """What was on its way may have been written, what comes later goes on."""
    other = response(status, b"{}").replace(b"holdfast-api: 1", b"holdfast-api: 9")
    with served.connect(proxy.url) as log:
        topic = log.topic(name)
        answers = iter([other])
        proxy.plan = lambda seen: next(answers, "pass") if is_group(seen) else "pass"
        with pytest.raises(OutcomeUnknown, match=r"another version|redirects"):
            topic.append(b"x")
        assert topic.append(b"y").offset == 0
        proxy.plan = lambda seen: other if seen.method == "POST" else "pass"
        with pytest.raises(OutcomeUnknown, match=r"another version|redirects"):
            log.executions.start("work")


def test_a_token_that_cannot_be_read_for_a_while_fails_what_needs_it_and_nothing_else(
    served: ServedLog, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("hft1_anything")  # this server asks for none
    with served.connect(token=f"file:{file}") as log:
        topic = log.topic(name)
        file.unlink()
        log._journal._exchange._bearer = None
        with pytest.raises(NotFound, match="token cannot be read"):
            topic.append(b"x")
        file.write_text("hft1_anything")
        assert topic.append(b"y").offset == 0


def answer(*outcomes: Outcome, sequence: int = 1) -> bytes:
    return begin_frame(ANSWER, GroupAnswer(sequence, outcomes), 0)


def place(partition: int, count: int = 1, first: int = 0, *repeats: Repeat) -> Outcome:
    return Outcome(None, (RunOutcome(partition, first, 1, count, repeats=repeats),))


@pytest.mark.parametrize(
    "make",
    [
        lambda here: b"",
        lambda here: b"\x90",
        lambda here: answer(place(here))[:-1],
        lambda here: begin_frame(BYE, None, 0),
        lambda here: answer(),
        lambda here: answer(place(here), place(here)),
        lambda here: answer(Outcome()),
        lambda here: answer(place(NOWHERE)),
        lambda here: answer(place(here, 2)),
        lambda here: answer(place(here, 1, -1)),
        lambda here: answer(place(here, 1, -1, Repeat(1, here, 0, 0))),
        lambda here: answer(place(here, 1, -1, Repeat(0, NOWHERE, 0, 0))),
        lambda here: answer(place(here), sequence=2),
    ],
)
def test_an_answer_that_makes_no_sense_is_no_receipt(
    served: ServedLog, proxy: CuttingProxy, name: str, make: Callable[[int], bytes]
) -> None:
    with served.connect(proxy.url) as log:
        topic = log.topic(name)
        (here,) = [part.id for part in log._journal.topics[name]]
        proxy.plan = lambda seen: response(200, make(here)) if is_group(seen) else "pass"
        with pytest.raises(OutcomeUnknown, match="cannot be understood"):
            topic.append(b"x")


def test_reading_goes_on_where_a_page_was_lost(served: ServedLog, proxy: CuttingProxy, name: str, seed: int) -> None:
    with served.connect(proxy.url) as log:
        topic = log.topic(name, partitions=2)
        payloads = [b"%d" % number for number in range(3_000)]
        for partition in (0, 1):
            topic.append_batch(payloads, partition=partition)
        losing(proxy, Random(seed), 0.4)
        assert [record.payload for record in topic.read(partition=0)] == payloads
        assert [record.payload for record in topic.read(partition=1, reverse=True)] == payloads[::-1]
        assert topic.read().to_arrow().num_rows == 6_000
        assert proxy.cuts > 0


def test_a_long_read_follows_the_server_through_its_death(mortal: ServedLog, name: str) -> None:
    with mortal.connect() as log:
        topic = log.topic(name)
        topic.append_batch([b"%d" % number for number in range(2_000)])
        reading = topic.read()
        found = [next(reading).payload for _ in range(100)]
        mortal.restart()
        found += [record.payload for record in reading]
        assert found == [b"%d" % number for number in range(2_000)]


def test_a_consumer_whose_server_died_goes_on_where_it_is(mortal: ServedLog, name: str) -> None:
    """Nobody has committed meanwhile: what it has in hand is committed, and nothing of it comes again."""
    with mortal.connect() as log:
        topic = log.topic(name)
        topic.append_batch([b"%d" % number for number in range(10)])
        consumer = topic.consumer("c")
        assert [one.payload for one in consumer.poll(3)] == [b"0", b"1", b"2"]
        consumer.commit()
        assert [one.payload for one in consumer.poll(3)] == [b"3", b"4", b"5"]
        mortal.restart()
        consumer.commit(60)
        assert consumer.committed == '{"0":6}'
        found: list[bytes] = []
        while len(found) < 4:
            found += [one.payload for one in consumer.poll(10, 30)]
        assert found == [b"6", b"7", b"8", b"9"]
        consumer.commit(60)
        assert consumer.committed == '{"0":10}'
        consumer.close()


def test_a_forked_child_learns_of_it_and_the_parent_goes_on(remote: Log, name: str) -> None:
    import os
    import warnings

    topic = remote.topic(name)
    topic.append(b"before")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            topic.append(b"child")
        except HoldfastError as error:
            code = 0 if getattr(error, "reason", "") == "forked" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert topic.append(b"after").offset == 1


def test_a_follower_that_met_an_error_goes_on_where_it_was(served: ServedLog, proxy: CuttingProxy, name: str) -> None:
    """What came before the error is given first; behind it nothing is left out."""
    corrupt = response(500, b'{"kind":"Corrupt","message":"damaged","hint":"h","fields":{"offset":300}}')
    pages: list[Seen] = []

    def plan(seen: Seen) -> str | bytes:
        if seen.path.startswith(f"/v1/topics/{name}/records"):
            pages.append(seen)
            return corrupt if len(pages) in (2, 3) else "pass"
        return "pass"

    with served.connect(proxy.url) as log:
        topic = log.topic(name)
        topic.append_batch([b"%d" % number for number in range(700)])
        proxy.plan = plan
        follower, found, errors = topic.follow(0), [], 0
        while len(found) < 700:
            try:
                found.append(next(follower).payload)
            except Corrupt as error:
                errors += 1
                assert (error.offset, len(found)) == (300, 256)
        assert errors == 1
        assert found == [b"%d" % number for number in range(700)]


def test_what_was_sent_before_the_log_forgot_its_sender_is_not_written_twice(tmp_path: Path) -> None:
    with (
        ServedLog(tmp_path / "log", journal__session_expiry_ms=1) as server,
        CuttingProxy(server.upstream) as proxy,
        server.connect(proxy.url) as log,
        server.connect() as other,
    ):
        topic = log.topic("t")
        topic.append(b"0")
        written, forgotten = Event(), Event()

        def plan(seen: Seen) -> str:
            if not is_group(seen) or forgotten.is_set():
                return "pass"
            if written.is_set():
                return "lose_request"
            written.set()
            return "lose_answer"

        proxy.plan = plan
        ticket = topic.submit(b"1")
        assert written.wait(60)
        while [record.payload for record in other.topic("t").read()] != [b"0", b"1"]:
            pass
        other.topic("other").append(b"with this the session of the first one goes")
        forgotten.set()
        with pytest.raises(OutcomeUnknown, match="forgotten"):
            ticket.result(60)
        topic.append(b"2")  # and it goes on
        assert [record.payload for record in topic.read()] == [b"0", b"1", b"2"]


# -- answers to something else --------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["shift", "twice"])
def test_an_answer_that_is_repeated_on_a_kept_connection_shifts_no_receipt(
    served: ServedLog, proxy: CuttingProxy, name: str, action: str
) -> None:
    with served.connect(proxy.url) as log:
        topic = log.topic(name)
        topic.append(b"warm")
        proxy.plan = lambda seen: action
        receipts = {number: topic.append(b"%d" % number).offset for number in range(64)}
        proxy.plan = lambda seen: "pass"
        assert {int(record.payload): record.offset for record in topic.read(1)} == receipts


@pytest.mark.parametrize(
    "change",
    [
        lambda name: b"",
        lambda name: b"holdfast-question: 00\r\n",
        lambda name: name + name,
        lambda name: name + b"holdfast-question: 00\r\n",
        lambda name: name[:-4] + b"\r\n",
    ],
    ids=["absent", "another", "twice", "and another", "a part of it"],
)
def test_an_answer_without_the_name_of_its_request_is_none(
    served: ServedLog, proxy: CuttingProxy, name: str, change: Callable[[bytes], bytes]
) -> None:
    """Nobody knows then what became of it: it is sent again, and written once."""
    with served.connect(proxy.url) as log:
        topic = log.topic(name)
        topic.append(b"first")
        left = [2]

        def spoil(answer: bytes, seen: Seen) -> bytes:
            if not is_group(seen) or not left[0]:
                return answer
            left[0] -= 1
            line = b"holdfast-question: " + seen.headers["holdfast-question"].encode() + b"\r\n"
            assert line in answer
            return answer.replace(line, change(line))

        proxy.spoil = spoil
        assert topic.append(b"second").offset == 1
        assert left == [0]
        assert [record.payload for record in topic.read()] == [b"first", b"second"]
        with pytest.raises(Unavailable, match="no answer from the server"):
            proxy.spoil = lambda answer, seen: answer.replace(b"holdfast-question", b"holdfast-other")
            log._journal._exchange.ask(Question("GET", ("v1", "topics")), 0.5)


def test_what_stands_behind_a_body_is_no_header(served: ServedLog, proxy: CuttingProxy, name: str) -> None:
    with served.connect(proxy.url) as log:
        log.topic(name).append(b"first")
        trailer = (
            b"HTTP/1.1 200 OK\r\nholdfast-api: 1\r\ntransfer-encoding: chunked\r\ntrailer: holdfast-question\r\n\r\n"
            b"2\r\n{}\r\n0\r\nholdfast-question: %s\r\n\r\n"
        )
        proxy.spoil = lambda answer, seen: trailer % seen.headers["holdfast-question"].encode()
        with pytest.raises(Unavailable, match="no answer from the server"):
            log._journal._exchange.ask(Question("GET", ("v1", "topics")), 0.5)
