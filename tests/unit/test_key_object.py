"""Objects of idempotency keys: what goes in comes out, nothing else is accepted; and what encrypts their hashes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Corrupt, Invalid
from holdfast.crypto.key_hashes import HashCipher
from holdfast.recovery.key_walk import KeyWalk
from holdfast.root.acknowledged import acknowledged, takeovers
from holdfast.root.objects import key_object, row_stream
from holdfast.root.objects.commit_batch import TailKey
from holdfast.root.objects.documents import StartDocument
from holdfast.root.objects.key_object import KeyObject, StoredKey, decode, encode
from holdfast.root.store_manifest import StoreManifest
from holdfast.root.tail_listing import TailListing
from holdfast.store import layout

pytestmark = pytest.mark.unit

LOG_ID = bytes(range(16))
KEY = TailKey(3, "aes-256-gcm", "k-1", b"s" * 32, b"c" * 32, b"t" * 32)
ROW = StoredKey("orders", 2, 100, 7, b"h" * 16, b"d" * 16)
KEYS = KeyObject(LOG_ID, 4, 7, 10, KEY, (ROW, ROW._replace(record=101), ROW._replace(seq=10, partition=0)))


def key_of(keys: KeyObject) -> str:
    return layout.keys_key(keys.epoch, keys.first_seq, keys.last_seq)


def rehashed(data: bytes) -> bytes:
    return data[:-16] + row_stream.hash_of("holdfast 1 idempotency keys", data[:-16])


rows = st.builds(
    StoredKey,
    topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
    partition=st.integers(0, 9),
    record=st.integers(0, 2**62 - 1),
    seq=st.integers(5, 50),
    hash=st.binary(min_size=16, max_size=16),
    digest=st.binary(min_size=16, max_size=16),
)


@given(st.lists(rows, max_size=9), st.sampled_from([None, KEY]))
def test_what_goes_in_comes_out(found: list[StoredKey], key: TailKey | None) -> None:
    """And equal keys are equal bytes, which any Arrow tool reads."""
    keys = KeyObject(LOG_ID, 1, 5, 50, key, tuple(sorted(found, key=lambda row: row.seq)))
    data = encode(keys)
    assert decode(data, key_of(keys)) == keys
    assert encode(decode(data, key_of(keys))) == data
    with pa.ipc.open_stream(data) as stream:
        assert stream.read_all().column("record").to_pylist() == [row.record for row in keys.rows]


WRONG = {
    "log id": KEYS._replace(log_id=b"short"),
    "span": KEYS._replace(first_seq=11),
    "before": KEYS._replace(first_seq=8),
    "behind": KEYS._replace(last_seq=9),
    "order": KEYS._replace(rows=KEYS.rows[::-1]),
    "partition": KEYS._replace(rows=(ROW._replace(partition=-1),)),
    "record": KEYS._replace(rows=(ROW._replace(record=2**62),)),
    "topic": KEYS._replace(rows=(ROW._replace(topic=""),)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_keys_are_neither_written_nor_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid):
        encode(WRONG[name])
    with monkeypatch.context() as patch:
        patch.setattr(key_object, "_problem", lambda keys, columns: None)
        forged = encode(WRONG[name])
    with pytest.raises(Corrupt):
        decode(forged, key_of(WRONG[name]))


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    data, key = encode(KEYS), key_of(KEYS)
    for at in range(0, len(data), 3):
        with pytest.raises(Corrupt):
            decode(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :], key)
        with pytest.raises(Corrupt):
            decode(rehashed(data[:at] + bytes(16)), key)


def test_forged_bytes_never_raise_anything_else() -> None:
    rng, data = random.Random(4), encode(KEYS)
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(rng.choice((1, 2, 5))):
            changed[rng.randrange(len(data) - 16)] = rng.choice((0, 1, 127, 128, 255))
        try:
            keys = decode(rehashed(bytes(changed)), key_of(KEYS))
        except (Corrupt, Invalid):
            continue
        assert keys[1:4] == KEYS[1:4]


@given(st.binary(min_size=16, max_size=16))
def test_hashes_are_encrypted_by_log_and_key(key_hash: bytes) -> None:
    one, other = (HashCipher(LOG_ID, lambda message, key=key: (key + message)[:32]) for key in (b"a", b"b"))
    assert one.decrypt(one.encrypt(key_hash)) == key_hash
    assert len({one.encrypt(key_hash), other.encrypt(key_hash), key_hash}) == 3
    assert HashCipher(LOG_ID, None).encrypt(key_hash) == key_hash


# -- what counts ------------------------------------------------------------------------------------------


def start(epoch: int, first: int, adopted: int) -> StartDocument:
    return StartDocument(
        log="", topic="orders", partition=2, slot=0, epoch=epoch, nonce="", number=0, first=first, adopted_seq=adopted
    )


@pytest.mark.parametrize(
    ("epoch", "seq", "record", "counts"),
    [
        (1, 40, 55, True),  # its commit was adopted
        (1, 41, 55, False),  # it was not: the next owner gave the offset away again
        (1, 41, 49, True),  # but its record was in a segment
        (2, 41, 55, True),  # the new owner's
        (2, 99, 60, False),  # of a record that did not come back
    ],
)
def test_a_key_counts_when_its_record_does(epoch: int, seq: int, record: int, counts: bool) -> None:
    where = ("orders", 2)
    manifest = StoreManifest(*where, (start(2, 50, 40),), None)
    walk = KeyWalk(LOG_ID, None, None, {where: manifest}, {where: 60}, 80)
    row = StoredKey(*where, record, seq, b"h" * 16, b"d" * 16)
    found = list(walk.keys(lambda: [KeyObject(LOG_ID, epoch, 1, 99, None, (row,))], []))
    assert [(key.record, key.seq) for key in found] == ([(record, min(seq, 80))] if counts else [])


@pytest.mark.parametrize(
    ("floor", "acks", "adopted", "lines", "expected"),
    [
        (0, {}, (), {}, 0),
        (9, {1: 5}, (), {}, 9),
        (0, {1: 5, 2: 7}, (), {}, 7),
        (0, {1: 119}, ((2, 5),), {2: 5}, 5),  # a loss that was accepted
        (0, {1: 119}, ((2, 5),), {}, 119),  # the same owner, opened again: nothing was accepted
        (0, {1: 119, 2: 8}, ((2, 5),), {2: 5}, 8),
        (0, {1: 3}, ((2, 4),), {2: 4}, 4),  # what was adopted was acknowledged
    ],
)
def test_what_was_acknowledged_is_said_by_batches_floors_and_adoptions(
    floor: int, acks: dict[int, int], adopted: tuple[tuple[int, int], ...], lines: dict[int, int], expected: int
) -> None:
    inherited = TailListing(floor, floor, (), (), (), adopted)
    assert acknowledged(inherited, acks, lines) == expected
    manifest = StoreManifest("orders", 2, tuple(start(epoch, 0, seq) for epoch, seq in lines.items()), None)
    assert takeovers([manifest]) == lines
