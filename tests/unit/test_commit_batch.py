"""The commit batch: what goes in comes out, equal batches are equal bytes, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import random
import struct
import subprocess
import sys
import tracemalloc

import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Corrupt, Invalid
from holdfast.root.objects import commit_batch, row_stream
from holdfast.root.objects.commit_batch import CommitBatch, TailEntry, TailKey, decode, encode
from holdfast.store import layout

pytestmark = pytest.mark.unit

LOG_ID = bytes(range(16))
DIGEST, LINK, FINGERPRINT = bytes(range(16, 32)), bytes(range(32, 48)), bytes(range(48, 64))
KEY = TailKey(3, "aes-256-gcm", "k-1", b"s" * 32, b"c" * 32, b"t" * 32)
RAW = TailEntry("orders", 2, 7, 100, 5, 11, 1, 0, 0, -5, 6, LINK, DIGEST, b"a body", b"")
TYPED = TailEntry("readings.v1", 0, 9, 0, 1, 12, 2, 0, 3, 5, 5, bytes(16), DIGEST, b"", FINGERPRINT)
KEYED = commit_batch.with_idempotent([(0, DIGEST, LINK), (4, LINK, bytes(16))])
BATCH = CommitBatch(LOG_ID, 4, 7, 10, (KEY,), (RAW._replace(idempotency=KEYED), TYPED), 6)
STREAM = commit_batch.STREAM

whole = st.integers(0, 2**63 - 1)
digest = st.binary(min_size=16, max_size=16)
entries = st.builds(
    TailEntry,
    topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    partition=whole,
    seq=st.just(1),
    first=whole,
    count=st.integers(1, 2**32),
    group_number=whole,
    kind=st.integers(0, 255),
    codec=st.integers(0, 255),
    key_epoch=st.sampled_from([0, 3]),
    time_min=st.integers(-(2**63), 0),
    time_max=st.integers(0, 2**63 - 1),
    link=digest,
    digest=digest,
    body=st.binary(max_size=100),
    schema=st.just(b"") | digest.filter(any),
    idempotency=st.just(b"") | digest.map(lambda key: commit_batch.with_idempotent([(0, key, key)])),
)


@st.composite
def batches(draw):
    seqs = sorted(draw(st.sets(st.integers(1, 2**63 - 1), min_size=2, max_size=12)))
    rows = tuple(draw(entries)._replace(seq=seq) for seq in draw(st.sampled_from([seqs, seqs[1:-1], []])))
    return CommitBatch(draw(digest), draw(st.integers(0, 2**63)), seqs[0], seqs[-1], (KEY,), rows, draw(whole))


def key_of(batch: CommitBatch) -> str:
    return layout.batch_key(batch.epoch, batch.first_seq, batch.last_seq)


def rehashed(data: bytes) -> bytes:
    """What a forger would do: change something, then make the hash again."""
    return data[:-16] + row_stream.hash_of("holdfast 1 commit batch", data[:-16])


def with_entry(**changed: object) -> CommitBatch:
    return BATCH._replace(entries=(RAW._replace(**changed), TYPED))


def forged(batch: CommitBatch, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A batch as a writer would make it that checks nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(commit_batch, "_problem", lambda batch, columns: None)
        return encode(batch)


# -- good batches -----------------------------------------------------------------------------------------


@given(batches())
def test_what_goes_in_comes_out(batch):
    """Every field of every entry, and the order, comes back."""
    assert decode(encode(batch), key_of(batch)) == batch


@given(batches())
def test_equal_batches_are_equal_bytes(batch):
    """Encoding again, or what was decoded, or views instead of bytes, gives the same object."""
    data = encode(batch)
    assert encode(decode(data, key_of(batch))) == data
    views = [entry._replace(body=memoryview(b"-" + bytes(entry.body))[1:]) for entry in batch.entries]
    assert encode(batch._replace(entries=views)) == data


def test_another_process_makes_the_same_bytes():
    """Nothing of the process goes into an object: no order of hashing, no clock, no memory."""
    code = (
        "import hashlib\nfrom tests.unit.test_commit_batch import BATCH, encode\n"
        "print(hashlib.sha256(encode(BATCH)).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == hashlib.sha256(encode(BATCH)).hexdigest()


@given(batches())
def test_arrow_reads_a_batch(batch):
    """pyarrow, which sees nothing of the hash, reads valid columns with what was put in, and the metadata."""
    with pa.ipc.open_stream(encode(batch)) as stream:
        table = stream.read_all()
    table.validate(full=True)
    assert table.schema.equals(commit_batch.SCHEMA)
    for name in table.column_names:
        wanted = [getattr(entry, name) for entry in batch.entries]
        if name == "schema":
            wanted = [value or bytes(16) for value in wanted]
        column = table.column(name)
        assert (column.cast(pa.int64()) if name.startswith("time") else column).to_pylist() == wanted
    assert table.schema.metadata[b"holdfast.first_seq"] == b"%d" % batch.first_seq


@given(batches())
def test_polars_reads_a_batch(batch):
    """A reader that shares no code with ours finds the same rows."""
    frame = polars.read_ipc_stream(encode(batch))
    assert frame["seq"].to_list() == [entry.seq for entry in batch.entries]
    assert frame["topic"].to_list() == [entry.topic for entry in batch.entries]
    assert frame["body"].to_list() == [entry.body for entry in batch.entries]


def test_large_bodies_are_copied_once():
    """Making an object of large bodies takes the memory of the object, and hardly more."""
    bodies = [bytes([n]) * 2**20 for n in range(8)]
    batch = CommitBatch(LOG_ID, 1, 1, 8, (), tuple(RAW._replace(seq=n + 1, body=b) for n, b in enumerate(bodies)))
    encode(batch)
    tracemalloc.start()
    try:
        data = encode(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(data) > 8 * 2**20
    assert peak < len(data) + 2**16


def test_encoding_does_not_load_pandas():
    """The first batch does not make its thread wait for a library that is not needed."""
    code = (
        "import sys\nfrom holdfast.root.objects.commit_batch import CommitBatch, encode, decode\n"
        f"decode(encode(CommitBatch(bytes(16), 1, 1, 1, (), ())), {layout.batch_key(1, 1, 1)!r})\n"
        "print('pandas' in sys.modules, any(name.startswith('holdfast.journal') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False False"


# -- wrong batches ----------------------------------------------------------------------------------------

WRONG = {
    "log id": BATCH._replace(log_id=b"short"),
    "epoch": BATCH._replace(epoch=-1),
    "first_seq": BATCH._replace(first_seq=0),
    "span": BATCH._replace(first_seq=11),
    "last_seq": BATCH._replace(last_seq=2**63),
    "entry before": BATCH._replace(first_seq=8),
    "entry behind": BATCH._replace(last_seq=8),
    "order": BATCH._replace(entries=(TYPED, RAW)),
    "twice": BATCH._replace(entries=(RAW, RAW)),
    "key missing": BATCH._replace(keys=()),
    "key twice": BATCH._replace(keys=(KEY, KEY)),
    "key zero": BATCH._replace(keys=(KEY._replace(number=0), KEY)),
    "partition": with_entry(partition=-1),
    "first": with_entry(first=-1),
    "count": with_entry(count=0),
    "group": with_entry(group_number=-1),
    "kind": with_entry(kind=-1),
    "codec": with_entry(codec=-1),
    "key epoch": with_entry(key_epoch=-1),
    "times": with_entry(time_min=7),
    "topic": with_entry(topic=""),
    "acked": BATCH._replace(acked=-1),
    "half a key": with_entry(idempotency=KEYED[:-1]),
    "a key of no record": with_entry(count=4, idempotency=KEYED),
    "keys out of order": with_entry(idempotency=KEYED[20:] + KEYED[:20]),
    "a key twice": with_entry(idempotency=KEYED[:20] * 2),
    "more keys than records": with_entry(count=1, idempotency=KEYED),
}
LENGTHS = {
    "link": with_entry(link=b"short"),
    "digest": with_entry(digest=bytes(17)),
    "schema": with_entry(schema=bytes(8)),
    "no schema": with_entry(schema=bytes(16)),
}


@pytest.mark.parametrize("name", [*WRONG, *LENGTHS])
def test_a_wrong_batch_is_not_written(name):
    """What would be refused on reading is refused before anything is written."""
    with pytest.raises(Invalid) as caught:
        encode((WRONG | LENGTHS)[name])
    assert caught.value.hint


@pytest.mark.parametrize("name", WRONG)
def test_a_forged_batch_is_refused(name, monkeypatch):
    """A well-formed object with a right hash, and a batch in it that cannot be, is Corrupt under any key."""
    batch = WRONG[name]
    data = forged(batch, monkeypatch)
    with pytest.raises(Corrupt) as caught:
        decode(data, key_of(batch))
    assert caught.value.path == key_of(batch)


@pytest.mark.parametrize(
    "changed", [{"count": 2**63}, {"body": memoryview(b"12345678").cast("q")}], ids=["too large", "not bytes"]
)
def test_values_that_do_not_fit_are_refused(changed):
    """A number of more than 64 bits, or a body that is counted in something else than bytes, is never cut."""
    with pytest.raises(Invalid):
        encode(with_entry(**changed))


def test_a_batch_that_is_too_large_is_refused(monkeypatch):
    """The bounds on bytes and entries hold for writers and readers."""
    data = encode(BATCH)
    monkeypatch.setattr(commit_batch, "BYTES_MAX", len(data))
    assert decode(encode(BATCH), key_of(BATCH)) == BATCH
    monkeypatch.setattr(commit_batch, "BYTES_MAX", len(data) - 1)
    with pytest.raises(Invalid, match="too large"):
        encode(BATCH)
    with pytest.raises(Corrupt):
        decode(data, key_of(BATCH))
    monkeypatch.undo()
    monkeypatch.setattr(commit_batch, "ENTRIES_MAX", 1)
    with pytest.raises(Invalid, match="too many"):
        encode(BATCH)
    with pytest.raises(Corrupt):
        decode(data, key_of(BATCH))


# -- damage -----------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_found():
    """Whichever byte of an object changes, it is Corrupt, with its key, before Arrow sees it."""
    data, key = encode(BATCH), key_of(BATCH)
    for at in range(len(data)):
        with pytest.raises(Corrupt, match="hash") as caught:
            decode(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :], key)
        assert caught.value.path == key
        assert caught.value.hint


def test_every_cut_is_found():
    """An object that lost bytes at its end, or gained some, is Corrupt; also with a hash to match."""
    data, key = encode(BATCH), key_of(BATCH)
    for damaged in [data[:size] for size in range(len(data))] + [data + b"\0", data[:-16] + bytes(8) + data[-16:]]:
        for attempt in (damaged, rehashed(damaged + bytes(16))):
            if attempt != data:
                with pytest.raises(Corrupt):
                    decode(attempt, key)


@given(st.binary(max_size=300))
def test_noise_is_corrupt(noise):
    """Hostile bytes are Corrupt, with and without a right hash, also behind the beginning of a good object."""
    for data in (noise, rehashed(noise + bytes(16)), rehashed(b"\xff\xff\xff\xff" + noise + bytes(16))):
        with pytest.raises(Corrupt):
            decode(data, key_of(BATCH))


def test_forged_bytes_never_raise_anything_else():
    """Objects with changed bytes and a right hash are refused, or say what a batch can say; nothing else happens."""
    rng, data = random.Random(4), encode(BATCH)
    refused = 0
    for _ in range(4000):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 2, 5))):
            changed[rng.randrange(len(data) - 16)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        try:
            batch = decode(rehashed(bytes(changed)), key_of(BATCH))
        except (Corrupt, Invalid):
            refused += 1
        else:
            assert batch[1:4] == BATCH[1:4]
            assert [entry.seq for entry in batch.entries] == sorted({entry.seq for entry in batch.entries})
    assert refused > 2000


def parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Schema message, head, and body with the end of the stream."""
    schema = 8 + int.from_bytes(data[4:8], "little")
    head = schema + STREAM.struct.size
    return data[:schema], data[schema:head], data[head:-16]


