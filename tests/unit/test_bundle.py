"""Bundles: the encrypted blocks of several segments in one file, moved without being opened, read as if they were."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bundle_data import OLD_VAULT, RING, VAULT, Masked, bundle, rows_of, write_run, written
from tests.golden import make
from tests.sampling import examples
from tests.segment_data import BEGINNING, LOG_ID, SMALL, head, raw_batch, write

from holdfast import Invalid, Keyring
from holdfast.crypto.segment_key import SegmentKey
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt
from holdfast.model.segment import chain_value
from holdfast.segments.file import footer as footers
from holdfast.segments.file import stored_parts
from holdfast.segments.file.bundle_writer import BundleWriter
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.store import layout

pytestmark = pytest.mark.disk
WIDE = FileShape(row_group_rows=1000, block_rows=30)


@pytest.fixture(params=["sealed-raw", "sealed-typed"])
def shape(request):
    return request.param


@settings(max_examples=examples(25), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 260), min_size=1, max_size=6),
    rotated_at=st.integers(0, 6),
    group_rows=st.sampled_from([1, 100, 1000]),
    cuts=st.lists(st.integers(0, 1600), min_size=2, max_size=2),
    chance=st.randoms(use_true_random=False),
)
def test_the_rows_of_a_bundle_are_those_of_its_segments(tmp_path_factory, sizes, rotated_at, group_rows, cuts, chance):
    """Whatever their sizes, keys and row groups: all rows, any span, any time range, either order, any share."""
    folder = tmp_path_factory.mktemp("run")
    files = write_run(folder, sizes, rotated_at=rotated_at)
    made = bundle(folder / "bundle", files, FileShape(row_group_rows=group_rows, block_rows=30))
    expected = written(files)
    with SegmentReader(made.path, made.head, made.facts, VAULT.stored_segment_key) as reader:
        assert pa.Table.from_batches(list(reader.batches(0, 2**63))).equals(expected)
        assert reader.verify() == made.facts
        start, end = 1000 + min(cuts), 1000 + max(cuts)
        part = pa.Table.from_batches(list(reader.batches(start, end)), reader.schema)
        assert part.equals(expected.slice(min(cuts), max(cuts) - min(cuts)))
        turned = pa.Table.from_batches(list(reader.batches(0, 2**63, reverse=True)))
        assert turned["offset"].to_pylist() == expected["offset"].to_pylist()[::-1]
        times = expected["time"].cast(pa.int64()).to_pylist()
        since, until = sorted(chance.choices(times, k=2))
        found = pa.Table.from_batches(list(reader.batches(0, 2**63, since=since, until=until)), reader.schema)
        assert found["time"].cast(pa.int64()).to_pylist() == [time for time in times if since <= time <= until]
        shares = [list(reader.batches(0, 2**63, share=(n, 3))) for n in range(3)]
        assert pa.Table.from_batches([batch for share in shares for batch in share]).equals(expected)


def test_a_bundle_is_made_without_keys_and_without_decrypting(tmp_path, shape, monkeypatch):
    """Nobody who writes a bundle opens a block, and every block comes out as it went in."""
    files = write_run(tmp_path, [40, 150, 3], shape=shape)
    with monkeypatch.context() as forbidden:

        def refuse(*args):
            raise AssertionError("a bundle was opened")

        for name in ("decrypt", "encrypt", "mac", "__init__"):
            forbidden.setattr(SegmentKey, name, refuse)
        made = bundle(tmp_path / "bundle", files)
        with SegmentReader(made.path, None, None, None) as reader:
            assert reader.verify() == made.facts
            blocks = pa.Table.from_batches(list(reader.stored_blocks()))
    stored = [pq.read_table(file.path) for file in files]
    assert blocks.equals(pa.concat_tables(stored))
    assert rows_of([made]).equals(written(files, shape))


def test_what_a_bundle_says_of_itself_follows_from_its_parts(tmp_path):
    """Head, span, times, chain and key are those that a rewrite document must have; the content is the parts'."""
    files = write_run(tmp_path, [40, 150, 3])
    made = bundle(tmp_path / "bundle", files)
    first, last = files[0], files[-1]
    assert made.head == msgspec.structs.replace(first.head, epoch=last.head.epoch)
    assert made.facts.rows == 193
    assert made.facts.key_id == "k2"
    assert made.facts.time_min == min(file.facts.time_min for file in files)
    assert made.facts.time_max == max(file.facts.time_max for file in files)
    assert made.facts.content == footers.bundle_content(file.facts.content for file in files)
    assert made.facts.size == made.path.stat().st_size
    assert made.facts.sha256 == hashlib.sha256(made.path.read_bytes()).digest()
    with SegmentReader(made.path, None, None, None) as reader:
        assert reader.is_bundle
        assert (reader.head, reader.facts.rows) == (made.head, 193)
        described = [(p.footer.head, p.footer.rows, p.footer.content) for p in reader.parts()]
        assert described == [(file.head, file.facts.rows, file.facts.content) for file in files]
        assert reader.encrypted_with == reader.parts()[-1].footer.encrypted_with


