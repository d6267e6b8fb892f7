"""A read: one pass over the partitions of a topic, as records or as Arrow, with limits and a position to go on from.

A reading is lazy and is used once, in one way: iterate it for records, or take it as Arrow (`batches`, `to_arrow`,
`to_polars`, `to_pandas`, or anything that speaks `__arrow_c_stream__`). Its span is fixed when it is made: what
becomes durable later is not in it. `position` says at any moment how far it got, as a short text to keep and to give to
the next `read(start=…)` (or `end=…` when reading backwards).
"""

from __future__ import annotations

from asyncio import to_thread
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.errors import Invalid
from holdfast.model.arrow import dataframes
from holdfast.telemetry.spans import READ, counted, is_recorded

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from holdfast.log.ports import PartitionStream
    from holdfast.log.topics.key_filter import KeyFilter
    from holdfast.model.schema import TopicSchema

Item = TypeVar("Item")
Given = TypeVar("Given")

_PAGE_ITEMS = 500
_position = msgspec.json.Decoder(dict[int, int])


class Times(NamedTuple):
    """A closed interval of times in microseconds; None = open."""

    since: int | None = None
    until: int | None = None

    def miss(self, low: int, high: int) -> bool:
        """Whether nothing between low and high lies in it."""
        return (self.since is not None and high < self.since) or (self.until is not None and low > self.until)

    def hold(self, time: int) -> bool:
        """Whether a time lies in it."""
        return not self.miss(time, time)


ALWAYS = Times()


class ResultColumns(NamedTuple):
    """The Arrow columns that a reading gives."""

    schema: pa.Schema
    declared: TopicSchema | None = None
    """Of a typed topic: the version of its schema that rows are given in."""
    names: Collection[str] | None = None
    """The columns that were asked for; None: all of them."""


class Span(NamedTuple):
    """What is to be read of one partition."""

    stream: PartitionStream
    start: int
    end: int
    to_the_end: bool = False
    """Whether the reader will hardly stop before the end: it has no limits."""


