"""Segments and tail against lists: random appends, seals, expiries, reopenings and crashes, compared after every step.

The model keeps, per partition of a raw and of a typed topic, all that was ever acknowledged, and how much of its
beginning retention said it removed. Whatever happened in between, reading in any direction, window and form gives
exactly the rest; the watermark only goes forward; and reconciliation finds nothing.

Dying is real: the log's directory is copied while the writer stands still, once also while a finished segment file
waits for its commit, and the copy is opened in its place.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import holdfast
from holdfast import Keyring, NotFound, Record, Settings
from holdfast.segments.retention.retention import Retention
from holdfast.testing.manual_clock import ManualClock
from tests.sampling import examples
from tests.segments.test_roller import eventually
from tests.stalled import stalled

PARTITIONS = 2
COLUMNS_MAX = 4
RAW, TYPED = "raw", "typed"

payloads = st.binary(max_size=30)
moments = st.sampled_from([-(2**62), -5, 0, 1, 2, 3, 50, 2**62]) | st.integers(-100, 100)
dates = st.integers(-100, 100)
extras = st.tuples(
    st.none() | st.sampled_from([b"", b"k"]),
    st.none() | st.just("x"),
    st.none() | st.dictionaries(st.sampled_from("ab"), payloads, max_size=2),
)
records = st.lists(st.tuples(payloads, moments, extras), min_size=1, max_size=12)
cells = st.none() | st.integers(-(2**63), 2**63 - 1)
rows = st.lists(st.tuples(st.integers(0, 9), cells), min_size=1, max_size=12)
partitions = st.integers(0, PARTITIONS - 1)
topics = st.sampled_from([RAW, TYPED])
edges = st.none() | st.integers(-40, 60)
limits = st.none() | st.integers(0, 20)
bounds = st.none() | moments


class Item(NamedTuple):
    """One acknowledged record or row."""

    offset: int
    time: int
    value: object


class SegmentsMachine(RuleBasedStateMachine):
    """The rules."""

    keyed = False

    @initialize(first=st.sampled_from([0, 0, 5, 2**40]), rows_max=st.sampled_from([1, 4, 1000]))
    def begin(self, first, rows_max):
        self.root = Path(tempfile.mkdtemp())
        # Retention only when the model asks for it: a list cannot know what goes behind the scenes, and when.
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(Retention, "check", lambda retention, now: now + 3600)
        self.generation = 0
        self.keyring = Keyring.generate(clock=ManualClock(seed=1)) if self.keyed else None
        self.clock = ManualClock()
        self.row_group_rows = rows_max
        self.base = first
        self.columns = 1
        self.stored = {(name, n): [] for name in (RAW, TYPED) for n in range(PARTITIONS)}
        self.first = dict.fromkeys(self.stored, first)
        self.sealed = dict.fromkeys(self.stored, (None, first))
        self.open()

    def open(self, *, seal_on_close=False):
        limits = {
            "seal_on_close": seal_on_close,
            "age_max_ms": "1000h",
            "row_group_rows": self.row_group_rows,
            "block_rows": 3,
            "trim_entries": 2,
        }
        self.log = holdfast.open(
            self.root / str(self.generation),
            keyring=self.keyring,
            clock=self.clock,
            settings=Settings.from_mapping({"segments": limits, "disk": {"free_bytes_min": 0}}),
        )
        self.topics = {
            RAW: self.log.topic(RAW, partitions=PARTITIONS, first_offset=self.base),
            TYPED: self.log.topic(TYPED, schema=self.schema(), partitions=PARTITIONS, first_offset=self.base),
        }

    def schema(self):
        must = pa.field("c0", pa.int64(), nullable=False)
        return pa.schema([must, *(pa.field(f"c{i}", pa.int64()) for i in range(1, self.columns))])

    def expect(self, key, receipts, values):
        """What was acknowledged is at the end of its partition."""
        stored = self.stored[key]
        for receipt, (time, value) in zip(receipts, values, strict=True):
            assert (receipt.partition, receipt.offset) == (key[1], self.base + len(stored))
            stored.append(Item(receipt.offset, time, value))

    # -- changing ---------------------------------------------------------------------------------------------

    @rule(many=records, partition=partitions, alone=st.booleans())
    def append(self, many, partition, alone):
        topic = self.topics[RAW]
        given = [Record(p, key=e[0], kind=e[1], headers=e[2], time=time) for p, time, e in many]
        if alone:
            receipts = [
                topic.append(r.payload, key=r.key, kind=r.kind, headers=r.headers, time=r.time, partition=partition)
                for r in given
            ]
        else:
            receipts = topic.append_batch(given, partition=partition)
        self.expect((RAW, partition), receipts, [(r.time, (r.payload, r.key, r.kind, r.headers)) for r in given])

    @rule(many=rows, partition=partitions, time=dates)
    def append_rows(self, many, partition, time):
        last = f"c{self.columns - 1}"
        given = [{"c0": a} | ({last: b} if self.columns > 1 else {}) for a, b in many]
        receipts = self.topics[TYPED].append(given, time=time, partition=partition)
        self.expect((TYPED, partition), receipts, [(time, row) for row in given])

    @precondition(lambda self: self.columns < COLUMNS_MAX)
    @rule()
    def widen(self):
        """A new version of the schema; the roller seals what was there, by itself."""
        self.columns += 1
        topic = self.log.topic(TYPED, schema=self.schema())
        for n, mark in enumerate(topic.marks()):
            topic.wait_sealed(mark.durable, 30, partition=n)

    @rule(name=st.none() | topics)
    def seal(self, name):
        self.log.seal(name)
        for key, stored in self.stored.items():
            if name in (None, key[0]):
                assert self.topics[key[0]].watermark(key[1]).offset == self.base + len(stored)

    @rule(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=5), partition=partitions)
    def grow(self, sizes, partition):
        """Several segments at once: chance alone would seldom make enough of them for retention."""
        for size in sizes:
            self.append([(b"", 0, (None, None, None))] * size, partition, alone=False)
            self.log.seal(RAW)

    @rule(name=topics, keep=st.integers(1, 12), dry=st.booleans())
    def retain(self, name, keep, dry):
        self.log.set_retention(name, records_max=keep)
        planned = self.log.retain(dry_run=True).removed
        if dry:
            return
        removed = self.log.retain().removed
        assert removed == planned
        for gone in removed:
            key = (gone.topic, gone.partition)
            assert gone.first == self.first[key]
            self.first[key] += gone.rows
            sealed = self.topics[key[0]].watermark(key[1]).offset
            assert self.first[key] <= sealed
            if gone.topic == name:
                assert sealed - self.first[key] >= keep

    @rule(seal=st.booleans())
    def reopen(self, seal):
        self.log.close()
        self.open(seal_on_close=seal)

    @rule(halfway=st.none() | topics)
    def crash(self, halfway):
        """Die; where it is possible, with a finished segment whose commit has not come."""
        eventually(self.is_trimmed)
        old, self.generation = self.root / str(self.generation), self.generation + 1
        with stalled(self.topics[RAW]):
            if halfway is not None:
                parts = self.topics[halfway]._partitions.parts
                before = len(list(old.rglob("*.parquet")))
                waiting = sum(part.tail_records > 0 for part in parts)
                self.log._maintenance.seal_soon((halfway,))
                if waiting:
                    eventually(lambda: len(list(old.rglob("*.parquet"))) > before)
            shutil.copytree(old, self.root / str(self.generation), ignore=shutil.ignore_patterns("*-shm", "SOCKET"))
        self.log.close()
        shutil.rmtree(old)
        self.open()

    def is_trimmed(self):
        """Nothing is done behind the scenes any more."""
        with self.log._journal._backend.tables() as tables:
            entries = tables.counts().entries
        return bool(entries) == any(
            part.tail_records for topic in self.topics.values() for part in topic._partitions.parts
        )

    # -- reading ----------------------------------------------------------------------------------------------

    def left(self, key):
        """What retention has left; columns that came after a row are null in it."""
        items = self.stored[key][self.first[key] - self.base :]
        if key[0] == RAW:
            return items
        names = [f"c{i}" for i in range(self.columns)]
        return [item._replace(value={name: item.value.get(name) for name in names}) for item in items]

    def window(self, key, start, end, limit, reverse, since, until):
        """What a list would answer; start and end count from the first that is left, or from the end."""
        items = self.left(key)
        first = 0 if start is None else max(0, len(items) + start) if start < 0 else start
        last = len(items) if end is None else max(0, len(items) + end) if end < 0 else end
        found = [
            item
            for item in items[first : max(first, last)]
            if (since is None or item.time >= since) and (until is None or item.time <= until)
        ]
        return (found[::-1] if reverse else found)[:limit]

    @rule(
        name=topics,
        n=partitions,
        start=edges,
        end=edges,
        limit=limits,
        reverse=st.booleans(),
        since=bounds,
        until=bounds,
    )
    def read(self, name, n, start, end, limit, reverse, since, until):
        key = (name, n)
        first = self.first[key]
        wanted = self.window(key, start, end, limit, reverse, since, until)
        places = [at if at is None or at < 0 else first + at for at in (start, end)]
        options = {"partition": n, "since": since, "until": until}
        reading = self.topics[name].read(*places, limit, reverse, **options)
        assert self.taken(name, reading) == wanted
        table = self.topics[name].read(*places, limit, reverse, **options).to_arrow()
        assert table.column(1).to_pylist() == [item.offset for item in wanted]
        assert table.column(2).cast(pa.int64()).to_pylist() == [item.time for item in wanted]

    @rule(name=topics, size=st.integers(1, 15), reverse=st.booleans())
    def pages(self, name, size, reverse):
        """Page by page through the whole topic, every item once."""
        topic, got, position = self.topics[name], {n: [] for n in range(PARTITIONS)}, None
        while True:
            page = topic.read(end=position, limit=size, reverse=True) if reverse else topic.read(position, limit=size)
            for item in page:
                place = (item.partition, item.offset) if name == RAW else (item["_partition"], item["_offset"])
                got[place[0]].append(place[1])
            position = page.position
            if page.exhausted:
                break
        for n, found in got.items():
            wanted = [item.offset for item in self.left((name, n))]
            assert found == (wanted[::-1] if reverse else wanted)

    @rule(name=topics, n=partitions)
    def read_what_has_expired(self, name, n):
        first = self.first[name, n]
        if first > self.base:
            with pytest.raises(NotFound):
                next(iter(self.topics[name].read(first - 1, partition=n)))

    def taken(self, name, reading):
        """A reading as items of the model."""
        if name == RAW:
            return [Item(r.offset, r.time, (r.payload, r.key, r.kind, r.headers)) for r in reading]
        table = pa.Table.from_pylist(list(reading), schema=reading.schema)
        offsets, times = table.column("_offset").to_pylist(), table.column("_time").cast(pa.int64()).to_pylist()
        values = table.select([f"c{i}" for i in range(self.columns)]).to_pylist()
        return [Item(*found) for found in zip(offsets, times, values, strict=True)]

    # -- always -----------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_there_once_in_order(self):
        for (name, n), stored in self.stored.items():
            topic = self.topics[name]
            assert self.taken(name, topic.read(partition=n)) == self.left((name, n))
            assert topic.marks()[n].durable == self.base + len(stored)

    @invariant()
    def the_watermark_only_goes_forward(self):
        for key, (index, offset) in self.sealed.items():
            now = self.topics[key[0]].watermark(key[1])
            assert now.offset >= offset
            assert (now.index is None) == (now.offset == self.base)
            assert index is None or now.index >= index
            assert now.offset <= self.base + len(self.stored[key])
            self.sealed[key] = (now.index, now.offset)

    @invariant()
    def nothing_is_wrong(self):
        assert self.log.reconcile(deep=True).findings == ()

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.root)
            self.patches.undo()


class EncryptedSegmentsMachine(SegmentsMachine):
    """The same with encryption."""

    keyed = True


budget = settings(
    max_examples=examples(12),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestSegments = SegmentsMachine.TestCase
TestEncryptedSegments = EncryptedSegmentsMachine.TestCase
TestSegments.settings = TestEncryptedSegments.settings = budget
TestSegments.pytestmark = TestEncryptedSegments.pytestmark = [pytest.mark.disk]


@pytest.mark.soak
class TestSegmentsForLong(SegmentsMachine.TestCase):
    """The same, for long."""

    settings = settings(budget, max_examples=600, stateful_step_count=50)


@pytest.mark.soak
class TestEncryptedSegmentsForLong(EncryptedSegmentsMachine.TestCase):
    """The same, for long, encrypted."""

    settings = settings(budget, max_examples=600, stateful_step_count=50)
