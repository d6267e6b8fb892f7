"""Damaged, cut, swapped and forged segment files: Corrupt with a place, and never wrong data."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling import examples
from tests.segment_data import LOG_ID, SMALL, head, keyed_vault, raw_batch, write

from holdfast import Corrupt, Invalid, Keyring
from holdfast.crypto import digests
from holdfast.crypto.vault import Vault
from holdfast.parquet.outline import outline
from holdfast.parquet.thrift import BadStructure
from holdfast.segments.file import encrypted_blocks
from holdfast.segments.file import footer as footers
from holdfast.segments.file.proven_file import FileBytes
from holdfast.segments.file.segment_columns import RAW_SCHEMA
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.file.segment_writer import SegmentWriter

pytestmark = pytest.mark.disk
VAULT = keyed_vault()
BATCH = raw_batch(50, 4)
PLACE = head(50)


def opener(encrypted):
    return VAULT.stored_segment_key if encrypted else None


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def encrypted(request):
    return request.param


@pytest.fixture
def small(tmp_path, encrypted):
    """A small file: its path, content and facts."""
    path = tmp_path / "segment"
    facts = write(path, PLACE, [BATCH], vault=VAULT if encrypted else None)
    return path, path.read_bytes(), facts


def read(path, facts, key, place=PLACE):
    with SegmentReader(path, place, facts, key) as reader:
        return pa.Table.from_batches(list(reader.batches(0, 2**63)), RAW_SCHEMA)


def test_every_flipped_byte_is_found(small, encrypted, some):
    """With the manifest's facts, no byte of a file can change without Corrupt, which says where."""
    path, content, facts = small
    damaged = bytearray(content)
    for i in some(range(len(content)), 600):
        damaged[i] ^= 1 << i % 8
        path.write_bytes(damaged)
        with pytest.raises(Corrupt) as caught:
            read(path, facts, opener(encrypted))
        found = caught.value
        assert (found.path, found.topic, found.partition, found.offset) == (str(path), "orders", 2, 50)
        assert "span=50..53" in found.message
        damaged[i] = content[i]
    path.write_bytes(content)
    assert read(path, facts, opener(encrypted)).num_rows == 4


def test_without_facts_a_flipped_byte_never_gives_wrong_data(small, encrypted, some, is_sampled):
    """Without a manifest a change is found, or it is one that changes no record."""
    path, content, facts = small
    places = some(range(len(content)), 300)
    expected = read(path, facts, opener(encrypted))
    footer = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    damaged = bytearray(content)
    found = 0
    for i in places:
        damaged[i] ^= 1 << i % 8
        path.write_bytes(damaged)
        try:
            with SegmentReader(path, None, None, opener(encrypted)) as reader:
                assert reader.head == PLACE
                assert pa.Table.from_batches(list(reader.batches(0, 2**63))).equals(expected)
                reader.verify()
            assert i >= footer
        except (Corrupt, Invalid):
            found += 1
        damaged[i] = content[i]
    assert found > (0.5 if is_sampled else 0.6) * len(
        places
    )  # Arrow sees neither statistics nor the schema beside ours


def test_every_cut_is_found(small, encrypted):
    """A file that lost its end, its beginning, or gained a byte is Corrupt, with facts and without."""
    path, content, facts = small
    cuts = [content[:n] for n in range(0, len(content), 7)]
    for damaged in [*cuts, content[:-1], content[1:], content + b"\0", content + content, b"PAR1" * 3, b""]:
        path.write_bytes(damaged)
        for place, about in ((PLACE, facts), (None, None)):
            with pytest.raises(Corrupt):
                read(path, about, opener(encrypted), place)


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_noise_with_parquets_magic_is_corrupt(tmp_path_factory, noise, length):
    """Hostile bytes behind a right magic are refused, whatever length of footer they claim."""
    path = tmp_path_factory.getbasetemp() / "noise"
    for claimed in (length, len(noise)):
        path.write_bytes(b"PAR1" + noise + claimed.to_bytes(4, "little") + b"PAR1")
        with pytest.raises(Corrupt):
            SegmentReader(path, None, None, None)


