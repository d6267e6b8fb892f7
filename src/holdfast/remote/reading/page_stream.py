"""A partition of a server's log as a stream of pages.

A page is asked for by partition and absolute offsets and is complete before it is given to anybody, so a connection
that breaks costs a repeated question and nothing else. Pages begin small, for those who want one record, and grow. A
page is what the server sent: its columns are compared with those that were asked for before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from holdfast.errors import Unavailable
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.key_filter import KeyFilter
from holdfast.log.topics.reading import ResultColumns, Times, parse_position
from holdfast.model.record import Record
from holdfast.remote.http.exchange import ARROW, Exchange, Question, ServerAnswer

if TYPE_CHECKING:
    import pyarrow as pa

_RECORDS_FIRST, _RECORDS_MAX = 256, 50_000
_BYTES_MAX = 4 * 2**20
_PAGE_TIMEOUT_S = 30.0


class PageStream:
    """Reads one partition, page by page."""

    def __init__(self, exchange: Exchange, partition: Partition) -> None:
        self.partition = partition
        self._exchange = exchange

    def records(
        self, start: int, end: int, times: Times, *, reverse: bool = False, key: KeyFilter | None = None
    ) -> Iterator[Record]:
        """Records start..end of a raw topic, of these times and with this key only."""
        from holdfast.segments.typed.arrow_records import records

        for batch in self._pages(start, end, times, reverse, key, None, _RECORDS_FIRST):
            for part in _small(batch.drop_columns(["partition"])):
                yield from records(part, self.partition.number, self.partition.topic)

    def results(
        self,
        columns: ResultColumns,
        start: int,
        end: int,
        times: Times,
        *,
        reverse: bool = False,
        key: KeyFilter | None = None,
        to_the_end: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The same as batches of these columns: the server has given rows their version of the schema."""
        first = _RECORDS_MAX if to_the_end else _RECORDS_FIRST
        for batch in self._pages(start, end, times, reverse, key, columns.names, first):
            yield _as(batch, columns.schema)

    def _pages(
        self,
        start: int,
        end: int,
        times: Times,
        reverse: bool,
        key: KeyFilter | None,
        columns: Collection[str] | None,
        records: int,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a span, as the server gives them; the first page has so many."""
        fixed = self._fixed_query(times, reverse, columns)
        while start < end:
            query = (*fixed, ("start", str(start)), ("end", str(end)), ("limit", str(records)))
            answer = self._exchange.ask(self._question(query, key), _PAGE_TIMEOUT_S)
            yield from batches_of(answer.body)
            at = self._position(answer)
            if not start <= at <= end or at == (end if reverse else start):
                raise Unavailable("the server's page makes no progress", hint="is its version the same as here?")
            start, end = (start, at) if reverse else (at, end)
            records = min(_RECORDS_MAX, records * 4)

    def _fixed_query(self, times: Times, reverse: bool, columns: Collection[str] | None) -> tuple[tuple[str, str], ...]:
        query = [("partition", str(self.partition.number)), ("bytes_max", str(_BYTES_MAX))]
        if times.since is not None:
            query.append(("since", str(times.since)))
        if times.until is not None:
            query.append(("until", str(times.until)))
        if reverse:
            query.append(("reverse", "true"))
        query += [("columns", name) for name in columns or ()]
        return tuple(query)

    def _question(self, query: tuple[tuple[str, str], ...], key: KeyFilter | None) -> Question:
        headers = {"Accept": ARROW}
        if key is not None:
            headers["Holdfast-Key"] = quote(key.encoded, safe="")
        return Question("GET", ("v1", "topics", self.partition.topic, "records"), query, headers=headers)

    def _position(self, answer: ServerAnswer) -> int:
        found = parse_position(answer.headers.get("holdfast-position", "{}"))
        return found.get(self.partition.number, -1)


def _small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for at in range(0, batch.num_rows, 1024):
        yield batch.slice(at, 1024)


def batches_of(body: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow stream, each proved to be valid."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            batches = list(stream)
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError):
        raise Unavailable("the server's page is not a valid Arrow stream", hint="read it again") from None
    return iter(batches)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns that were asked for; the server may know a later version of the schema, which has more."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    if not set(schema.names) <= set(batch.schema.names):
        raise Unavailable("the server's page has other columns", hint="read it again")
    arrays = [batch.column(name) for name in schema.names]
    if any(array.type != field.type for array, field in zip(arrays, schema, strict=True)):
        raise Unavailable("the server's page has columns of other types", hint="read it again")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
