"""A restore proves every block and every entry before anybody is shut out, and says what it could not prove.

Attackers here can write to the store and have no key: they exchange bytes and make all hashes anew that need none.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Corrupt, Log, Settings
from holdfast.crypto import digests
from holdfast.model.entry import Entry, Place, header_of
from holdfast.results import RestoredExpiry, RestoredPolicy, RestoreReport
from holdfast.root.objects import commit_batch, documents
from holdfast.root.objects.documents import SegmentDocument, TopicDocument
from holdfast.store import layout
from holdfast.store.port import Body
from holdfast.testing.manual_clock import ManualClock
from tests.segments.planting import TEN, fill
from tests.shipping.conftest import Root

pytestmark = pytest.mark.store

Bring = Callable[..., RestoreReport]


@pytest.fixture
def bring(root: Root, tmp_path: Path) -> Bring:
    """Bring the log back from `root` into a directory of this name."""

    def bring_back(name: str = "back", **options: Any) -> RestoreReport:
        return holdfast.restore(root.url, tmp_path / name, settings=Settings(), **options)

    return bring_back


def claims(root: Root) -> int:
    return len(root.keys(layout.EPOCHS))


def forge_segment(root: Root, change: Callable[[bytes], bytes]) -> str:
    """Exchange bytes of a segment, and make its name and its manifest object fit; returns the new key."""
    key = layout.manifest_key("orders", 0, 0)
    document = documents.decode(root.bare(key), key, SegmentDocument)
    old = layout.segment_key("orders", 0, 0, bytes.fromhex(document.sha256))
    data = change(root.store.get(old))
    forged = msgspec.structs.replace(document, sha256=sha256(data).hexdigest(), size=len(data))
    root.store.delete([old, *root.keys(f"{layout.partition_folder('orders', 0)}/_checkpoints")])
    new = layout.segment_key("orders", 0, 0, sha256(data).digest())
    root.store.create(new, Body.of(data))
    root.replace(key, documents.encode(forged))
    return new


def flip(data: bytes) -> bytes:
    """One bit in the middle, far from head and footer."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_block_that_was_exchanged_is_found_before_the_claim(open_shipped, bring, root, keyring, encrypted):
    """The manifest object says the hash of the forged file; the footer, which a key has stamped, does not."""
    secret = {"keyring": keyring} if encrypted else {}
    log = open_shipped(segments={**TEN, "rows_max": 200}, **secret)
    log.topic("orders").append_batch([ManualClock(seed=n).random_bytes(5000) for n in range(200)])
    log.seal()
    log.ship(20)
    log.close()
    forge_segment(root, flip)
    if encrypted:
        with pytest.raises(Corrupt, match="not signed"):
            bring(**secret)
        root.sign(layout.manifest_key("orders", 0, 0), keyring)
    with pytest.raises(Corrupt, match="block does not match"):
        bring(**secret)
    assert claims(root) == 1


def forge_entry(root: Root, body: Callable[[bytes], bytes]) -> str:
    """Exchange the body of the last entry, with the digest and the hash that go with it; returns the batch's key."""
    key = [key for key in root.keys(layout.TAIL) if layout.parse_batch_key(key)][-1]
    batch = commit_batch.decode(root.bare(key), key)
    entry = batch.entries[-1]
    forged = entry._replace(body=body(bytes(entry.body)))
    row = Entry(forged.seq, 0, *forged[3:14], forged.schema)
    head = header_of(Place(batch.log_id, entry.topic, entry.partition), row)
    forged = forged._replace(digest=digests.digest(head, forged.body))
    root.replace(key, commit_batch.encode(batch._replace(entries=(*batch.entries[:-1], forged))))
    return key


def test_an_entry_that_no_key_encrypted_is_found_before_the_claim(open_shipped, bring, root, keyring):
    """Its digest fits; it does not open."""
    log = open_shipped(keyring=keyring)
    log.topic("orders").append(b"true", durability="shipped")
    log.close()
    key = forge_entry(root, flip)
    with pytest.raises(Corrupt, match="not signed"):
        bring(keyring=keyring)
    root.sign(key, keyring)
    with pytest.raises(Corrupt, match="does not decrypt") as caught:
        bring(keyring=keyring)
    assert caught.value.path == key
    assert claims(root) == 1


@pytest.mark.parametrize("body", [b"", b"noise", b"\x01\x00\x00\x00\x09\x00\x00\x00" + bytes(200)])
def test_an_entry_that_could_not_be_read_later_is_found_before_the_claim(open_shipped, bring, root, body):
    """A plain log proves no origin; but what it takes over can be read."""
    log = open_shipped()
    log.topic("orders").append(b"true", durability="shipped")
    log.close()
    forge_entry(root, lambda _: body)
    with pytest.raises(Corrupt, match="does not hold the records"):
        bring()
    assert claims(root) == 1


def test_the_report_lists_policies_and_expiries(open_shipped, bring, root):
    """A forged topic document cannot make the restored log delete without anybody hearing of it."""
    log = open_shipped(segments=TEN)
    fill(log, "orders", 3)
    log.ship(20)
    log.set_retention("orders", records_max=25, age_max=timedelta(days=3))
    log.topic("notes").append(b"x", durability="shipped")
    log.close()
    (key,) = root.keys(layout.topic_folder("notes"))
    forged = documents.decode(root.store.get(key), key, TopicDocument)
    root.replace(key, documents.encode(msgspec.structs.replace(forged, retention=documents.RetentionLimits(0, 0, 1))))
    expired = documents.ExpiredDocument(log=log.id, topic="orders", partition=0, upto=1, first=10, expired_us=1)
    root.store.create(layout.expired_key("orders", 0, 1), Body.of(documents.encode(expired)))
    report = bring()
    assert report.policies == (RestoredPolicy("notes", 0, 0, 1), RestoredPolicy("orders", 0, 3 * 86_400_000_000, 25))
    assert report.expiries == (RestoredExpiry("orders", 0, 1, 10, 10),)
    assert any("not encrypted" in claim for claim in report.not_proved)
    assert any("expired" in claim for claim in report.not_proved)


def test_of_an_encrypted_log_all_is_proved(open_shipped, bring, keyring):
    log = open_shipped(segments=TEN, keyring=keyring)
    fill(log, "orders", 1)
    log.topic("orders").append(b"x", durability="shipped")
    log.close()
    assert bring(keyring=keyring).not_proved == ()


def test_a_forged_file_in_a_whole_manifest_is_found(open_shipped, root):
    """The forger of these tests leaves a manifest that is whole: only the file gives it away."""
    log: Log = open_shipped(segments=TEN)
    fill(log, "orders", 1)
    log.ship(20)
    log.close()
    forge_segment(root, flip)
    (document,) = root.manifest("orders")
    assert isinstance(document, SegmentDocument)
    assert document.segment.chain.hex() == document.chain
