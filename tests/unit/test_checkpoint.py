"""The checkpoint: all manifest objects of a partition in one Parquet file, whole and in order, or refused."""

from __future__ import annotations

import random
import subprocess
import sys
from hashlib import sha256

import duckdb
import msgspec
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Corrupt, Invalid
from holdfast.root.objects import checkpoint, documents
from holdfast.root.objects.checkpoint import decode, encode
from holdfast.root.objects.documents import ManifestDocument, SegmentDocument, StartDocument
from holdfast.store import layout

pytestmark = pytest.mark.unit

LOG = bytes(range(16)).hex()
replace = msgspec.structs.replace


def digest(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()


def partition(kinds: list[bool], first: int = 40, topic: str = "orders") -> list[ManifestDocument]:
    """The manifest objects of a partition; True for a segment, False for a takeover."""
    made: list[ManifestDocument] = []
    number, chain = 0, "00" * 32
    shared = {"log": LOG, "topic": topic, "partition": 2}
    for slot, is_segment in enumerate(kinds):
        if not is_segment:
            nonce = digest("nonce", slot)[:32]
            fields = {"epoch": slot + 3, "nonce": nonce, "number": number, "first": first, "adopted_seq": 5 * slot}
            made.append(StartDocument(**shared, slot=slot, **fields))
            continue
        made.append(
            SegmentDocument(
                **shared,
                slot=slot,
                number=number,
                first=first,
                rows=slot + 1,
                size=1000 + slot,
                time_min=-slot,
                time_max=2**62 + slot,
                sha256=digest("file", slot),
                content=digest("content", slot),
                footer=digest("footer", slot)[:32],
                previous=chain,
                chain=digest("chain", slot),
                schema="00" * 16,
                key_id="k-1" if slot % 2 else "",
                epoch=1,
                sealed_us=1_700_000_000_000_000 + slot,
            )
        )
        number, chain, first = number + 1, digest("chain", slot), first + slot + 1
    return made


MIXED = [True, True, False, True, False, False, True, True]
DOCUMENTS = partition(MIXED)


def key_of(found: list[ManifestDocument]) -> str:
    return layout.checkpoint_key(found[-1].topic, found[-1].partition, found[-1].slot)


def plain(data: bytes) -> bytes:
    """The Parquet file without the hash."""
    footer = checkpoint._footer_bytes(memoryview(data))
    return data[: -footer - 16] + data[-footer:]


# -- good checkpoints -------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 2**40))
def test_what_goes_in_comes_out(kinds, first):
    """Every field of every manifest object, of both kinds, in order."""
    found = partition(kinds, first)
    assert decode(encode(found), key_of(found)) == found


def test_documents_come_back_as_the_objects_that_they_were():
    """A document that was read from its object, and one out of a checkpoint, make the same bytes."""
    objects = [documents.encode(document) for document in DOCUMENTS]
    read = [documents.decode_manifest(data, "k") for data in objects]
    assert [documents.encode(document) for document in decode(encode(read), key_of(DOCUMENTS))] == objects


def test_equal_documents_are_equal_bytes():
    """One version of Arrow makes the same file each time; `check` is not in it."""
    read = [documents.decode_manifest(documents.encode(d), "k") for d in DOCUMENTS]
    assert encode(read) == encode(DOCUMENTS)


def test_any_tool_reads_it(tmp_path):
    """pyarrow, Polars, DuckDB and pandas see one row per object, hashes as bytes, nulls where a kind has no field."""
    path = tmp_path / "checkpoint.parquet"
    path.write_bytes(encode(DOCUMENTS))
    kinds = ["segment" if is_segment else "start" for is_segment in MIXED]
    hashes = [bytes.fromhex(d.sha256) if isinstance(d, SegmentDocument) else None for d in DOCUMENTS]
    seqs = [d.adopted_seq if isinstance(d, StartDocument) else None for d in DOCUMENTS]
    wanted = list(zip(range(len(MIXED)), kinds, hashes, seqs, strict=True))
    names = ["slot", "kind", "sha256", "adopted_seq"]
    assert [tuple(row.values()) for row in pq.read_table(path, columns=names).to_pylist()] == wanted
    assert polars.read_parquet(path, columns=names).select(names).rows() == wanted
    assert duckdb.sql(f"SELECT {', '.join(names)} FROM '{path}'").fetchall() == wanted
    assert pandas.read_parquet(path)["slot"].tolist() == list(range(len(MIXED)))
    assert pq.read_metadata(path).row_group(0).column(1).compression == "ZSTD"


def test_columns_are_the_fields_of_both_kinds():
    """Nothing that a document says is left out, but for its check."""
    fields = {*SegmentDocument.__struct_fields__, *StartDocument.__struct_fields__} - {"check"}
    assert sorted(checkpoint.SCHEMA.names) == sorted(fields | {"kind"})


def test_it_does_not_load_pandas():
    """The first checkpoint does not make its thread wait for a library that is not needed."""
    code = (
        "import sys\nfrom holdfast.root.objects import checkpoint\nfrom holdfast.store import layout\n"
        "from holdfast.root.objects.documents import StartDocument\n"
        "document = StartDocument(log='', topic='t', partition=0, slot=0, epoch=1, nonce='', number=0, first=0,"
        " adopted_seq=0)\n"
        "checkpoint.decode(checkpoint.encode([document]), layout.checkpoint_key('t', 0, 0))\n"
        "print('pandas' in sys.modules, any(name.startswith('holdfast.journal') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False False"


# -- documents that are no checkpoint ---------------------------------------------------------------------


def changed(slot: int, **fields: object) -> list[ManifestDocument]:
    return [replace(d, **fields) if d.slot == slot else d for d in DOCUMENTS]


WRONG = {
    "a gap": DOCUMENTS[:3] + DOCUMENTS[4:],
    "not from the beginning": DOCUMENTS[1:],
    "order": [*DOCUMENTS[:-2], DOCUMENTS[-1], DOCUMENTS[-2]],
    "twice": [*DOCUMENTS, DOCUMENTS[-1]],
    "another log": changed(1, log="ff" * 16),
    "another topic": changed(1, topic="other"),
    "another partition": changed(1, partition=3),
    "another format": changed(0, format=0),
    "number": changed(3, number=3),
    "number of a takeover": changed(4, number=2),
    "offset": changed(3, first=41),
    "offset of a takeover": changed(2, first=44),
    "rows": changed(1, rows=1),
    "no rows": changed(7, rows=0),
    "previous": changed(3, previous="11" * 32),
    "previous of the first": changed(0, previous="11" * 32),
    "chain": changed(1, chain="11" * 32),
    "offset below zero": partition([True], -1),
}


@pytest.mark.parametrize("name", WRONG)
def test_documents_that_do_not_follow_each_other_are_not_written(name):
    """Slots, numbers, offsets and chain values go on, in one partition, or there is no checkpoint."""
    with pytest.raises(Invalid) as caught:
        encode(WRONG[name])
    assert caught.value.hint


@pytest.mark.parametrize("name", WRONG)
def test_a_forged_checkpoint_is_refused(name, monkeypatch):
    """Rows that do not follow each other are Corrupt, however right the hash is."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_require_order", lambda documents: None)
        data = encode(WRONG[name])
    key = key_of(WRONG[name])
    with pytest.raises(Corrupt) as caught:
        decode(data, key)
    assert caught.value.path == key
    assert caught.value.hint


def test_no_documents_are_no_checkpoint():
    """An empty one would have no key."""
    with pytest.raises(Invalid):
        encode([])


@pytest.mark.parametrize(
    "fields", [{"sha256": "ab"}, {"sha256": "AB" * 32}, {"footer": "zz" * 16}, {"schema": ""}, {"size": 2**63}]
)
def test_values_that_do_not_fit_are_refused(fields):
    """A hash of another length or spelling, or a number of more than 64 bits, is never cut or padded."""
    with pytest.raises(Invalid):
        encode(changed(0, **fields))


def test_a_checkpoint_that_is_too_large_is_refused(monkeypatch):
    """The bounds hold for writers and readers."""
    data = encode(DOCUMENTS)
    for name, value in (("BYTES_MAX", len(data) - 1), ("ROWS_MAX", len(DOCUMENTS) - 1)):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, name, value)
            with pytest.raises(Invalid):
                encode(DOCUMENTS)
            with pytest.raises(Corrupt):
                decode(data, key_of(DOCUMENTS))


# -- damage -----------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_found_before_arrow_sees_it(monkeypatch):
    """Whichever byte changes, it is Corrupt, with its key; nothing is decoded."""
    data, key = encode(DOCUMENTS), key_of(DOCUMENTS)
    monkeypatch.setattr(checkpoint, "_read", lambda data, key: pytest.fail("Arrow saw damaged bytes"))
    for at in range(len(data)):
        with pytest.raises(Corrupt, match=r"hash|footer") as caught:
            decode(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :], key)
        assert caught.value.path == key


def test_every_cut_is_found():
    """A file that lost bytes at its end, or gained some, is Corrupt."""
    data, key = encode(DOCUMENTS), key_of(DOCUMENTS)
    for damaged in [*(data[:size] for size in range(len(data))), data + b"\0", b"\0" + data, plain(data)]:
        with pytest.raises(Corrupt):
            decode(damaged, key)


@given(st.binary(max_size=300))
def test_noise_is_corrupt(noise):
    """Hostile bytes are Corrupt, also with a right hash before something that looks like a footer."""
    footer = noise + len(noise).to_bytes(4, "little") + b"PAR1"
    for data in (noise, footer, checkpoint._with_hash(memoryview(b"PAR1" + footer))):
        with pytest.raises(Corrupt):
            decode(data, key_of(DOCUMENTS))


def test_forged_bytes_never_raise_anything_else(seed, is_sampled):
    """Files with changed bytes and a right hash are refused, or are rows that follow each other."""
    rng, data, key = random.Random(seed), plain(encode(DOCUMENTS)), key_of(DOCUMENTS)
    attempts = 500 if is_sampled else 3000
    footer = checkpoint._footer_bytes(memoryview(data))
    refused = 0
    for attempt in range(attempts):
        forged = bytearray(data)
        start, end = (len(data) - footer, len(data) - 8) if attempt % 3 else (0, len(data) - footer)
        for _ in range(rng.choice((1, 2, 5))):
            forged[rng.randrange(start, end)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        try:
            found = decode(checkpoint._with_hash(memoryview(bytes(forged))), key)
        except (Corrupt, Invalid):
            refused += 1
        else:
            assert [document.slot for document in found] == list(range(len(DOCUMENTS)))
    assert refused > attempts / 2


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.drop_columns(["slot"]),
        lambda t: t.append_column("more", t["slot"]),
        lambda t: put(t, "kind", [kind.replace("segment", "other") for kind in t["kind"].to_pylist()]),
        lambda t: put(t, "size", [None] * 8),
        lambda t: put(t, "adopted_seq", [1] * 8),
        lambda t: put(t, "sha256", [None if value is None else b"short" for value in t["sha256"].to_pylist()]),
        lambda t: put(t, "format", [1] * 8, nullable=True),
        lambda t: t.slice(0, 0),
        lambda t: t.slice(0, 7),
    ],
    ids=["less", "more", "kind", "missing", "there", "short", "nullable", "empty", "fewer"],
)
def test_other_rows_with_a_right_hash_are_refused(change):
    """Other columns, kinds of rows that there are not, and values where the kind has none are Corrupt."""
    table = pq.read_table(pa.BufferReader(encode(DOCUMENTS)))
    with pytest.raises(Corrupt):
        decode(hashed_file(change(table), {"holdfast.format": "1"}), key_of(DOCUMENTS))


def put(table: pa.Table, name: str, values: list[object], nullable: bool | None = None) -> pa.Table:
    column = table.schema.field(name)
    column = column if nullable is None else column.with_nullable(nullable)
    return table.set_column(table.column_names.index(name), column, pa.chunked_array([values], column.type))


def hashed_file(table: pa.Table, pairs: dict[str, str]) -> bytes:
    sink = pa.BufferOutputStream()
    settings = {"compression": "zstd", "compression_level": 9, "use_dictionary": ["topic"], "data_page_size": 64}
    with pq.ParquetWriter(sink, table.schema, store_schema=False, **settings) as writer:
        writer.write_table(table, row_group_size=3)
        writer.add_key_value_metadata(pairs)
    return checkpoint._with_hash(memoryview(sink.getvalue().to_pybytes()))


def test_the_same_rows_in_another_file_are_the_same_checkpoint():
    """Other row groups, pages and levels of compression do not matter, only what they hold."""
    table = pq.read_table(pa.BufferReader(encode(DOCUMENTS)))
    data = hashed_file(table, {"holdfast.format": "1"})
    assert data != encode(DOCUMENTS)
    assert decode(data, key_of(DOCUMENTS)) == DOCUMENTS


def test_a_newer_format_is_refused_by_its_number():
    """A file of a newer holdfast is Invalid, with what to do; its columns are not looked at. None is Corrupt."""
    table = pa.table({"new": [1]})
    with pytest.raises(Invalid, match="format=2") as caught:
        decode(hashed_file(table, {"holdfast.format": "2"}), key_of(DOCUMENTS))
    assert "newer one" in caught.value.hint
    for pairs in ({}, {"holdfast.format": "0"}, {"holdfast.format": "x"}):
        with pytest.raises(Corrupt):
            decode(hashed_file(pq.read_table(pa.BufferReader(encode(DOCUMENTS))), pairs), key_of(DOCUMENTS))


@pytest.mark.parametrize(
    "key",
    [
        layout.checkpoint_key("orders", 2, 6),
        layout.checkpoint_key("orders", 3, 7),
        layout.checkpoint_key("other", 2, 7),
        layout.manifest_key("orders", 2, 7),
        "",
    ],
)
def test_a_checkpoint_under_another_key_is_refused(key):
    """An object says the same as its key, or it was moved."""
    with pytest.raises(Corrupt, match="its key") as caught:
        decode(encode(DOCUMENTS), key)
    assert caught.value.path == key