def test_other_parquet_files_are_not_segments(tmp_path):
    """A Parquet file of somebody else's is refused."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "segment")
    with pytest.raises(Corrupt, match=r"holdfast\.format"):
        SegmentReader(tmp_path / "segment", None, None, None)


@pytest.mark.parametrize(
    "change",
    [
        {"partition": 3},
        {"topic": "others"},
        {"number": 6},
        {"log_id": b"x" * 16},
        {"epoch": 4},
        {"previous": b"p" * 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_segments_file_is_refused(tmp_path, encrypted, change):
    """A whole and authentic file of another place does not pass for this one, with facts of either."""
    here, there = tmp_path / "here", tmp_path / "there"
    other = msgspec.structs.replace(PLACE, **change)
    vault = VAULT if encrypted else None
    facts = write(here, PLACE, [BATCH], vault=vault)
    others = write(there, other, [BATCH], vault=vault, salt=b"t" * 32)
    with pytest.raises(Corrupt):
        read(there, facts, opener(encrypted))
    with pytest.raises(Corrupt, match="another segment"):
        read(there, others, opener(encrypted))


@pytest.mark.parametrize("field", ["rows", "size", "time_min", "time_max", "content", "footer", "key_id"])
def test_a_manifest_that_says_something_else_is_found(small, encrypted, field):
    """Each fact of the manifest is compared."""
    path, _, facts = small
    value = getattr(facts, field)
    other = value + 1 if isinstance(value, int) else bytes(len(value)) if isinstance(value, bytes) else "k9"
    with pytest.raises(Corrupt):
        read(path, msgspec.structs.replace(facts, **{field: other}), opener(encrypted))


def test_verify_compares_the_sha256(small, encrypted):
    """The transport hash is checked by verify, which alone reads the whole file."""
    path, _, facts = small
    with (
        SegmentReader(path, PLACE, msgspec.structs.replace(facts, sha256=b"x" * 32), opener(encrypted)) as reader,
        pytest.raises(Corrupt, match="SHA-256"),
    ):
        reader.verify()


def test_damage_names_the_first_record_concerned(tmp_path, encrypted):
    """Damage in the middle leaves what is before it readable, and says where it begins."""
    path = tmp_path / "segment"
    whole = raw_batch(0, 60_000)
    shape = msgspec.structs.replace(SMALL, row_group_rows=20_000, block_rows=10_000)
    facts = write(path, head(), [whole], vault=VAULT if encrypted else None, shape=shape)
    metadata = pq.read_metadata(path)
    last = metadata.row_group(2).column(metadata.num_columns - 1)
    content = bytearray(path.read_bytes())
    content[last.data_page_offset + last.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    with SegmentReader(path, head(), facts, opener(encrypted)) as reader:
        assert sum(batch.num_rows for batch in reader.batches(0, 20_000)) == 20_000
        for call in (lambda: list(reader.batches(59_000, 60_000)), reader.verify):
            with pytest.raises(Corrupt) as caught:
                call()
            assert caught.value.offset == 40_000


# -- footers that no manifest vouches for ---------------------------------------------------------------------------


def test_an_outline_finds_what_arrow_finds(small):
    """Where the columns of a good footer lie is what Arrow says, too."""
    path, _, facts = small
    with (
        SegmentReader(path, PLACE, facts, None, trusted=True) as known,
        SegmentReader(path, PLACE, facts, None) as unknown,
    ):
        assert unknown._unproven is not None
        assert known._unproven is None
        mine, arrows = unknown._decoding.row_group(0), known._decoding.row_group(0)
        assert mine.rows == arrows.rows
        assert [(c.start, c.end, c.unpacked, c.data) for c in mine.chunks] == [
            (c.start, c.end, c.unpacked, c.data) for c in arrows.chunks
        ]


@given(st.binary(max_size=300))
def test_walking_noise_ends(noise):
    """Any bytes are a structure or BadStructure, at once and without large allocations."""
    for content in (noise, b"\x29\xfc\xff\xff\xff\xff\x0f" + noise, b"\x1c" * 200 + noise, b"\x19" * 300 + noise):
        with pytest.raises(BadStructure):
            outline(content + bytes(8), 10)


# -- forged files: what somebody makes who knows the format, but not the key --------------------------------------


def forged(path, batch, place, *, content=None, blocks=None, groups=None, stamp=digests.plain_stamp):
    """A plain file whose footer says what it has to say, stamped as right."""
    writer = SegmentWriter(path, place, RAW_SCHEMA, SMALL, None)
    writer.write(batch)
    original = writer._footer

    def lie(hashes):
        footer = original(blocks or hashes)
        changes = {"content": content, "groups": groups}
        return msgspec.structs.replace(footer, **{name: value for name, value in changes.items() if value is not None})

    writer._footer = lie
    return writer.finish()


def test_verify_finds_other_content(tmp_path):
    """A footer whose content digest is another's is found by verify."""
    forged(tmp_path / "segment", BATCH, PLACE, content=b"c" * 32)
    with SegmentReader(tmp_path / "segment", None, None, None) as reader, pytest.raises(Corrupt, match="other content"):
        reader.verify()


