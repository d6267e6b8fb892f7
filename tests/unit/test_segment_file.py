"""The segment file: what was written comes back, in order, pruned, turned round, by time; wrong calls are refused."""

from __future__ import annotations

import gc
import hashlib
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sampling import examples
from tests.segment_data import (
    BEGINNING,
    SMALL,
    USER_SCHEMA,
    batch_of,
    head,
    head_of,
    keyed_vault,
    raw_batch,
    typed_batch,
    write,
)

import holdfast
from holdfast import Invalid
from holdfast.errors import Corrupt
from holdfast.model.arrow.batch_sizing import BatchBuffer
from holdfast.model.segment import chain_value
from holdfast.segments.file import footer as footers
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.hashing_sink import BLOCK_BYTES, hash_block
from holdfast.segments.file.segment_columns import RAW_SCHEMA, conform, stored_schema, typed_schema
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.file.segment_writer import SegmentWriter
from holdfast.segments.typed.tail_batches import BATCH_BYTES

pytestmark = pytest.mark.disk
SHAPES = ["raw", "typed", "sealed-raw", "sealed-typed"]
VAULT = keyed_vault()


def vault_of(shape):
    return VAULT if shape.startswith("sealed") else None


def opener(shape):
    return VAULT.stored_segment_key if shape.startswith("sealed") else None


@pytest.fixture(params=SHAPES)
def shape(request):
    return request.param


@pytest.fixture
def segment(tmp_path, shape):
    """A file of 450 records in five row groups, its reader, and the records."""
    batch = batch_of(shape, 1000, 450)
    place = head_of(shape, 1000)
    facts = write(tmp_path / "segment", place, [batch], vault=vault_of(shape))
    with SegmentReader(tmp_path / "segment", place, facts, opener(shape)) as reader:
        yield reader, conform(batch, stored_schema(batch.schema))


def joined(batches, schema=None):
    return pa.Table.from_batches(list(batches), schema).combine_chunks()


def table(batch):
    return pa.Table.from_batches([batch])


@pytest.mark.parametrize("first", [0, 2**31 - 5, 2**40, 2**62])
@pytest.mark.parametrize("sizes", [[1], [7] * 60, [450], [1, 300, 2, 100]], ids=["one", "many", "large", "mixed"])
def test_what_is_written_comes_back(tmp_path, shape, first, sizes):
    """Every value of every shape returns, however it was cut and however large its offset."""
    whole = batch_of(shape, first, sum(sizes))
    edges = [sum(sizes[:i]) for i in range(len(sizes))]
    batches = [whole.slice(at, size) for at, size in zip(edges, sizes, strict=True)]
    place = head_of(shape, first)
    facts = write(tmp_path / "segment", place, batches, vault=vault_of(shape))
    with SegmentReader(tmp_path / "segment", place, facts, opener(shape)) as reader:
        assert joined(reader.batches(0, 2**63)).equals(table(conform(whole, stored_schema(whole.schema))))
        assert reader.verify() == facts
        assert reader.schema.equals(stored_schema(whole.schema))


def test_facts_are_those_of_the_file(segment, shape):
    """Size, hashes, times and key id are what anybody finds who looks at the file."""
    reader, batch = segment
    content, facts = reader.path.read_bytes(), reader.facts
    times = batch.column(1).view(pa.int64()).to_pylist()
    length = int.from_bytes(content[-8:-4], "little") + 8
    assert facts.size == len(content)
    assert facts.sha256 == hashlib.sha256(content).digest()
    assert facts.footer == hash_block(content[-length:])
    assert (facts.rows, facts.time_min, facts.time_max) == (450, min(times), max(times))
    assert facts.key_id == ("k1" if shape.startswith("sealed") else "")


def test_a_file_describes_itself(segment, shape, tmp_path):
    """Without a manifest, head, facts, columns and chain come from the file alone."""
    reader, _ = segment
    with SegmentReader(reader.path, None, None, opener(shape)) as alone:
        assert alone.head == reader.head
        assert alone.facts.sha256 == b""
        assert alone.schema.equals(reader.schema)
        assert alone.verify() == reader.facts
        assert alone.facts == reader.facts
        assert joined(alone.batches(0, 2**63)).equals(joined(reader.batches(0, 2**63)))


