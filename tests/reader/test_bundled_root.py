"""An encrypted log on a store, compacted by somebody who cannot open a block, and read as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import Corrupt, Invalid, Keyring, Log
from holdfast.compaction.compactor import Compactor, ThreadWorkers
from holdfast.compaction.swap import Swap
from holdfast.crypto import segment_key
from holdfast.crypto.segment_key import SegmentKey
from holdfast.crypto.signatures import Signer
from holdfast.root.rewrites import in_effect, read_rewrites
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.store_manifest import read_manifest
from holdfast.store.directory import DirectoryStore
from holdfast.store.store_settings import StoreSettings
from tests.segments.planting import wait_for

pytestmark = pytest.mark.disk
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.string()))])


@contextmanager
def no_block_can_be_opened() -> Iterator[None]:
    """A call that derives a segment's key, decrypts, encrypts or stamps in this process fails the test."""

    def refuse(*args: object, **how: object) -> None:
        raise AssertionError("a compactor used the key of a segment")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("encrypt", "decrypt", "mac", "__init__"):
            patch.setattr(SegmentKey, name, refuse)
        for name in ("decrypting_cipher", "encrypting_cipher"):
            patch.setattr(segment_key, name, refuse)
        yield


@pytest.fixture
def keyring(tmp_path: Path) -> str:
    """A reference to the log's keys."""
    Keyring.generate("k1").save(tmp_path / "keyring")
    return f"file:{tmp_path}/keyring"


@pytest.fixture
def encrypted(open_shipped: Callable[..., Log], tmp_path: Path, keyring: str) -> Log:
    """A log with a raw and a typed topic, four small segments each, and another key from the third on."""
    log = open_shipped(keyring=Keyring.from_reference(keyring))
    log.topic("orders", partitions=2)
    log.topic("items", schema=SCHEMA)
    fill(log, 2)
    rotated = Keyring.from_reference(keyring).rotated("k2")
    rotated.save(tmp_path / "rotated")
    (tmp_path / "rotated").replace(tmp_path / "keyring")
    log.rotate_key(rotated)
    fill(log, 2)
    return log


def fill(log: Log, segments: int) -> None:
    for _ in range(segments):
        first = log.topic("orders").marks()[0].durable
        for partition in (0, 1):
            log.topic("orders").append_batch([b"%d" % (first + i) * 5 for i in range(25)], partition=partition)
        log.topic("items", schema=SCHEMA).append([{"id": first + i, "tags": [f"tag-{i}", None]} for i in range(10)])
        log.seal()
    log.ship(30)
    wait_for(lambda: all(m.settled == m.durable for name in ("orders", "items") for m in log.marks(name)))


def rows(root: Path, keyring: str, topic: str = "orders", **options: Any) -> pa.Table:
    return holdfast.read(str(root), topic, keyring=keyring, **options).to_arrow()


def parquet_files(root: Path, topic: str) -> list[Path]:
    return sorted((root / "topics" / topic).rglob("*.parquet"))


def compact(root: Path, keyring: str, **options: Any) -> Any:
    with no_block_can_be_opened():
        return holdfast.compact(str(root), keyring=keyring, **options)


@pytest.mark.parametrize("topic", ["orders", "items"])
def test_an_encrypted_topic_is_compacted_without_being_opened(root, encrypted, keyring, topic):
    """The rows are the same by every way of reading, before and after the replaced files are gone."""
    before = rows(root, keyring, topic)
    report = compact(root, keyring, delete_after_ms=0)
    assert not report.problems
    assert (report.files_before, report.files_after) == (12, 3)
    for verify in ("off", "hash", "full"):
        assert rows(root, keyring, topic, verify=verify).equals(before)
    compact(root, keyring, delete_after_ms=0)  # what was replaced goes
    assert len(parquet_files(root, topic)) == (2 if topic == "orders" else 1)
    assert rows(root, keyring, topic).equals(before)
    name = "offset" if topic == "orders" else "_offset"
    part = rows(root, keyring, topic, starting_offsets={topic: {0: 13}}, ending_offsets={topic: {0: 37}})
    assert part[name].to_pylist()[:24] == list(range(13, 37))


