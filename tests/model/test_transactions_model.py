"""Transactions against lists and dictionaries: random blocks, alone and many in a group, failures, reopenings, crashes.

The model keeps the records of each topic by partition, the items of each space and how far a consumer is. After every
step all of it is compared, and so are the receipts of what was committed.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import holdfast
from holdfast import Invalid, Keyring, Settings, Unavailable
from holdfast.log.transactions.transaction import Transaction
from holdfast.testing.manual_clock import ManualClock
from tests.sampling import examples
from tests.stalled import stalled

PARTITIONS = 2
TOPICS, SPACES, KEYS = ["a", "b"], ["s", "t"], ["", "k", "l"]
SCHEMA = pa.schema([pa.field("n", pa.int64())])

payload = st.binary(max_size=8) | st.just(b"x" * 300)
place = st.tuples(st.sampled_from(TOPICS), st.integers(0, PARTITIONS - 1))
known = st.none() | st.none() | st.sampled_from(["one", "two", "three"])
steps = st.one_of(
    st.tuples(st.just("append"), place, payload, known),
    st.tuples(st.just("append"), place, payload, st.none()),
    st.tuples(st.just("batch"), place, st.lists(payload, min_size=1, max_size=3)),
    st.tuples(st.just("rows"), st.integers(0, PARTITIONS - 1), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    st.tuples(st.just("put"), st.sampled_from(SPACES), st.sampled_from(KEYS), payload),
    st.tuples(st.just("delete"), st.sampled_from(SPACES), st.sampled_from(KEYS)),
    st.tuples(st.just("consume"), st.integers(1, 3)),
)
blocks = st.lists(steps, max_size=6)


class Misused(Exception):
    """The model's word for a key that is in use for other content."""