def test_small_row_groups_are_joined_and_none_is_cut(tmp_path):
    """Row groups are those of the sources, put together up to the size that is wanted."""
    files = write_run(tmp_path, [40, 150, 3, 250, 20])
    sizes = {}
    for rows in (1, 100, 1000):
        made = bundle(tmp_path / f"bundle-{rows}", files, FileShape(row_group_rows=rows))
        with SegmentReader(made.path, None, None, None) as reader:
            sizes[rows] = [group.rows for group in reader._footer.groups]
    assert sizes == {1: [40, 120, 30, 3, 120, 120, 10, 20], 100: [40, 120, 33, 120, 120, 30], 1000: [463]}


def test_bundles_are_bundled_again(tmp_path, shape):
    """Three generations: parts are carried over, and it does not matter in how many steps a file was made."""
    files = write_run(tmp_path, [40, 150, 3, 60, 7], shape=shape, rotated_at=3)
    two = bundle(tmp_path / "two", files[:2], WIDE)
    four = bundle(tmp_path / "four", [two, *files[2:4]], WIDE)
    five = bundle(tmp_path / "five", [four, files[4]], WIDE)
    at_once = bundle(tmp_path / "at-once", files, WIDE)
    assert five.path.read_bytes() == at_once.path.read_bytes()
    assert five[1:] == at_once[1:]
    assert rows_of([five]).equals(written(files, shape))
    with SegmentReader(five.path, None, None, VAULT.stored_segment_key) as reader:
        assert len(reader.parts()) == 5
        reader.verify()


def test_a_part_whose_key_is_missing_is_named(tmp_path):
    """Keys may differ between parts: who has one of two reads what it opens, and learns of the other."""
    files = write_run(tmp_path, [40, 50])
    made = bundle(tmp_path / "bundle", files)
    newest = Vault(LOG_ID, Keyring({"k2": RING.key("k2")}))
    with SegmentReader(made.path, made.head, made.facts, newest.stored_segment_key, trusted=True) as reader:
        assert sum(batch.num_rows for batch in reader.batches(1040, 2**63)) == 50
        with pytest.raises(Invalid, match="no key 'k1'"):
            list(reader.batches(0, 2**63))
    with pytest.raises(Invalid, match="no key 'k1'"):
        SegmentReader(made.path, None, None, newest.stored_segment_key)
    with pytest.raises(Invalid, match="no key 'k2'"):
        rows_of([made], OLD_VAULT)
    with SegmentReader(made.path, None, None, None) as reader, pytest.raises(Invalid, match="encrypted"):
        list(reader.batches(0, 2**63))


def test_a_cipher_of_the_users_own_serves_bundles_as_well(tmp_path):
    """Without a keyring: the same, with an empty key id."""
    vault = Vault(LOG_ID, None, Masked())
    files = write_run(tmp_path, [40, 50, 7], vaults=(vault, vault))
    made = bundle(tmp_path / "bundle", files)
    assert made.facts.key_id == ""
    assert rows_of([made], vault).equals(written(files))
    with SegmentReader(made.path, None, None, vault.stored_segment_key) as reader:
        reader.verify()
    with pytest.raises(Invalid, match="another cipher"):
        other = type("Other", (Masked,), {"name": "other"})()
        rows_of([made], Vault(LOG_ID, None, other))


# -- what a bundle is not made of -------------------------------------------------------------------------------------


