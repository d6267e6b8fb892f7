"""A shared log answers as a local one does: the same random program runs on both, and every answer is compared.

The shared one is owned by another process, which is killed now and then; sometimes this process then owns it itself,
and hands it over again when it closes its log. Numbers of commits (`seq`) differ, because other programs used the same
log before; nothing else may.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
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
from tests.sharing.owner import SETTINGS
from tests.sharing.shared_logs import OwnerProcess, join

pytestmark = pytest.mark.crash

payloads = st.binary(max_size=40)
keys = st.none() | st.sampled_from([b"a", b"b", b"c"])
names = st.sampled_from(["x", "y", "z"])
offsets = st.none() | st.integers(-6, 12)
ROWS = pa.schema([("a", pa.int64())])


class Helpers:
    """Processes that own the shared log in turn, and the logs that all examples use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.owners = [OwnerProcess(root / "shared"), OwnerProcess(root / "shared")]
        self.shared: Log = join(root / "shared")
        self.local: Log = holdfast.open(root / "local", settings=SETTINGS)
        self.examples = count()
        self.kills = 0

    def reopen(self) -> None:
        """Both logs, by this process."""
        self.shared.close()
        self.local.close()
        self.shared = join(self.root / "shared")
        self.local = holdfast.open(self.root / "local", settings=SETTINGS)

    def kill(self) -> None:
        """Whoever owns the shared log, unless that is this process: then it hands over."""
        if self.shared.is_owner:
            self.reopen()
            return
        pid = (self.root / "shared" / "LOCK").read_text().split()[:1]  # none: somebody is taking over just now
        owner = next((one for one in self.owners if [str(one.process.pid)] == pid), None)
        if owner is not None:
            owner.kill()
            self.owners.remove(owner)
            self.owners.append(OwnerProcess(self.root / "shared", waits=False))
            self.kills += 1

    def close(self) -> None:
        self.shared.close()
        self.local.close()
        for owner in self.owners:
            owner.kill()


