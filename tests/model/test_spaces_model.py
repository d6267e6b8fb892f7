"""Spaces against dictionaries: random changes alone and in groups, drops, failures, rotations, reopenings and crashes.

The model keeps, per space, its items, and per topic its records; both are compared after every step. Groups are put
together while the writer stands still, and some of them are refused by the disk as a whole.
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
from holdfast import Invalid, Keyring, Settings, Unavailable
from holdfast.journal.queue.group import Run
from holdfast.journal.state.operations import ChangeSpace, CreateTopic
from holdfast.journal.state.spaces import stored_name
from holdfast.model.record_columns import Columns
from holdfast.testing.manual_clock import ManualClock
from tests.sampling import examples
from tests.stalled import stalled

NAMES = ["a", "b", "ü\udcff"]
KEYS = [b"", b"k", b"l", b"m" * 40]
Model = dict[str, dict[bytes, tuple[int, bytes]]]

bodies = st.binary(max_size=30) | st.sampled_from([b"x" * 1000, b"y" * 5000])
puts = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-2, 2), bodies), max_size=3, unique_by=lambda put: put[0])
deletes = st.lists(st.sampled_from(KEYS), max_size=3)
records = st.none() | st.binary(max_size=10)
drops = st.tuples(st.sampled_from(NAMES), st.just([]), st.just([]), st.just(True), records)
others = st.tuples(st.sampled_from(NAMES), puts, deletes, st.just(False), records).map(
    lambda change: (*change[:2], [key for key in change[2] if key not in [put[0] for put in change[1]]], *change[3:])
)
changes = others | others | others | drops
"""Name, puts, deletes, whether it is dropped, and a record to append with it."""


class SpacesMachine(RuleBasedStateMachine):
    """The rules."""

    keyed = False

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.generation = self.rotations = 0
        self.keyring = Keyring.generate(clock=ManualClock(seed=1)) if self.keyed else None
        self.model: Model = {}
        self.records: list[bytes] = []
        self.open()

    def open(self):
        sections = {"journal": {"checkpoint_bytes": "64KiB"}, "segments": {"seal_on_close": False}}
        path = self.root / str(self.generation)
        self.log = holdfast.open(path, keyring=self.keyring, settings=Settings.from_mapping(sections))
        self.topic = self.log.topic("t")
        self.partition = self.log._journal.topics["t"][0]

    def put(self, change):
        name, put, deletes, drop, record = change
        append = None if record is None else (self.partition, Columns([record], [0]))
        return self.log._journal.spaces.change(name, put, deletes, drop=drop, append=append, timeout=20)

    def expect(self, change, model: Model, records: list[bytes]):
        name, put, deletes, drop, record = change
        if drop:
            model.pop(name, None)
        elif put or name in model:
            items = model.setdefault(name, {})
            for key in deletes:
                items.pop(key, None)
            items.update({key: (number, body) for key, number, body in put})
        if record is not None:
            records.append(record)

    @rule(change=changes)
    def change_one(self, change):
        self.put(change).result()
        self.expect(change, self.model, self.records)

    @rule(group=st.lists(changes, min_size=1, max_size=12), bad=st.lists(changes, max_size=2))
    def change_many(self, group, bad):
        """One group; among it units that fail behind a savepoint."""
        with stalled(self.topic):
            tickets = []
            for number, change in enumerate(group):
                if number < len(bad):
                    self.put_failing(bad[number])
                tickets.append(self.put(change))
        for ticket, change in zip(tickets, group, strict=True):
            ticket.result()
            self.expect(change, self.model, self.records)

    def put_failing(self, change):
        name, put, deletes, drop, record = change
        queue = self.log._journal._queue
        run = Run(queue._open, self.partition, Columns([record or b""], [0]))
        space = ChangeSpace(stored_name(name), put, deletes, drop)
        queue.put_control([space, run, ChangeSpace(stored_name(name), [(b"k", 9, b"no")]), CreateTopic("t", 1)])

    @rule(group=st.lists(changes, min_size=1, max_size=6))
    def be_refused(self, group):
        """The disk refuses a whole group; nothing of it is there, and what comes next adds up."""
        backend = self.log._journal._backend
        commit = backend.commit
        tries = []

        def fail():
            tries.append(1)
            if len(tries) == 1:  # the group that stalls
                return commit()
            backend.commit = commit
            raise Unavailable("the disk is full; nothing was written")

        with stalled(self.topic):
            backend.commit = fail
            tickets = [self.put(change) for change in group]
        for ticket in tickets:
            with pytest.raises(Unavailable):
                ticket.result()

    @rule()
    def be_told_of_a_limit(self):
        with pytest.raises(Invalid):
            self.put(("a", [(b"k", 2**70, b"")], [], False, None))

    @rule()
    def reopen(self):
        self.log.close()
        self.open()

    @rule(group=st.lists(changes, max_size=6))
    def crash(self, group):
        """Die with changes in the queue: none of them is durable, and none may be half there."""
        old = self.root / str(self.generation)
        self.generation += 1
        with stalled(self.topic):
            for change in group:
                self.put(change)
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

    @rule()
    def forget_weights(self):
        """As when too much is remembered."""
        known = self.log._journal._state.spaces
        known._weights.clear()
        known._known = 0

    @invariant()
    def everything_is_as_it_should_be(self):
        journal = self.log._journal
        assert journal.spaces.names() == sorted(self.model)
        for name in NAMES:
            items = self.model.get(name, {})
            wanted = sorted((number, key, body) for key, (number, body) in items.items())
            assert journal.spaces.load(name) == [(key, number, body) for number, key, body in wanted]
        assert [record.payload for record in self.topic.read()] == self.records

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.root)


class KeyedSpacesMachine(SpacesMachine):
    """The same, sealed."""

    keyed = True


budget = settings(
    max_examples=examples(15),
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestSpaces = SpacesMachine.TestCase
TestKeyedSpaces = KeyedSpacesMachine.TestCase
TestSpaces.settings = TestKeyedSpaces.settings = budget
TestSpaces.pytestmark = TestKeyedSpaces.pytestmark = [pytest.mark.disk]


@pytest.mark.soak
class TestSpacesForLong(SpacesMachine.TestCase):
    """The same, for long."""

    settings = settings(budget, max_examples=1000, stateful_step_count=40)


@pytest.mark.soak
class TestKeyedSpacesForLong(KeyedSpacesMachine.TestCase):
    """The same, for long, sealed."""

    settings = settings(budget, max_examples=1000, stateful_step_count=40)
