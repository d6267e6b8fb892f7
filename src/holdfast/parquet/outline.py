"""A Parquet footer that nobody vouches for: parsed, checked, and rewritten for Arrow.

Arrow ends the process, instead of raising, on a column whose metadata are inconsistent. So Arrow never sees a foreign
footer. What ours must have is taken out of it (`outline`), held against the footer that our own writer makes for the
same columns (`Model`), and a new footer is written of nothing but these numbers (`rewritten`): the columns are the
model's own bytes; statistics, indexes and all else that reading does not need are left out. What a model does not have
is BadStructure.

Only structure is checked. What a footer says is proved by its mac, its chain and the blocks themselves. Pure.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.parquet import thrift
from holdfast.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, BadStructure, Fields, Walk

MAGIC = b"PAR1"
TAIL_BYTES = 8
PLAIN_CODEC, ZSTD = 0, 6
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)
"""Physical types."""

# Fields of Parquet's structs, by number.
_SCHEMA, _ROW_GROUPS, _PAIRS, _ENCRYPTION = 2, 4, 5, 8
_TYPE, _TYPE_LENGTH, _REPETITION, _NAME, _CHILDREN = 1, 2, 3, 4, 5
_COLUMNS, _ROWS = 1, 3
_FILE_PATH, _METADATA, _CRYPTO, _ENCRYPTED = 1, 3, 8, 9
_COLUMN_TYPE, _CODEC, _VALUES, _UNPACKED, _PACKED, _DATA, _DICTIONARY = 1, 4, 5, 6, 7, 9, 11
_REPEATED = 2
_INT32_MAX = 2**31 - 1
_WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8, BYTE_ARRAY: 8}


class Chunk(NamedTuple):
    """Where the values of one column lie in one row group."""

    start: int
    end: int
    unpacked: int
    """Bytes before compression, as the footer says."""
    values: int
    codec: int
    kind: int
    data: int
    """Where the first page of data begins; behind `start` if there is a dictionary."""

    @property
    def has_dictionary(self) -> bool:
        """Whether the first page is a dictionary."""
        return self.start < self.data


class RowGroup(NamedTuple):
    """One row group of a footer."""

    rows: int
    chunks: list[Chunk]


class Element(NamedTuple):
    """A node of the schema, as far as it says how bytes are read."""

    name: bytes
    kind: int | None
    length: int | None
    repetition: int | None
    children: int


class Leaf(NamedTuple):
    """A column that has pages."""

    top: str
    """The name of the outermost column that it belongs to."""
    path: tuple[bytes, ...]
    kind: int
    width: int
    """Bytes that a value takes in Arrow, at least."""
    is_nullable: bool
    is_repeated: bool
    may_have_dictionary: bool


class Outline(NamedTuple):
    """What a footer says."""

    elements: list[Element]
    groups: list[RowGroup]
    pairs: dict[bytes, bytes]


class Model:
    """The footer that our writer makes for some columns, and what follows from it."""

    def __init__(self, schema: pa.Schema, settings: Mapping[str, Any], codecs: Sequence[int]) -> None:
        stream = io.BytesIO()
        pq.ParquetWriter(stream, schema, **settings).close()
        content = stream.getvalue()
        footer = content[-TAIL_BYTES - int.from_bytes(content[-TAIL_BYTES:-4], "little") :]
        top = Walk(footer, 0, len(footer) - TAIL_BYTES).struct()
        self.elements = [_element(element) for element in top.structs(_SCHEMA)]
        self.codecs = codecs
        dictionaries = settings.get("use_dictionary", True)
        self.leaves = list(_leaves(self.elements, dictionaries))
        self.schema = footer[slice(*top.spans[_SCHEMA])]
        self.pairs = footer[slice(*top.spans[_PAIRS])] if _PAIRS in top else None


def outline(footer: bytes, groups_max: int) -> Outline:
    """What a footer (Thrift bytes, length and magic) says; raises BadStructure."""
    walk = Walk(footer, 0, len(footer) - TAIL_BYTES)
    top = walk.struct()
    if _ENCRYPTION in top or walk.at != len(footer) - TAIL_BYTES:
        raise BadStructure
    groups = top.structs(_ROW_GROUPS)
    if len(groups) > groups_max:
        raise BadStructure
    return Outline([_element(e) for e in top.structs(_SCHEMA)], [_row_group(g) for g in groups], _pairs(top))


def rewritten(found: Outline, model: Model, data_end: int) -> bytes:
    """A footer for Arrow that says the same, and was made here; raises BadStructure where the model says otherwise."""
    _require_same_columns(found.elements, model.elements)
    at = len(MAGIC)
    for group in found.groups:
        at = _require_sound(group, model, at, data_end)
    fields: list[tuple[int, int, Any]] = [
        (1, I32, 2),
        (_SCHEMA, LIST, model.schema),
        (3, I64, sum(group.rows for group in found.groups)),
        (_ROW_GROUPS, LIST, thrift.encode_list(STRUCT, [_encoded(group, model.leaves) for group in found.groups])),
    ]
    fields += [(_PAIRS, LIST, model.pairs)] if model.pairs is not None else []
    content = thrift.encode_struct(*fields)
    return content + len(content).to_bytes(4, "little") + MAGIC


# -- taking apart -----------------------------------------------------------------------------------------


def _element(fields: Fields) -> Element:
    children = fields.integer(_CHILDREN, I32, 0, _INT32_MAX) if _CHILDREN in fields else 0
    kind = fields.integer(_TYPE, I32, 0, FIXED) if _TYPE in fields else None
    length = fields.integer(_TYPE_LENGTH, I32, 0, _INT32_MAX) if _TYPE_LENGTH in fields else None
    repetition = fields.integer(_REPETITION, I32, 0, _REPEATED) if _REPETITION in fields else None
    return Element(fields.binary(_NAME), kind, length, repetition, children)


def _row_group(fields: Fields) -> RowGroup:
    return RowGroup(fields.integer(_ROWS, I64), [_chunk(column) for column in fields.structs(_COLUMNS)])


def _chunk(column: Fields) -> Chunk:
    if {_FILE_PATH, _CRYPTO, _ENCRYPTED} & column.keys():
        raise BadStructure
    about = column.struct(_METADATA)
    data = start = about.integer(_DATA, I64)
    if about.get(_DICTIONARY):
        start = min(data, about.integer(_DICTIONARY, I64))
    return Chunk(
        start=start,
        end=start + about.integer(_PACKED, I64),
        unpacked=about.integer(_UNPACKED, I64),
        values=about.integer(_VALUES, I64),
        codec=about.integer(_CODEC, I32),
        kind=about.integer(_COLUMN_TYPE, I32),
        data=data,
    )


def _pairs(top: Fields) -> dict[bytes, bytes]:
    pairs: dict[bytes, bytes] = {}
    for pair in top.structs(_PAIRS) if _PAIRS in top else ():
        name = pair.binary(1)
        if name in pairs:
            raise BadStructure
        pairs[name] = pair.binary(2) if 2 in pair else b""
    return pairs


def _leaves(elements: list[Element], dictionaries: Any) -> list[Leaf]:
    """The columns with pages below the root of a schema that our own writer made."""
    found: list[Leaf] = []

    def descend(at: int, path: tuple[bytes, ...], is_nullable: bool, is_repeated: bool) -> int:
        element = elements[at]
        path = (*path, element.name)
        is_nullable = is_nullable or element.repetition != 0
        is_repeated = is_repeated or element.repetition == _REPEATED
        if element.kind is not None:
            top, dotted = path[0].decode(), b".".join(path).decode()
            width = element.length or 0 if element.kind == FIXED else _WIDTHS[element.kind]
            may = dictionaries if isinstance(dictionaries, bool) else top in dictionaries or dotted in dictionaries
            found.append(Leaf(top, path, element.kind, width, is_nullable, is_repeated, may))
        at += 1
        for _ in range(element.children):
            at = descend(at, path, is_nullable, is_repeated)
        return at

    at = 1
    for _ in range(elements[0].children):
        at = descend(at, (), False, False)
    return found


# -- judging ----------------------------------------------------------------------------------------------


def _require_same_columns(found: list[Element], model: list[Element]) -> None:
    """The same tree of the same physical types. Inner names differ between versions of Arrow and mean nothing."""
    if [element[1:] for element in found[1:]] != [element[1:] for element in model[1:]]:
        raise BadStructure
    if found[0].children != model[0].children or _top_names(found) != _top_names(model):
        raise BadStructure


def _top_names(elements: list[Element]) -> list[bytes]:
    names, at = [], 1
    while at < len(elements):
        names.append(elements[at].name)
        left = 1
        while left and at < len(elements):
            left += elements[at].children - 1
            at += 1
    return names


def _require_sound(group: RowGroup, model: Model, at: int, data_end: int) -> int:
    """The chunks of a row group lie one behind the other, and have as many values as rows; returns where they end."""
    if len(group.chunks) != len(model.leaves) or not 0 < group.rows <= _INT32_MAX:
        raise BadStructure
    for chunk, leaf in zip(group.chunks, model.leaves, strict=True):
        least = most = group.rows
        if leaf.is_repeated:
            most = _INT32_MAX
        if not at <= chunk.start < chunk.end <= data_end or not chunk.data < chunk.end:
            raise BadStructure
        if chunk.kind != leaf.kind or chunk.codec not in model.codecs or not least <= chunk.values <= most:
            raise BadStructure
        if chunk.has_dictionary and not leaf.may_have_dictionary:
            raise BadStructure
        at = chunk.end
    return at


# -- writing anew -----------------------------------------------------------------------------------------


def _encoded(group: RowGroup, leaves: list[Leaf]) -> bytes:
    columns = [_encoded_chunk(chunk, leaf) for chunk, leaf in zip(group.chunks, leaves, strict=True)]
    size = sum(chunk.unpacked for chunk in group.chunks)
    return thrift.encode_struct(
        (_COLUMNS, LIST, thrift.encode_list(STRUCT, columns)), (2, I64, size), (_ROWS, I64, group.rows)
    )


def _encoded_chunk(chunk: Chunk, leaf: Leaf) -> bytes:
    dictionary = [(_DICTIONARY, I64, chunk.start)] if chunk.has_dictionary else []
    about = thrift.encode_struct(
        (_COLUMN_TYPE, I32, chunk.kind),
        (2, LIST, thrift.encode_list(I32, [])),  # encodings: pages say theirs themselves
        (3, LIST, thrift.encode_list(BINARY, [thrift.encode_binary(name) for name in leaf.path])),
        (_CODEC, I32, chunk.codec),
        (_VALUES, I64, chunk.values),
        (_UNPACKED, I64, chunk.unpacked),
        (_PACKED, I64, chunk.end - chunk.start),
        (_DATA, I64, chunk.data),
        *dictionary,
    )
    return thrift.encode_struct((2, I64, 0), (_METADATA, STRUCT, about))
