"""Signatures of objects: attached where nobody trips over them, taken off exactly, and proving place, log and bytes."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Corrupt, Invalid, Keyring
from holdfast.clock import SystemClock
from holdfast.crypto.signatures import Signature, Signer
from holdfast.root.objects import documents, signature_place
from holdfast.root.objects.documents import FloorDocument, LogDocument
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.store import layout
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body

pytestmark = pytest.mark.unit

LOG, OTHER = "0a" * 16, "0b" * 16
FLOOR = layout.floor_key(2, 9)
SIGNATURE = Signature("k1", bytes(range(32)))
keyring = Keyring({"k1": bytes(32), "k0": bytes(range(32))})
stranger = Keyring({"k1": b"\x01" * 32})


def floor(log: str = LOG) -> bytes:
    return documents.encode(FloorDocument(log=log, epoch=2, seq=9))


def log_json(log: str = LOG) -> bytes:
    return documents.encode(LogDocument(log=log, created_us=5))


def a_root(ring: Keyring | None = keyring) -> tuple[MemoryStore, RootStore]:
    """An empty store, and the root of a log in it."""
    store = MemoryStore("x", SystemClock())
    root = RootStore(store, RootTrust(Signer.of(ring)))
    root.create(layout.LOG, Body.of(log_json()))
    return store, root


def seen_by(store: MemoryStore, ring: Keyring | None, **options: object) -> RootStore:
    return RootStore(store, RootTrust(Signer.of(ring), **options))


def put(store: MemoryStore, key: str, data: bytes) -> None:
    store.delete([key])
    store.create(key, Body.of(data))


# -- where signatures stand -------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.sampled_from(["", "k1", "2026-11_a.b" * 5]), st.binary(min_size=32, max_size=32))
def test_a_signature_comes_off_as_it_was_put_on(data: bytes, key_id: str, mac: bytes) -> None:
    for key in (layout.batch_key(1, 1, 2), layout.checkpoint_key("t", 0, 1)):
        assert signature_place.detach(key, signature_place.attach(key, data, Signature(key_id, mac))) == (
            data,
            Signature(key_id, mac),
        )


@given(st.binary(max_size=300))
def test_any_bytes_can_be_looked_at(data: bytes) -> None:
    for key in (FLOOR, layout.LOG, layout.batch_key(1, 1, 2), layout.checkpoint_key("t", 0, 1)):
        bare, signature = signature_place.detach(key, data)
        assert signature is not None or bare == data


def test_a_signed_document_is_one_json_object_on_one_line() -> None:
    data = signature_place.attach(FLOOR, floor(), SIGNATURE)
    assert json.loads(data) == {**json.loads(floor()), "key_id": "k1", "mac": SIGNATURE.mac.hex()}
    assert data.count(b"\n") == 1
    assert signature_place.detach(FLOOR, data) == (floor(), SIGNATURE)


def test_a_signed_parquet_file_is_read_by_any_tool() -> None:
    """Between data and footer nobody looks."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1, 2]}), sink)
    data = signature_place.attach(layout.checkpoint_key("t", 0, 1), sink.getvalue().to_pybytes(), SIGNATURE)
    assert pq.read_table(pa.BufferReader(data))["a"].to_pylist() == [1, 2]


def test_segments_and_leases_are_not_signed_and_all_else_is() -> None:
    unsigned = [layout.segment_key("t", 0, 1, bytes(32)), layout.lease_key("reader", 1)]
    others = [
        layout.LOG, layout.epoch_key(1), layout.batch_key(1, 1, 2), FLOOR, layout.adopted_key(1, 2),
        layout.topic_key("t", 1), layout.manifest_key("t", 0, 0), layout.checkpoint_key("t", 0, 0),
        layout.expired_key("t", 0, 1), "topics/t/0/_what-comes-later/1.json",
    ]  # fmt: skip
    assert [key for key in unsigned + others if signature_place.is_signed_kind(key)] == others


# -- what they prove --------------------------------------------------------------------------------------


def test_what_the_log_wrote_is_read_back_by_those_with_the_keys() -> None:
    store, root = a_root()
    root.create(FLOOR, Body.of(floor()))
    assert store.get(FLOOR) != floor()
    assert root.get(FLOOR) == seen_by(store, keyring).get(FLOOR) == floor()
    assert seen_by(store, None).get(FLOOR) == floor(), "without keys it is read, and not proved"
    assert seen_by(store, keyring).log().log == LOG


