"""Schemas of typed topics: what may be declared, what is stored for it, and how it may change."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.schema_data import LEAVES, back, filled, one, schemas, stored_of, topic_of, types

from holdfast.errors import Corrupt, Invalid
from holdfast.model.schema import TopicSchema, declare, evolve

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.list_(pa.null()),
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.int64()),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.sparse_union([pa.field("a", pa.int64())]),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.struct([pa.field("a", pa.int64()), pa.field("a", pa.int64())]),
        pa.struct([pa.field("", pa.int64())]),
        pa.binary(0),
        pa.list_(pa.int64(), 0),
        pa.decimal128(5, -2),
        pa.decimal128(5, 7),
        pa.map_(pa.string(), pa.int64(), keys_sorted=True),
        pa.dictionary(pa.int8(), pa.string(), ordered=True),
        pa.dictionary(pa.int32(), pa.float64()),
        pa.dictionary(pa.int32(), pa.decimal64(5, 1)),
        pa.dictionary(pa.int32(), pa.list_(pa.int64())),
        pa.dictionary(pa.int32(), pa.null()),
        pa.timestamp("us", "x" * 300),
        pa.opaque(pa.null(), "a", "b"),
    ],
    ids=str,
)
def test_what_cannot_be_given_back_cannot_be_declared(kind):
    """Types that Parquet or the way back would change are refused at once, alone and inside others."""
    for whole in (kind, pa.struct([("x", pa.list_(kind))])):
        with pytest.raises(Invalid) as caught:
            topic_of(whole)
        assert caught.value.hint


@pytest.mark.parametrize(
    "names", [[], ["a", "a"], ["_offset"], ["_x"], [""], ["x" * 256], ["a\nb"], [f"c{i}" for i in range(2001)]], ids=len
)
def test_names_of_columns_are_checked(names):
    """No columns, too many, equal, reserved, empty, long or unprintable names are refused."""
    with pytest.raises(Invalid):
        declare(pa.schema([pa.field(name, pa.int64()) for name in names]))


def test_limits_themselves_are_allowed():
    """2000 columns, 255 characters, sixteen levels and 64 KiB of metadata are fine; one more is not."""
    declare(pa.schema([pa.field(f"{i:0255}", pa.int64()) for i in range(2000)]))
    deep = pa.int64()
    for _ in range(15):
        deep = pa.list_(deep)
    topic_of(deep)
    with pytest.raises(Invalid, match="deep"):
        topic_of(pa.list_(deep))
    columns = pa.schema([("c", pa.int64())])
    declare(columns.with_metadata({"k": "v" * (2**16 - 1)}))
    with pytest.raises(Invalid, match="metadata"):
        declare(columns.with_metadata({"k": "v" * 2**16}))
    inside = pa.field("x", pa.int64(), metadata={"k": "v" * 2**16})
    with pytest.raises(Invalid, match="metadata"):
        topic_of(pa.struct([inside]))
    topic_of(pa.binary(2**20))
    for wide in (pa.binary(2**20 + 1), pa.struct([("x", pa.list_(pa.list_(pa.int64(), 1000), 1000))])):
        with pytest.raises(Invalid, match="wide"):
            topic_of(wide)
    wide = pa.struct([pa.field(f"f{i}", pa.int8()) for i in range(20_001)])
    with pytest.raises(Invalid, match="fields"):
        topic_of(wide)


def test_metadata_is_kept_and_does_not_count():
    """Metadata of the schema, of columns and inside them comes back; fingerprint and stored form know nothing of it."""
    inside = pa.field("x", pa.int64(), metadata={"deep": "1"})
    rich = pa.schema([pa.field("c", pa.struct([inside]), metadata={"unit": "m"})], metadata={"owner": "me"})
    bare = pa.schema([pa.field("c", pa.struct([("x", pa.int64())]))])
    topic = declare(rich)
    assert topic.fingerprint == declare(bare).fingerprint
    assert topic.stored.equals(bare, check_metadata=True)
    assert TopicSchema.parse(topic.serialize()).declared.equals(rich, check_metadata=True)
    assert back(topic, one(topic, {"c": {"x": 1}})).schema.equals(rich, check_metadata=True)


def test_whatever_exports_a_schema_can_be_declared():
    """A polars schema is as good as Arrow's; anything else is refused."""
    topic = declare(pl.Schema({"a": pl.String, "b": pl.List(pl.Categorical), "t": pl.Datetime("us")}))
    assert topic.declared.names == ["a", "b", "t"]
    for wrong in (None, {"a": pa.int64()}, "a", 5, pa.int64()):
        with pytest.raises(Invalid):
            declare(wrong)


