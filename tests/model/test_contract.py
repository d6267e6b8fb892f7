"""The contract of a log, at its three distances: in this process, shared with the process that owns it, over HTTP.

One random program runs on all three, and every answer is compared, errors included. The owner of the shared log is
killed now and then; sometimes this process then owns it itself. Numbers of commits differ, because other programs used
the same logs before; nothing else may. What the log of this process must answer, `test_log_model` compares with a list.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import holdfast
from holdfast import HoldfastError, Log, OutcomeUnknown, Record
from tests.remote.served import ServedLog
from tests.sharing.owner import SETTINGS
from tests.sharing.shared_logs import OwnerProcess, join

pytestmark = pytest.mark.crash

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("blob", pa.binary())])
WIDER = SCHEMA.append(pa.field("more", pa.float64()))
T0 = 1_700_000_000_000_000
NO_ZONE = datetime.fromtimestamp(T0 // 10**6, UTC).replace(tzinfo=None)

keys = st.sampled_from([None, b"a", "b", b"\xff\x00", ""])
payloads = st.binary(max_size=40)
offsets = st.one_of(st.none(), st.integers(-8, 30))
partitions = st.sampled_from([None, 0, 1, 2, [0, 1], 7, 1.0, "0"])
times = st.integers(T0, T0 + 50)
bounds = st.one_of(st.none(), times)

_numbers = count()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the kind and words of what it raises."""
    try:
        return call()
    except OutcomeUnknown:
        raise
    except HoldfastError as error:
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "holdfast.errors")
        return kind.__name__, error.message, error.hint


def place(receipt: Any) -> tuple[int, int, bool]:
    return receipt.partition, receipt.offset, receipt.repeated


