"""Damaged, cut and forged bundles: what somebody without keys writes into one is found, and never read as records."""

from __future__ import annotations

import base64
import tracemalloc

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bundle_data import VAULT, File, Forgery, bundle, rows_of, write_run, written
from tests.sampling import examples
from tests.segment_data import RAW_SCHEMA

from holdfast import Corrupt, Invalid
from holdfast.crypto import digests
from holdfast.segments.file import footer as footers
from holdfast.segments.file import stored_parts
from holdfast.segments.file.encrypted_blocks import BLOCK_SCHEMA
from holdfast.segments.file.file_shape import FileShape
from holdfast.segments.file.row_group_file import RowGroupFile
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.file.segment_writer import parquet_settings

pytestmark = pytest.mark.disk
WIDE = FileShape(row_group_rows=1000, block_rows=30)
KEYS = VAULT.stored_segment_key


@pytest.fixture
def small(tmp_path):
    """A small bundle of three parts with two keys, its bytes, and what is in it."""
    files = write_run(tmp_path, [2, 3, 2])
    made = bundle(tmp_path / "bundle", files)
    return made, made.path.read_bytes(), written(files)


def read(made, *, with_facts=True):
    head, facts = (made.head, made.facts) if with_facts else (None, None)
    with SegmentReader(made.path, head, facts, KEYS) as reader:
        return pa.Table.from_batches(list(reader.batches(0, 2**63)), RAW_SCHEMA)


def test_every_flipped_byte_is_found(small, some):
    """With the manifest's facts, no byte of a bundle can change without Corrupt, which says where."""
    made, content, expected = small
    damaged = bytearray(content)
    for i in some(range(0, len(content), 7), 300):
        damaged[i] ^= 1 << i % 8
        made.path.write_bytes(damaged)
        with pytest.raises(Corrupt) as caught:
            read(made)
        assert (caught.value.path, caught.value.topic) == (str(made.path), "orders")
        assert "span=1000..1006" in caught.value.message
        damaged[i] = content[i]
    made.path.write_bytes(content)
    assert read(made).equals(expected)


def test_without_facts_a_flipped_byte_never_gives_wrong_data(small, some):
    """Without a manifest a change is found, or it is one that changes no record."""
    made, content, expected = small
    damaged = bytearray(content)
    found = 0
    places = some(range(1, len(content), 7), 200)
    for i in places:
        damaged[i] ^= 1 << i % 8
        made.path.write_bytes(damaged)
        try:
            with SegmentReader(made.path, None, None, KEYS) as reader:
                assert reader.head == made.head
                assert pa.Table.from_batches(list(reader.batches(0, 2**63))).equals(expected)
                reader.verify()
        except (Corrupt, Invalid):
            found += 1
        damaged[i] = content[i]
    assert found > len(places) // 2


def test_every_cut_is_found(small):
    """A bundle that lost its end or its beginning, or gained something, is Corrupt, with facts and without."""
    made, content, _ = small
    cuts = [content[:n] for n in range(0, len(content), 61)]
    for damaged in [*cuts, content[:-1], content[1:], content + b"\0", content + content]:
        made.path.write_bytes(damaged)
        for with_facts in (True, False):
            with pytest.raises(Corrupt):
                read(made, with_facts=with_facts)


@pytest.mark.parametrize("field", ["rows", "size", "time_min", "time_max", "content", "footer", "key_id"])
def test_a_manifest_that_says_something_else_is_found(small, field):
    """Each fact of the manifest is compared."""
    made, _, _ = small
    value = getattr(made.facts, field)
    other = value + 1 if isinstance(value, int) else bytes(len(value)) if isinstance(value, bytes) else "k1"
    with pytest.raises(Corrupt):
        read(made._replace(facts=msgspec.structs.replace(made.facts, **{field: other})))


def test_one_of_its_segments_does_not_pass_for_it_nor_it_for_one_of_them(tmp_path):
    """Files of the same number are not taken for one another."""
    files = write_run(tmp_path, [2, 3])
    made = bundle(tmp_path / "bundle", files)
    for one, other in ((made, files[0]), (files[0], made)):
        with pytest.raises(Corrupt):
            read(File(other.path, one.head, one.facts))


# -- forged: by somebody who knows the format and has all files, but no key ------------------------------------------


def require_found(forged):
    """Whatever way a reader with keys takes, it learns of it; with the forger's manifest, and with none."""
    for head, facts in ((None, None), (forged.head, forged.facts)):
        with pytest.raises((Corrupt, Invalid)), SegmentReader(forged.path, head, facts, KEYS) as reader:
            list(reader.batches(0, 2**63))
        with pytest.raises((Corrupt, Invalid)), SegmentReader(forged.path, head, facts, KEYS) as reader:
            reader.verify()