@given(filled())
@settings(max_examples=25)
def test_what_is_declared_once_can_be_declared_again(case):
    """Declaring is a normal form: the declared schema declares to itself, the stored one to itself."""
    topic = declare(case[0])
    assert declare(topic.declared) == topic
    assert declare(topic.stored).stored.equals(topic.stored, check_metadata=True)


def test_stored_types():
    """What Parquet would change is stored as what it would become, at every depth."""
    assert stored_of(pa.timestamp("s", "Europe/Berlin")) == pa.timestamp("ms", "Europe/Berlin")
    assert stored_of(pa.time32("s")) == pa.time32("ms")
    assert stored_of(pa.date64()) == pa.date32()
    assert stored_of(pa.string_view()) == pa.string()
    assert stored_of(pa.dictionary(pa.int8(), pa.timestamp("s"))) == pa.timestamp("ms")
    assert stored_of(pa.list_(pa.uuid())) == pa.list_(pa.binary(16))
    for same in (pa.large_string(), pa.duration("s"), pa.decimal32(5, 1), pa.float16(), pa.large_list(pa.int8())):
        assert stored_of(same) == same


def test_the_fingerprint_is_pinned():
    """The fingerprint of a schema with every kind of type never changes: it is stored."""
    leaves = [kind for kind in LEAVES if not isinstance(kind, pa.BaseExtensionType)]
    fields = [pa.field(f"c{i}", kind, i % 2 == 0) for i, kind in enumerate(leaves)]
    fields += [
        pa.field("list", pa.list_(pa.field("item", pa.int8(), False))),
        pa.field("large_list", pa.large_list(pa.string())),
        pa.field("fixed", pa.list_(pa.float32(), 3)),
        pa.field("struct", pa.struct([pa.field("x", pa.int8()), pa.field("y", pa.bool_(), False)])),
        pa.field("map", pa.map_(pa.string(), pa.field("value", pa.int64(), False))),
        pa.field("dictionary", pa.dictionary(pa.int8(), pa.string())),
        pa.field("uuid", pa.uuid()),
        pa.field("json", pa.json_()),
    ]
    assert declare(pa.schema(fields)).fingerprint.hex() == "8e3a171596b9f62df7775369a8b38756"


def test_everything_but_metadata_counts():
    """Name, order, type, parameter, nullability, inside and outside: each gives another fingerprint."""
    kinds = [
        pa.int64(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ms"),
        pa.time32("ms"),
        pa.decimal128(5, 1),
        pa.decimal128(5, 2),
        pa.decimal64(5, 1),
        pa.binary(16),
        pa.uuid(),
        pa.list_(pa.int64()),
        pa.list_(pa.field("item", pa.int64(), False)),
        pa.large_list(pa.int64()),
        pa.list_(pa.int64(), 2),
        pa.list_(pa.int64(), 3),
        pa.struct([("a", pa.int64())]),
        pa.struct([("b", pa.int64())]),
        pa.struct([pa.field("a", pa.int64(), False)]),
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.string(), pa.field("value", pa.int64(), False)),
        pa.dictionary(pa.int32(), pa.string()),
        pa.string(),
        pa.fixed_shape_tensor(pa.int32(), [2, 3]),
        pa.fixed_shape_tensor(pa.int32(), [3, 2]),
    ]
    made = [topic_of(kind, nullable).fingerprint for kind in kinds for nullable in (True, False)]
    a, b = pa.field("a", pa.int64()), pa.field("b", pa.int64())
    made += [declare(pa.schema(fields)).fingerprint for fields in ([a], [b], [a, b], [b, a])]
    assert len(set(made)) == len(made)
    assert all(len(fingerprint) == 16 for fingerprint in made)


def test_encodings_do_not_count():
    """The index of a dictionary and the names of list items and map entries are no part of a type."""
    item, element = (pa.list_(pa.field(name, pa.int64())) for name in ("item", "element"))
    assert topic_of(item).fingerprint == topic_of(element).fingerprint
    small, large = (topic_of(pa.dictionary(index, pa.string())) for index in (pa.int8(), pa.uint64()))
    assert small == large
    named = pa.map_(pa.field("k", pa.string(), False), pa.field("v", pa.int64()))
    assert topic_of(named).fingerprint == topic_of(pa.map_(pa.string(), pa.int64())).fingerprint


class Metres(pa.ExtensionType):
    def __init__(self):
        super().__init__(pa.float64(), "holdfast.test.metres")

    def __arrow_ext_serialize__(self):
        return b"m"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


