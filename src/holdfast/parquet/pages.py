"""The pages of a column chunk, checked before Arrow unpacks them: how many, how large, how encoded.

A few bytes can stand for gigabytes: a page says itself how large it is unpacked, runs repeat a value as often as they
like, and a dictionary repeats a long value in four bits. So the header of every page is read here first. What a page
claims must add up to what the footer says of its chunk, and everything together must stay below a limit that the
reader sets. Then Arrow's own checks hold: it unpacks into as many bytes as the header says, and stops at as many
values.

Raises BadStructure, and TooLarge for what may be whole but is more than the reader wants to hold. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.parquet import thrift
from holdfast.parquet.outline import (
    BOOLEAN,
    BYTE_ARRAY,
    INT32,
    INT64,
    PLAIN_CODEC,
    ZSTD,
    Chunk,
    Leaf,
    Model,
    Outline,
    RowGroup,
    rewritten,
)
from holdfast.parquet.thrift import I32, STRUCT, BadStructure, Walk

HEADER_BYTES_MAX = 2**20
"""Of one page: statistics of long values stand in it."""
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA, _RLE_DICTIONARY = 0, 2, 3, 5, 8
_INDEXED = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
_ENCODINGS: Mapping[int, tuple[int, ...]] = {BOOLEAN: (_PLAIN, _RLE), INT32: (_PLAIN, _DELTA), INT64: (_PLAIN, _DELTA)}
_LEVEL_BYTES = 4
"""What Arrow holds beside each value of a list while it puts lists together."""
_INT32_MAX = 2**31 - 1


class TooLarge(Exception):
    """More than the reader wants to hold in memory."""


class Weight(NamedTuple):
    """What decoding a chunk takes."""

    unpacked: int
    """Bytes of all pages before compression."""
    longest: int
    """Bytes that one value may take that stands in a dictionary; 0 without one."""


class _Page(NamedTuple):
    is_dictionary: bool
    values: int
    encoding: int
    unpacked: int
    start: int
    end: int


def weigh(content: memoryview, chunk: Chunk, leaf: Leaf, bytes_max: int) -> Weight:
    """Look at all pages of a chunk, of which `content` are the bytes; raises BadStructure or TooLarge."""
    at, unpacked, values = 0, 0, 0
    dictionary: _Page | None = None
    while at < len(content):
        page = _page(content, at, chunk)
        if page.is_dictionary != (chunk.has_dictionary and at == 0):
            raise BadStructure
        if page.is_dictionary:
            dictionary = page
            if chunk.start + page.end != chunk.data:
                raise BadStructure
        else:
            values += page.values
            _require_encoding(page, leaf, dictionary)
        unpacked += page.unpacked
        at = page.end
    if values != chunk.values:
        raise BadStructure
    if unpacked > bytes_max or (leaf.is_repeated and values * (leaf.width + _LEVEL_BYTES) > 2 * bytes_max):
        raise TooLarge
    return Weight(unpacked, 0 if dictionary is None else _longest(content, dictionary, chunk))


def _page(content: memoryview, at: int, chunk: Chunk) -> _Page:
    walk = Walk(content, at, min(len(content), at + HEADER_BYTES_MAX))
    header = walk.struct()
    unpacked, packed = header.integer(2, I32, 0, _INT32_MAX), header.integer(3, I32, 0, _INT32_MAX)
    kind = header.integer(1, I32)
    end = walk.at + packed
    if end > len(content) or (chunk.codec == PLAIN_CODEC and packed != unpacked):
        raise BadStructure
    if kind == _DATA_PAGE:
        about = header.struct(5)
        if about.integer(3, I32) != _RLE or about.integer(4, I32) != _RLE:  # levels
            raise BadStructure
    elif kind == _DICTIONARY_PAGE:
        about = header.struct(7)
    else:
        raise BadStructure
    values, encoding = about.integer(1, I32, 0, _INT32_MAX), about.integer(2, I32)
    return _Page(kind == _DICTIONARY_PAGE, values, encoding, unpacked, walk.at, end)


def _require_encoding(page: _Page, leaf: Leaf, dictionary: _Page | None) -> None:
    if page.encoding in _INDEXED:
        if dictionary is None:
            raise BadStructure
        return
    if page.encoding not in _ENCODINGS.get(leaf.kind, (_PLAIN,)):
        raise BadStructure


# -- dictionaries -----------------------------------------------------------------------------------------

_VALUES = pa.schema([pa.field("values", pa.binary(), nullable=False)])


@cache
def _model() -> Model:
    return Model(_VALUES, {"use_dictionary": False, "store_schema": False}, (PLAIN_CODEC, ZSTD))


def _longest(content: memoryview, page: _Page, chunk: Chunk) -> int:
    """The bytes of a dictionary's longest value. It is a page of plain values: Arrow decodes it as one of data."""
    if chunk.kind != BYTE_ARRAY or page.encoding not in (_PLAIN, _PLAIN_DICTIONARY):
        raise BadStructure
    if page.values == 0:
        return 0
    if page.values * 4 > page.unpacked:
        raise BadStructure
    about = thrift.encode_struct((1, I32, page.values), (2, I32, _PLAIN), (3, I32, _RLE), (4, I32, _RLE))
    packed = page.end - page.start
    header = thrift.encode_struct((1, I32, _DATA_PAGE), (2, I32, page.unpacked), (3, I32, packed), (5, STRUCT, about))
    data = b"".join((b"PAR1", header, content[page.start : page.end]))
    model = _model()
    alone = Chunk(4, len(data), page.unpacked + len(header), page.values, chunk.codec, BYTE_ARRAY, 4)
    footer = rewritten(Outline(model.elements, [RowGroup(page.values, [alone])], {}), model, len(data))
    column = pq.ParquetFile(pa.BufferReader(data + footer), pre_buffer=False).read(use_threads=False).column(0)
    longest: Any = pc.max(pc.binary_length(column))
    return int(longest.as_py())
