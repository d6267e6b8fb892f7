"""A typed topic: rows with the columns of an Arrow schema, appended in batches and read as Arrow.

The verbs are those of a raw topic; what they take is different: record batches, tables, data frames, or dictionaries
(one row, or many). Everything is checked against the schema before anything is queued. A batch is one journal
entry, it becomes durable as a whole, and its rows have consecutive offsets. In a topic with a key column it is one
entry in each partition that its keys belong to, all of them in one commit. Single rows that come together share one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property, partial
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.arguments import seconds, texts
from holdfast.errors import Invalid, Unavailable
from holdfast.journal.journal_port import JournalPort
from holdfast.journal.queue.receipts import Receipts
from holdfast.journal.queue.ticket import BatchTicket
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.any_topic import AnyTopic
from holdfast.log.topics.key_filter import Key, KeyFilter
from holdfast.log.topics.reading import Reading, ResultColumns, Span, Times
from holdfast.log.topics.topic_partitions import Partitions, PreparedBatch
from holdfast.log.topics.validation import Validation
from holdfast.model import frame
from holdfast.model.record import Durability, Receipt
from holdfast.model.record_columns import Cells, EncodedRows

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.model.schema import TopicSchema
    from holdfast.segments.typed.single_rows import SingleRows

Row = dict[str, Any]

_ROWS_AT_ONCE = 1024
"""Rows that are made dicts at once."""


class _Single(NamedTuple):
    """A row that is ready to be queued."""

    partition: Partition
    cells: Cells
    time: int
    encoder: SingleRows
    size: int


class TypedTopic(AnyTopic[Row]):
    """One typed topic of an open log; get it with `log.topic(name, schema=…)`.

    >>> import holdfast, pyarrow as pa, tempfile
    >>> schema = pa.schema([pa.field("customer", pa.string()), pa.field("cents", pa.int64())])
    >>> with tempfile.TemporaryDirectory() as directory, holdfast.open(directory) as log:
    ...     orders = log.topic("orders", schema=schema)
    ...     receipts = orders.append([{"customer": "c-42", "cents": 995}, {"customer": "c-7", "cents": 120}])
    ...     receipts[-1].offset, orders.read().to_arrow().column("cents").to_pylist()
    (1, [995, 120])
    """

    def __init__(self, name: str, journal: JournalPort, partitions: Partitions, checks: Validation) -> None:
        super().__init__(name, journal, partitions, checks, self._typed)
        self._encodes: tuple[object, SingleRows | None] = (None, None)
        """Versions of the schema, and what takes single rows of the newest: one value, so that threads may race."""

    @property
    def schema(self) -> pa.Schema:
        """The newest version of the topic's schema."""
        from holdfast.segments.typed.key_column import without_key

        return without_key(self._schema().declared)

    @cached_property
    def key(self) -> str | None:
        """The column whose value says to which partition a row goes; None where rows go round robin, by batches."""
        from holdfast.segments.manifest.schema_versions import versions
        from holdfast.segments.typed.key_column import key_of

        return key_of(versions(self._journal, self.name)[0])

    # -- appending ----------------------------------------------------------------------------------------

    def append(
        self,
        rows: object,
        *,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Sequence[Receipt]:
        """Append rows as one unit and return their receipts once they survive power loss.

        In a topic with a key column rows go to the partitions of their keys, unless a `partition` is named; there is
        one receipt per row in any case, in the order of the rows.

        `rows` is a record batch, a table, a data frame, a dict (one row) or an iterable of dicts. Columns are
        found by name; absent nullable ones become null; anything else that does not fit is Invalid, and nothing is
        written. `time` is that of all rows (default: now), or the name of a timestamp column that holds it.
        A repeated `idempotency_key` writes nothing and returns the original receipts; with other rows than the first
        time it is Invalid.
        """
        wait_seconds, deadline = self._begin("append", timeout, durability)
        ticket = self.submit(
            rows, time=time, partition=partition, idempotency_key=idempotency_key, timeout=wait_seconds
        )
        return self._wait(ticket, deadline, durability, timeout)

    async def append_async(
        self,
        rows: object,
        *,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
        timeout: float | None = None,
        durability: Durability = "durable",
    ) -> Sequence[Receipt]:
        """What `append` does, for coroutines: waits for room and for the acknowledgement without blocking the loop."""
        # Once: rows may be an iterator, and there may be no room yet.
        single = self._single(rows, time, partition) if idempotency_key is None else None
        batch = self._conformed(rows)[1] if single is None else None

        def put(left: float) -> BatchTicket:
            if single is not None:
                return self._submit_single(single, left)
            return self.submit(batch, time=time, partition=partition, idempotency_key=idempotency_key, timeout=left)

        return await self._wait_async(put, timeout, durability)

    def submit(
        self,
        rows: object,
        *,
        time: int | datetime | str | None = None,
        partition: int | None = None,
        idempotency_key: bytes | str | None = None,
        timeout: float | None = None,
    ) -> BatchTicket:
        """Queue rows as one unit and return its ticket; `ticket.result()` or `await ticket`.

        Single rows that are queued while a commit is under way are stored together, as one entry.
        """
        wait_seconds = self._wait_seconds if timeout is None else seconds(timeout)
        if idempotency_key is None and (single := self._single(rows, time, partition)) is not None:
            return self._submit_single(single, wait_seconds)
        return self._submit_batch(self._prepared(rows, time, partition, idempotency_key), wait_seconds)

    def _single(self, rows: object, time: int | datetime | str | None, partition: int | None) -> _Single | None:
        """One row of plain values, which is stored with others; None: it goes as a batch, or is refused as one."""
        if type(rows) is list and len(rows) == 1:
            (rows,) = rows
        if type(rows) is not dict:
            return None
        encoder = self._row_encoder()
        taken = encoder.taken(rows)
        if taken is None:
            return None
        cells, size = taken
        if size + encoder.overhead > self._journal.settings.batch_bytes_max:
            return None
        if time is None:
            moment = self._now()
        elif not isinstance(time, str):
            moment = self._checks.time(time)
        else:
            found = encoder.moment(cells, time)
            if found is None:
                return None
            moment = found
        key = None
        if partition is None and self._partitions.only is None and self.key is not None:
            key = _key_bytes(encoder.value(cells, self.key))
        return _Single(self._partitions.choose(partition, key), cells, moment, encoder, size)

    def _submit_single(self, single: _Single, wait_seconds: float) -> BatchTicket:
        run, index = self._journal.put_row(*single, wait_seconds)
        return BatchTicket(run, Receipts((run,), (index,)), wait_seconds)

    def _row_encoder(self) -> SingleRows:
        """What takes single rows of the newest version of the schema."""
        versions = self._journal.schemas[self.name]
        known, encoder = self._encodes
        if encoder is None or known is not versions:
            from holdfast.segments.typed.single_rows import single_rows

            encoder = single_rows(self._schema())
            self._encodes = (versions, encoder)
        return encoder

    def _prepared(
        self,
        rows: object,
        time: int | datetime | str | None,
        partition: int | None,
        idempotency_key: bytes | str | None,
        keyless: bytes | None = None,
    ) -> PreparedBatch:
        """Rows as one batch; for transactions and producers, too. Those without a key go where `keyless` belongs."""
        schema, batch = self._conformed(rows)
        if partition is None and self._partitions.only is None and self.key is not None:
            return self._prepared_parts(schema, batch, time, idempotency_key, keyless)
        encoded, size = self._encode(schema, batch, time)
        if idempotency_key is not None:
            from holdfast.segments.typed.row_times import content_of

            _, encoded.key = self._checks.unique(idempotency_key, content_of(batch))
        part = self._partitions.choose(partition, keyless)
        return PreparedBatch([(part, encoded)], size, range(encoded.count))

    def _prepared_parts(
        self,
        schema: TopicSchema,
        batch: pa.RecordBatch,
        time: int | datetime | str | None,
        idempotency_key: bytes | str | None,
        keyless: bytes | None,
    ) -> PreparedBatch:
        """Rows by their keys, as one unit. Those without a key stay together; a repeat sends them to the same place."""
        from holdfast.segments.typed.key_column import split

        assert self.key is not None
        moment = self._now() if time is None else time
        if idempotency_key is not None:
            keyless = self._checks.key_hash(self._checks.unique_key(idempotency_key))
        parts = split(batch, self.key, self.partitions, self._partitions.choose(None, keyless).number)
        runs, size = [], 0
        for number, rows in parts.parts:
            encoded, weight = self._encode(schema, rows, moment)
            runs.append((self._partitions.explicit(number), encoded))
            size += weight
        if idempotency_key is not None:
            self._name_parts(idempotency_key, parts.parts, [one for _, one in runs])
        self._checks.batch_size(size)
        return PreparedBatch(runs, size, parts.positions, parts.starts)

    def _name_parts(
        self, idempotency_key: bytes | str, parts: Sequence[tuple[int, pa.RecordBatch]], encoded: Sequence[EncodedRows]
    ) -> None:
        """Give the parts of one batch, each with the number of its partition, what its idempotency key makes of it.

        The first part has the key itself, so that a repeat always meets it.
        """
        from holdfast.segments.typed.row_times import content_of

        _, unique = self._checks.unique(idempotency_key, *(content_of(rows) for _, rows in parts))
        for at, ((number, _), one) in enumerate(zip(parts, encoded, strict=True)):
            one.key = self._checks.unique_part(unique, number) if at else unique
            one.batch = unique

    def offer(self, rows: object, *, time: int | datetime | str | None = None, partition: int | None = None) -> bool:
        """Queue rows without waiting for anything; False when there is no room."""
        try:
            self.submit(rows, time=time, partition=partition, timeout=0)
        except Unavailable:
            return False
        return True

    def _conformed(self, rows: object) -> tuple[TopicSchema, pa.RecordBatch]:
        from holdfast.segments.typed.conform import conform

        schema = self._schema()
        batches = conform(schema, rows, rows_max=self._journal.settings.batch_records_max)
        if len(batches) > 1:
            raise Invalid(
                f"the batch is too long rows={sum(batch.num_rows for batch in batches)}",
                hint="append it in pieces of at most journal.batch_records_max rows",
            )
        return schema, batches[0]

    def _encode(
        self, schema: TopicSchema, batch: pa.RecordBatch, time: int | datetime | str | None
    ) -> tuple[EncodedRows, int]:
        from holdfast.segments.typed.row_message import message_of
        from holdfast.segments.typed.row_times import joined

        message = message_of(batch)
        size = self._checks.batch_size(message.size)
        times, time_min, time_max = self._times(batch, time)
        body = joined(frame.typed_head(batch.num_rows, times), message)
        return EncodedRows(batch.num_rows, time_min, time_max, body, schema.fingerprint), size

    def _times(self, batch: pa.RecordBatch, time: int | datetime | str | None) -> tuple[bytes, int, int]:
        if not isinstance(time, str):
            moment = self._now() if time is None else self._checks.time(time)
            return pack("<q", moment), moment, moment
        from holdfast.segments.typed.row_times import times_of

        return times_of(batch, time)

    # -- reading ------------------------------------------------------------------------------------------

    def read(
        self,
        start: int | str | None = None,
        end: int | str | None = None,
        limit: int | None = None,
        reverse: bool = False,
        *,
        columns: Collection[str] | None = None,
        partition: int | Iterable[int] | None = None,
        since: int | datetime | str | None = None,
        until: int | datetime | str | None = None,
        bytes_max: int | None = None,
        key: Key | None = None,
    ) -> Reading[Row]:
        """Durable rows, as dictionaries or as Arrow, in the newest version of the schema.

        Each has its columns and `_partition`, `_offset` and `_time`. `columns` reads only some of the columns. `key`
        is a value of the topic's key column; a topic without one has no keys. For the rest see `Topic.read`.
        """
        shape = partial(self._typed, columns)
        return self._read(shape, start, end, limit, reverse, partition, since, until, bytes_max, key)

    def _wanted(self, key: object) -> KeyFilter:
        if self.key is None:
            raise Invalid(
                f"topic {self.name!r} has no key column",
                hint="a topic gets one when it is created: log.topic(name, schema=…, key='column')",
            )
        return KeyFilter.of_column(key, self.key, self._schema().stored.field(self.key).type)

    def _typed(self, columns: Collection[str] | None = None) -> _RowReader:
        return _RowReader(self.name, self._schema(), columns)

    def __repr__(self) -> str:
        return f"TypedTopic({self.name!r}, partitions={self.partitions}, columns={self.schema.names})"

    def _schema(self) -> TopicSchema:
        from holdfast.segments.manifest.schema_versions import versions

        return versions(self._journal, self.name)[-1]


def _key_bytes(value: str | bytes | int | None) -> bytes | None:
    """A value of the key column as what a raw record with this key has; see `key_column`."""
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches in parts: a row costs microseconds as a dict, and a reader of a few should not pay for thousands."""
    for batch in batches:
        for at in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(at, _ROWS_AT_ONCE)


class _RowReader:
    """How rows of a typed topic are read."""

    def __init__(self, topic: str, schema: TopicSchema, columns: Collection[str] | None) -> None:
        if columns is not None:
            columns = texts(columns, "columns", schema.declared.names[0])
            unknown = [name for name in columns if name not in schema.names]
            if unknown:
                raise Invalid(f"topic {topic!r} has no columns {unknown}", hint=f"it has {schema.declared.names}")
        self._topic = topic
        self._newest = schema
        self._columns = columns

    def items(self, span: Span, times: Times, reverse: bool, key: KeyFilter | None = None) -> Iterator[Row]:
        from holdfast.model.arrow import plain_arrays

        for part in _small(self.batches(span, times, reverse, key)):
            try:
                found = plain_arrays.rows(part)
            except (OverflowError, ValueError):  # Arrow's times go further than Python's
                raise Invalid(
                    f"a row has a time that no datetime can hold topic={self._topic}",
                    hint="read it as Arrow: topic.read(…).to_arrow()",
                ) from None
            yield from found

    def place(self, item: Row) -> tuple[int, int]:
        return item["_partition"], item["_offset"]

    def size(self, item: Row) -> int:
        return sum(len(value) if isinstance(value, str | bytes) else 8 for value in item.values())

    def schema(self) -> pa.Schema:
        from holdfast.segments.typed.row_times import result_schema

        return result_schema(self._newest, self._columns)

    def batches(
        self, span: Span, times: Times, reverse: bool, key: KeyFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        columns, end = ResultColumns(self.schema(), self._newest, self._columns), span.to_the_end
        return span.stream.results(columns, span.start, span.end, times, reverse=reverse, key=key, to_the_end=end)
