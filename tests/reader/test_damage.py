"""Whatever is damaged, missing or swapped is an error that names the object, never a hole or a wrong row.

What each `verify` notices: `off` sizes and footers, `hash` also every block that is read, `full` the whole file before
its first row. The one thing that nobody promises to notice is a changed byte of a block with `off`: Arrow may.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast import Log
from holdfast.errors import Corrupt
from holdfast.root.objects import checkpoint, documents
from holdfast.root.objects.documents import SegmentDocument
from holdfast.store import layout
from tests.segments.planting import TEN, files, fill, wait_for

pytestmark = pytest.mark.disk

MODES = ("off", "hash", "full")
Damage = Callable[[Path, Path], None]
"""What is done to a file; the other one is the file of the segment before."""


@pytest.fixture
def log(open_log) -> Log:
    """Three segments of ten records; the second one is to be damaged."""
    made = open_log(segments=TEN)
    fill(made, "orders", 3)
    made.close()
    return made


def read(log: Log, **options: Any) -> list[bytes]:
    rows = holdfast.read(str(log.path), "orders", **options).to_arrow()
    values: list[bytes] = rows.column("payload").to_pylist()
    return values


def key_of(log: Log, path: Path) -> str:
    return str(path.relative_to(log.path / "segments"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def footer_bytes(path: Path) -> int:
    """How long a Parquet footer is, with its length and the magic behind it."""
    return int.from_bytes(path.read_bytes()[-8:-4], "little") + 8


DAMAGES: dict[str, Damage] = {
    "a byte of the footer": lambda path, _: flip(path, -footer_bytes(path) + 20),
    "the footer's length": lambda path, _: flip(path, -8),
    "the magic at the end": lambda path, _: flip(path, -1),
    "cut off in the middle": lambda path, _: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None,
    "one byte short": lambda path, _: path.write_bytes(path.read_bytes()[:-1]) and None,
    "one byte too long": lambda path, _: path.write_bytes(path.read_bytes() + b"\0") and None,
    "empty": lambda path, _: path.write_bytes(b"") and None,
    "missing": lambda path, _: path.unlink(),
    "another segment's file": lambda path, other: path.write_bytes(other.read_bytes()) and None,
}


@pytest.mark.parametrize("verify", MODES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_corrupt_with_its_key_in_every_mode(log, damage, verify):
    before, path, _ = files(log, "orders")
    DAMAGES[damage](path, before)
    with pytest.raises(Corrupt) as found:
        read(log, verify=verify)
    assert found.value.path == key_of(log, path)
    assert (found.value.topic, found.value.partition) == ("orders", 0)


@pytest.mark.parametrize("verify", MODES)
def test_nothing_of_a_damaged_segment_is_given_and_what_is_before_it_is(log, verify):
    path = files(log, "orders")[1]
    path.write_bytes(path.read_bytes()[:-1])
    given: list[int] = []
    with pytest.raises(Corrupt):
        for batch in holdfast.read(str(log.path), "orders", verify=verify).batches():
            given += batch.column("offset").to_pylist()
    assert given == list(range(10))


def data_bytes(path: Path) -> range:
    """Where a file's blocks are: all but the magic in front and the footer."""
    return range(4, path.stat().st_size - footer_bytes(path))


