"""A topic with a codec: it takes values and gives records that have them; everything else is as in a topic of bytes.

It is put together when it is opened: a topic of bytes appends, and what is in front of it makes payloads of values. So
appending bytes costs what it costs without codecs. Values are encoded once, in the caller's thread, before
anything is queued; what comes from a journal, a socket or a server are the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec.structs import replace

from holdfast.arguments import several
from holdfast.journal.queue.ticket import Ticket
from holdfast.journal.state.partition import Partition
from holdfast.log.topics.key_filter import KeyFilter
from holdfast.log.topics.reading import Shape, Span, Times
from holdfast.log.topics.topic import Topic
from holdfast.log.topics.topic_partitions import PreparedBatch
from holdfast.log.topics.validation import Headers
from holdfast.model.record import Durability, Receipt, Record
from holdfast.model.record_columns import Row
from holdfast.model.value_codec import ValueCodec, ValueRecord

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.journal.journal_port import JournalPort
    from holdfast.log.topics.topic_partitions import Partitions
    from holdfast.log.topics.validation import Validation


class OfferOptions(TypedDict, total=False):
    """What goes with a value; see `Topic`."""

    key: bytes | str | None
    headers: Headers | None
    kind: str | None
    time: int | datetime | None
    partition: int | None
    idempotency_key: bytes | str | None


class SubmitOptions(OfferOptions, total=False):
    """The same, where there is waiting for room."""

    timeout: float | None


class AppendOptions(SubmitOptions, total=False):
    """The same, where there is waiting for the disk or the store."""

    durability: Durability


class BatchOptions(TypedDict, total=False):
    """What goes with a batch of values."""

    partition: int | None
    timeout: float | None
    durability: Durability


class ValueTopic(Topic):
    """One topic of values; get it with `log.topic(name, codec="json")`.

    Its verbs are those of `Topic`, with a value in the place of the payload. In a batch, items are values or records;
    the payload of such a record is a value, too.
    """

    codec: ValueCodec

    def __init__(
        self, name: str, journal: JournalPort, partitions: Partitions, checks: Validation, codec: ValueCodec
    ) -> None:
        super().__init__(name, journal, partitions, checks)
        self._bytes = Topic(name, journal, partitions, checks)
        self.use(codec)

    def use(self, codec: ValueCodec) -> None:
        """Read and write by this codec from now on: the topic's own, with a type or without."""
        self.codec = codec
        raw = self._bytes._shape
        self._shape = lambda: _Values(raw(), codec)

    def typed(self, codec: ValueCodec) -> ValueTopic:
        """The same topic by another type."""
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        twin.use(codec)
        return twin

    if TYPE_CHECKING:

        def append(self, payload: Any, **options: Unpack[AppendOptions]) -> Receipt:
            """See `Topic.append`, which comes to `submit`."""

        def append_batch(self, records: Iterable[Any], **options: Unpack[BatchOptions]) -> Sequence[Receipt]:
            """See `Topic.append_batch`, which comes to `_prepared`."""

    async def append_async(self, payload: Any, **options: Unpack[AppendOptions]) -> Receipt:
        """See `Topic.append_async`."""
        return await self._bytes.append_async(self.codec.encode(payload), **options)

    def submit(self, payload: Any, **options: Unpack[SubmitOptions]) -> Ticket:
        """See `Topic.submit`."""
        return self._bytes.submit(self.codec.encode(payload), **options)

    def offer(self, payload: Any, **options: Unpack[OfferOptions]) -> bool:
        """See `Topic.offer`."""
        return self._bytes.offer(self.codec.encode(payload), **options)

    async def append_batch_async(self, records: Iterable[Any], **options: Unpack[BatchOptions]) -> Sequence[Receipt]:
        """See `Topic.append_batch_async`."""
        return await self._bytes.append_batch_async(self._encoded(records), **options)

    def _prepared(self, records: Iterable[Any], partition: int | None, keyless: bytes | None = None) -> PreparedBatch:
        return self._bytes._prepared(self._encoded(records), partition, keyless)

    def _row(self, payload: Any, *rest: Any) -> tuple[Partition, Row, int]:
        return self._bytes._row(self.codec.encode(payload), *rest)

    def _encoded(self, records: Iterable[Any]) -> list[bytes | Record]:
        encode = self.codec.encode
        return [
            replace(one, payload=encode(one.payload)) if isinstance(one, Record) else encode(one)
            for one in several(records, "records", 'append_batch([{"id": 1}])')
        ]

    def __repr__(self) -> str:
        return f"ValueTopic({self.name!r}, partitions={self.partitions}, codec={self.codec!r})"


class _Values:
    """How records with values are read: as those of bytes, each with its codec."""

    def __init__(self, raw: Shape[Record], codec: ValueCodec) -> None:
        self._records = raw.items
        self._codec = codec
        self.place, self.size, self.schema, self.batches = raw.place, raw.size, raw.schema, raw.batches

    def items(self, span: Span, times: Times, reverse: bool, key: KeyFilter | None = None) -> Iterator[Record]:
        codec = self._codec
        return (ValueRecord.of(record, codec) for record in self._records(span, times, reverse, key))