def test_a_reader_without_keys_gets_the_same_blocks(root, encrypted, keyring):
    """`encrypted="sealed"`: block for block, also where only a part of a bundle is wanted."""
    before = holdfast.read(str(root), "orders", encrypted="sealed").to_arrow()
    compact(root, keyring)
    assert holdfast.read(str(root), "orders", encrypted="sealed").to_arrow().equals(before)
    options: dict[str, Any] = {"starting_offsets": {"orders": {0: 30}}, "encrypted": "sealed"}
    some = holdfast.read(str(root), "orders", **options).to_arrow()
    assert some["first_offset"].to_pylist()[:2] == [25, 50]
    with pytest.raises(Invalid, match="there is no key"):
        holdfast.read(str(root), "orders").to_arrow()


def test_bundles_are_compacted_again(root, encrypted, keyring):
    """Later segments join what was compacted before, and later again: three generations, and the same rows."""
    for _ in range(2):
        compact(root, keyring, delete_after_ms=0)
        fill(encrypted, 2)
    before = rows(root, keyring)
    compact(root, keyring, delete_after_ms=0)
    report = compact(root, keyring, delete_after_ms=0)
    assert report.files_after == 3
    assert rows(root, keyring).equals(before)
    assert len(parquet_files(root, "orders")) == 2


def test_all_keys_of_a_bundle_are_needed_and_the_missing_one_is_named(root, encrypted, keyring, tmp_path):
    """A reader with the newest key only learns which one is missing."""
    compact(root, keyring)
    Keyring({"k2": Keyring.from_reference(keyring).key("k2")}).save(tmp_path / "newest")
    with pytest.raises(Invalid, match="no key 'k1'"):
        rows(root, f"file:{tmp_path}/newest")


def test_two_who_bundle_the_same_segments_make_two_files(root, encrypted, keyring, tmp_path):
    """So that the one who is overtaken removes its own file, and not the one that is in effect."""
    before = rows(root, keyring)
    signed = RootTrust(Signer.of(Keyring.from_reference(keyring)))
    store = RootStore(DirectoryStore(root, encrypted._journal.clock), signed)
    log = store.log().log
    (tmp_path / "work").mkdir()
    workers = ThreadWorkers(tmp_path / "work", 1, StoreSettings())
    compactor = Compactor(store, log, 2**27, encrypted._journal.clock, workers)
    runs = compactor.look("orders", 0).runs
    slow = Swap(store, log, "orders", 0, 0, encrypted._journal.clock)
    slow.announce([run.numbers for run in runs])
    late = [made.output for made in workers.make(store, slow.nonce, runs)]
    compactor.compact("orders", 0, progress=lambda *_: None)
    slow.give_up([output for output in late if output is not None])
    assert rows(root, keyring).equals(before)


def test_a_bundle_on_the_store_is_what_its_signed_rewrite_says(root, encrypted, keyring):
    """Damaged, cut, or exchanged for an authentic one of other segments: Corrupt, never fewer rows."""
    compact(root, keyring, delete_after_ms=0)
    compact(root, keyring, delete_after_ms=0)
    one, other = parquet_files(root, "orders")
    content = one.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 3] ^= 1
    for planted in (bytes(flipped), content[:-100], other.read_bytes(), b""):
        one.write_bytes(planted)
        with pytest.raises(Corrupt):
            rows(root, keyring)


def test_a_bundle_says_what_the_manifest_says_of_its_segments(root, encrypted, keyring):
    """The content of a bundle follows from the manifest: nobody needs the file to know it."""
    compact(root, keyring)
    signed = RootTrust(Signer.of(Keyring.from_reference(keyring)))
    store = RootStore(DirectoryStore(root, encrypted._journal.clock), signed)
    log = store.log().log
    segments = read_manifest(store, log, "orders", 0).segments
    (file,) = in_effect(segments, read_rewrites(store, log, "orders", 0))
    from holdfast.segments.file.footer import bundle_content

    assert file.segment.content == bundle_content(bytes.fromhex(one.content) for one in segments).hex()
    assert (file.segment.key_id, file.segment.epoch) == ("k2", segments[-1].epoch)


def test_a_damaged_segment_is_not_bundled(root, encrypted, keyring):
    """Its run stays as it is and is reported; nothing is replaced by something that nobody could read."""
    victim = parquet_files(root, "orders")[3]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    report = compact(root, keyring, topic="orders")
    assert report.problems
    assert victim.exists()