def test_hashes_that_do_not_fit_are_found(tmp_path):
    """Too many block hashes are refused at once, wrong ones when the block is read."""
    forged(tmp_path / "many", BATCH, PLACE, blocks=bytes(32))
    with pytest.raises(Corrupt, match="blocks"):
        SegmentReader(tmp_path / "many", None, None, None)
    forged(tmp_path / "wrong", BATCH, PLACE, blocks=bytes(16))
    with pytest.raises(Corrupt, match="hash"):
        read(tmp_path / "wrong", None, None, None)


def test_groups_must_be_parquets_own(tmp_path):
    """Row groups of other sizes or number than Parquet's are refused."""
    low, high = 0, 2**62
    one, two = footers.RowGroupStatistics(2, low, high), footers.RowGroupStatistics(3, low, high)
    real = BATCH.column(1).view(pa.int64()).to_pylist()
    halves = (footers.RowGroupStatistics(2, min(real), max(real)), footers.RowGroupStatistics(2, min(real), max(real)))
    for groups in ((one, two), halves, (footers.RowGroupStatistics(4, low, high),)):
        forged(tmp_path / "segment", BATCH, PLACE, groups=groups)
        with pytest.raises(Corrupt):
            SegmentReader(tmp_path / "segment", None, None, None)


def test_times_outside_of_their_group_are_found_by_verify(tmp_path):
    """A group that claims another time range, which would hide records from time reads, fails verify."""
    batch = raw_batch(0, 150)
    times = batch.column(1).view(pa.int64()).to_pylist()
    lies = (
        footers.RowGroupStatistics(100, min(times), max(times)),
        footers.RowGroupStatistics(50, max(times), max(times)),
    )
    forged(tmp_path / "segment", batch, head(), groups=lies)
    with SegmentReader(tmp_path / "segment", None, None, None) as reader, pytest.raises(Corrupt, match="times"):
        reader.verify()


def test_a_plain_file_does_not_pass_in_a_log_with_keys(tmp_path):
    """A log with keys that is rebuilt from files takes no plain one."""
    write(tmp_path / "segment", PLACE, [BATCH])
    with pytest.raises(Corrupt, match="not encrypted"):
        SegmentReader(tmp_path / "segment", None, None, VAULT.stored_segment_key)


def test_a_footer_that_the_key_did_not_make_is_refused(tmp_path, monkeypatch):
    """In an encrypted file the mac needs the key: a plain stamp over a changed footer is not enough."""
    writer = SegmentWriter(tmp_path / "segment", PLACE, RAW_SCHEMA, SMALL, VAULT.segment_key(b"s" * 32))
    writer.write(BATCH)
    stamped = footers.Footer.stamped
    monkeypatch.setattr(footers.Footer, "stamped", lambda self, stamp: stamped(self, digests.plain_stamp))
    facts = writer.finish()
    with pytest.raises(Corrupt, match="key did not make"):
        SegmentReader(tmp_path / "segment", None, None, VAULT.stored_segment_key)
    with pytest.raises(Corrupt, match="key did not make"):
        read(tmp_path / "segment", facts, VAULT.stored_segment_key)


@pytest.mark.parametrize("field", encrypted_blocks.BlockFacts._fields)
def test_an_encrypted_block_decrypts_only_as_it_was_encrypted(tmp_path, monkeypatch, field):
    """Place, count and times beside a block are bound by its encryption."""
    encrypt = encrypted_blocks.BlockEncryptor.encrypt

    def mislabelled(self, batch):
        place, block = encrypt(self, batch)
        return place._replace(**{field: getattr(place, field) + (1 if field.startswith("time") else 0)}), (
            block if field.startswith("time") else block[:-1] + bytes([block[-1] ^ 1])
        )

    monkeypatch.setattr(encrypted_blocks.BlockEncryptor, "encrypt", mislabelled)
    facts = write(tmp_path / "segment", PLACE, [BATCH], vault=VAULT)
    with pytest.raises(Corrupt, match="does not decrypt"):
        read(tmp_path / "segment", facts, VAULT.stored_segment_key)
    with SegmentReader(tmp_path / "segment", PLACE, facts, VAULT.stored_segment_key) as reader, pytest.raises(Corrupt):
        reader.verify()


def test_encrypted_blocks_out_of_order_are_found(tmp_path, monkeypatch):
    """Blocks that are swapped, dropped or doubled leave a gap that is seen."""
    table = encrypted_blocks.table
    for order in ([1, 0], [0, 0], [0]):
        monkeypatch.setattr(encrypted_blocks, "table", lambda blocks, order=order: table([blocks[i] for i in order]))
        facts = write(tmp_path / "segment", head(), [raw_batch(0, 60)], vault=VAULT)
        with pytest.raises(Corrupt, match="dense"):
            read(tmp_path / "segment", facts, VAULT.stored_segment_key, head())