def test_the_footer_holds_the_documented_pairs(segment, shape):
    """The footer holds the documented pairs as text, and the hashes of all blocks before it."""
    reader, _ = segment
    content = reader.path.read_bytes()
    pairs = footers.decode_pairs(pq.read_metadata(reader.path).metadata)
    encrypted = {"key_id", "scheme", "salt", "commitment"} if shape.startswith("sealed") else set()
    assert {name.removeprefix("holdfast.") for name in pairs} == encrypted | {
        "format",
        "shape",
        "log",
        "topic",
        "partition",
        "number",
        "first",
        "rows",
        "epoch",
        "schema",
        "previous",
        "time_min",
        "time_max",
        "content",
        "chain",
        "groups",
        "blocks",
        "arrow_schema",
        "mac",
        *(("keys",) if shape.endswith("raw") else ()),
    }
    assert (pairs["holdfast.format"], pairs["holdfast.shape"], pairs["holdfast.first"]) == ("1", shape, "1000")
    data = content[: -int.from_bytes(content[-8:-4], "little") - 8]
    hashes = [hash_block(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    assert pairs["holdfast.blocks"] == b"".join(hashes).hex()
    assert pairs["holdfast.chain"] == chain_value(reader.head, 450, reader.facts.content).hex()


def test_large_files_have_many_blocks(tmp_path):
    """Hashes of a file of several blocks match the file, whatever pieces Arrow wrote it in."""
    chance = random.Random(1)
    payloads = pa.array([chance.randbytes(200) for _ in range(6000)], pa.binary())
    batch = pa.RecordBatch.from_arrays([*raw_batch(0, 6000).columns[:5], payloads], schema=RAW_SCHEMA)
    unpacked = FileShape(row_group_rows=2500)
    facts = write(tmp_path / "segment", head(), [batch], shape=unpacked)
    encrypted = write(tmp_path / "encrypted", head(), [batch], vault=VAULT, shape=unpacked)
    for name, about, key in (("segment", facts, None), ("encrypted", encrypted, VAULT.stored_segment_key)):
        with SegmentReader(tmp_path / name, head(), about, key) as reader:
            assert about.size > 2 * BLOCK_BYTES
            assert reader.verify() == about
            assert joined(reader.batches(4000, 4001)).equals(table(batch.slice(4000, 1)))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_reads_match_brute_force(segment, data):
    """Any span, time range, choice of columns and direction gives what filtering all records gives."""
    reader, batch = segment
    start, end = data.draw(st.integers(950, 1500)), data.draw(st.integers(950, 1500))
    moments = st.none() | st.integers(BEGINNING + 990_000, BEGINNING + 1_460_000)
    since, until = data.draw(moments), data.draw(moments)
    columns = data.draw(st.none() | st.lists(st.sampled_from(batch.schema.names), unique=True))
    reverse = data.draw(st.booleans())
    names = batch.schema.names[:2]
    chosen = batch.schema.names if columns is None else names + [name for name in columns if name not in names]
    times = batch.column(1).view(pa.int64()).to_pylist()
    keep = [
        i
        for i, (offset, time) in enumerate(zip(range(1000, 1450), times, strict=True))
        if start <= offset < end and (since is None or time >= since) and (until is None or time <= until)
    ]
    expected = batch.select(chosen).take(pa.array(keep[::-1] if reverse else keep, pa.int64()))
    read = list(reader.batches(start, end, columns=columns, since=since, until=until, reverse=reverse))
    assert all(part.num_rows for part in read)
    assert joined(read, expected.schema).equals(table(expected).combine_chunks())


def test_time_ranges_are_closed(segment):
    """A record whose time is exactly the bound is inside, at both ends."""
    reader, batch = segment
    times = batch.column(1).view(pa.int64()).to_pylist()
    edges = {end for group in reader._footer.groups for end in (group.time_min, group.time_max)}
    for time in (times[200], *edges):
        found = joined(reader.batches(0, 2**63, since=time, until=time), batch.schema)
        assert found.column(0).to_pylist() == [1000 + i for i, other in enumerate(times) if other == time]
        assert found.num_rows >= 1


def spied(reader, monkeypatch):
    """Row groups in the order in which they are read."""
    seen = []
    fetch = reader._decoding.fetch
    monkeypatch.setattr(reader._decoding, "fetch", lambda group, names: seen.append(group) or fetch(group, names))
    return seen


def test_row_groups_that_cannot_matter_are_not_read(segment, monkeypatch):
    """A read of one record, or of a short time, touches only the row groups that may hold it."""
    reader, _ = segment
    seen = spied(reader, monkeypatch)
    groups = len(reader._footer.groups)
    assert groups >= 4
    assert sum(part.num_rows for part in reader.batches(1449, 1450)) == 1
    assert seen == [groups - 1]
    seen.clear()
    assert not list(reader.batches(0, 2**63, since=BEGINNING + 10**12))
    assert not list(reader.batches(0, 1000))
    assert seen == []
    list(reader.batches(0, 2**63, until=BEGINNING + 1_000_000))
    assert seen == [0]
    seen.clear()
    next(iter(reader.batches(0, 2**63, reverse=True)))
    assert seen[0] == groups - 1
    assert len(seen) <= 2  # one ahead


def test_encrypted_blocks_that_cannot_matter_are_not_decrypted(tmp_path):
    """Of an encrypted row group only the blocks are opened that may hold what is asked for."""
    batch = raw_batch(0, 90)
    facts = write(tmp_path / "segment", head(), [batch], vault=VAULT)
    opened = []

    class Counting:
        def __init__(self, key):
            self.key, self.encrypted_with, self.mac = key, key.encrypted_with, key.mac

        def decrypt(self, encrypted, associated):
            opened.append(len(encrypted))
            return self.key.decrypt(encrypted, associated)

    with SegmentReader(tmp_path / "segment", head(), facts, lambda w: Counting(VAULT.stored_segment_key(w))) as reader:
        assert joined(reader.batches(45, 46)).equals(table(batch.slice(45, 1)))
    assert len(opened) == 1


def test_reversed_batches_come_in_small_turns(tmp_path):
    """A reader of the last few records of a large row group does not wait for all of them to be turned."""
    batch = raw_batch(0, 20_000)
    facts = write(tmp_path / "segment", head(), [batch], shape=FileShape())
    with SegmentReader(tmp_path / "segment", head(), facts, None) as reader:
        first = next(reader.batches(0, 2**63, reverse=True))
        assert first.num_rows < 10_000
        assert first.column(0)[0].as_py() == 19_999
        whole = joined(reader.batches(0, 2**63, reverse=True))
    assert whole.column(0).to_pylist() == list(range(19_999, -1, -1))


def test_batches_outlive_their_reader(tmp_path, shape):
    """What was read stays good after the reader is closed, and an unfinished read may simply be dropped."""
    place, batch = head_of(shape), batch_of(shape, 0, 300)
    facts = write(tmp_path / "segment", place, [batch], vault=vault_of(shape))
    with SegmentReader(tmp_path / "segment", place, facts, opener(shape)) as reader:
        read = reader.batches(0, 2**63)
        first = next(read)
    del read
    gc.collect()
    assert first.column(0)[0].as_py() == 0
    reader.close()


def test_unknown_columns_are_refused_at_once(segment):
    """A column that is not there is Invalid when asked for, not when read."""
    reader, _ = segment
    with pytest.raises(Invalid, match="nope"):
        reader.batches(0, 1, columns=["nope"])


def test_a_missing_file_is_just_missing(tmp_path):
    """FileNotFoundError, as it is: the caller knows what it means."""
    with pytest.raises(FileNotFoundError):
        SegmentReader(tmp_path / "absent", None, None, None)


# -- writing ---------------------------------------------------------------------------------------------------


def test_offsets_must_be_dense(tmp_path):
    """A gap, a repeat, a wrong beginning or swapped rows are refused before anything of them is written."""
    good = raw_batch(10, 20)
    for bad in (
        good.slice(1),
        raw_batch(9, 5),
        good.take(pa.array([0, 2, 1, 3])),
        good.take(pa.array([0, 1, 1, 3])),
        good.take(pa.array([0, 2])),
    ):
        writer = SegmentWriter(tmp_path / "segment", head(10), RAW_SCHEMA, SMALL, None)
        with pytest.raises(Invalid, match="dense"):
            writer.write(bad)
        writer.write(good.slice(0, 5))
        with pytest.raises(Invalid, match="dense"):
            writer.write(good.slice(4, 5))
        writer.abandon()


def test_other_columns_are_refused(tmp_path):
    """Batches of another schema, and nulls where none may be, are Invalid."""
    writer = SegmentWriter(tmp_path / "segment", head(typed=True), typed_schema(USER_SCHEMA), SMALL, None)
    with pytest.raises(Invalid, match="other columns"):
        writer.write(raw_batch(0, 3))
    batch = typed_batch(0, 3)
    absent = pa.array([1, None, 3], pa.int64())
    with pytest.raises(Invalid, match="column=id"):
        writer.write(batch.set_column(2, batch.schema.field(2), absent))
    writer.abandon()
    with pytest.raises(Invalid, match="fingerprint"):
        SegmentWriter(tmp_path / "segment", head(), typed_schema(USER_SCHEMA), SMALL, None)


def test_forbidden_nulls_are_found_inside_of_columns(tmp_path):
    """A null in a field that has none is refused at any depth, also where encryption would hide it."""
    kind = RAW_SCHEMA.field("headers").type
    batch = raw_batch(0, 2)
    inner = pa.StructArray.from_arrays([pa.array(["a", None]), pa.array([b"", b""])], fields=list(kind.value_type))
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), inner, type=kind)
    for vault in (None, VAULT):
        with pytest.raises(Invalid, match="column=headers"):
            write(tmp_path / "s", head(), [batch.set_column(4, RAW_SCHEMA.field(4), headers)], vault=vault)