class SharedMachine(RuleBasedStateMachine):
    """The rules."""

    helpers: Helpers

    @initialize()
    def begin(self) -> None:
        self.number = next(self.helpers.examples)
        self.times = count(1)
        self.handles()

    def handles(self) -> None:
        """Topics and consumers of both logs."""
        self.topics, self.rows, self.consumers = [], [], []
        for log in (self.helpers.shared, self.helpers.local):
            self.topics.append(log.topic(self.name("t"), partitions=2))
            self.rows.append(log.topic(self.name("rows"), schema=ROWS))
            self.consumers.append(log.topic(self.name("c")).consumer("reader"))

    def name(self, what: str) -> str:
        return f"{what}{self.number}"

    def both(self, do: Callable[[int, Log], Any]) -> Any:
        """Do it in both, and compare what comes of it."""
        told = []
        for at, log in enumerate((self.helpers.shared, self.helpers.local)):
            try:
                told.append(("gave", plain(do(at, log))))
            except OutcomeUnknown:
                raise
            except HoldfastError as error:
                told.append((type(error).__name__, error.message, error.hint))
        assert told[0] == told[1]
        return told[0][1]

    # -- appending ----------------------------------------------------------------------------------------

    @rule(payload=payloads, key=keys, kind=st.none() | names, once=st.none() | names)
    def append(self, payload: bytes, key: bytes | None, kind: str | None, once: str | None) -> None:
        time = next(self.times)
        once = once and self.name(once)
        self.both(
            lambda at, log: self.topics[at].append(
                payload, key=key, kind=kind, time=time, idempotency_key=once, headers={"h": payload}
            )
        )

    @rule(batch=st.lists(st.tuples(payloads, keys), max_size=5), partition=st.none() | st.integers(0, 2))
    def append_batch(self, batch: list[tuple[bytes, bytes | None]], partition: int | None) -> None:
        records = [Record(payload, key=key, time=next(self.times)) for payload, key in batch]
        self.both(lambda at, log: list(self.topics[at].append_batch(records, partition=partition)))

    @rule(several=st.lists(payloads, min_size=1, max_size=8), offers=st.booleans())
    def submit(self, several: list[bytes], offers: bool) -> None:
        time = next(self.times)

        def do(at: int, log: Log) -> Any:
            if offers:
                taken = [self.topics[at].offer(payload, time=time, partition=0) for payload in several]
                log.flush()
                return taken
            tickets = [self.topics[at].submit(payload, time=time) for payload in several]
            return [ticket.result() for ticket in tickets]

        self.both(do)

    @rule(numbers=st.lists(st.integers(0, 99), min_size=1, max_size=4), once=st.none() | names)
    def append_rows(self, numbers: list[int], once: str | None) -> None:
        time = next(self.times)
        once = once and self.name(once)
        rows = [{"a": number} for number in numbers]
        self.both(lambda at, log: list(self.rows[at].append(rows, time=time, idempotency_key=once)))

    @rule(first=payloads, second=payloads, space=names, key=names, once=st.none() | names, fails=st.booleans())
    def transact(self, first: bytes, second: bytes, space: str, key: str, once: str | None, fails: bool) -> None:
        time = next(self.times)
        once = once and self.name(once)

        def do(at: int, log: Log) -> Any:
            try:
                with log.transaction() as tx:
                    tx.append(self.topics[at], first, time=time, partition=1, idempotency_key=once)
                    tx.append(self.name("c"), second, time=time)
                    tx.put(self.name(space), key, first)
                    tx.delete(self.name(space), key + "?")
                    tx.consumed(self.consumers[at])
                    if fails:
                        raise RuntimeError
            except RuntimeError:
                return "raised"
            return tx.receipts

        self.both(do)

    @rule(sequence=st.sampled_from([1, 2, 3, 9]), producer=names, payload=payloads, forgets=st.booleans())
    def produce(self, sequence: int, producer: str, payload: bytes, forgets: bool) -> None:
        time, name = next(self.times), self.name(producer)
        self.both(
            lambda at, log: log.producer(name).append(
                self.name("t"), payload, sequence=sequence, time=time, partition=0
            )
        )
        self.both(lambda at, log: log.producer(name).last)
        if forgets:
            self.both(lambda at, log: log.forget_producer(name))
            self.both(lambda at, log: [one.last for one in log.producers() if one.producer == name])

    @rule(
        which=names, do=st.sampled_from(["start", "cancel", "resume", "signal", "summary", "settle"]),
        value=st.sampled_from([1, b"\x00", None]),
    )  # fmt: skip
    def execute(self, which: str, do: str, value: Any) -> None:
        found = holdfast.execution_id(self.name("e"), which)

        def run(at: int, log: Log) -> Any:
            changes = log.executions
            if do == "start":
                return str(changes.start(self.name("kind"), value, id=found))
            if do == "signal":
                return changes.signal(found, "paid", value, signal_id=str(holdfast.execution_id("signal", which)))
            if do == "settle":
                return changes.settle(found, "nothing", value)
            return changes.summary(found).status if do == "summary" else getattr(changes, do)(found)

        self.both(run)
        self.both(
            lambda at, log: sorted((str(one.id), one.status) for one in log.executions.list(kind=self.name("kind")))
        )

    # -- small state --------------------------------------------------------------------------------------

    @rule(space=names, key=names, body=payloads)
    def put(self, space: str, key: str, body: bytes) -> None:
        self.both(lambda at, log: log.space(self.name(space)).put(key, body))
        self.both(lambda at, log: log.space(self.name(space)).get(key))

    @rule(space=names, key=names, drop=st.booleans())
    def remove(self, space: str, key: str, drop: bool) -> None:
        self.both(
            lambda at, log: log.space(self.name(space)).drop() if drop else log.space(self.name(space)).delete(key)
        )
        self.both(lambda at, log: log.space(self.name(space)).items())
        self.both(lambda at, log: [name for name in log.spaces() if name.endswith(str(self.number))])

    # -- reading ------------------------------------------------------------------------------------------

    @rule(start=offsets, end=offsets, limit=st.none() | st.integers(0, 5), reverse=st.booleans(), key=keys)
    def read(self, start: int | None, end: int | None, limit: int | None, reverse: bool, key: bytes | None) -> None:
        self.both(lambda at, log: list(self.topics[at].read(start, end, limit, reverse, key=key)))
        self.both(lambda at, log: list(self.rows[at].read(start, end, limit, reverse)))

    @rule()
    def look(self) -> None:
        self.both(
            lambda at, log: (log.marks(self.name("t")), log.marks(self.name("rows")), self.topics[at].watermark(1))
        )
        self.both(lambda at, log: [name for name in log.topics() if name.endswith(str(self.number))])

    @rule(limit=st.integers(1, 4), commits=st.booleans())
    def consume(self, limit: int, commits: bool) -> None:
        self.wait_for_partitions()
        self.both(lambda at, log: self.consumers[at].poll(limit, timeout=0))
        if commits:
            self.both(lambda at, log: self.consumers[at].commit())
        self.wait_for_partitions()
        self.both(lambda at, log: (self.consumers[at].lag, self.consumers[at].position, self.consumers[at].committed))

    def wait_for_partitions(self) -> None:
        """After the death of an owner a member has no partitions until it has met the next one."""
        deadline = time.monotonic() + 60
        while self.consumers[0].position == "{}" and time.monotonic() < deadline:
            time.sleep(0.01)

    @rule(to=st.sampled_from(["first", "next", "committed", 1, -1]))
    def seek(self, to: Any) -> None:
        self.both(lambda at, log: self.consumers[at].seek(to))

    # -- what an owner does -------------------------------------------------------------------------------

    @rule(most=st.none() | st.integers(1, 5))
    def seal(self, most: int | None) -> None:
        self.both(lambda at, log: log.seal(self.name("t")))
        if most is not None:
            self.both(lambda at, log: log.set_retention(self.name("t"), records_max=most))
            self.both(lambda at, log: log.retain().dry_run)
            self.both(lambda at, log: log.set_retention(self.name("t")))  # an owner that begins retains by itself, too
            self.both(lambda at, log: list(self.topics[at].read(limit=1)))

    @rule()
    def kill(self) -> None:
        before = self.helpers.shared
        self.helpers.kill()
        if self.helpers.shared is not before:
            self.handles()

    @rule()
    def reopen(self) -> None:
        self.helpers.reopen()
        self.handles()


def _remove(space: Any, key: str | None) -> None:
    if key is None:
        space.drop()
    else:
        space.delete(key)


def plain(value: Any) -> Any:
    """An answer without what may differ: the numbers of commits."""
    if isinstance(value, holdfast.Receipt):
        return value.topic, value.partition, value.offset, value.repeated
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [plain(one) for one in value]
    return value


@pytest.fixture(scope="module")
def helpers() -> Iterator[Helpers]:
    with tempfile.TemporaryDirectory() as root:
        found = Helpers(Path(root))
        yield found
        found.close()


def test_a_shared_log_equals_a_local_one(helpers: Helpers, is_sampled: bool) -> None:
    SharedMachine.helpers = helpers
    examples = 3 if is_sampled else 20
    run_state_machine_as_test(
        SharedMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.soak
def test_a_shared_log_equals_a_local_one_for_long(helpers: Helpers) -> None:
    SharedMachine.helpers = helpers
    run_state_machine_as_test(
        SharedMachine,
        settings=settings(
            max_examples=300, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