def joined(*pieces: bytes) -> bytes:
    return rehashed(b"".join(pieces) + bytes(16))


def test_every_byte_of_the_head_is_compared():
    """A head that differs in any byte from the one that we would write is Corrupt, with a right hash."""
    schema, head, body = parts(encode(BATCH))
    for at in range(len(head)):
        for bit in (0, 7):
            changed = head[:at] + bytes([head[at] ^ 1 << bit]) + head[at + 1 :]
            with pytest.raises(Corrupt, match=r"head|buffer|size"):
                decode(joined(schema, changed, body), key_of(BATCH))


def test_other_columns_are_refused():
    """A batch with the right metadata and another name, type or nullability of a column is Corrupt."""
    _, head, body = parts(encode(BATCH))
    columns = list(commit_batch.SCHEMA)
    for other in (columns[1].with_name("other"), columns[1].with_type(pa.uint64()), columns[1].with_nullable(True)):
        schema = pa.schema([columns[0], other, *columns[2:]], metadata=commit_batch._metadata(BATCH))
        with pytest.raises(Corrupt, match="columns"):
            decode(joined(schema.serialize().to_pybytes(), head, body), key_of(BATCH))


def test_nothing_is_left_over():
    """Bytes in the body that belong to no buffer, and another end of the stream, are Corrupt."""
    schema, head, body = parts(encode(BATCH))
    places = STREAM.struct.unpack(head)[-2 * STREAM.buffers :]
    longer = STREAM.head(len(BATCH.entries), len(body), places)
    with pytest.raises(Corrupt, match="fill"):
        decode(joined(schema, longer, body[:-8] + bytes(8) + body[-8:]), key_of(BATCH))
    with pytest.raises(Corrupt, match="end"):
        decode(joined(schema, head, body[:-1] + b"\x08"), key_of(BATCH))