def test_typed_columns_have_their_own_names():
    """Names of the user's columns differ from each other and from ours; types that cannot be stored are refused."""
    for fields in ([("_offset", pa.int8())], [("_time", pa.int8())], [("a", pa.int8()), ("a", pa.int8())]):
        with pytest.raises(Invalid, match="names must differ"):
            typed_schema(pa.schema(fields))
    with pytest.raises(Invalid, match="column=a"):
        typed_schema(pa.schema([("a", pa.date64())]))
    assert typed_schema(pa.schema([("offset", pa.int8())], metadata={"a": "b"})).metadata is None


def test_an_empty_segment_is_refused(tmp_path):
    """A segment has at least one record."""
    writer = SegmentWriter(tmp_path / "segment", head(), RAW_SCHEMA, SMALL, None)
    with pytest.raises(Invalid, match="at least one"):
        writer.finish()
    writer.abandon()
    for call in (writer.finish, lambda: writer.write(raw_batch(0, 1))):
        with pytest.raises(Invalid, match="closed"):
            call()
    writer.abandon()


def test_an_abandoned_file_never_looks_finished(tmp_path, shape):
    """Giving up leaves a file without a footer, also once the writer is collected."""
    batch = batch_of(shape, 0, 250)
    writer = SegmentWriter(
        tmp_path / "segment",
        head_of(shape),
        batch.schema,
        SMALL,
        VAULT.segment_key(b"s" * 32) if vault_of(shape) else None,
    )
    writer.write(batch)
    writer.abandon()
    del writer
    gc.collect()
    with pytest.raises(Corrupt):
        SegmentReader(tmp_path / "segment", None, None, opener(shape))