@pytest.fixture
def forgery(tmp_path):
    """A bundle of four parts, all of the same size, and all in one row group."""
    return Forgery(bundle(tmp_path / "bundle", write_run(tmp_path, [60] * 4, rotated_at=2), WIDE))


def test_a_bundle_that_is_put_together_as_it_was_is_good(forgery):
    """The forger's tools make a good file of good parts: what follows is found for what was changed."""
    forged = forgery.write(forgery.parts, forgery.rows)
    assert rows_of([forged]).num_rows == 240
    with SegmentReader(forged.path, None, None, KEYS) as reader:
        reader.verify()


@pytest.mark.parametrize(
    "order", [[0, 2, 3], [1, 0, 2, 3], [0, 1, 3, 2], [0, 0, 1, 2, 3], [0, 1, 1, 2, 3], [1, 2, 3], [3], [0, 3]], ids=str
)
def test_parts_in_another_order_are_found(forgery, order):
    """Parts left out, swapped or repeated, with their blocks, even as if they had always been there."""
    parts = [forgery.parts[i] for i in order]
    require_found(forgery.write(parts, forgery.blocks_of(*order)))
    moved, at = [], 1000
    for row in forgery.blocks_of(*order):
        moved.append({**row, "first_offset": at})
        at += row["rows"]
    require_found(forgery.write(parts, moved))


def test_the_index_of_keys_of_another_part_is_found(forgery):
    """Swapped ones match neither digest nor cipher; and a part cannot be made to say that it has none."""
    first, second = (part.mac for part in forgery.parts[:2])
    blobs = forgery.key_blobs
    blobs[first], blobs[second] = blobs[second], blobs[first]
    forged = forgery.write(forgery.parts, forgery.rows)
    for head, facts in ((None, None), (forged.head, forged.facts)):
        with SegmentReader(forged.path, head, facts, KEYS) as reader, pytest.raises(Corrupt):
            reader.key_indexes()
        with SegmentReader(forged.path, head, facts, KEYS) as reader, pytest.raises(Corrupt):
            reader.verify()
    silent = [part._replace(footer=msgspec.structs.replace(part.footer, keys=None)) for part in forgery.parts]
    for parts in (silent, [*forgery.parts[:3], silent[3]]):
        require_found(forgery.write(parts, forgery.rows))


def test_a_shorter_bundle_of_good_parts_is_good_and_is_not_the_one_of_the_manifest(tmp_path, forgery):
    """Without its last parts a bundle is the one of fewer segments: it says so itself, and a manifest finds it."""
    forged = forgery.write(forgery.parts[:2], forgery.blocks_of(0, 1))
    assert rows_of([forged]).num_rows == forged.facts.rows == 120
    whole = bundle(tmp_path / "again", write_run(tmp_path, [60] * 4, rotated_at=2), WIDE)
    with pytest.raises(Corrupt):
        read(whole._replace(path=forged.path))


def test_blocks_that_are_dropped_repeated_or_swapped_are_found(forgery):
    """Each block stands where it was sealed, once; equal sizes do not help."""
    rows = forgery.rows
    swapped = [{**a, "block": b["block"]} for a, b in zip(rows, [rows[2], rows[1], rows[0], *rows[3:]], strict=True)]
    for changed in (rows[:-1], rows[1:], [*rows[:3], *rows[4:]], [*rows, rows[-1]], [rows[1], rows[0], *rows[2:]]):
        require_found(forgery.write(forgery.parts, changed))
    require_found(forgery.write(forgery.parts, swapped))


def test_a_block_over_two_parts_is_found(forgery):
    """Two blocks at a seam, as one: no part has it."""
    rows = forgery.rows
    seam = {**rows[1], "rows": rows[1]["rows"] + rows[2]["rows"]}
    require_found(forgery.write(forgery.parts, [rows[0], seam, *rows[3:]]))
    with SegmentReader(forgery.path, None, None, None) as reader, pytest.raises(Corrupt):
        reader.verify()


@pytest.mark.parametrize("field", ["time_min", "time_max", "rows", "first_offset"])
def test_places_beside_blocks_hide_nothing(forgery, field):
    """Who makes blocks look as if they were of another time, or elsewhere, hides no record from reads by time."""
    rows = [dict(row) for row in forgery.rows]
    times = written_times(forgery)
    since = max(times) - 1000
    if field.startswith("time"):
        earliest = min(row["time_min"] for row in rows)
        for row in rows[1:]:
            row["time_min"] = row["time_max"] = earliest
    else:
        rows[-1][field] += 1
        rows[-2]["rows"] += field == "first_offset"
    forged = forgery.write(forgery.parts, rows)
    for head, facts in ((None, None), (forged.head, forged.facts)):
        with pytest.raises(Corrupt), SegmentReader(forged.path, head, facts, KEYS) as reader:
            assert sum(batch.num_rows for batch in reader.batches(0, 2**63, since=since)) > 0