# -- keys ------------------------------------------------------------------------------------------------------------


def test_without_a_key_an_encrypted_file_can_be_inspected_only(tmp_path):
    """Head, facts and bytes can be checked without the key; records cannot be read."""
    facts = write(tmp_path / "segment", PLACE, [BATCH], vault=VAULT)
    with SegmentReader(tmp_path / "segment", None, None, None) as reader:
        assert reader.head == PLACE
        assert reader.verify() == facts
        with pytest.raises(Invalid, match="encrypted"):
            list(reader.batches(0, 2**63))


def test_nothing_of_a_record_is_in_an_encrypted_file(tmp_path):
    """Payload, key, kind and headers are nowhere in the file."""
    secret = b"top-secret-payload-0123456789"
    columns = [
        *raw_batch(0, 1).columns[:2],
        pa.array([secret]),
        pa.array([secret.decode()]),
        pa.array([[{"key": secret.decode(), "value": secret}]], RAW_SCHEMA.field("headers").type),
        pa.array([secret]),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)
    write(tmp_path / "plain", head(), [batch])
    write(tmp_path / "encrypted", head(), [batch], vault=VAULT)
    assert secret in (tmp_path / "plain").read_bytes()
    assert secret not in (tmp_path / "encrypted").read_bytes()


def test_wrong_and_unknown_keys_fail_closed(tmp_path):
    """Another key under the same id is Invalid and named; an id that the keyring lacks is Invalid too."""
    facts = write(tmp_path / "segment", PLACE, [BATCH], vault=VAULT)
    with pytest.raises(Invalid, match="'k1' is not the key"):
        read(tmp_path / "segment", facts, keyed_vault(seed=8).stored_segment_key)
    with pytest.raises(Invalid, match="no key 'k1'"):
        read(tmp_path / "segment", facts, Vault(LOG_ID, Keyring({"k2": b"z" * 32})).stored_segment_key)


def test_a_failing_disk_is_corrupt(small, encrypted, monkeypatch):
    """What cannot be read is damage like any other, and keeps its cause."""
    path, _, facts = small
    import os

    with SegmentReader(path, PLACE, facts, opener(encrypted)) as reader:

        def failing(descriptor, buffers, at):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "preadv", failing)
        with pytest.raises(Corrupt, match="cannot be read") as caught:
            list(reader.batches(0, 2**63))
        assert isinstance(caught.value.__cause__, OSError)


def test_a_disk_that_fails_in_the_middle_of_a_read_is_corrupt(small, encrypted, monkeypatch):
    """A disk that gives some bytes and then an error: nothing of the half that was read is used."""
    path, _, facts = small
    import os

    real = os.preadv
    with SegmentReader(path, PLACE, facts, opener(encrypted)) as reader:
        given = []

        def failing(descriptor, buffers, at):
            if given:
                raise OSError(5, "Input/output error")
            given.append(real(descriptor, [buffers[0][:10]], at))
            return given[0]

        monkeypatch.setattr(os, "preadv", failing)
        with pytest.raises(Corrupt, match="cannot be read: Input/output error"):
            list(reader.batches(0, 2**63))
        assert given == [10]


def test_short_reads_are_put_together(small, encrypted, monkeypatch):
    """A disk may give fewer bytes than were asked for, as often as it likes."""
    path, _, facts = small
    import os

    real, sizes = os.preadv, [1, 7, 64]

    def short(descriptor, buffers, at):
        sizes.append(sizes.pop(0))
        return real(descriptor, [buffers[0][: sizes[0]]], at)

    monkeypatch.setattr(os, "preadv", short)
    assert read(path, facts, opener(encrypted)).to_batches() == [BATCH]


def test_a_file_that_is_cut_while_it_is_open_is_corrupt(small, encrypted):
    """Truncated behind our back, by whatever: memory that the disk did not fill is never used."""
    path, content, facts = small
    for size in (0, 4, 60):
        path.write_bytes(content)
        with SegmentReader(path, PLACE, facts, opener(encrypted)) as reader:
            with path.open("r+b") as file:
                file.truncate(size)
            with pytest.raises(Corrupt, match="ends too early"):
                list(reader.batches(0, 2**63))


def test_a_refused_file_is_closed(tmp_path, monkeypatch):
    """Refusing a file leaves no descriptor open."""
    (tmp_path / "segment").write_bytes(b"PAR1" * 5)
    opened = []
    start = FileBytes.__init__
    monkeypatch.setattr(FileBytes, "__init__", lambda self, path: opened.append(self) or start(self, path))
    with pytest.raises(Corrupt):
        SegmentReader(tmp_path / "segment", None, None, None)
    assert [file._descriptor for file in opened] == [-1]
