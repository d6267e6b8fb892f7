"""Typed topics for tests: schemas and rows of every kind, and the ways in and out."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.model.arrow import arrow_types as kinds
from holdfast.model.schema import declare
from holdfast.segments.typed.conform import conform
from holdfast.segments.typed.declared_rows import restore
from holdfast.segments.typed.row_message import decode_rows, message_of

UTC = dt.UTC
text = st.text(max_size=8)
binary = st.binary(max_size=8)
LEAVES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16, allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): text,
    pa.large_string(): text,
    pa.string_view(): text,
    pa.binary(): binary,
    pa.large_binary(): binary,
    pa.binary_view(): binary,
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.time32("s"): st.times().map(lambda t: t.replace(microsecond=0)),
    pa.time32("ms"): st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    pa.time64("us"): st.times(),
    pa.timestamp("s"): st.datetimes().map(lambda t: t.replace(microsecond=0)),
    pa.timestamp("ms"): st.datetimes().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("s", "UTC"): st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(microsecond=0)),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.duration("s"): st.integers(-(10**6), 10**6).map(lambda n: dt.timedelta(seconds=n)),
    pa.duration("us"): st.integers(-(10**9), 10**9).map(lambda n: dt.timedelta(microseconds=n)),
    pa.decimal32(5, 2): st.integers(-99999, 99999).map(lambda n: Decimal(n).scaleb(-2)),
    pa.decimal128(20, 3): st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-3)),
    pa.decimal256(60, 0): st.integers(-(10**30), 10**30).map(Decimal),
    pa.uuid(): st.uuids(),
    pa.json_(): text,
}
IN_DICTIONARIES = [
    kind
    for kind in LEAVES
    if not (pa.types.is_floating(kind) or pa.types.is_decimal32(kind) or isinstance(kind, pa.BaseExtensionType))
]
leaf_types = st.sampled_from(list(LEAVES))
dictionaries = st.builds(
    pa.dictionary, st.sampled_from([pa.int8(), pa.uint32(), pa.int64()]), st.sampled_from(IN_DICTIONARIES)
)


def encode_rows(batch: pa.RecordBatch) -> bytes:
    """A batch as rows of a typed topic are stored."""
    return bytes(message_of(batch))


def nested(inner):
    items = st.builds(pa.field, st.sampled_from(["item", "element", "l"]), inner, st.booleans())
    children = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3)
    return st.one_of(
        items.map(pa.list_),
        items.map(pa.large_list),
        st.builds(pa.list_, items, st.integers(1, 3)),
        children.map(lambda cs: pa.struct([pa.field(f"f{i}", kind, null) for i, (kind, null) in enumerate(cs)])),
        st.builds(lambda v: pa.map_(pa.string(), v.with_name("value")), items),
    )


types = st.recursive(leaf_types | dictionaries, nested, max_leaves=6)
columns = st.lists(st.tuples(types, st.booleans()), min_size=1, max_size=4)
schemas = columns.map(lambda cs: pa.schema([pa.field(f"c{i}", kind, null) for i, (kind, null) in enumerate(cs)]))


def values_of(kind, nullable):
    """Python values of a type, as to_pylist gives them."""
    if pa.types.is_dictionary(kind):
        some = values_of(kind.value_type, False)
    elif pa.types.is_struct(kind):
        some = st.fixed_dictionaries({child.name: values_of(child.type, child.nullable) for child in kind})
    elif pa.types.is_map(kind):
        item = kind.item_field
        some = st.lists(st.tuples(text, values_of(item.type, item.nullable)), max_size=3)
    elif pa.types.is_fixed_size_list(kind):
        inner = values_of(kind.value_type, kind.value_field.nullable)
        some = st.lists(inner, min_size=kind.list_size, max_size=kind.list_size)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        some = st.lists(values_of(kind.value_type, kind.value_field.nullable), max_size=3)
    else:
        some = LEAVES[kind]
    return st.none() | some if nullable else some


def build(values, kind):
    """An array put together by hand, because pa.array cannot make all types; independent of what is tested."""
    mask = pa.array([value is None for value in values], pa.bool_())
    if isinstance(kind, pa.BaseExtensionType):
        plain = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
        return pa.ExtensionArray.from_storage(kind, build(plain, kind.storage_type))
    if pa.types.is_dictionary(kind):
        distinct = list(dict.fromkeys(value for value in values if value is not None))
        indices = pa.array([None if value is None else distinct.index(value) for value in values], kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, build(distinct, kind.value_type))
    if pa.types.is_struct(kind):
        under = [[empty(child.type) if v is None else v[child.name] for v in values] for child in kind]
        children = [build(column, child.type) for column, child in zip(under, kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_fixed_size_list(kind):
        flat = [x for v in values for x in (v if v is not None else [empty(kind.value_type)] * kind.list_size)]
        return pa.FixedSizeListArray.from_arrays(build(flat, kind.value_type), type=kind, mask=mask)
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return build_list(values, kind, mask)
    return pa.array(values, kind)


def build_list(values, kind, mask):
    width = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
    offsets = pa.array(itertools.accumulate((len(v or []) for v in values), initial=0), width)
    flat = [x for v in values for x in v or []]
    if pa.types.is_map(kind):
        keys, items = build([k for k, _ in flat], kind.key_type), build([i for _, i in flat], kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    cls = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return cls.from_arrays(offsets, build(flat, kind.value_type), type=kind, mask=mask)


def empty(kind):
    """Something that may lie under a null."""
    if pa.types.is_struct(kind):
        return {child.name: empty(child.type) for child in kind}
    if pa.types.is_fixed_size_list(kind):
        return [empty(kind.value_type)] * kind.list_size
    return None


def other_encoding(draw, kind):
    """A type whose data is data of `kind` in another encoding."""
    if pa.types.is_dictionary(kind):
        return draw(st.sampled_from([kind, kind.value_type]))
    for family in (kinds.TEXTS, kinds.BINARIES):
        if kind in family:
            return draw(st.sampled_from([*family, pa.dictionary(pa.int16(), family[0])]))
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    change = lambda child: pa.field(child.name, other_encoding(draw, child.type), True)  # noqa: E731
    if pa.types.is_map(kind):
        return pa.map_(pa.large_string(), change(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return draw(st.sampled_from([pa.list_, pa.large_list]))(change(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct(draw(st.permutations([change(child) for child in kind])))
    return kind


@st.composite
def filled(draw, encoded=False):
    """A schema, rows of Python values, and a table of them, perhaps sliced out of a larger one."""
    declared = draw(schemas)
    count = draw(st.integers(1, 6))
    before = draw(st.integers(0, 3))
    data = {
        c.name: draw(st.lists(values_of(c.type, c.nullable), min_size=count + before, max_size=count + before))
        for c in declared
    }
    kinds = [other_encoding(draw, c.type) if encoded else c.type for c in declared]
    arrays = [build(data[c.name], kind) for c, kind in zip(declared, kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=declared.names).slice(before)
    return declared, {name: column[before:] for name, column in data.items()}, batch


def stored_of(kind):
    return declare(pa.schema([("c", kind)])).stored.field("c").type


def batches_of(topic, data, rows_max=1000):
    return conform(topic, data, rows_max=rows_max)


def one(topic, data):
    (batch,) = batches_of(topic, data)
    assert batch.schema.equals(topic.stored, check_metadata=True)
    batch.validate(full=True)
    return batch


def topic_of(kind, nullable=True):
    return declare(pa.schema([pa.field("c", kind, nullable)]))


def back(topic, batch):
    return restore(decode_rows(encode_rows(batch), topic.stored), topic, topic)


def refused(topic, data, *parts):
    with pytest.raises(Invalid) as caught:
        batches_of(topic, data)
    assert caught.value.hint
    for part in parts:
        assert part in caught.value.message
    return caught.value


TWO = declare(pa.schema([pa.field("a", pa.int64(), False), pa.field("b", pa.string())]))