@pytest.mark.parametrize(
    "forged",
    [
        floor(),
        signature_place.attach(FLOOR, floor(), SIGNATURE),
        signature_place.attach(FLOOR, floor(), Signature("gone", bytes(32))),
        signature_place.attach(FLOOR, floor(), Signature("", bytes(32))),
        signature_place.attach(FLOOR, floor(), Signer.of(stranger).sign(LOG, FLOOR, floor())),
        signature_place.attach(FLOOR, floor(), Signer.of(keyring).sign(OTHER, FLOOR, floor())),
        signature_place.attach(FLOOR, floor(), Signer.of(keyring).sign(LOG, layout.floor_key(2, 10), floor())),
        b"",
        b"{}\n",
    ],
    ids=["unsigned", "made up", "unknown key", "no key", "stranger", "other log", "other place", "empty", "nothing"],
)
def test_an_object_that_the_log_did_not_sign_for_this_place_is_corrupt(forged: bytes) -> None:
    store, _ = a_root()
    put(store, FLOOR, forged)
    with pytest.raises(Corrupt) as caught:
        seen_by(store, keyring).get(FLOOR)
    assert FLOOR in str(caught.value)
    assert caught.value.hint


@given(st.data())
def test_a_flipped_bit_is_found(data: st.DataObject) -> None:
    store, root = a_root()
    root.create(FLOOR, Body.of(floor()))
    stored = bytearray(store.get(FLOOR))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    put(store, FLOOR, bytes(stored))
    with pytest.raises(Corrupt):
        seen_by(store, keyring).get(FLOOR)


def test_an_older_key_proves_what_it_signed() -> None:
    store, _ = a_root(Keyring({"k0": bytes(range(32))}))
    assert seen_by(store, keyring).log().log == LOG
    with pytest.raises(Invalid, match="has no key 'k0'"):
        seen_by(store, Keyring({"k1": bytes(32)})).log()


def test_after_a_rotation_new_objects_are_signed_with_the_new_key() -> None:
    rings = [Keyring({"k0": bytes(range(32))})]
    signer = Signer(lambda: (rings[-1], None))
    assert signer.sign(LOG, FLOOR, floor()).key_id == "k0"
    rings.append(rings[0].rotated("k7"))
    signature = signer.sign(LOG, FLOOR, floor())
    assert signature.key_id == "k7"
    assert signer.proves(LOG, FLOOR, floor(), signature)


# -- keyrings and roots that do not belong together -------------------------------------------------------


def test_a_keyring_for_a_root_without_keys_is_refused() -> None:
    store, _ = a_root(None)
    with pytest.raises(Invalid, match="has no keys"):
        seen_by(store, keyring).log()


def test_another_logs_keyring_is_refused_in_words_about_keyrings() -> None:
    store, _ = a_root()
    with pytest.raises(Invalid, match="did not sign this root"):
        seen_by(store, stranger).log()


@pytest.mark.parametrize(("key", "value"), [("format", 2), ("type", "log")])
def test_a_root_of_another_version_is_refused_in_one_sentence(key: str, value: object) -> None:
    """One from before the first release, or from a later one: with keys and without, nobody takes it for damage."""
    store, _ = a_root(None)
    said = json.loads(log_json()) | {key: value, "check": ""}
    blank = json.dumps(said, separators=(",", ":"))
    check = blake3(blank.encode(), derive_key_context="holdfast 1 store document").digest(length=16).hex()
    put(store, layout.LOG, blank.replace('"check":""', f'"check":"{check}"').encode() + b"\n")
    for ring in (None, keyring):
        with pytest.raises(Invalid, match=r"another version of holdfast wrote this object key=log\.json") as caught:
            seen_by(store, ring).log()
        assert caught.value.hint


def test_another_log_under_the_same_keyring_is_refused_where_the_log_was_named() -> None:
    store = MemoryStore("x", SystemClock())
    RootStore(store, RootTrust(Signer.of(keyring))).create(layout.LOG, Body.of(log_json(OTHER)))
    assert seen_by(store, keyring, log=OTHER).log().log == OTHER
    with pytest.raises(Invalid, match=f"this root belongs to another log log={OTHER} expected={LOG}"):
        seen_by(store, keyring, log=LOG).log()


def test_without_its_first_document_nothing_of_a_root_is_believed() -> None:
    store, root = a_root()
    root.create(FLOOR, Body.of(floor()))
    store.delete([layout.LOG])
    with pytest.raises(Corrupt, match="document is missing"):
        seen_by(store, keyring).get(FLOOR)