def written_times(forgery):
    return [int(row["time_max"].timestamp() * 1_000_000) for row in forgery.rows]


def test_row_groups_that_say_another_time_are_found(forgery):
    """A row group's times are those of its parts: somebody who changes both does not know the mac."""
    halves = [
        footers.joined_groups([g for part in forgery.parts[i : i + 2] for g in part.footer.groups]) for i in (0, 2)
    ]
    assert rows_of([forgery.write(forgery.parts, forgery.rows, groups=halves)]).num_rows == 240
    hidden = msgspec.structs.replace(halves[1], time_min=halves[0].time_min, time_max=halves[0].time_min)
    wide = msgspec.structs.replace(halves[0], time_max=halves[1].time_max)
    with pytest.raises(Corrupt):
        SegmentReader(forgery.write(forgery.parts, forgery.rows, groups=[wide, hidden]).path, None, None, None)
    lying = [
        part._replace(footer=msgspec.structs.replace(part.footer, groups=(group,)))
        for part, group in zip(forgery.parts, [hidden_part(p) for p in forgery.parts], strict=True)
    ]
    require_found(forgery.write(lying, forgery.rows))


def hidden_part(part):
    (group,) = part.footer.groups
    return msgspec.structs.replace(group, time_max=group.time_min)


def test_row_groups_that_cut_a_part_are_found(forgery):
    """Row groups end where those of the parts did: nobody vouches for the times of others."""
    whole = footers.joined_groups([g for part in forgery.parts for g in part.footer.groups])
    halves = [msgspec.structs.replace(whole, rows=90), msgspec.structs.replace(whole, rows=150)]
    with pytest.raises(Corrupt, match="those of its parts"):
        SegmentReader(forgery.write(forgery.parts, forgery.rows, groups=halves).path, None, None, None)