def test_a_full_disk_is_the_callers_error(tmp_path, monkeypatch):
    """An error of the disk comes out of write or finish as it is, and the file can be abandoned."""
    from holdfast import disk

    writer = SegmentWriter(tmp_path / "segment", head(), RAW_SCHEMA, SMALL, None)

    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.NewFile, "write", full)
    with pytest.raises(OSError, match="No space"):
        writer.write(raw_batch(0, 1000))
        writer.finish()
    writer.abandon()
    del writer
    gc.collect()


def test_errors_of_the_helper_come_out(tmp_path, monkeypatch):
    """What fails on the hashing thread fails the write."""
    from holdfast.model.content_digest import ContentDigest

    monkeypatch.setattr(ContentDigest, "update", lambda self, batch: 1 / 0)
    writer = SegmentWriter(tmp_path / "segment", head(), RAW_SCHEMA, SMALL, None)
    with pytest.raises(ZeroDivisionError):
        writer.write(raw_batch(0, 1000))
    writer.abandon()


def test_no_file_is_finished_that_readers_would_refuse(tmp_path, monkeypatch):
    """A footer beyond the readers' limit fails the writer, while the records are still elsewhere."""
    from holdfast.segments.file import row_group_file

    monkeypatch.setattr(row_group_file, "FOOTER_BYTES_MAX", 500)
    writer = SegmentWriter(tmp_path / "segment", head(), RAW_SCHEMA, SMALL, None)
    writer.write(raw_batch(0, 10))
    with pytest.raises(Invalid, match="footer is too large"):
        writer.finish()
    writer.abandon()
    monkeypatch.setattr(row_group_file, "GROUPS_MAX", 2)
    writer = SegmentWriter(tmp_path / "segment", head(), RAW_SCHEMA, SMALL, None)
    with pytest.raises(Invalid, match="too many row groups"):
        writer.write(raw_batch(0, 1000))
    writer.abandon()


def test_content_does_not_depend_on_the_shape_of_a_plain_file(tmp_path):
    """Other row groups, batches and compression give another file with the same content and chain."""
    batch = raw_batch(0, 400)
    one = write(tmp_path / "one", head(), [batch])
    other = write(
        tmp_path / "other",
        head(),
        [batch.slice(0, 33), batch.slice(33)],
        shape=FileShape(row_group_rows=70, compression_level=9),
    )
    assert one.sha256 != other.sha256
    assert one.content == other.content