@pytest.mark.parametrize("ends", [(1, 6, 17), (0, 18, 17), (0, -1, 17), (0, 6, 2**62), (0, 6, -8)])
@pytest.mark.parametrize("column", [0, 13], ids=["topic", "body"])
def test_offsets_of_values_ascend_from_zero(column, ends):
    """Offsets that begin elsewhere, go back or lead out of the body are Corrupt."""
    schema, head, body = parts(encode(BATCH._replace(entries=(RAW._replace(body=b"123456"), TYPED))))
    places = STREAM.struct.unpack(head)[-2 * STREAM.buffers :]
    buffer = 1 if column == 0 else 3 + 2 * 12 + 1
    start, size = places[2 * buffer : 2 * buffer + 2]
    assert struct.unpack("<3q", body[start : start + size]) in ((0, 6, 17), (0, 6, 6))
    changed = body[:start] + struct.pack("<3q", *ends) + body[start + size :]
    with pytest.raises(Corrupt, match=r"lengths|buffer"):
        decode(joined(schema, head, changed), key_of(BATCH))


def test_a_compressed_batch_is_refused():
    """A few forged bytes cannot become all of the memory: nothing in an object is ever unpacked."""
    schema = commit_batch.SCHEMA.with_metadata(commit_batch._metadata(BATCH))
    table = pa.ipc.open_stream(encode(BATCH)).read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    with pytest.raises(Corrupt, match="head"):
        decode(rehashed(sink.getvalue().to_pybytes() + bytes(16)), key_of(BATCH))


