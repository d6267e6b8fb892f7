"""A sink's topic at a root, read by others: the newest batch as a whole, whatever is missing, and nothing forged."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

import holdfast
from holdfast import Corrupt, Keyring
from holdfast.clock import SystemClock
from holdfast.root.batch_application import apply, manifest_key_of
from holdfast.root.objects import documents, signature_place
from holdfast.root.objects.documents import RetentionLimits, SinkBatchDocument
from holdfast.root.rewrite_sweep import Grace
from holdfast.sink.sink_retention import SinkRetention
from holdfast.store import layout
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import Body, StoreRefused
from tests.sink_topics import SinkTopic

pytestmark = pytest.mark.store


@pytest.fixture
def place(tmp_path):
    return tmp_path / "root"


def store_of(place):
    return DirectoryStore(place, SystemClock())


def payloads(place, **options):
    rows = holdfast.read(str(place), "spark", **options).to_arrow().to_pylist()
    return sorted(row["payload"] for row in rows)


ALL = [{}, {"include_tail": True}, {"verify": "full"}]


class Failing(DirectoryStore):
    """Refuses one object."""

    def __init__(self, place, key):
        super().__init__(place, SystemClock())
        self._key = key

    def create(self, key, body):
        if key == self._key:
            raise StoreRefused(f"no key={key}")
        super().create(key, body)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("failing", range(6))
def test_a_batch_is_there_as_a_whole_wherever_its_application_stopped(place, failing):
    """Manifest objects never have a hole, so readers take the rest from the batch; and the next writer writes it."""
    sink = SinkTopic(store_of(place))
    sink.write({0: [[b"0"]]})
    batch = sink.write({0: [[b"1"], [b"2"], [b"3"]], 1: [[b"4"]], 2: [[b"5"], [b"6"]]}, applied=False)
    with pytest.raises(StoreRefused):
        apply(Failing(place, manifest_key_of(batch.segments[failing])), batch)
    for options in ALL:
        assert payloads(place, **options) == [b"%d" % i for i in range(7)]
    apply(sink.store, sink.newest)
    for segment in batch.segments:
        assert sink.store.get(manifest_key_of(segment)) == documents.encode(segment)


def test_files_that_no_batch_names_are_not_there(place):
    """Neither those of an attempt that lost, nor those of a task that is still at work."""
    sink = SinkTopic(store_of(place))
    sink.write({0: [[b"a"]]})
    sink.document({0: [[b"lost"]], 1: [[b"lost"]]})
    assert payloads(place) == [b"a"]


@pytest.mark.parametrize("is_keyed", [False, True], ids=["plain", "keyed"])
def test_readers_agree_with_a_list_while_files_are_joined_and_retired(place, keyring, seed, is_keyed):
    """Batches, applied or not, compactions and retention in any order; of a root with keys, too."""
    chance, (keys, reference) = Random(seed), keyring if is_keyed else (None, "")
    options = {"keyring": reference} if is_keyed else {}
    sink = SinkTopic(store_of(place), keyring=keys)
    rows: dict[int, list[list[bytes]]] = {}
    sink.write({})
    for step in range(15):
        deed = chance.choice(["write", "write", "half", "compact", "retire"])
        if deed in ("write", "half"):
            made = {at: [[b"%d-%d" % (step, at)] * chance.randrange(1, 4)] for at in range(chance.randrange(4))}
            sink.write(made, applied=deed == "write")
            for at, parts in made.items():
                rows.setdefault(at, []).extend(parts)
        elif deed == "compact":
            holdfast.compact(str(place), "spark", delete_after_ms=0, **options)
        else:
            retention = SinkRetention(sink.store, SystemClock(), Grace(0, 0))
            retention.set_policy("spark", RetentionLimits(0, 0, 2))
            retention.apply(*retention.topics())
            retention.set_policy("spark", None)
            sink.version = retention.topics()[0].version
            rows = {at: _newest(parts, 2) for at, parts in rows.items()}
        expected = sorted(row for parts in rows.values() for part in parts for row in part)
        assert payloads(place, **options, **chance.choice(ALL)) == expected, deed


def _newest(parts, count):
    """The newest parts that hold so many rows; the last one in any case."""
    while len(parts) > 1 and sum(map(len, parts[1:])) >= count:
        parts = parts[1:]
    return parts


# -- an attacker who can write to the store, and has no key -------------------------------------------------


@pytest.fixture
def keyring(tmp_path):
    path = tmp_path / "keys"
    keyring = Keyring.generate("k")
    keyring.save(path)
    return keyring, f"file:{path}"


@pytest.fixture
def keyed(place, keyring):
    sink = SinkTopic(store_of(place), keyring=keyring[0])
    sink.write({0: [[b"a"]]}, writer="w", batch=0)
    sink.write({0: [[b"b"]], 1: [[b"c"]]}, writer="w", batch=1)
    return sink


def test_a_keyed_root_is_read_with_its_keys(place, keyed, keyring):
    for options in ALL:
        assert payloads(place, keyring=keyring[1], **options) == [b"a", b"b", b"c"]


def test_an_unsigned_batch_is_not_taken(place, keyed, keyring):
    """A reader says where it stands, and shows nothing of it."""
    forged = keyed.document({0: [[b"mine"]]}, plain=True)
    key = layout.sink_key("spark", forged.number)
    store_of(place).create(key, Body.of(documents.encode(forged)))
    for options in ALL:
        with pytest.raises(Corrupt) as caught:
            payloads(place, keyring=keyring[1], **options)
        assert caught.value.path == key


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_signed_batch_is_not_taken_in_another_place(place, keyed, keyring, number):
    """An old batch replayed as the newest would bring marks back, and rows twice."""
    store = store_of(place)
    data = store.get(layout.sink_key("spark", 0))
    key = layout.sink_key("spark", 2 if number == 3 else number)
    store.delete([key])
    store.create(key, Body.of(data))
    if number == 0:  # its own place: nothing has changed
        assert payloads(place, keyring=keyring[1]) == [b"a", b"b", b"c"]
        return
    with pytest.raises(Corrupt):
        payloads(place, keyring=keyring[1])


def test_a_batch_of_another_topic_or_log_is_not_taken(place, keyed, keyring, tmp_path):
    other = SinkTopic(store_of(place), "other", keyring=keyring[0])
    other.write({0: [[b"x"]]})
    store = store_of(place)
    store.create(layout.sink_key("spark", 2), Body.of(store.get(layout.sink_key("other", 0))))
    with pytest.raises(Corrupt):
        payloads(place, keyring=keyring[1])


def test_a_plain_segment_in_a_signed_batch_is_not_taken(place, keyed, keyring):
    """A writer that has the key and forgets to encrypt is found, too."""
    keyed.commit(keyed.document({0: [[b"plain"]]}, plain=True))
    with pytest.raises(Corrupt, match="not encrypted"):
        payloads(place, keyring=keyring[1])


def test_a_manifest_object_that_no_batch_says_adds_no_rows(place, keyed, keyring):
    """Also one with a signature: what a topic has is what its newest batch says."""
    coming = keyed.document({0: [[b"not yet"]]})
    for segment in coming.segments:
        keyed.store.create(manifest_key_of(segment), Body.of(documents.encode(segment)))
    for options in ALL:
        assert payloads(place, keyring=keyring[1], **options) == [b"a", b"b", b"c"]


def test_without_the_newest_batch_a_topic_ends_before_it_in_all_partitions(place, keyed, keyring):
    """As a log without its newest manifest objects: a removal looks like what never was, but is whole."""
    store_of(place).delete([layout.sink_key("spark", 1)])
    for options in ALL:
        assert payloads(place, keyring=keyring[1], **options) == [b"a"]


def test_a_batch_that_was_changed_is_not_taken(place, keyed, keyring):
    """Without its signature, or with the old one."""
    store, key = store_of(place), layout.sink_key("spark", 1)
    stored = store.get(key)
    data, _ = signature_place.detach(key, stored)
    batch = documents.decode(data, key, SinkBatchDocument)
    changed = documents.encode(msgspec.structs.replace(batch, marks={"w": 0}))
    signature = stored[len(data) - 2 :]  # two more fields at the end of the object
    for forged in (data, changed, changed[:-2] + signature):
        store.delete([key])
        store.create(key, Body.of(forged))
        with pytest.raises(Corrupt):
            payloads(place, keyring=keyring[1])


def test_a_topic_document_without_a_signature_is_not_taken(place, keyed, keyring):
    """A log's topic is not made a sink's, nor the reverse, by somebody without the key."""
    document = documents.TopicDocument(log=keyed.log, topic="spark", version=3, partitions=2, first_offset=0)
    store_of(place).create(layout.topic_key("spark", 3), Body.of(documents.encode(document)))
    with pytest.raises(Corrupt):
        payloads(place, keyring=keyring[1])