class Distances:
    """The three logs, and the processes that own or serve two of them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._owners = [OwnerProcess(root / "shared"), OwnerProcess(root / "shared")]
        self._server = ServedLog(root / "served")
        self.open()

    def open(self) -> None:
        self.local = holdfast.open(self._root / "local", settings=SETTINGS)
        self.member = join(self._root / "shared")
        self.client: Log = self._server.connect()

    def close(self) -> None:
        for log in self.logs:
            log.close()

    @property
    def logs(self) -> tuple[Log, ...]:
        return self.local, self.member, self.client

    def reopen(self) -> None:
        self.close()
        self.open()

    def kill_owner(self) -> bool:
        """The owner of the shared log; False where that is this process, which then hands over."""
        if self.member.is_owner:
            return False
        pid = (self._root / "shared" / "LOCK").read_text().split()[:1]  # none: somebody is taking over just now
        owner = next((one for one in self._owners if [str(one.process.pid)] == pid), None)
        if owner is not None:
            owner.kill()
            self._owners.remove(owner)
            self._owners.append(OwnerProcess(self._root / "shared", waits=False))
        return True

    def end(self) -> None:
        self.close()
        self._server.stop()
        for owner in self._owners:
            owner.kill()


class OneContract(RuleBasedStateMachine):
    """The rules."""

    distances: Distances

    @property
    def logs(self) -> tuple[Log, ...]:
        return self.distances.logs

    @initialize()
    def topics(self) -> None:
        number = next(_numbers)
        self.raw, self.typed, self.space = f"raw-{number}", f"typed-{number}", f"space-{number}"
        self.time = T0
        for log in self.logs:
            log.topic(self.raw, partitions=3)
            log.topic(self.typed, schema=SCHEMA, partitions=2, key="name")
        self.join()

    def join(self) -> None:
        """Each log's member of one consumer, behind what the one before had committed."""
        self.consumers = [log.topic(self.raw).consumer("c", patience=0) for log in self.logs]

    def teardown(self) -> None:
        for consumer in getattr(self, "consumers", ()):  # a server keeps a member that nobody closed for a while
            consumer.close()

    def alike(self, calls: list[Callable[[], Any]]) -> Any:
        first, *others = [outcome(call) for call in calls]
        for other in others:
            assert other == first
        return first

    def same(self, call: Callable[[Log], Any]) -> Any:
        return self.alike([partial(call, log) for log in self.logs])

    def consumed(self, call: Callable[[Log, Any], Any]) -> None:
        """What becomes of the consumers, and where they are then."""
        deadline = time.monotonic() + 20
        while any(len(one.partitions) < 3 for one in self.consumers) and time.monotonic() < deadline:
            time.sleep(0.01)  # when an owner died, or the member before was not missed yet, they come one by one
        seen = []
        for log, consumer in zip(self.logs, self.consumers, strict=True):
            came = outcome(partial(call, log, consumer))
            seen.append((came, consumer.position, consumer.committed, consumer.lag))
        assert seen[1:] == seen[:1] * 2

    def now(self) -> int:
        self.time += 1
        return self.time

    @rule(payload=payloads, key=keys, kind=st.sampled_from([None, "k", ""]), partition=st.sampled_from([None, 1, 9]))
    def append(self, payload: bytes, key: Any, kind: Any, partition: Any) -> None:
        time = self.now()
        headers = {"h": payload} if key else None
        self.same(
            lambda log: place(
                log.topic(self.raw).append(payload, key=key, kind=kind, headers=headers, time=time, partition=partition)
            )
        )

    @rule(payload=st.sampled_from([b"x", b"y"]), unique=st.sampled_from(["i1", b"i2", ""]), key=keys)
    def append_once(self, payload: bytes, unique: Any, key: Any) -> None:
        time = self.now()
        self.same(lambda log: place(log.topic(self.raw).append(payload, idempotency_key=unique, key=key, time=time)))

    @rule(records=st.lists(st.tuples(payloads, keys), max_size=6), partition=st.sampled_from([None, 2]))
    def append_batch(self, records: list[Any], partition: Any) -> None:
        time = self.now()
        batch = [
            Record(payload, key=key.encode() if isinstance(key, str) else key, time=time) for payload, key in records
        ]
        self.same(lambda log: [place(one) for one in log.topic(self.raw).append_batch(batch, partition=partition)])

    @rule(
        rows=st.lists(
            st.fixed_dictionaries(
                {"id": st.integers(-5, 5), "name": st.sampled_from(["a", "b", None]), "blob": st.binary(max_size=5)}
            ),
            max_size=5,
        ),
        unique=st.sampled_from([None, "r1", "r2"]),
        partition=st.sampled_from([None, 1]),
    )
    def append_rows(self, rows: list[Any], unique: Any, partition: Any) -> None:
        time = self.now()
        self.same(
            lambda log: [
                place(one)
                for one in log.topic(self.typed, schema="latest").append(
                    rows, time=time, idempotency_key=unique, partition=partition
                )
            ]
        )

    @rule(bad=st.sampled_from([{"id": "text"}, {"nothing": 1}, 5, []]))
    def append_what_does_not_fit(self, bad: Any) -> None:
        self.same(lambda log: log.topic(self.typed, schema="latest").append(bad))

    @rule()
    def widen(self) -> None:
        self.same(lambda log: log.topic(self.typed, schema=WIDER).schema.names)

    @rule(
        payload=payloads,
        key=st.sampled_from(["k1", b"k2"]),
        delete=st.booleans(),
        fails=st.booleans(),
        unique=st.sampled_from([None, "i1"]),
    )
    def transact(self, payload: bytes, key: Any, delete: bool, fails: bool, unique: Any) -> None:
        time = self.now()

        def run(log: Log) -> Any:
            try:
                with log.transaction() as tx:
                    one = tx.append(self.raw, payload, time=time, partition=0, idempotency_key=unique)
                    row = {"id": 1, "name": "a", "blob": payload}
                    two = tx.append(log.topic(self.typed, schema="latest"), row, time=time)
                    tx.append_batch(self.raw, [Record(payload, time=time)] * 2, partition=1)
                    tx.put(self.space, key, payload)
                    if delete:
                        tx.delete(self.space, key)
                    if fails:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                return "nothing"
            return place(one.receipt), place(two.receipts[0]), [place(receipt) for receipt in tx.receipts]

        self.same(run)

    @rule(key=st.sampled_from(["k1", b"k2", b"\x00\xff"]), body=payloads)
    def put_item(self, key: Any, body: bytes) -> None:
        self.same(lambda log: log.space(self.space).put(key, body))

    @rule(key=st.sampled_from(["k1", b"k2", b"\x00\xff"]))
    def look_at_space(self, key: Any) -> None:
        self.same(lambda log: (log.space(self.space).get(key), log.space(self.space).items()))

    @rule()
    def drop_space(self) -> None:
        self.same(lambda log: (log.space(self.space).drop(), log.space(self.space).items()))
        self.same(lambda log: self.space in log.spaces())

    @rule(
        start=offsets,
        end=offsets,
        limit=st.sampled_from([None, 0, 1, 3, -1]),
        reverse=st.booleans(),
        partition=partitions,
        since=bounds,
        until=bounds,
        bytes_max=st.sampled_from([None, 0, 30]),
        key=st.sampled_from([None, b"a", "b", b"none"]),
        arrow=st.booleans(),
    )
    def read(self, arrow: bool, **asked: Any) -> None:
        def run(log: Log) -> Any:
            reading = log.topic(self.raw).read(**asked)
            found = reading.to_arrow() if arrow else list(reading)
            return found, reading.position, reading.exhausted

        self.same(run)

    @rule(
        start=offsets,
        limit=st.sampled_from([None, 1, 3]),
        reverse=st.booleans(),
        key=st.sampled_from([None, "a", "zz", 5]),
        columns=st.sampled_from([None, ["id"], ["name", "blob"], ["nope"]]),
        arrow=st.booleans(),
    )
    def read_rows(self, arrow: bool, **asked: Any) -> None:
        def run(log: Log) -> Any:
            reading = log.topic(self.typed, schema="latest").read(**asked)
            found = reading.to_arrow() if arrow else list(reading)
            return found, reading.position

        self.same(run)

    @rule(limit=st.integers(1, 4), reverse=st.booleans())
    def page_by_position(self, limit: int, reverse: bool) -> None:
        def run(log: Log) -> Any:
            topic, pages, position = log.topic(self.raw), [], None
            while True:
                place = {"end": position} if reverse else {"start": position}
                page = topic.read(limit=limit, reverse=reverse, **place)  # type: ignore[arg-type]
                pages.append([record.payload for record in page])
                position = page.position
                if page.exhausted:
                    return pages, position

        self.same(run)

    @rule(since=bounds, until=bounds, reverse=st.booleans())
    def read_times(self, **asked: Any) -> None:
        self.same(lambda log: [record.time for record in log.topic(self.raw).read(**asked)])

    @rule(
        sequence=st.sampled_from([1, 2, 3, 4, 9]),
        producer=st.sampled_from(["p", "q"]),
        payload=payloads,
        kind=st.sampled_from(["record", "batch", "rows"]),
    )
    def produce(self, sequence: int, producer: str, payload: bytes, kind: str) -> None:
        time = self.now()

        def run(log: Log) -> Any:
            one = log.producer(f"{self.raw}-{producer}")
            if kind == "record":
                return place(one.append(self.raw, payload, sequence=sequence, time=time)), one.last
            if kind == "batch":
                batch = [Record(payload, time=time)] * 2
                return [place(receipt) for receipt in one.append_batch(self.raw, batch, sequence=sequence)], one.last
            rows = [{"id": 1, "name": "a", "blob": payload}, {"id": 2, "name": "b", "blob": b""}]
            topic = log.topic(self.typed, schema="latest")
            return [place(receipt) for receipt in one.append(topic, rows, sequence=sequence, time=time)], one.last

        self.same(run)

    @rule(producer=st.sampled_from(["p", "q"]))
    def forget_producer(self, producer: str) -> None:
        self.same(lambda log: log.forget_producer(f"{self.raw}-{producer}"))
        self.same(lambda log: [one.last for one in log.producers() if one.producer.startswith(f"{self.raw}-")])

    @rule(key=st.sampled_from([b"a", "b", b"none"]))
    def latest(self, key: Any) -> None:
        self.same(lambda log: log.topic(self.raw).latest(key))

    @rule(start=st.sampled_from([0, None]))
    def follow(self, start: Any) -> None:
        def run(log: Log) -> Any:
            topic = log.topic(self.raw)
            follower = topic.follow(start, partition=0)
            last = place(topic.append(b"followed", time=T0, partition=0))
            found = [next(follower).offset]
            while found[-1] < last[1]:
                found.append(next(follower).offset)
            return found

        self.same(run)

    @rule(commit=st.booleans())
    def consume(self, commit: bool) -> None:
        def run(_: Log, consumer: Any) -> Any:
            given = self._polled(consumer)
            if commit:
                consumer.commit()
            return given

        self.consumed(run)

    def _polled(self, consumer: Any) -> list[tuple[int, int]]:
        return sorted((one.partition, one.offset) for _ in range(3) for one in consumer.poll(100, 0))

    @rule(payload=payloads, how=st.sampled_from(["commits", "raises", "conflicts", "commits and polls"]))
    def consume_with_a_transaction(self, payload: bytes, how: str) -> None:
        """What was given out is consumed together with what was made of it, or neither."""
        time, unique = self.now(), f"{self.raw}-conflict" if how == "conflicts" else None
        if how == "conflicts":
            self.same(lambda log: place(log.topic(self.raw).append(b"first", idempotency_key=unique, time=T0)))
        self.consumed(
            lambda log, consumer: (
                self._polled(consumer),
                outcome(partial(self._transact, log, consumer, payload, time, unique, how)),
            )
        )

    def _transact(self, log: Log, consumer: Any, payload: bytes, time: int, unique: str | None, how: str) -> Any:
        try:
            with log.transaction() as tx:
                one = tx.append(self.raw, payload + b"!", time=time, partition=2, idempotency_key=unique)
                tx.consumed(consumer)
                if how == "commits and polls":
                    consumer.poll(1, 0)
                    tx.consumed(consumer)
                if how == "raises":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return outcome(lambda: tx.receipts)
        return place(one.receipt)

    @rule(to=st.sampled_from(["first", "next", "committed", 0, -1, 10**6, "nowhere", 1.5, None, NO_ZONE]))
    def seek(self, to: Any) -> None:
        self.consumed(lambda _, consumer: consumer.seek(to))

    @rule(which=st.integers(0, 2), value=st.sampled_from([1, "text", b"\x00", None, {"a": [1.5]}]), queue=st.booleans())
    def start_execution(self, which: int, value: Any, queue: bool) -> None:
        name = "slow" if queue else "default"
        self.same(lambda log: str(log.executions.start(self.raw, value, id=self._execution(which), queue=name)))

    @rule(
        which=st.integers(0, 3),
        value=st.sampled_from([1, b"\x00", None]),
        number=st.integers(0, 2),
        do=st.sampled_from(["cancel", "resume", "signal", "summary", "rewind", "fork", "settle"]),
    )
    def change_execution(self, which: int, do: str, value: Any, number: int) -> None:
        found, other = self._execution(which), self._execution(10 + number)

        def run(log: Log) -> Any:
            changes = log.executions
            if do == "signal":
                return changes.signal(found, "paid", value, signal_id=str(other))
            if do == "summary":
                return changes.summary(found).status, changes.show(found).steps
            if do == "rewind":
                return changes.rewind(found, before="nothing")
            if do == "fork":
                return str(changes.fork(found, id=other))
            return changes.settle(found, "nothing", value) if do == "settle" else getattr(changes, do)(found)

        self.same(run)
        self.same(lambda log: sorted((str(one.id), one.status, one.queue) for one in self._executions(log)))

    def _execution(self, number: int) -> Any:
        return holdfast.execution_id(self.raw, str(number))

    def _executions(self, log: Log) -> list[Any]:
        return log.executions.list(kind=self.raw)

    @rule(token=st.sampled_from(["", "nonsense", "hfp1_" + "A" * 60]))
    def settle_what_is_no_promise(self, token: str) -> None:
        self.same(lambda log: log.executions.resolve(token, 1))
        self.same(lambda log: log.executions.reject(token, "no"))

    @rule(most=st.none() | st.integers(1, 5))
    def seal(self, most: int | None) -> None:
        self.same(lambda log: log.seal(self.raw))
        self.same(lambda log: log.topic(self.raw).watermark(1).offset)
        if most is not None:
            self.same(lambda log: log.set_retention(self.raw, records_max=most))
            self.same(lambda log: log.retain().dry_run)
            self.same(lambda log: log.set_retention(self.raw))  # an owner that begins retains by itself, too
            self.same(lambda log: list(log.topic(self.raw).read(limit=1)))

    @rule(several=st.lists(payloads, min_size=1, max_size=8), offers=st.booleans())
    def submit(self, several: list[bytes], offers: bool) -> None:
        time = self.now()

        def run(log: Log) -> Any:
            topic = log.topic(self.raw)
            if offers:
                return [topic.offer(payload, time=time, partition=0) for payload in several], log.flush()
            return [place(ticket.result()) for ticket in [topic.submit(payload, time=time) for payload in several]]

        self.same(run)

    @rule()
    def kill_the_owner(self) -> None:
        if not self.distances.kill_owner():
            self.reopen()

    @rule()
    def reopen(self) -> None:
        self.teardown()
        self.distances.reopen()
        self.join()

    @rule()
    def look_at_marks(self) -> None:
        self.same(lambda log: log.marks(self.raw))
        self.same(lambda log: log.topic(self.typed, schema="latest").schema.names)

    @rule(wrong=st.sampled_from(["nothing-here", "", "_x", 5]))
    def ask_for_what_is_not_there(self, wrong: Any) -> None:
        self.same(lambda log: outcome(lambda: log.marks(wrong))[0])  # which topics there are differs

    @rule()
    def ask_for_another_kind(self) -> None:
        self.same(lambda log: log.topic(self.raw, partitions=4))
        self.same(lambda log: log.topic(self.raw, schema=SCHEMA))
        self.same(lambda log: log.topic(self.typed))
        self.same(lambda log: log.topic(self.typed, schema=pa.schema([("other", pa.int8())])))


@pytest.fixture(scope="module")
def contract() -> Iterator[type[OneContract]]:
    with tempfile.TemporaryDirectory() as root:
        distances = Distances(Path(root))
        yield type("OneContract", (OneContract,), {"distances": distances})
        distances.end()


def run(contract: type[OneContract], examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        contract,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.core
def test_a_log_is_the_same_at_every_distance(contract: type[OneContract], is_sampled: bool) -> None:
    run(contract, 5 if is_sampled else 40, 25)


@pytest.mark.soak
def test_a_log_is_the_same_at_every_distance_for_long(contract: type[OneContract]) -> None:
    run(contract, 300, 40)
