"""Typed entries of the journal, decoded for an inspection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import Corrupt
from holdfast.model import frame
from holdfast.model.control_rows import SchemaRow
from holdfast.model.entry import Entry
from holdfast.model.record_columns import BadRecords

if TYPE_CHECKING:
    import pyarrow as pa


class Rows(NamedTuple):
    """What is in a typed entry."""

    times: tuple[int, ...]
    batch: pa.RecordBatch


def typed_decoder(schemas: Sequence[SchemaRow]) -> Callable[[Entry, bytes], Rows]:
    """What decodes the bodies of typed entries, given all schemas of their log; raises BadFrame."""

    def decode(entry: Entry, body: bytes) -> Rows:
        from holdfast.model.schema import TopicSchema
        from holdfast.segments.typed.row_message import BadRows, decode_rows

        definition = next((row.definition for row in schemas if row.fingerprint == entry.schema), None)
        if definition is None:
            raise BadRecords("its schema is not known")
        try:
            count, times, message = frame.decode_typed(body)
            batch = decode_rows(bytes(message), TopicSchema.parse(definition).stored)
        except BadRows as error:
            raise BadRecords(str(error)) from None
        except Corrupt as error:
            raise BadRecords(error.message) from None
        if count != entry.count or batch.num_rows != count:
            raise BadRecords("it does not hold as many rows as it says")
        moments = tuple(times.cast("q"))
        return Rows(moments if len(moments) == count else moments * count, batch)

    return decode
