"""A partition's manifest as a store has it: read through checkpoints, proved link by link, every value bounded."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from holdfast.clock import SystemClock
from holdfast.errors import Corrupt, NotFound
from holdfast.model.schema import declare
from holdfast.model.segment import NO_CHAIN, NO_SCHEMA
from holdfast.root.objects import checkpoint, documents
from holdfast.root.objects.documents import (
    ExpiredDocument,
    ManifestDocument,
    RetentionLimits,
    SchemaVersion,
    SegmentDocument,
    StartDocument,
    TopicDocument,
)
from holdfast.root.objects.manifest_chain import prove
from holdfast.root.store_manifest import in_parallel, read_manifest, read_topic
from holdfast.store import layout
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body

pytestmark = pytest.mark.unit

LOG = bytes(range(16)).hex()


def segment(slot: int, number: int, first: int, previous: str, *, rows: int = 10, **other: object) -> SegmentDocument:
    draft = SegmentDocument(
        log=LOG,
        topic="t",
        partition=1,
        slot=slot,
        number=number,
        first=first,
        rows=rows,
        size=7,
        time_min=1,
        time_max=2,
        sha256="ab" * 32,
        content=f"{number:02x}" * 32,
        footer="ef" * 16,
        previous=previous,
        chain="",
        schema=NO_SCHEMA.hex(),
        key_id="",
        epoch=1,
        sealed_us=5,
    )
    draft = msgspec.structs.replace(draft, **other)
    return msgspec.structs.replace(draft, chain=other.get("chain", draft.segment.chain.hex()))


def start(slot: int, number: int, first: int) -> StartDocument:
    return StartDocument(
        log=LOG, topic="t", partition=1, slot=slot, epoch=2, nonce="n", number=number, first=first, adopted_seq=0
    )


def manifest(count: int = 4, *, start_at: int | None = 2, first: int = 5) -> list[ManifestDocument]:
    """Segments of ten records from offset `first` on, with a takeover among them."""
    found: list[ManifestDocument] = []
    number, chain = 0, NO_CHAIN.hex()
    for slot in range(count):
        if slot == start_at:
            found.append(start(slot, number, first))
            continue
        found.append(segment(slot, number, first, chain))
        number, first, chain = number + 1, first + 10, found[-1].chain
    return found


def change(found: list[ManifestDocument], slot: int, **values: object) -> list[ManifestDocument]:
    return [*found[:slot], msgspec.structs.replace(found[slot], **values), *found[slot + 1 :]]


def damage(found: list[ManifestDocument]) -> Corrupt:
    with pytest.raises(Corrupt) as caught:
        prove(found, LOG, "t", 1)
    return caught.value


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("test", SystemClock())


@pytest.fixture
def put(store: MemoryStore) -> Callable[..., None]:
    """Put documents where they belong."""

    def put_all(*found: ManifestDocument | ExpiredDocument) -> None:
        for document in found:
            if isinstance(document, ExpiredDocument):
                key = layout.expired_key("t", 1, document.upto)
            else:
                key = layout.manifest_key("t", 1, document.slot)
            store.create(key, Body.of(documents.encode(document)))

    return put_all


# -- proving ------------------------------------------------------------------------------------------------


def test_a_whole_manifest_is_proved():
    prove(manifest(), LOG, "t", 1)
    prove([], LOG, "t", 1)


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_an_object_that_is_missing_is_reported_with_its_key(slot):
    found = manifest()
    del found[slot]
    error = damage(found)
    assert "missing" in error.message
    assert error.path == layout.manifest_key("t", 1, slot)


@pytest.mark.parametrize("elsewhere", [{"log": "00" * 16}, {"topic": "u"}, {"partition": 0}])
@pytest.mark.parametrize("slot", [1, 2])
def test_an_object_of_another_place_is_reported_with_its_key(slot, elsewhere):
    error = damage(change(manifest(), slot, **elsewhere))
    assert "belongs elsewhere" in error.message
    assert error.path == layout.manifest_key("t", 1, slot)


@pytest.mark.parametrize("slot", [1, 2, 3])
@pytest.mark.parametrize("wrong", [{"number": 7}, {"first": 14}, {"first": 26}])
def test_an_object_out_of_place_is_refused(slot, wrong):
    assert damage(change(manifest(), slot, **wrong)).path == layout.manifest_key("t", 1, slot)


@pytest.mark.parametrize("wrong", [{"rows": 11}, {"content": "00" * 32}, {"previous": "00" * 32}, {"chain": "11" * 32}])
def test_an_object_that_breaks_the_chain_is_refused(wrong):
    assert "does not follow" in damage(change(manifest(), 1, **wrong)).message


def test_two_objects_that_were_swapped_are_refused():
    found = manifest(start_at=None)
    one, two = found[1], found[2]
    swapped = [msgspec.structs.replace(two, slot=1), msgspec.structs.replace(one, slot=2)]
    assert damage([found[0], *swapped, found[3]])


VALUES = [
    {"rows": 0}, {"rows": -1}, {"rows": 2**70}, {"first": -1}, {"first": 2**62}, {"size": -1}, {"size": 2**80},
    {"epoch": -1}, {"time_min": -(2**70)}, {"time_max": 2**63}, {"sealed_us": 2**70}, {"sha256": "zz" * 32},
    {"sha256": "ab" * 31}, {"sha256": "AB" * 32}, {"footer": ""}, {"schema": "00"}, {"content": "x"},
    {"previous": "00"}, {"chain": "é" * 64},
]  # fmt: skip


@pytest.mark.parametrize("wrong", VALUES, ids=str)
def test_values_that_cannot_be_are_refused(wrong):
    """Also where they would fit the chain: later readers take them for what they are."""
    assert damage(change(manifest(1), 0, **wrong)).path == layout.manifest_key("t", 1, 0)


def test_a_row_that_a_rebuild_wrote_for_a_file_that_was_gone_needs_no_chain_value_of_its_own():
    gone = segment(0, 0, 0, NO_CHAIN.hex(), size=0, content="00" * 32, chain="77" * 32)
    after = segment(1, 1, 10, "77" * 32)
    prove([gone, after], LOG, "t", 1)
    damage([gone, segment(1, 1, 10, NO_CHAIN.hex())])


# -- reading ------------------------------------------------------------------------------------------------


def test_a_manifest_is_read_in_order(store, put):
    put(*manifest())
    found = read_manifest(store, LOG, "t", 1)
    assert [document.slot for document in found.documents] == [0, 1, 2, 3]
    assert [s.number for s in found.segments] == [0, 1, 2]
    assert (found.settled, found.expired) == (35, None)
    assert found.segments[0].segment.facts.sha256.hex() == "ab" * 32


def test_a_partition_without_objects_has_no_end(store):
    assert read_manifest(store, LOG, "t", 1).settled is None


def test_a_checkpoint_stands_for_the_objects_up_to_it(store, put):
    """They are not even asked for."""
    found = manifest()
    put(found[3])
    store.create(layout.checkpoint_key("t", 1, 2), Body.of(checkpoint.encode(found[:3])))
    assert len(read_manifest(store, LOG, "t", 1).documents) == 4


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:50] + b"x" + data[51:], lambda data: b""])
def test_a_damaged_checkpoint_is_passed_over(store, put, spoil, caplog):
    found = manifest()
    put(*found)
    store.create(layout.checkpoint_key("t", 1, 2), Body.of(spoil(checkpoint.encode(found[:3]))))
    assert len(read_manifest(store, LOG, "t", 1).documents) == 4
    assert "a checkpoint is damaged" in caplog.text


def test_another_partitions_checkpoint_is_passed_over(store, put):
    found = manifest()
    put(*found)
    others = [msgspec.structs.replace(document, partition=2) for document in found[:3]]
    store.create(layout.checkpoint_key("t", 1, 2), Body.of(checkpoint.encode(others)))
    assert [d.partition for d in read_manifest(store, LOG, "t", 1).documents] == [1] * 4


def test_what_is_known_is_not_read_again(store, put):
    found = manifest()
    put(*found[2:])
    assert read_manifest(store, LOG, "t", 1, known=found[:2]).documents == tuple(
        documents.decode_manifest(store.get(key), key) if number > 1 else found[number]
        for number, key in enumerate(layout.manifest_key("t", 1, slot) for slot in range(4))
    )


def test_strange_names_in_the_folders_are_left_alone(store, put):
    put(*manifest())
    for folder in (layout.manifest_folder("t", 1), layout.expired_folder("t", 1), layout.checkpoints_folder("t", 1)):
        store.create(folder + "README", Body.of(b"mine"))
    assert read_manifest(store, LOG, "t", 1).settled == 35


def expired(upto: int, first: int, **other: object) -> ExpiredDocument:
    document = ExpiredDocument(log=LOG, topic="t", partition=1, upto=upto, first=first, expired_us=1)
    return msgspec.structs.replace(document, **other)


def test_the_newest_expiry_counts(store, put):
    put(*manifest(), expired(1, 15), expired(2, 25))
    found = read_manifest(store, LOG, "t", 1)
    assert found.expired is not None
    assert found.expired.upto == 2


def test_an_expiry_may_be_ahead_of_the_manifest_objects(store, put):
    """Local retention removed what was never shipped: the expiry comes first."""
    put(*manifest(), expired(9, 400))
    assert read_manifest(store, LOG, "t", 1).settled == 35


@pytest.mark.parametrize(
    "wrong", [expired(2, 24), expired(3, 30), expired(2, 25, log="00" * 16), expired(2, 25, partition=0)]
)
def test_an_expiry_that_does_not_fit_is_refused_with_its_key(store, put, wrong):
    put(*manifest(), wrong)
    with pytest.raises(Corrupt, match="an expiry") as caught:
        read_manifest(store, LOG, "t", 1)
    assert caught.value.path == layout.expired_key("t", 1, wrong.upto)


def test_an_expiry_under_another_number_is_refused(store, put):
    put(*manifest())
    store.create(layout.expired_key("t", 1, 3), Body.of(documents.encode(expired(2, 25))))
    with pytest.raises(Corrupt, match="an expiry belongs elsewhere"):
        read_manifest(store, LOG, "t", 1)


# -- topics -------------------------------------------------------------------------------------------------


def a_topic(**values: object) -> TopicDocument:
    schema = declare(pa.schema({"n": pa.int64()}))
    version = SchemaVersion(schema.fingerprint.hex(), b64encode(schema.serialize()).decode())
    draft = TopicDocument(
        log=LOG,
        topic="t",
        version=2,
        partitions=3,
        first_offset=5,
        schemas=(version,),
        retention=RetentionLimits(1, 2, 3),
    )
    return msgspec.structs.replace(draft, **values)


def put_topic(store: MemoryStore, document: TopicDocument, version: int = 2) -> None:
    store.create(layout.topic_key("t", version), Body.of(documents.encode(document)))


def test_the_newest_document_of_a_topic_counts(store):
    put_topic(store, a_topic(version=1, partitions=1), 1)
    put_topic(store, a_topic())
    assert read_topic(store, LOG, "t").partitions == 3


def test_a_topic_without_documents_is_damaged(store):
    with pytest.raises(Corrupt, match="missing") as caught:
        read_topic(store, LOG, "t")
    assert caught.value.path == layout.topic_folder("t")


BAD_TOPICS = [
    {"log": "00" * 16}, {"topic": "u"}, {"version": 1}, {"partitions": 0}, {"partitions": 10**9}, {"first_offset": -1},
    {"first_offset": 2**62}, {"retention": RetentionLimits(-1, 0, 0)}, {"retention": RetentionLimits(0, 2**63, 0)},
    {"schemas": (SchemaVersion("zz", "AA=="),)}, {"schemas": (SchemaVersion("00" * 16, "?"),)},
    {"schemas": (SchemaVersion("00" * 16, ""),)},
]  # fmt: skip


@pytest.mark.parametrize("wrong", BAD_TOPICS, ids=str)
def test_a_topic_that_cannot_be_is_refused_with_its_key(store, wrong):
    put_topic(store, a_topic(**wrong))
    with pytest.raises(Corrupt) as caught:
        read_topic(store, LOG, "t")
    assert caught.value.path == layout.topic_key("t", 2)


# -- many at once -------------------------------------------------------------------------------------------


def test_answers_come_in_order_and_the_first_failure_is_raised():
    assert in_parallel(lambda n: n * n, range(100), 7) == [n * n for n in range(100)]

    def fail(number: int) -> int:
        if number == 3:
            raise NotFound("three")
        return number

    with pytest.raises(NotFound, match="three"):
        in_parallel(fail, range(10))