CHANGES = {
    "epoch": lambda f: {"head": msgspec.structs.replace(f.head, epoch=f.head.epoch + 1)},
    "content": lambda f: {"content": b"c" * 32},
    "blocks": lambda f: {"blocks": bytes(len(f.blocks))},
    "no-blocks": lambda f: {"blocks": b""},
    "times": lambda f: {"groups": (msgspec.structs.replace(f.groups[0], time_min=f.time_min - 1), *f.groups[1:])},
    "schema": lambda f: {"schema": RAW_SCHEMA.with_metadata({"a": "b"}).serialize().to_pybytes()},
    "key_id": lambda f: {"encrypted_with": msgspec.structs.replace(f.encrypted_with, key_id="k2")},
    "scheme": lambda f: {"encrypted_with": msgspec.structs.replace(f.encrypted_with, scheme="aes-256-gcm")},
    "salt": lambda f: {"encrypted_with": msgspec.structs.replace(f.encrypted_with, salt=b"x" * 32)},
    "commitment": lambda f: {"encrypted_with": msgspec.structs.replace(f.encrypted_with, commitment=bytes(32))},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_each_value_of_a_part_is_under_its_mac(forgery, name):
    """No pair of a part can be another without its key."""
    first = forgery.parts[0]
    changed = first._replace(footer=msgspec.structs.replace(first.footer, **CHANGES[name](first.footer)))
    require_found(forgery.write([changed, *forgery.parts[1:]], forgery.rows))


def test_another_mac_is_found_also_by_who_reads_other_parts_only(forgery):
    """Without a manifest that is proved, one part that nobody vouches for spoils the bundle."""
    forged = forgery.write([*forgery.parts[:3], forgery.parts[3]._replace(mac=bytes(32))], forgery.rows)
    require_found(forged)
    with (
        SegmentReader(forged.path, forged.head, forged.facts, KEYS) as reader,
        pytest.raises(Corrupt, match="key did not make"),
    ):
        list(reader.batches(1000, 1010))


def test_a_part_of_a_twin_is_found(tmp_path, forgery):
    """An authentic part of another attempt, with its blocks, does not fit the part behind it."""
    files = write_run(tmp_path, [60] * 4, rotated_at=2, seed=9)
    other = Forgery(bundle(tmp_path / "twin", files, WIDE))
    for at in (0, 1, 2):
        parts = [*forgery.parts]
        parts[at] = other.parts[at]
        rows = [row for i in range(4) for row in (other if i == at else forgery).blocks_of(i)]
        require_found(forgery.write(parts, rows))


@pytest.mark.parametrize("change", [{"rows": 239}, {"rows": 241}, {"content": b"c" * 32}, {"time_max": 2**62}], ids=str)
def test_what_the_bundle_says_must_follow_from_its_parts(forgery, change):
    """Also to readers without keys."""
    forged = forgery.write(forgery.parts, forgery.rows, change=lambda f: msgspec.structs.replace(f, **change))
    with pytest.raises(Corrupt):
        SegmentReader(forged.path, None, None, None)


def test_a_bundle_without_its_parts_is_corrupt(small, monkeypatch):
    """Stripped, empty, beside what a segment says, or said to be plain: refused before a row is read."""
    made, _, _ = small
    forged = Forgery(made)
    pairs = forged.footer.pairs()
    first = forged.parts[0].pairs
    keys = {name: first[name] for name in first if name not in pairs}
    for changed in (
        {**pairs, "holdfast.parts": None},
        {**pairs, "holdfast.parts": ""},
        {**pairs, "holdfast.parts": stored_parts.encode([])},
        {**pairs, "holdfast.parts": None, **keys},
        {**pairs, **keys},
        {**pairs, "holdfast.shape": "raw"},
        {**pairs, "holdfast.shape": "sealed-typed"},
    ):
        kept = {name: value for name, value in changed.items() if value is not None}
        with monkeypatch.context() as forging:
            forging.setattr(footers.Footer, "pairs", lambda self, kept=kept: kept)
            writer = RowGroupFile(forged.path, BLOCK_SCHEMA, parquet_settings(BLOCK_SCHEMA, is_encrypted=True))
            writer.write(pa.Table.from_pylist(forged.rows, BLOCK_SCHEMA), footers.RowGroupStatistics(7, 0, 0))
            writer.finish(lambda blocks: forged.footer, digests.plain_stamp)
        with pytest.raises(Corrupt):
            SegmentReader(forged.path, None, None, KEYS)


# -- hostile sizes -----------------------------------------------------------------------------------------------------


def good_pairs(tmp_path):
    made = bundle(tmp_path / "bundle", write_run(tmp_path, [2, 3]))
    with SegmentReader(made.path, None, None, None) as reader:
        return reader._footer.pairs(), footers._stored(reader.parts()[0], reader._footer.schema)


def test_hostile_parts_are_refused_before_they_take_memory(tmp_path):
    """Lists of millions of parts, groups or nothings are refused for a few times the size of their text."""
    pairs, part = good_pairs(tmp_path)
    packed = msgspec.msgpack.encode(part)
    many = b"\xdd" + (12 * 2**20 // len(packed)).to_bytes(4, "big") + packed * (12 * 2**20 // len(packed))
    groups = msgspec.structs.replace(part, groups=bytes(24) * (stored_parts.PART_GROUPS_MAX + 1))
    claims = [
        many,
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x00\xbb\xbb\xbb" + b"\x90" * (12 * 2**20),
        b"\x91" * (12 * 2**20),
        msgspec.msgpack.encode([groups]),
        b"\x91\xc6\xff\xff\xff\xff",
        b"\xc1" * (12 * 2**20),
    ]
    for claim in claims:
        text = base64.b64encode(claim).decode()
        tracemalloc.start()
        with pytest.raises(footers.BadFooter, match="parts"):
            footers.parse({**pairs, "holdfast.parts": text})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 40 * 2**20


@pytest.mark.parametrize(
    "change",
    [
        {"groups": b""},
        {"groups": bytes(23)},
        {"groups": bytes(24)},
        {"groups": b"\xff" * 24},
        {"groups": (2**40).to_bytes(8, "little") + bytes(16)},
        {"groups": (1).to_bytes(8, "little") + (5).to_bytes(8, "little") + bytes(8)},
        {"content": b"short"},
        {"mac": b""},
        {"epoch": -1},
        {"epoch": 2**63},
    ],
)
def test_values_that_no_part_has_are_refused(tmp_path, change):
    """Empty, negative, too large, cut in the middle: BadFooter."""
    pairs, part = good_pairs(tmp_path)
    text = stored_parts.encode([msgspec.structs.replace(part, **change), part])
    with pytest.raises(footers.BadFooter, match="parts"):
        footers.parse({**pairs, "holdfast.parts": text})


@settings(max_examples=examples(200), deadline=None)
@given(noise=st.binary(max_size=80), text=st.text(max_size=40), at=st.integers(0, 2000), cut=st.integers(0, 100))
def test_any_text_is_parts_or_refused(tmp_path_factory, noise, text, at, cut):
    """Noise instead of parts, and in the middle of them, is a BadFooter and nothing else."""
    if not hasattr(test_any_text_is_parts_or_refused, "pairs"):
        test_any_text_is_parts_or_refused.pairs = good_pairs(tmp_path_factory.mktemp("parts"))[0]
    pairs = test_any_text_is_parts_or_refused.pairs
    packed = base64.b64decode(pairs["holdfast.parts"])
    mixed = packed[:at] + noise + packed[at + cut :]
    for claim in (text, base64.b64encode(noise).decode(), base64.b64encode(mixed).decode()):
        try:
            assert footers.parse({**pairs, "holdfast.parts": claim}).parts
        except footers.BadFooter:
            pass