def test_the_same_records_give_the_same_plain_file(tmp_path):
    """Writing is deterministic: nothing of the machine or the moment is in a file."""
    batch = raw_batch(0, 400)
    assert write(tmp_path / "one", head(), [batch]) == write(tmp_path / "other", head(), [batch])


def test_row_groups_are_bounded_in_rows_and_bytes(tmp_path):
    """No row group exceeds its rows, nor its bytes by more than a record."""
    batch = raw_batch(0, 3000)
    write(tmp_path / "segment", head(), [batch], shape=FileShape(row_group_rows=1000, row_group_bytes=20_000))
    with SegmentReader(tmp_path / "segment", None, None, None) as reader:
        parts = list(reader.batches(0, 2**63))
    assert len(parts) > 3
    assert all(part.num_rows <= 1000 and part.nbytes <= 21_000 for part in parts)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=8), st.integers(1, 25), st.integers(1, 500))
def test_gathering_keeps_rows_and_bounds(sizes, rows_max, bytes_max):
    """Gathering loses nothing, keeps the order, and exceeds its bytes only with a single row."""
    gathering = BatchBuffer(rows_max, bytes_max)
    batches = [pa.record_batch({"x": pa.array([b"x" * n for n in part], pa.binary())}) for part in sizes]
    parts = [piece for batch in batches for piece in gathering.add(batch)]
    rest = gathering.rest()
    assert all(part.num_rows for piece in (*parts, rest) for part in piece)  # an empty one has no first and last time
    pieces = [pa.Table.from_batches(piece) for piece in (*parts, *([rest] if rest else []))]
    assert [len(v) for p in pieces for v in p.column(0).to_pylist()] == [n for part in sizes for n in part]
    for piece in pieces:
        assert 0 < piece.num_rows <= rows_max
        assert piece.num_rows == 1 or sum(len(v) for v in piece.column(0).to_pylist()) <= bytes_max
    assert gathering.rest() == []


def test_a_record_that_no_longer_fits_into_a_row_group_begins_the_next(tmp_path):
    """Large records come one by one: a row group is filled up to where not one more fits."""
    payloads = [bytes([number]) * BATCH_BYTES for number in range(5)]
    shape = {"segments": {"row_group_bytes": 2 * BATCH_BYTES + BATCH_BYTES // 2}}
    with holdfast.open(tmp_path / "log", settings=holdfast.Settings.from_mapping(shape)) as log:
        for payload in payloads:
            log.topic("large", partitions=1).append(payload)
        log.seal()
        assert [record.payload for record in log.topic("large").read()] == payloads
        assert log.marks("large")[0].sealed == len(payloads)


@pytest.mark.parametrize(
    "wrong",
    [
        {"row_group_rows": 0},
        {"block_bytes": -1},
        {"compression_level": 23},
        {"row_group_bytes": 2**31},
        {"row_group_rows": 2**25},
    ],
)
def test_impossible_shapes_are_refused(wrong):
    """Sizes have bounds."""
    with pytest.raises(Invalid):
        FileShape(**wrong)


def test_a_newer_format_is_refused_not_guessed(tmp_path, monkeypatch):
    """A file of a later version says so."""
    monkeypatch.setattr(footers, "VERSION", 2)
    write(tmp_path / "segment", head(), [raw_batch(0, 5)])
    monkeypatch.undo()
    with pytest.raises(Invalid, match="another version") as caught:
        SegmentReader(tmp_path / "segment", None, None, None)
    assert "newer one" in caught.value.hint


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4))
def test_footers_parse_or_are_refused(noise):
    """Any pairs at all are a footer or a BadFooter, nothing else."""
    good = footers.Footer(
        head=head(topic="t", number=0, epoch=0),
        shape="raw",
        rows=1,
        time_min=5,
        time_max=5,
        content=bytes(32),
        groups=(footers.RowGroupStatistics(1, 5, 5),),
        blocks=b"",
        schema=b"x",
        encrypted_with=None,
    ).pairs()
    assert footers.parse(good).head.topic == "t"
    for pairs in (noise, {**good, **{"holdfast." + name: value for name, value in noise.items()}}):
        try:
            footers.parse(pairs)
        except footers.BadFooter:
            pass
    for name in good:
        with pytest.raises(footers.BadFooter):
            footers.parse({key: value for key, value in good.items() if key != name})
        with pytest.raises((footers.BadFooter, footers.UnknownVersion)):
            footers.parse({**good, name: good[name] + "0" if name != "holdfast.topic" else ""})