def test_segments_that_do_not_follow_each_other_are_refused(tmp_path):
    """Skipped, repeated, in another order, of another chain or place: Invalid, and the file is given up."""
    a, b, c = write_run(tmp_path, [10, 20, 5])
    (twin, _) = write_run(tmp_path, [10, 20], seed=1)
    (elsewhere,) = write_run(tmp_path, [10], first=1010, number=6, seed=2)
    for run in ([a, c], [b, a], [a, a], [twin, b], [a, elsewhere], [a, b, b]):
        with pytest.raises(Invalid, match="follow"):
            bundle(tmp_path / "bundle", run)
    with BundleWriter(tmp_path / "bundle", SMALL) as writer:
        with SegmentReader(a.path, None, None, None) as reader:
            writer.add(reader)
            with pytest.raises(Invalid, match="follow"):
                writer.add(reader)
        with pytest.raises(Invalid, match="closed"):
            writer.finish()


def test_plain_segments_are_not_bundled(tmp_path):
    """Plain records are read and written anew; a bundle has encrypted blocks only."""
    write(tmp_path / "plain", head(), [raw_batch(0, 5)])
    with (
        BundleWriter(tmp_path / "bundle", SMALL) as writer,
        SegmentReader(tmp_path / "plain", None, None, None) as reader,
        pytest.raises(Invalid, match="plain"),
    ):
        writer.add(reader)


def test_an_empty_bundle_is_refused(tmp_path):
    """There is nothing to finish."""
    with BundleWriter(tmp_path / "bundle", SMALL) as writer, pytest.raises(Invalid, match="at least one"):
        writer.finish()


def test_a_damaged_source_does_not_get_into_a_bundle(tmp_path, some):
    """Every flipped byte of the blocks is found while they are moved."""
    files = write_run(tmp_path, [10, 20])
    source = files[1]
    content = source.path.read_bytes()
    for at in some(range(4, len(content), 19), 60):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        source.path.write_bytes(damaged)
        with pytest.raises(Corrupt):
            bundle(tmp_path / "bundle", files)


def test_a_source_whose_content_is_not_what_it_says_is_refused(tmp_path, monkeypatch):
    """The content digest of each source is made again on the way, not believed."""
    original = footers.Footer.stamped

    def lying(self, stamp):
        return original(msgspec.structs.replace(self, content=b"c" * 32), stamp)

    with monkeypatch.context() as lie:
        lie.setattr(footers.Footer, "stamped", lying)
        (source,) = write_run(tmp_path, [40])
    with (
        BundleWriter(tmp_path / "bundle", SMALL) as writer,
        SegmentReader(source.path, None, None, None) as reader,
        pytest.raises(Corrupt, match="other content"),
    ):
        writer.add(reader)


def test_too_many_parts_are_refused_before_a_file_gets_too_large_to_read(tmp_path, monkeypatch):
    """A bundle has a limit, and the writer says so; `fits` tells before."""
    files = write_run(tmp_path, [10, 20, 5])
    monkeypatch.setattr("holdfast.segments.file.bundle_writer.PARTS_MAX", 2)
    with pytest.raises(Invalid, match="too many parts"):
        bundle(tmp_path / "bundle", files)
    two = bundle(tmp_path / "two", files[:2])
    with BundleWriter(tmp_path / "bundle", SMALL) as writer, SegmentReader(two.path, None, None, None) as reader:
        assert writer.fits(reader)
        writer.add(reader)
        assert not writer.fits(reader)


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_a_footer_of_many_parts_stays_small(tmp_path):
    """What a part costs in the footer: some hundred bytes, whatever the schema takes."""
    sizes = [1] * 200
    files = write_run(tmp_path, sizes)
    made = bundle(tmp_path / "bundle", files, WIDE)
    content = made.path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little")
    assert footer < 200 * 350 + 8000
    assert rows_of([made]).equals(written(files))


def test_parts_spelled_by_another_arrow_are_read(tmp_path):
    """Other bytes for the same columns stay with their part, for its mac; other columns are refused."""
    a, b = write_run(tmp_path, [10, 20])
    with SegmentReader(a.path, None, None, None) as one, SegmentReader(b.path, None, None, None) as two:
        parts = [*one.parts(), *two.parts()]
        schema = one.schema.with_metadata({"spelled": "otherwise"}).serialize().to_pybytes()
    other = parts[1]._replace(footer=msgspec.structs.replace(parts[1].footer, schema=schema))
    made = footers.bundled([parts[0], other], parts[0].footer.groups + other.footer.groups, b"")
    assert footers.parse(made.stamped(lambda message: bytes(32))) == made
    first, second = stored_parts.decode(made.pairs()["holdfast.parts"])
    assert (first.schema, second.schema) == (b"", schema)