@pytest.mark.parametrize(
    "key",
    [
        layout.batch_key(5, 7, 10),
        layout.batch_key(4, 6, 10),
        layout.batch_key(4, 7, 11),
        "tail/" + layout.batch_key(4, 7, 10),
        layout.floor_key(4, 7),
        "",
    ],
)
def test_a_batch_under_another_key_is_refused(key):
    """An object says the same as its key, or it was moved."""
    with pytest.raises(Corrupt, match="its key") as caught:
        decode(encode(BATCH), key)
    assert caught.value.path == key


def test_a_newer_format_is_refused_by_its_number(monkeypatch):
    """An object of a newer holdfast is Invalid, with what to do; its columns are not looked at."""
    with monkeypatch.context() as patch:
        patch.setattr(commit_batch, "FORMAT", 2)
        data = encode(BATCH)
    with pytest.raises(Invalid, match="another version of holdfast") as caught:
        decode(data, key_of(BATCH))
    assert "newer one" in caught.value.hint
    other = pa.schema([("new", pa.int8())], metadata={b"holdfast.format": b"7"}).serialize().to_pybytes()
    with pytest.raises(Invalid, match="format=7"):
        decode(rehashed(other + bytes(16)), key_of(BATCH))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"holdfast.format", b"0"),
        (b"holdfast.format", b"x"),
        (b"holdfast.log", LOG_ID.hex().upper().encode()),
        (b"holdfast.log", b"\xff"),
        (b"holdfast.epoch", b"04"),
        (b"holdfast.first_seq", b" 7"),
        (b"holdfast.last_seq", b"1_0"),
        (b"holdfast.acked", b"06"),
        (b"holdfast.keys", b"[" * 10_000),
        (b"holdfast.keys", b"[]"),
        (b"holdfast.other", b""),
    ],
)
def test_metadata_have_one_spelling(name, value, monkeypatch):
    """Values that are not written as we write them, and names that we do not write, are Corrupt."""
    written = commit_batch._metadata
    monkeypatch.setattr(commit_batch, "_metadata", lambda batch: written(batch) | {name: value})
    data = encode(BATCH)
    monkeypatch.undo()
    with pytest.raises(Corrupt):
        decode(data, key_of(BATCH))
