"""A log against a list: random calls, reopenings and crashes, compared after every step.

The model keeps, per partition, the records that must be there (acknowledged), in order. Records that were
accepted but not acknowledged when the process "dies" may be there or not, but only as a prefix of what was
accepted after the last acknowledged one. Dying is real: the log's directory is copied while it is open, as a
power cut would find it after the last sync, and the copy is opened in its place.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import holdfast
from holdfast import Invalid, Keyring, Record, Settings
from holdfast.model.record import _BEFORE_S, _SINCE_S
from holdfast.testing.manual_clock import ManualClock
from tests.sampling import examples
from tests.stalled import stalled

payloads = st.binary(max_size=40)
keys = st.none() | st.sampled_from([b"a", b"b", b"c", b""])
kinds = st.none() | st.sampled_from(["x", "y"])
headers = st.none() | st.dictionaries(st.sampled_from("ab"), payloads, max_size=2)


def _may_be_meant(time: int) -> bool:
    """Whether this is no time of today in another unit."""
    return not any(_SINCE_S * unit <= time < _BEFORE_S * unit for unit in (1, 10**3, 10**9))


times = st.none() | st.integers(-(2**62), 2**62).filter(_may_be_meant)
PARTITIONS = 3


class LogMachine(RuleBasedStateMachine):
    """The rules."""

    keyed = False

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.generation = self.rotations = 0
        self.keyring = Keyring.generate(clock=ManualClock(seed=1)) if self.keyed else None
        self.clock = ManualClock()
        self.stored: list[list[tuple]] = [[] for _ in range(PARTITIONS)]
        self.seen_keys: dict[str, tuple[holdfast.Receipt, bytes]] = {}
        self.last_seq = 0
        self.open()

    def open(self):
        self.log = holdfast.open(
            self.root / str(self.generation),
            keyring=self.keyring,
            clock=self.clock,
            settings=Settings.from_mapping({"journal": {"flush_interval_ms": "1h", "group_records_max": 7}}),
        )
        self.topic = self.log.topic("t", partitions=PARTITIONS)

    def expect(self, receipt, value):
        """A durable record is at the end of its partition, under a new seq or the same as its group's."""
        assert receipt.offset == len(self.stored[receipt.partition])
        assert receipt.seq >= self.last_seq
        self.last_seq = receipt.seq
        self.stored[receipt.partition].append(value)

    @rule(payload=payloads, key=keys, kind=kinds, headers=headers, time=times)
    def append(self, payload, key, kind, headers, time):
        self.clock.advance(0.001)
        when = self.clock.now_us() if time is None else time
        receipt = self.topic.append(payload, key=key, kind=kind, headers=headers, time=time)
        self.expect(receipt, (payload, key, kind, headers, when))

    @rule(payload=payloads, name=st.sampled_from(["p", "q", "r"]))
    def append_once(self, payload, name):
        known = self.seen_keys.get(name)
        if known is not None and known[1] != payload:
            with pytest.raises(Invalid):
                self.topic.append(payload, idempotency_key=name)
            payload = known[1]
        receipt = self.topic.append(payload, idempotency_key=name)
        assert receipt.repeated == (known is not None)
        if known is not None:
            assert receipt == known[0]
        else:
            self.expect(receipt, (payload, None, None, None, self.clock.now_us()))
            self.seen_keys[name] = (receipt, payload)

    @rule(many=st.lists(st.tuples(payloads, st.integers(0, PARTITIONS - 1)), max_size=20))
    def submit_many(self, many):
        tickets = [(self.topic.submit(p, partition=n), p) for p, n in many]
        receipts = [(ticket.result(), p) for ticket, p in tickets]
        for receipt, payload in sorted(receipts, key=lambda pair: (pair[0].seq, pair[0].partition, pair[0].offset)):
            self.expect(receipt, (payload, None, None, None, self.clock.now_us()))

    @rule(many=st.lists(st.tuples(payloads, keys), min_size=1, max_size=20))
    def append_batch(self, many):
        receipts = self.topic.append_batch([Record(p, key=k) for p, k in many])
        pairs = sorted(zip(receipts, many, strict=True), key=lambda pair: (pair[0].seq, pair[0].offset))
        for receipt, (payload, key) in pairs:
            self.expect(receipt, (payload, key, None, None, self.clock.now_us()))

    @rule(many=st.lists(payloads, max_size=12), partition=st.integers(0, PARTITIONS - 1))
    def offer_and_flush(self, many, partition):
        for payload in many:
            assert self.topic.offer(payload, partition=partition)
            self.stored[partition].append((payload, None, None, None, self.clock.now_us()))
        self.log.flush()
        self.last_seq = max(self.last_seq, *(r.seq for r in [self.topic.append(b"", partition=0)]))
        self.stored[0].append((b"", None, None, None, self.clock.now_us()))

    @rule()
    def reopen(self):
        self.log.close()
        self.open()

    @rule(many=st.lists(payloads, max_size=10))
    def crash(self, many):
        """Die with records in the queue: none of them is durable, and none may be half there."""
        old = self.root / str(self.generation)
        self.generation += 1
        with stalled(self.topic):
            for payload in many:
                self.topic.offer(payload, partition=1)
            shutil.copytree(old, self.root / str(self.generation), ignore=shutil.ignore_patterns("*-shm", "SOCKET"))
        self.log.close()
        shutil.rmtree(old)
        self.open()

    @rule()
    def rotate(self):
        if self.keyring is not None:
            self.rotations += 1
            self.keyring = self.keyring.rotated(f"rotated-{self.rotations}")
            self.log.rotate_key(self.keyring)

    @rule(start=st.integers(-30, 60), end=st.none() | st.integers(-30, 60), limit=st.none() | st.integers(0, 20))
    def read_ranges(self, start, end, limit):
        for n, expected in enumerate(self.stored):
            for reverse in (False, True):
                got = [r.offset for r in self.topic.read(start, end, limit, reverse, partition=n)]
                total = len(expected)
                first = max(0, total + start) if start < 0 else start
                last = total if end is None else (total + end if end < 0 else min(end, total))
                wanted = list(range(first, max(first, last)))[:: -1 if reverse else 1]
                assert got == wanted[:limit]

    @invariant()
    def everything_is_there_once_in_order(self):
        for n, expected in enumerate(self.stored):
            got = list(self.topic.read(partition=n))
            assert [r.offset for r in got] == list(range(len(expected)))
            assert [(r.payload, r.key, r.kind, r.headers, r.time) for r in got] == expected
        assert [m.durable for m in self.log.marks("t")] == [len(p) for p in self.stored]

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.root)


class SealedLogMachine(LogMachine):
    """The same with encryption and rotation."""

    keyed = True


budget = settings(
    max_examples=examples(25),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestLog = LogMachine.TestCase
TestSealedLog = SealedLogMachine.TestCase
TestLog.settings = TestSealedLog.settings = budget
TestLog.pytestmark = TestSealedLog.pytestmark = [pytest.mark.disk]


@pytest.mark.soak
class TestLogForLong(LogMachine.TestCase):
    """The same, for long."""

    settings = settings(budget, max_examples=1500, stateful_step_count=40)


@pytest.mark.soak
class TestSealedLogForLong(SealedLogMachine.TestCase):
    """The same, for long, sealed."""

    settings = settings(budget, max_examples=1500, stateful_step_count=40)