class Shape(Protocol[Item]):
    """How a kind of topic gives its items and its Arrow columns; raw and typed topics have one each."""

    def items(self, span: Span, times: Times, reverse: bool, key: KeyFilter | None = None) -> Iterator[Item]:
        """The items of a span; with a key, only those that have it."""

    def place(self, item: Item) -> tuple[int, int]:
        """Partition and offset of an item."""

    def size(self, item: Item) -> int:
        """What an item counts against `bytes_max`."""

    def schema(self) -> pa.Schema:
        """The Arrow schema of the results."""

    def batches(
        self, span: Span, times: Times, reverse: bool, key: KeyFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """A span in that schema."""


class Reading(Generic[Item]):
    """What `topic.read(…)` returns: an iterator of records, and a source of Arrow.

    >>> import holdfast, tempfile
    >>> with tempfile.TemporaryDirectory() as directory, holdfast.open(directory) as log:
    ...     topic = log.topic("orders")
    ...     _ = topic.append_batch([b"one", b"two", b"three"])
    ...     page = topic.read(limit=2)
    ...     [record.payload for record in page], page.position, page.exhausted
    ...     [record.payload for record in topic.read(page.position)]
    ([b'one', b'two'], '{"0":2}', False)
    [b'three']
    """

    def __init__(
        self,
        shape: Shape[Item],
        spans: list[Span],
        times: Times,
        reverse: bool,
        limit: int | None,
        bytes_max: int | None,
        key: KeyFilter | None = None,
    ) -> None:
        self._shape = shape
        self._key = key
        self._spans = spans
        self._times = times
        self._reverse = reverse
        self._limit = limit
        self._bytes_max = bytes_max
        self._positions = {s.stream.partition.number: s.end if reverse else s.start for s in spans}
        self._topic = spans[0].stream.partition.topic if spans and is_recorded() else None
        """Its topic, where the caller is in a span that is recorded: then this is one, too."""
        self._items: Iterator[Item] | None = None
        self._used_as: Literal["records", "async", "arrow"] | None = None
        self._ahead: _Ahead[Item] | None = None

    # -- records ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Item]:
        self._begin_records()
        if self._items is None:
            self._items = self._counted(self._iterate(self._positions), _one)
        return self._items

    def __next__(self) -> Item:
        return next(iter(self))

    def _begin_records(self, way: Literal["records", "async"] = "records") -> None:
        if self._used_as == "arrow":
            raise Invalid("this reading was taken as Arrow already", hint="call read() again: a reading is used once")
        if self._used_as not in (None, way):
            raise Invalid("this reading was begun in another way", hint="call read() again, and go on from .position")
        self._used_as = way

    async def __aiter__(self) -> AsyncIterator[Item]:
        """The records, read in threads a page at a time; the loop is never blocked."""
        self._begin_records("async")
        if self._ahead is None:
            positions = dict(self._positions)
            self._ahead = _Ahead(self._counted(self._iterate(positions), _one), positions)
        ahead = self._ahead
        while bool(ahead.page) or await to_thread(ahead.fill):
            item = ahead.page.popleft()
            partition, offset = self._shape.place(item)
            self._positions[partition] = offset if self._reverse else offset + 1
            yield item
        self._positions.update(ahead.positions)

    def _counted(self, items: Iterator[Given], count: Callable[[Given], int]) -> Iterator[Given]:
        return items if self._topic is None else counted(READ, self._topic, items, count)

    def _iterate(self, positions: dict[int, int]) -> Iterator[Item]:
        left = -1 if self._limit is None else self._limit
        room = -1 if self._bytes_max is None else self._bytes_max
        place, size, back = self._shape.place, self._shape.size, self._reverse
        spent, given = 0, False
        is_filtered = self._times != ALWAYS or self._key is not None
        for span in self._spans:
            for item in self._shape.items(span, self._times, back, self._key):
                # The first item is always given, however large: a reader with a small limit must make progress.
                if left == 0 or (room >= 0 and given and spent + size(item) > room):
                    return
                partition, offset = place(item)
                positions[partition] = offset if back else offset + 1
                left -= 1
                given = True
                if room >= 0:
                    spent += size(item)
                yield item
                if left == 0 and not is_filtered:  # no need to look further: offsets tell whether there is more
                    return
            self._finish(span, positions)

    def _finish(self, span: Span, positions: dict[int, int]) -> None:
        positions[span.stream.partition.number] = span.start if self._reverse else span.end

    # -- where we are -------------------------------------------------------------------------------------

    @property
    def position(self) -> str:
        """How far this reading got, to go on from later: `read(start=position)`, backwards `read(end=position)`."""
        return position_text(self._positions)

    @property
    def bounds(self) -> tuple[str, str]:
        """Where its span begins and ends, as positions: with them a later reading gives no more than this one would."""
        spans = [(s.stream.partition.number, s.start, s.end) for s in self._spans]
        return position_text({n: start for n, start, _ in spans}), position_text({n: end for n, _, end in spans})

    @property
    def exhausted(self) -> bool:
        """Whether it has given everything that was there when it began."""
        return all(
            self._positions[s.stream.partition.number] == (s.start if self._reverse else s.end) or s.start >= s.end
            for s in self._spans
        )

    # -- Arrow --------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the results."""
        return self._shape.schema()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, one after the other."""
        if self._used_as is not None:
            raise Invalid("this reading was begun already", hint="call read() again: a reading is used once")
        self._used_as = "arrow"
        return self._counted(self._iterate_batches(), _rows)

    def _iterate_batches(self) -> Iterator[pa.RecordBatch]:
        left, room = self._limit, self._bytes_max
        to_the_end = left is None and room is None
        spent = 0
        for span in self._spans:
            number = span.stream.partition.number
            wanted = span._replace(to_the_end=to_the_end)
            for batch in self._shape.batches(wanted, self._times, self._reverse, self._key):
                taken = batch if left is None else batch.slice(0, left)
                if room is not None:
                    taken = _fitting(taken, room - spent, always=not spent)
                    spent += taken.nbytes
                if taken.num_rows:
                    offset = taken.column(1)[taken.num_rows - 1].as_py()
                    self._positions[number] = offset if self._reverse else offset + 1
                    yield taken
                left = None if left is None else left - taken.num_rows
                if taken.num_rows < batch.num_rows or left == 0:
                    return
            self._finish(span, self._positions)

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(), self.schema)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars data frame."""
        return dataframes.polars_frame(self.to_arrow())

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a pandas data frame."""
        return dataframes.pandas_frame(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's C stream: Polars, DuckDB, pandas and pyarrow take a reading directly."""
        return dataframes.c_stream(self.schema, self.batches(), requested_schema)

    def __repr__(self) -> str:
        spans = ", ".join(f"{s.stream.partition.number}: {s.start}..{s.end}" for s in self._spans)
        return f"Reading({spans}{', backwards' if self._reverse else ''})"


class _Ahead(Generic[Item]):
    """What was read before it was asked for, and how far that goes."""

    def __init__(self, items: Iterator[Item], positions: dict[int, int]) -> None:
        self._items = items
        self.positions = positions
        self.page: deque[Item] = deque()

    def fill(self) -> bool:
        """Read a page; False when there is nothing left."""
        self.page.extend(islice(self._items, _PAGE_ITEMS))
        return bool(self.page)


def _one(_: object) -> int:
    return 1


def _rows(batch: pa.RecordBatch) -> int:
    return int(batch.num_rows)


def _fitting(batch: pa.RecordBatch, room: int, *, always: bool) -> pa.RecordBatch:
    """As many rows as fit into so many bytes, by halves; one at least if `always`."""
    low, high = int(always), batch.num_rows
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if batch.slice(0, middle).nbytes <= room else (low, middle - 1)
    return batch.slice(0, low)


def position_text(positions: Mapping[int, int]) -> str:
    """Partitions and offsets as a short text."""
    return msgspec.json.encode({str(number): at for number, at in sorted(positions.items())}).decode()


def parse_position(text: str) -> Mapping[int, int]:
    """Partitions and offsets of a position; Invalid where the text is not one."""
    try:
        positions = _position.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        positions = {-1: -1}
    if any(number < 0 or at < 0 for number, at in positions.items()):
        raise Invalid(f"not a position: {text[:100]!r}", hint="give what reading.position returned")
    return positions