@pytest.mark.parametrize("verify", ["hash", "full"])
def test_a_changed_byte_of_data_is_corrupt_wherever_it_is(log, verify):
    path = files(log, "orders")[1]
    whole = path.read_bytes()
    places = data_bytes(path)
    for at in places[:: max(1, len(places) // 25)]:
        flip(path, at)
        with pytest.raises(Corrupt) as found:
            read(log, verify=verify)
        assert found.value.path == key_of(log, path), at
        path.write_bytes(whole)
    assert len(read(log, verify=verify)) == 30


def test_without_proof_of_blocks_a_changed_byte_is_a_wrong_value_or_an_error_and_never_another_number_of_rows(log):
    """`verify=off` promises no more: such a reader trusts the disk."""
    path = files(log, "orders")[1]
    whole = path.read_bytes()
    expected = [b"%d" % i for i in range(30)]
    unnoticed = 0
    places = data_bytes(path)
    for at in places[:: max(1, len(places) // 40)]:
        flip(path, at)
        try:
            found = read(log, verify="off")
            assert len(found) == 30
            unnoticed += found != expected
        except Corrupt as error:
            assert error.path == key_of(log, path)
        path.write_bytes(whole)
    assert unnoticed, "then this mode proves more than it says"


def test_columns_that_are_not_read_are_not_proved_but_with_full_they_are(open_log):
    """`hash` proves what it reads; damage in large payloads is not seen by a reader of keys only."""
    log = open_log(segments=TEN)
    log.topic("orders").append_batch([random.Random(i).randbytes(300_000) for i in range(10)])
    log.seal()
    log.close()
    (path,) = files(log, "orders")
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    (payloads,) = (column for column in columns if column.path_in_schema == "payload")
    flip(path, payloads.data_page_offset + payloads.total_compressed_size // 2)
    assert holdfast.read(str(log.path), "orders", columns=["offset", "key"]).to_arrow().num_rows == 10
    for options in ({"columns": ["offset", "payload"]}, {"columns": ["key"], "verify": "full"}):
        with pytest.raises(Corrupt):
            holdfast.read(str(log.path), "orders", **options).to_arrow()


@pytest.mark.parametrize("verify", MODES)
def test_a_sealed_block_that_was_changed_does_not_open_in_any_mode(open_log, keyring, tmp_path, verify):
    """Seals are proved whatever `verify` says."""
    log = open_log(segments=TEN, keyring=keyring)
    fill(log, "orders", 1)
    log.close()
    keyring.save(tmp_path / "keys")
    path = files(log, "orders")[0]
    places = data_bytes(path)
    flip(path, places[len(places) // 2])
    with pytest.raises(Corrupt) as found:
        read(log, verify=verify, keyring=f"file:{tmp_path / 'keys'}")
    assert found.value.path == key_of(log, path)


def test_another_logs_segment_under_the_same_name_does_not_pass(open_log, log):
    """Same topic, number, offsets and values; another log wrote it."""
    other = open_log("other", segments=TEN)
    fill(other, "orders", 3)
    path = files(log, "orders")[1]
    path.write_bytes(files(other, "orders")[1].read_bytes())
    for verify in MODES:
        with pytest.raises(Corrupt) as found:
            read(log, verify=verify)
        assert found.value.path == key_of(log, path)


# -- manifests ----------------------------------------------------------------------------------------------


def manifest_path(log: Log, slot: int) -> Path:
    return log.path / "segments" / layout.manifest_key("orders", 0, slot)


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_damaged_manifest_object_is_corrupt_with_its_key(log, slot):
    path = manifest_path(log, slot)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(Corrupt) as found:
        read(log)
    assert found.value.path == key_of(log, path)


def test_manifest_objects_that_were_swapped_do_not_pass(log):
    one, two = manifest_path(log, 0), manifest_path(log, 1)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(Corrupt) as found:
        read(log)
    assert found.value.path in (key_of(log, one), key_of(log, two))


def test_a_manifest_object_that_is_missing_in_the_middle_is_reported(log):
    manifest_path(log, 1).unlink()
    with pytest.raises(Corrupt) as found:
        read(log)
    assert found.value.path == key_of(log, manifest_path(log, 1))


def rewritten(path: Path, **changes: Any) -> None:
    """A manifest object that says something else, with a check that fits."""
    document = documents.decode_manifest(path.read_bytes(), path.name)
    assert isinstance(document, SegmentDocument)
    values = {field: getattr(document, field) for field in document.__struct_fields__} | changes
    path.write_bytes(documents.encode(SegmentDocument(**values)))


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": 9},
        {"first": 11},
        {"number": 5},
        {"topic": "other"},
        {"partition": 1},
        {"log": "ab" * 16},
        {"content": "ab" * 32},
        {"chain": "ab" * 32},
        {"previous": "ab" * 32},
        {"slot": 2},
    ],
    ids=str,
)
def test_a_manifest_object_that_says_something_else_does_not_fit_its_neighbours(log, changes):
    """Anybody can make its check; nobody can make the chain fit."""
    rewritten(manifest_path(log, 1), **changes)
    with pytest.raises(Corrupt) as found:
        read(log)
    assert "/_manifest/" in (found.value.path or "")


@pytest.mark.parametrize("changes", [{"size": 10}, {"footer": "ab" * 16}, {"time_max": 0, "time_min": 0}], ids=str)
def test_what_a_chain_does_not_cover_is_compared_with_the_file(log, changes):
    rewritten(manifest_path(log, 1), **changes)
    for verify in MODES:
        with pytest.raises(Corrupt) as found:
            read(log, verify=verify)
        assert found.value.path == key_of(log, files(log, "orders")[1])


# -- checkpoints --------------------------------------------------------------------------------------------


@pytest.fixture
def with_checkpoint(log: Log) -> Path:
    """The path of a checkpoint over the first two manifest objects, as a publisher would write it."""
    store = log.path / "segments"
    kept = [documents.decode_manifest(manifest_path(log, slot).read_bytes(), "") for slot in (0, 1)]
    path = store / layout.checkpoint_key("orders", 0, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.iterdir():
        old.unlink()
    path.write_bytes(checkpoint.encode(kept))
    return path


def test_a_checkpoint_is_read_instead_of_the_objects_that_it_holds(log, with_checkpoint):
    for slot in (0, 1):
        flip(manifest_path(log, slot), 30)
    assert len(read(log)) == 30


def test_a_damaged_checkpoint_is_passed_over_with_a_line_in_the_log(log, with_checkpoint, caplog):
    caplog.set_level(logging.ERROR, logger="holdfast")
    flip(with_checkpoint, with_checkpoint.stat().st_size // 2)
    assert len(read(log)) == 30
    assert any("a checkpoint is damaged" in record.getMessage() for record in caplog.records)


def test_a_damaged_checkpoint_hides_no_damaged_object(log, with_checkpoint):
    flip(with_checkpoint, with_checkpoint.stat().st_size // 2)
    flip(manifest_path(log, 0), 30)
    with pytest.raises(Corrupt) as found:
        read(log)
    assert found.value.path == key_of(log, manifest_path(log, 0))


# -- the rest of a root -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [layout.LOG, layout.topic_key("orders", 1)])
def test_a_damaged_document_is_corrupt_with_its_key(log, key):
    path = log.path / "segments" / key
    flip(path, path.stat().st_size // 2)
    with pytest.raises(Corrupt) as found:
        read(log)
    assert found.value.path == key


def test_a_damaged_expiry_is_corrupt_with_its_key(open_log):
    log = open_log(segments=TEN, retention={"records_max": 10, "interval_ms": 3_600_000})
    fill(log, "orders", 3)
    log.retain()
    folder = log.path / "segments" / layout.expired_folder("orders", 0)
    wait_for(lambda: folder.is_dir() and any(folder.iterdir()))
    log.close()
    path = max(folder.iterdir())
    flip(path, path.stat().st_size // 2)
    with pytest.raises(Corrupt) as found:
        read(log)
    assert found.value.path == key_of(log, path)
