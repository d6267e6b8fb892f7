"""Topics as inputs: what is settled when a run begins, what of it is new to a table, and its rows.

The marks of a topic are read once per run, so all tables of a run see the same of it. The root stays open between runs,
while it is that of the same log: then looking again costs one request per partition, however long the history is.

A table begins with the first record that is left of a topic. From then on nothing is passed over: if retention has
removed what the table has not read, reading it fails (unless `failOnDataLoss` says otherwise). While rows are read, a
lease shows retention which segments are needed, where the root has leases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.reader.lease import Lease, segment_number
from holdfast.reader.offsets import PartitionMark, ReadMarks, format_marks
from holdfast.reader.open_root import SettledRoot
from holdfast.reader.read_options import parse_options
from holdfast.reader.resolve import earliest_offset, shape_of
from holdfast.root.objects.documents import TopicDocument
from holdfast.root.root_place import root_url
from holdfast.signals import Flag
from holdfast.store import layout
from holdfast.store.address import parse_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Spans = dict[int, tuple[int, int]]
"""By partition: the first offset, and the one behind the last."""

_LEASE_SECONDS = 900
_ID_CHARS = 36
_ENDED_SECONDS = 86_400
"""A lease that was not renewed for so long belongs to nobody, whatever the clocks say."""
OURS = {
    "path", "root", "topic", "topicpattern", "startingoffsets", "endingoffsets", "asof", "includetail",
    "maxoffsetspertrigger", "maxbytespertrigger", "maxsegmentspertrigger", "reader", "leaseseconds",
}  # fmt: skip
"""Options that say what is read: a pipeline says that itself."""


def check_options(options: Mapping[str, str], where: str) -> None:
    """Refuse options that a pipeline sets itself, and those that do not exist."""
    taken = sorted(name for name in options if name.lower() in OURS)
    if taken:
        raise Invalid(
            f"a pipeline says itself what is read {where} options={','.join(taken)}",
            hint="leave these options out; backfill(…) reads a range again",
        )
    parse_options({**options, "path": "/", "topicPattern": ".*"})


class RootTopics:
    """The topics of one root, as they were when the run began."""

    def __init__(self, place: str, options: Mapping[str, str], clock: Clock) -> None:
        self.place, self._given, self._clock = place, dict(options), clock
        _, self._options = parse_options({**options, "path": place, "topicPattern": ".*"})
        self._root: SettledRoot | None = None
        self._marks: dict[str, dict[int, int]] = {}

    @property
    def root(self) -> SettledRoot:
        """The root, opened; raises NotFound if there is none."""
        if self._root is None:
            self._root = SettledRoot.open(self.place, self._options, self._clock)
        return self._root

    def is_empty(self) -> bool:
        """Whether there is no root yet: a log makes it when it first seals. A directory that does not exist is another
        thing: that is NotFound, because the place is probably misspelled.
        """
        try:
            _ = self.root
        except NotFound:
            address = parse_url(root_url(self.place))
            if address.scheme == "file" and not Path(address.place).exists():
                raise
            return True
        return False

    def names(self) -> list[str]:
        """The topics that there are."""
        return [topic.topic for topic in self.root.topics(self._options)]

    def look_again(self) -> None:
        """Forget the marks: the next question is about what is settled then, at the log that is there then."""
        self._marks.clear()
        if self._root is not None and not _is_same_log(self._root):
            self._root = None

    def is_there(self, name: str) -> bool:
        """Whether there is such a topic."""
        if name in self._marks:
            return True
        try:
            self._topic(name)
        except NotFound:
            return False
        return True

    def ends(self, name: str) -> dict[int, int]:
        """How far each partition of a topic is settled, the same in all of a run; raises NotFound."""
        if name not in self._marks:
            self._marks[name] = self.settled(name)
        return self._marks[name]

    def settled(self, name: str) -> dict[int, int]:
        """The same at this moment."""
        topic = self._topic(name)
        return {partition: mark for (_, partition), mark in self.root.marks([topic]).items()}

    def begins(self, name: str) -> dict[int, int]:
        """The first offset that is left of each partition."""
        topic = self._topic(name)
        return {part: earliest_offset(self.root, topic, (name, part)) for part in range(topic.partitions)}

    def new(self, name: str, read: Mapping[int, int] | None) -> Spans:
        """What is settled and was not read: of each partition, empty spans included. None: nothing was ever read.

        Marks never go back. Another process may have read further than what this run saw when it began.
        """
        if read is None:
            ends, begins = self.ends(name), self.begins(name)
        else:
            first = self._topic(name).first_offset
            begins = {part: read.get(part, first) for part in {*self.ends(name), *read}}
            ends = self._ends_behind(name, begins)
        return {part: (begin, max(begin, ends.get(part, begin))) for part, begin in sorted(begins.items())}

    def _ends_behind(self, name: str, read: Mapping[int, int]) -> dict[int, int]:
        """How far each partition is settled; raises Invalid where a table has read further than that."""
        if all(begin <= self.ends(name).get(part, 0) for part, begin in read.items()):
            return self.ends(name)
        ends = self.settled(name)
        for part, begin in sorted(read.items()):
            if begin > ends.get(part, 0):
                raise Invalid(
                    f"the table has read more than the root has topic={name} partition={part} read={begin}"
                    f" settled={ends.get(part, 0)}",
                    hint="the root has lost records or was restored from an older copy; rebuild the table elsewhere",
                )
        return ends

    def all_of(self, name: str, read: Mapping[int, int] | None) -> Spans:
        """Everything that is left and settled; what a table has read before is among it, or was removed on purpose."""
        begins, ends = self.begins(name), self._ends_behind(name, read or {})
        return {part: (min(begins.get(part, end), end), end) for part, end in ends.items()}

    def frame(self, spark: SparkSession, name: str, options: Mapping[str, str], spans: Spans) -> DataFrame:
        """The rows of these spans; or, with the option emit, what manifests tell of them."""
        from pyspark_holdfast.native import read

        marks = format_marks(
            ReadMarks(self.root.log, {(name, part): PartitionMark(*span) for part, span in spans.items()})
        )
        given = {**self._given, **options, "asOf": marks}
        if "emit" in {option.lower() for option in given}:
            return spark.read.format("holdfast").options(**given, topic=name).load(self.place)
        return read(spark, self.place, name, **given)

    def columns(self, name: str, options: Mapping[str, str]) -> dict[str, str]:
        """The columns of its rows, with their types as Spark says them; of what manifests tell, none."""
        from pyspark_holdfast.types import spark_schema

        asked = parse_options({**self._given, **options, "path": self.place, "topic": name})[1]
        if asked.emit != "rows":
            return {}
        shape = shape_of([self._topic(name)], asked)
        return {field.name: field.dataType.simpleString() for field in spark_schema(shape.columns)}

    def between(self, name: str, since_us: int | None, before_us: int | None) -> Spans:
        """Spans that hold all records of these times, and others beside them: whole segments."""
        found: Spans = {}
        for part in range(self._topic(name).partitions):
            met = [
                segment
                for segment in self.root.segments((name, part))
                if (since_us is None or segment.time_max >= since_us)
                and (before_us is None or segment.time_min < before_us)
            ]
            found[part] = (met[0].first, max(segment.end for segment in met)) if met else (0, 0)
        return found

    def _topic(self, name: str) -> TopicDocument:
        return self.root.topic(name)

    # -- the lease ----------------------------------------------------------------------------------------

    @contextmanager
    def leased(self, run: str, needs: Mapping[str, Spans]) -> Iterator[None]:
        """While rows of these topics are read, retention waits for them, if the store lets us say so.

        `run` is the name of the pipeline, a dot, and an id. Each run has a lease of its own, renewed by a thread: two
        at once do not end each other's. Without a lease retention may be faster, and then reading fails.
        """
        if not any(needs.values()) or not self.root.is_shipped_to():
            yield
            return
        lease = Lease(self.root.store, self.root.log, run, _LEASE_SECONDS, self._clock)
        numbers = {
            (name, part): segment_number(self.root.segments((name, part)), begin)
            for name, spans in needs.items()
            for part, (begin, _) in spans.items()
        }
        _quietly(lambda: lease.renew(numbers))
        _quietly(lambda: self._remove_ended(run.rpartition(".")[0]))
        done = Flag()
        renewing = Thread(target=_renew, args=(lease, numbers, done), name="holdfast-pipeline-lease", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            done.set()
            renewing.join()
            _quietly(lease.end)

    def _remove_ended(self, pipeline: str) -> None:
        """Leases of runs that were killed are of no use, and would stay forever.

        They are old by the newest lease, which is there now: a clock may be wrong.
        """
        store, leases = self.root.store, list(self.root.store.list(layout.LEASES))
        limit = max((info.modified_us for info in leases), default=0) - _ENDED_SECONDS * 1_000_000
        found = [info.key for info in leases if info.modified_us < limit]
        readers = {key: (layout.parse_lease_key(key) or ("", 0))[0].rpartition(".") for key in found}
        store.delete([key for key, (name, _, id_) in readers.items() if name == pipeline and len(id_) == _ID_CHARS])


def _is_same_log(root: SettledRoot) -> bool:
    try:
        root.require_same_log()
    except (Invalid, NotFound):
        return False
    return True


def _renew(lease: Lease, numbers: Mapping[tuple[str, int], int], done: Flag) -> None:
    while not done.wait(_LEASE_SECONDS / 3):
        _quietly(lambda: lease.renew(numbers))


def _quietly(call: Callable[[], None]) -> None:
    """Who may not write to the store reads without a lease; one that is not removed runs out by itself."""
    try:
        call()
    except HoldfastError:
        return