def test_an_extension_counts_the_same_where_nobody_registered_it():
    """A process that does not know a user's extension type opens the same topic: same fingerprint, same stored form."""
    pa.register_extension_type(Metres())
    try:
        known = topic_of(Metres())
        data = known.serialize()
        assert TopicSchema.parse(data).declared.field("c").type == Metres()
    finally:
        pa.unregister_extension_type("holdfast.test.metres")
    unknown = TopicSchema.parse(data)
    assert unknown.declared.field("c").type == pa.float64()
    assert (unknown.fingerprint, unknown.stored) == (known.fingerprint, known.stored)
    assert known.fingerprint != topic_of(pa.float64()).fingerprint


@given(schemas)
def test_serialized_schemas_come_back(declared):
    """Parsing gives the same topic schema."""
    topic = declare(declared)
    assert TopicSchema.parse(topic.serialize()) == topic


@given(schemas, st.data())
def test_damaged_schemas_are_corrupt(declared, data):
    """Changed, cut or lengthened bytes are Corrupt or another valid schema, never anything else."""
    whole = declare(declared).serialize()
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0" * 8):
        with pytest.raises(Corrupt):
            TopicSchema.parse(wrong)
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        TopicSchema.parse(bytes(changed))
    except Corrupt:
        pass


@given(st.binary(max_size=200))
def test_noise_is_no_schema(noise):
    """Hostile bytes are Corrupt."""
    with pytest.raises(Corrupt):
        TopicSchema.parse(noise)


def test_a_schema_that_could_not_be_declared_is_corrupt():
    """Parsing checks what declaring checks."""
    with pytest.raises(Corrupt):
        TopicSchema.parse(pa.schema([("_offset", pa.int64())]).serialize().to_pybytes())
    with pytest.raises(Corrupt):
        TopicSchema.parse(pa.schema([("a", pa.null())]).serialize().to_pybytes())
    rows = pa.record_batch({"a": [1]}).serialize().to_pybytes()
    with pytest.raises(Corrupt):
        TopicSchema.parse(rows)


@given(schemas, st.lists(st.tuples(types, st.booleans(), st.integers(0, 9)), max_size=3))
def test_exactly_nullable_additions_are_accepted(declared, added):
    """New columns may stand anywhere if all are nullable; nothing added is no change."""
    fields = list(declared)
    for i, (kind, nullable, place) in enumerate(added):
        fields.insert(place, pa.field(f"new{i}", kind, nullable))
    current, new = declare(declared), declare(pa.schema(fields))
    if all(nullable for _, nullable, _ in added):
        assert evolve(current, new) is (new if added else None)
    else:
        with pytest.raises(Invalid, match="not nullable"):
            evolve(current, new)


@given(schemas, st.data())
def test_any_other_change_is_refused(declared, data):
    """A removed, renamed, retyped or moved column, or one of other nullability, is Invalid."""
    fields = list(declared)
    place = data.draw(st.integers(0, len(fields) - 1))
    old = fields[place]
    change = data.draw(st.sampled_from(["remove", "rename", "retype", "nullable", "move"]))
    if change == "remove":
        assume(len(fields) > 1)
        del fields[place]
    elif change == "move":
        assume(len(fields) > 1)
        fields.append(fields.pop(place))
        assume(fields != list(declared))
    else:
        kind = data.draw(types)
        assume(topic_of(kind).fingerprint != topic_of(old.type).fingerprint)
        fields[place] = {
            "rename": old.with_name("other"),
            "retype": old.with_type(kind),
            "nullable": old.with_nullable(not old.nullable),
        }[change]
    with pytest.raises(Invalid):
        evolve(declare(declared), declare(pa.schema([*fields, pa.field("new", pa.int64())])))


def test_every_problem_is_reported():
    """One message lists all that is wrong with a change."""
    current = declare(
        pa.schema([("gone", pa.int8()), ("typed", pa.int8()), ("loose", pa.int8()), ("x", pa.int8()), ("y", pa.int8())])
    )
    new = declare(
        pa.schema(
            [
                pa.field("typed", pa.string()),
                pa.field("loose", pa.int8(), False),
                pa.field("y", pa.int8()),
                pa.field("x", pa.int8()),
                pa.field("strict", pa.int8(), False),
            ]
        )
    )
    with pytest.raises(Invalid) as caught:
        evolve(current, new)
    for part in (
        "'gone' was removed",
        "'typed' changed its type from int8 to string",
        "'loose' became required",
        "reordered from 'y'",
        "'strict' was added but is not nullable",
    ):
        assert part in caught.value.message
    assert "new topic" in caught.value.hint


def test_an_inner_change_that_its_text_hides_is_reported():
    """A map's values may become required without a change in the type's text: it is refused, and says where."""
    loose, strict = (pa.map_(pa.string(), pa.field("value", pa.int8(), n)) for n in (True, False))
    with pytest.raises(Invalid, match="inside"):
        evolve(topic_of(loose), topic_of(strict))
