"""Whatever happens in whatever order, reading a root gives what a list gives: compaction and expiry commute with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

import holdfast
from holdfast import Log
from holdfast.compaction import compactor
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.piece_rows import TaskReader
from holdfast.reader.read_columns import RowShaper, schema_of
from holdfast.reader.read_options import ReadOptions
from holdfast.reader.read_plan import Task, tasks_of
from holdfast.reader.resolve import bounds_of, pieces, resolve
from holdfast.root import rewrites
from holdfast.root.objects import documents
from holdfast.root.objects.documents import ExpiredDocument, SegmentDocument
from holdfast.store import layout
from holdfast.store.port import Body
from tests.compaction.conftest import Compact
from tests.shipping.conftest import Root
from tests.shipping.flaky import Faults

pytestmark = pytest.mark.store

PARTITIONS = 2
START_US = 1_767_225_600_000_000


class Model:
    """A root and what must be read from it."""

    def __init__(self, log: Log, root: Root, faults: Faults, compact: Compact, random: Random) -> None:
        self._log, self._root, self._faults, self._compact, self._random = log, root, faults, compact, random
        self._topic = log.topic("orders", partitions=PARTITIONS)
        self.rows: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.settled = [0] * PARTITIONS
        self.first = [0] * PARTITIONS
        self._settled = SettledRoot.open(root.url, ReadOptions(topics=("orders",)))
        """A reader that lives as long as the test, as a stream does."""
        self._marks: list[tuple[str, list[bytes]]] = []
        self.steps: list[Callable[[], None]] = [
            self.ship, self.ship, self.ship, self.compact, self.compact, self.clean, self.expire, self.overtaken,
            self.remember, self.interrupted,
        ]  # fmt: skip

    # -- steps --------------------------------------------------------------------------------------------

    def ship(self) -> None:
        """A few more segments, of different sizes."""
        for _ in range(self._random.randint(1, 4)):
            partition = self._random.randrange(PARTITIONS)
            rows = [self._random.randbytes(self._random.randint(0, 40)) for _ in range(self._random.randint(1, 30))]
            at = len(self.rows[partition])
            self._topic.append_batch(
                [holdfast.Record(row, time=START_US + (at + n) * 1000) for n, row in enumerate(rows)],
                partition=partition,
            )
            self.rows[partition] += rows
            self._log.seal("orders")
        self._log.ship(30)
        self.settled = [len(rows) for rows in self.rows]

    def compact(self) -> None:
        """With any target."""
        self._compact(target_size=self._random.choice(["64KiB", "128MiB"]))

    def clean(self) -> None:
        """Replaced files go at once."""
        self._compact(delete_after_ms=0, lease_delay_max_ms=0)

    def expire(self) -> None:
        """Retention retires the first segments of a partition; their files stay for a while."""
        partition = self._random.randrange(PARTITIONS)
        segments = [one for one in self._root.manifest("orders", partition) if isinstance(one, SegmentDocument)]
        left = [one for one in segments[:-1] if one.end > self.first[partition]]
        if not left:
            return
        last = self._random.choice(left)
        document = ExpiredDocument(
            log=last.log, topic="orders", partition=partition, upto=last.number + 1, first=last.end, expired_us=1
        )
        key = layout.expired_key("orders", partition, document.upto)
        self._root.store.create(key, Body.of(documents.encode(document)))
        self.first[partition] = last.end
        self._marks = []

    def overtaken(self) -> None:
        """A second compactor, in the middle of a first one."""
        with between(self._faults, self._compact):
            self._compact()

    def interrupted(self) -> None:
        """A compactor that somebody ends before its swap."""
        rule = self._faults.fail("/_rewrites/", cause="other")
        try:
            self._compact()
        except holdfast.Unavailable:
            pass
        rule.end()

    def remember(self) -> None:
        """What is there now can be asked for later."""
        reading = holdfast.read(self._root.url, "orders")
        self._marks.append((reading.marks, self.expected()))

    # -- what must hold -----------------------------------------------------------------------------------

    def expected(self) -> list[bytes]:
        return [row for p in range(PARTITIONS) for row in self.rows[p][self.first[p] : self.settled[p]]]

    def check(self) -> None:
        url = self._root.url
        if not any(self.settled):
            return
        assert payloads(holdfast.read(url, "orders", verify=self._random.choice(["hash", "full"]))) == self.expected()
        assert holdfast.read(url, "orders").count() == len(self.expected())
        for marks, rows in self._marks:
            assert payloads(holdfast.read(url, "orders", as_of=marks)) == rows
        self._by_offsets()
        self._by_times()
        self._by_tasks()

    def _by_offsets(self) -> None:
        starts, ends = {}, {}
        for p in range(PARTITIONS):
            starts[p] = self._random.randint(self.first[p], self.settled[p])
            ends[p] = self._random.randint(starts[p], self.settled[p])
        found = holdfast.read(
            self._root.url,
            "orders",
            starting_offsets={"orders": {str(p): at for p, at in starts.items()}},
            ending_offsets={"orders": {str(p): at for p, at in ends.items()}},
        )
        assert payloads(found) == [row for p in range(PARTITIONS) for row in self.rows[p][starts[p] : ends[p]]]

    def _by_times(self) -> None:
        low, high = sorted(self._random.randint(0, max(self.settled)) for _ in range(2))
        found = holdfast.read(
            self._root.url, "orders", starting_timestamp=START_US + low * 1000, ending_timestamp=START_US + high * 1000
        )
        assert payloads(found) == [
            row
            for p in range(PARTITIONS)
            for at, row in enumerate(self.rows[p][: self.settled[p]])
            if low <= at < high and at >= self.first[p]
        ]

    def _by_tasks(self) -> None:
        """As Spark reads: planned by somebody who has looked before, cut into tasks that travel."""
        options = ReadOptions(topics=("orders",))
        resolved, bounds = resolve(self._settled, options), bounds_of(options)
        found = pieces(self._settled, resolved.spans, options, bounds)
        tasks = tasks_of(found, 2**20, self._random.randint(0, 5))
        schema = schema_of(resolved.shape.columns)
        shaping = RowShaper([column.source for column in resolved.shape.columns], schema, is_raw=True)
        reader = TaskReader(self._settled.store, options, shaping, bounds)
        batches = (batch for task in tasks for batch in reader.read(Task.decode(task.encode())))
        assert [row for batch in batches for row in batch.column("payload").to_pylist()] == self.expected()


def payloads(reading: holdfast.SettledReading) -> list[bytes]:
    return reading.to_arrow()["payload"].to_pylist()


@contextmanager
def between(faults: Faults, compact: Compact) -> Iterator[None]:
    """Let a second compaction run to its end when the first one is about to swap."""
    make, is_first = compactor.ThreadWorkers.make, [True]

    def then(self, *arguments):
        made = make(self, *arguments)
        if is_first.pop() if is_first else False:
            compact()
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compactor.ThreadWorkers, "make", then)
        yield


def run(log: Log, root: Root, faults: Faults, compact: Compact, seed: int, steps: int) -> None:
    random = Random(seed)
    model = Model(log, root, faults, compact, random)
    model.ship()
    for _ in range(steps):
        step = random.choice(model.steps)
        try:
            step()
            model.check()
        except Exception as error:
            error.add_note(f"seed {seed}, step {step.__name__}")
            raise


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.repeated_create._CREATE_PAUSES_S", (0.001,) * 4)


@pytest.mark.parametrize("every", [2, 32])
def test_reading_is_as_reading_a_list(
    log: Log, root: Root, faults: Faults, compact: Compact, seed: int, every: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rewrites, "SUMMARY_EVERY", every)
    run(log, root, faults, compact, seed + every, 20)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(40))
def test_reading_is_as_reading_a_list_for_long(
    log: Log, root: Root, faults: Faults, compact: Compact, seed: int, number: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rewrites, "SUMMARY_EVERY", 1 + number % 5)
    run(log, root, faults, compact, seed + number, 120)