class Model:
    """What should be there; a copy of it takes what a block does."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[bytes]] = {(t, p): [] for t in TOPICS for p in range(PARTITIONS)}
        self.rows: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.spaces: dict[str, dict[bytes, bytes]] = {}
        self.keys: dict[tuple[str, str], tuple[bytes, int, int]] = {}
        self.consumed = 0

    def copy(self) -> Model:
        twin = Model()
        twin.records = {where: list(found) for where, found in self.records.items()}
        twin.rows = [list(found) for found in self.rows]
        twin.spaces = {name: dict(items) for name, items in self.spaces.items()}
        twin.keys, twin.consumed = dict(self.keys), self.consumed
        return twin

    def take(self, block: list[Any]) -> list[tuple[int, int]]:
        """Do what a block does; returns the places of its records, in order."""
        places: list[tuple[int, int]] = []
        before = set(self.spaces)
        for what, *given in block:
            if what == "append":
                places.append(self._append(*given))
            elif what == "batch":
                (topic, partition), payloads = given
                found = self.records[topic, partition]
                places += [(partition, len(found) + at) for at in range(len(payloads))]
                found += payloads
            elif what == "rows":
                partition, numbers = given
                places += [(partition, len(self.rows[partition]) + at) for at in range(len(numbers))]
                self.rows[partition] += numbers
            elif what == "put":
                self.spaces.setdefault(given[0], {})[given[1].encode()] = given[2]
            elif what == "delete" and given[0] in self.spaces:
                self.spaces[given[0]].pop(given[1].encode(), None)
        # A space comes into being with its first item: the last word about it, not one in between.
        self.spaces = {name: items for name, items in self.spaces.items() if items or name in before}
        return places

    def _append(self, where: tuple[str, int], body: bytes, key: str | None) -> tuple[int, int]:
        before = None if key is None else self.keys.get((where[0], key))
        if before is not None:
            if before[0] != body:
                raise Misused
            return before[1:]
        self.records[where].append(body)
        at = where[1], len(self.records[where]) - 1
        if key is not None:
            self.keys[where[0], key] = (body, *at)
        return at


class TransactionsMachine(RuleBasedStateMachine):
    """The rules."""

    keyed = False

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.generation = 0
        self.keyring = Keyring.generate(clock=ManualClock(seed=1)) if self.keyed else None
        self.model = Model()
        self.open()
        self.topics["source"].append_batch([b"%d" % n for n in range(200)])

    def open(self):
        sections = {"journal": {"checkpoint_bytes": "64KiB"}, "segments": {"seal_on_close": False}}
        path = self.root / str(self.generation)
        self.log = holdfast.open(path, keyring=self.keyring, settings=Settings.from_mapping(sections))
        self.topics = {name: self.log.topic(name, partitions=PARTITIONS) for name in TOPICS}
        self.topics["source"] = self.log.topic("source")
        self.rows = self.log.topic("rows", schema=SCHEMA, partitions=PARTITIONS)
        self.consumer = self.topics["source"].consumer("c")
        self.given = self.model.consumed

    def fill(self, tx: Transaction, block: list[Any]) -> None:
        for what, *given in block:
            if what == "append":
                (topic, partition), body, key = given
                tx.append(self.topics[topic], body, partition=partition, idempotency_key=key)
            elif what == "batch":
                (topic, partition), bodies = given
                tx.append_batch(topic, bodies, partition=partition)
            elif what == "rows":
                tx.append(self.rows, [{"n": number} for number in given[1]], partition=given[0])
            elif what == "put":
                tx.put(*given)
            elif what == "delete":
                tx.delete(*given)
            else:
                read = self.consumer.poll(given[0], timeout=0)
                assert [record.offset for record in read] == list(range(self.given, self.given + len(read)))
                self.given += len(read)
                tx.consumed(self.consumer)

    @rule(block=blocks)
    def commit(self, block):
        twin = self.model.copy()
        try:
            places = twin.take(block)
        except Misused:
            with pytest.raises(Invalid, match="already in use for other content"), self.log.transaction() as tx:
                self.fill(tx, block)
            self.go_back()
            return
        with self.log.transaction() as tx:
            self.fill(tx, block)
        if any(what == "consume" for what, *_ in block):
            twin.consumed = self.given
        self.model = twin
        assert [(one.partition, one.offset) for one in tx.receipts] == places

    @rule(block=blocks)
    def give_up(self, block):
        """A block that raises at its end."""
        with suppress(KeyError), self.log.transaction() as tx:
            self.fill(tx, block)
            raise KeyError
        self.go_back()

    @rule(group=st.lists(st.lists(steps.filter(lambda step: step[0] != "consume"), max_size=4), max_size=6))
    def commit_many(self, group):
        """Several in one group of the writer; those that misuse a key fail alone."""
        held = []
        with stalled(self.topics["source"]):
            for block in group:
                held.append((self.begun(block), block))
        self.log.flush()
        for tx, block in held:
            twin = self.model.copy()
            try:
                places = twin.take(block)
            except Misused:
                with pytest.raises(Invalid, match="already in use for other content"):
                    _ = tx.receipts
            else:
                self.model = twin
                assert [(one.partition, one.offset) for one in tx.receipts] == places

    @rule(block=blocks.filter(bool))
    def be_refused(self, block):
        """The disk refuses the group: nothing of it is there."""
        backend = self.log._journal._backend
        commit = backend.commit
        tries = []

        def fail():
            tries.append(1)
            if len(tries) == 1:  # the group that stalls
                return commit()
            backend.commit = commit
            raise Unavailable("the disk is full; nothing was written")

        with stalled(self.topics["source"]):
            backend.commit = fail
            tx = self.begun(block)
        self.log.flush()
        backend.commit = commit
        if tx._ticket is not None:
            with pytest.raises((Unavailable, Invalid)):  # a misused key is found first
                tx._ticket.result(20)
        self.go_back()

    def begun(self, block: list[Any]) -> Transaction:
        """A transaction that is queued, and nobody waits for it yet."""
        tx = self.log.transaction()
        tx.__enter__()
        self.fill(tx, block)
        content = tx._end(is_wanted=True)
        if content is not None:
            tx._hand_over(content, 20)
        return tx

    def go_back(self):
        """What was given out and not committed comes again after this."""
        self.consumer.seek(self.model.consumed)
        self.given = self.model.consumed

    @rule()
    def reopen(self):
        self.log.close()
        self.open()

    @rule(group=st.lists(blocks, max_size=3))
    def crash(self, group):
        """Die with transactions in the queue: none of them is durable, and none may be half there."""
        old = self.root / str(self.generation)
        self.generation += 1
        with stalled(self.topics["source"]):
            for block in group:
                self.begun([step for step in block if step[0] != "consume"])
            shutil.copytree(old, self.root / str(self.generation), ignore=shutil.ignore_patterns("*-shm", "SOCKET"))
        self.log.close()
        shutil.rmtree(old)
        self.open()

    @invariant()
    def everything_is_as_it_should_be(self):
        for (topic, partition), wanted in self.model.records.items():
            assert [one.payload for one in self.topics[topic].read(partition=partition)] == wanted
        for partition, wanted in enumerate(self.model.rows):
            assert [row["n"] for row in self.rows.read(partition=partition)] == wanted
        assert self.log.spaces() == sorted(self.model.spaces)
        for name in SPACES:
            items = self.model.spaces.get(name, {})
            assert self.log.space(name).items() == sorted(items.items())
            assert [self.log.space(name).get(key) for key in KEYS] == [items.get(key.encode()) for key in KEYS]
        assert self.consumer.committed == f'{{"0":{self.model.consumed}}}'

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.root)


class KeyedTransactionsMachine(TransactionsMachine):
    """The same, encrypted."""

    keyed = True


budget = settings(
    max_examples=examples(12),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestTransactions = TransactionsMachine.TestCase
TestKeyedTransactions = KeyedTransactionsMachine.TestCase
TestTransactions.settings = TestKeyedTransactions.settings = budget
TestTransactions.pytestmark = TestKeyedTransactions.pytestmark = [pytest.mark.disk]


@pytest.mark.soak
class TestTransactionsForLong(TransactionsMachine.TestCase):
    """The same, for long."""

    settings = settings(budget, max_examples=1000, stateful_step_count=40)


@pytest.mark.soak
class TestKeyedTransactionsForLong(KeyedTransactionsMachine.TestCase):
    """The same, for long, encrypted."""

    settings = settings(budget, max_examples=1000, stateful_step_count=40)
