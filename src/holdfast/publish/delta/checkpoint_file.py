"""A checkpoint of a Delta table: all that it is after a commit, in one Parquet file. Pure: actions in, bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.publish.delta.actions import Add, Metadata, Protocol, Remove, Txn

if TYPE_CHECKING:
    import pyarrow as pa

SETTINGS: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "write_page_checksum": True}
"""How the file is written."""

Kept = Protocol | Metadata | Txn | Remove | Add


def encode(actions: Sequence[Kept]) -> bytes:
    """The file: one row per action, in the column of its kind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {Txn: "txn", Add: "add", Remove: "remove", Metadata: "metaData", Protocol: "protocol"}
    rows: dict[str, list[Any]] = {name: [None] * len(actions) for name in columns.values()}
    for at, action in enumerate(actions):
        rows[columns[type(action)]][at] = msgspec.to_builtins(action)
    schema = checkpoint_schema()
    arrays = [pa.array([_entries(value) for value in rows[field.name]], field.type) for field in schema]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, **SETTINGS)
    return bytes(sink.getvalue())


def hint(version: int, actions: Sequence[Kept], size: int) -> bytes:
    """What `_last_checkpoint` says about it."""
    adds = sum(isinstance(action, Add) for action in actions)
    found = {"version": version, "size": len(actions), "sizeInBytes": size, "numOfAddFiles": adds}
    return msgspec.json.encode(found) + b"\n"


def _entries(value: Any) -> Any:
    """Dictionaries inside an action as Arrow wants maps."""
    if not isinstance(value, dict):
        return value
    return {
        name: list(inner.items()) if isinstance(inner, dict) and name != "format" else _entries(inner)
        for name, inner in value.items()
    }


def checkpoint_schema() -> pa.Schema:
    """The columns of the file."""
    import pyarrow as pa

    text, number, flag = pa.string(), pa.int64(), pa.bool_()
    texts = pa.map_(text, text)
    return pa.schema(
        {
            "txn": pa.struct({"appId": text, "version": number, "lastUpdated": number}),
            "add": pa.struct(
                {
                    "path": text,
                    "partitionValues": texts,
                    "size": number,
                    "modificationTime": number,
                    "dataChange": flag,
                    "stats": text,
                    "tags": texts,
                }
            ),
            "remove": pa.struct(
                {
                    "path": text,
                    "deletionTimestamp": number,
                    "dataChange": flag,
                    "extendedFileMetadata": flag,
                    "partitionValues": texts,
                    "size": number,
                    "tags": texts,
                }
            ),
            "metaData": pa.struct(
                {
                    "id": text,
                    "name": text,
                    "description": text,
                    "format": pa.struct({"provider": text, "options": texts}),
                    "schemaString": text,
                    "partitionColumns": pa.list_(text),
                    "configuration": texts,
                    "createdTime": number,
                }
            ),
            "protocol": pa.struct(
                {
                    "minReaderVersion": pa.int32(),
                    "minWriterVersion": pa.int32(),
                    "readerFeatures": pa.list_(text),
                    "writerFeatures": pa.list_(text),
                }
            ),
        }
    )