def test_moving_takes_the_memory_of_a_row_group_or_two(tmp_path):
    """However much is moved: 24 MiB in row groups of 2 MiB take a few of them."""
    chance = random.Random(1)
    shape = FileShape(row_group_bytes=2**21, block_bytes=2**18)
    files, first, previous = [], 0, bytes(32)
    for number in range(12):
        batch = raw_batch(first, 2048)
        payload = pa.array([chance.randbytes(1024) for _ in range(2048)], pa.binary())
        batch = batch.set_column(5, batch.schema.field(5), payload)
        place = head(first, number=number, previous=previous)
        salt = bytes([number]) * 32
        facts = write(tmp_path / str(number), place, [batch], vault=VAULT, shape=shape, salt=salt)
        files.append((tmp_path / str(number), place, facts))
        previous = chain_value(place, facts.rows, facts.content)
        first += 2048
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    most = 0
    tracemalloc.start()
    with BundleWriter(tmp_path / "bundle", shape) as writer:
        for path, place, facts in files:
            with SegmentReader(path, place, facts, None) as reader:
                writer.add(reader)
            most = max(most, pa.total_allocated_bytes() - before)
        writer.finish()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most + peak < 8 * 2**21


def test_tiny_blocks_come_in_batches_that_are_not(tmp_path):
    """Small segments have small blocks, which stay as they are; a reader does not pay for each."""
    files = write_run(tmp_path, [3] * 40)
    made = bundle(tmp_path / "bundle", files, WIDE)
    with SegmentReader(made.path, made.head, made.facts, VAULT.stored_segment_key) as reader:
        assert [batch.num_rows for batch in reader.batches(0, 2**63)] == [120]
        assert [batch.num_rows for batch in reader.batches(1004, 1110)] == [106]


def test_times_of_a_vouched_bundle_prune_blocks(tmp_path, monkeypatch):
    """With a manifest that is proved, blocks outside of a time range are not decrypted; without one, groups are."""
    files = write_run(tmp_path, [90, 90, 90])
    made = bundle(tmp_path / "bundle", files, WIDE)
    decrypted = []
    original = SegmentKey.decrypt
    monkeypatch.setattr(SegmentKey, "decrypt", lambda self, *rest: decrypted.append(1) or original(self, *rest))
    late = BEGINNING + (1000 + 265) * 1000
    for trusted, blocks in ((True, range(1, 3)), (False, range(9, 10))):
        decrypted.clear()
        with SegmentReader(made.path, made.head, made.facts, VAULT.stored_segment_key, trusted=trusted) as reader:
            assert sum(batch.num_rows for batch in reader.batches(0, 2**63, since=late)) > 0
        assert len(decrypted) in blocks


# -- what was written once ---------------------------------------------------------------------------------------------

GOLDEN = Path(make.__file__).parent


def test_the_golden_bundle_is_read_for_ever():
    """It gives the rows of the segments that it was made of."""
    (path,) = (GOLDEN / "bundle").iterdir()
    with SegmentReader(path, None, None, None) as reader:
        vault = Vault(reader.head.log_id, make.ROTATED)
    sources = sorted((GOLDEN / "sealed/segments/topics/events/0/segments").iterdir())
    with SegmentReader(path, None, None, vault.stored_segment_key) as reader:
        facts = reader.verify()
        assert path.name == layout.segment_name(reader.head.number, facts.sha256)
        found = pa.Table.from_batches(list(reader.batches(0, 2**63)))
        pairs = [part.pairs for part in reader.parts()]
        assert all(part.keys is not None for part in reader.key_indexes())
    rows = []
    for at, source in enumerate(sources):
        with SegmentReader(source, None, None, vault.stored_segment_key) as reader:
            rows += reader.batches(0, 2**63)
            assert pairs[at] == reader._pairs
    assert found.equals(pa.Table.from_batches(rows))
    assert len(pairs) == len(sources) == 2


def test_a_bundle_is_written_today_as_it_was_written_then(tmp_path):
    """Its pairs are the same, but for the hashes of what Arrow made of the blocks."""
    make.make_bundle(tmp_path / "made", GOLDEN / "sealed")
    pairs = []
    for folder in (tmp_path / "made", GOLDEN / "bundle"):
        (path,) = folder.iterdir()
        with SegmentReader(path, None, None, None) as reader:
            layout_of = ("holdfast.blocks", "holdfast.keys", "holdfast.mac")
            pairs.append({n: v for n, v in reader._pairs.items() if n not in layout_of})
    assert pairs[0] == pairs[1]
