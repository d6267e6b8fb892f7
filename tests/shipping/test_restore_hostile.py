"""Restoring from a store that was damaged, mixed up or forged: it says where, and nothing half-way passes for a log.

Each kind of object is spoiled in each way. What says nothing that others do not say is passed over; everything else is
`Corrupt` with the object's key, found before anybody is shut out: the store is left as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

import holdfast
from holdfast import Corrupt, Invalid, Keyring, Log, NotFound, Settings
from holdfast.crypto import digests
from holdfast.crypto.signatures import Signer
from holdfast.model.entry import Entry, Place, header_of
from holdfast.root.objects import checkpoint, commit_batch, documents
from holdfast.root.objects.documents import ExpiredDocument, SegmentDocument, TopicDocument
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.store import layout
from holdfast.store.port import Body
from tests.segments.planting import TEN, fill
from tests.shipping.conftest import Root
from tests.shipping.test_restore import Bring, bring  # noqa: F401  (a fixture)

pytestmark = pytest.mark.store


def replace(root: Root, key: str, data: bytes | None) -> None:
    """Put other bytes under a key, or none."""
    root.store.delete([key])
    if data is not None:
        root.store.create(key, Body.of(data))


def ship_everything(open_one: Callable[..., Log], root: Root, **keys: Keyring) -> None:
    """Every kind of object: segments in two partitions, a tail behind a floor, checkpoints, an expiry, a takeover."""
    options = {"segments": TEN, "shipping": {"checkpoint_every": 2}, "to": root, **keys}
    log = open_one("first", **options)
    log.topic("orders", partitions=2)
    rows = log.topic("rows", schema=pa.schema({"n": pa.int64()}))
    for _ in range(2):
        fill(log, "orders", 1, partition=0)
        fill(log, "orders", 1, partition=1)
    rows.append([{"n": 1}])
    log.seal()
    log.ship(20)
    log.close()
    holdfast.restore(
        root.url, log.path.with_name(log.path.name.replace("first", "second")), settings=Settings(), **keys
    )
    log = open_one("second", **options)
    fill(log, "orders", 1, partition=0)
    log.ship(20)
    for turn in range(4):
        log.topic("orders").append(b"tail %d" % turn, partition=turn % 2, durability="shipped")
    log.topic("rows", schema="latest").append([{"n": 2}], durability="shipped")
    log.close()
    expired = ExpiredDocument(log=log.id, topic="orders", partition=0, upto=1, first=10, expired_us=1)
    own = RootStore(root.store, RootTrust(Signer.of(keys.get("keyring"))))
    own.create(layout.expired_key("orders", 0, 1), Body.of(documents.encode(expired)))


_made: dict[str, dict[str, bytes]] = {}
"""Objects of roots that were made once; tests spoil copies."""


@pytest.fixture
def made(open_shipped: Callable[..., Log], make_root: Callable[[], Root], keyring: Keyring) -> Callable[..., Root]:
    """A root with every kind of object: "plain", "encrypted", or "twin", another log's."""

    def make(kind: str) -> Root:
        if kind not in _made:
            root = make_root()
            opened = lambda name, **options: open_shipped(f"{kind}-{name}", **options)  # noqa: E731
            ship_everything(opened, root, **({"keyring": keyring} if kind == "encrypted" else {}))
            _made[kind] = {info.key: root.store.get(info.key) for info in root.infos()}
        copy = make_root()
        for key, data in _made[kind].items():
            copy.store.create(key, Body.of(data))
        return copy

    return make


RECORDS = 10 + 10 + 20 + 1 + 4 + 1
"""What comes back of it: the first segment is retired."""


@pytest.fixture(params=["plain", "encrypted"])
def kind_of_log(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def keys(kind_of_log: str, keyring: Keyring) -> dict[str, Keyring]:
    return {} if kind_of_log == "plain" else {"keyring": keyring}


@pytest.fixture
def shipped(made: Callable[..., Root], kind_of_log: str) -> Root:
    return made(kind_of_log)


@pytest.fixture
def plain(made: Callable[..., Root]) -> Root:
    return made("plain")


def without_checkpoints(root: Root) -> Root:
    root.store.delete([info.key for info in root.infos() if "/_checkpoints/" in info.key])
    return root


def numbered(root: Root, part: str, index: int = -1) -> str:
    """The key of one of the objects that have this in their key."""
    return [info.key for info in root.infos() if part in info.key][index]


KINDS = {
    "log": ("log.json", 0), "claim": ("epochs/", -1), "batch": (".arrow", 1), "floor": (".floor", -1),
    "adoption": (".adopted", -1), "topic": ("orders/_topic/", -1), "segment": ("orders/1/segments/", -1),
    "manifest": ("orders/1/_manifest/", 1), "start": ("orders/1/_manifest/", 2), "expiry": ("/_expired/", -1),
    "typed segment": ("rows/0/segments/", 0), "first manifest": ("rows/0/_manifest/", 0),
}  # fmt: skip

SPOILS: dict[str, Callable[[bytes], bytes]] = {
    "flipped early": lambda data: flipped(data, 0),
    "flipped in the middle": lambda data: flipped(data, len(data) // 2),
    "flipped at the end": lambda data: flipped(data, len(data) - 1),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"\n",
}
DAMAGES = [(kind, spoil) for kind in KINDS for spoil in SPOILS if not ("segment" in kind and spoil == "longer")]
"""What lies behind a segment's bytes is never read."""


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]


def refused(root: Root, bring: Bring, **options: object) -> Corrupt:  # noqa: F811
    """It does not come back, and the store is as it was."""
    before = root.objects()
    with pytest.raises(Corrupt) as caught:
        bring(of=root, **options)
    assert root.objects() == before
    return caught.value


def test_what_is_whole_comes_back(shipped, bring, keys):  # noqa: F811
    report = bring(of=shipped, **keys)
    assert (report.records, report.expired, report.cut_batches) == (RECORDS, 1, 0)


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("kind", "spoil"), DAMAGES)
def test_a_damaged_object_is_reported_with_its_key(shipped, bring, keys, kind, spoil, tmp_path):  # noqa: F811
    """Nothing passes for a log meanwhile; and when it is put back, the same directory is restored."""
    key = numbered(without_checkpoints(shipped), *KINDS[kind])
    whole = shipped.store.get(key)
    replace(shipped, key, SPOILS[spoil](whole))
    error = refused(shipped, bring, **keys)
    assert key in error.message
    with pytest.raises((Invalid, NotFound)):
        holdfast.open(tmp_path / "back", read_only=True, **keys)
    replace(shipped, key, whole)
    assert bring(of=shipped, **keys).records == RECORDS


MISSING = {"manifest": None, "first manifest": None, "segment": None, "typed segment": None, "topic": "orders/_topic/"}


@pytest.mark.parametrize("kind", MISSING)
def test_a_missing_object_is_reported(shipped, bring, keys, kind):  # noqa: F811
    key = numbered(without_checkpoints(shipped), *KINDS[kind])
    whole = shipped.store.get(key)
    replace(shipped, key, None)
    error = refused(shipped, bring, **keys)
    assert (MISSING[kind] or key) in error.message
    replace(shipped, key, whole)
    assert bring(of=shipped, **keys).records == RECORDS


@pytest.mark.parametrize("spoil", [*SPOILS, "missing"])
def test_a_checkpoint_says_nothing_that_the_objects_do_not_say(plain, bring, spoil):  # noqa: F811
    """A damaged one, or none, is passed over."""
    key = numbered(plain, "orders/0/_checkpoints/")
    data = plain.store.get(key)
    replace(plain, key, SPOILS[spoil](data) if spoil in SPOILS else None)
    assert bring(of=plain).records == RECORDS


def test_a_checkpoint_does_not_hide_what_came_after_it(plain, bring):  # noqa: F811
    key = numbered(plain, "orders/0/_checkpoints/")
    known = list(checkpoint.decode(plain.store.get(key), key))
    replace(plain, key, None)
    shorter = layout.checkpoint_key("orders", 0, len(known) - 2)
    replace(plain, shorter, checkpoint.encode(known[:-1]))
    assert bring(of=plain).records == RECORDS


def test_a_newest_manifest_object_that_is_missing_is_reported_by_the_tail(shipped, bring, keys):  # noqa: F811
    """A chain does not show that its last link is gone; the commit batches do, whose floor counts on it."""
    key = numbered(without_checkpoints(shipped), "orders/0/_manifest/")
    replace(shipped, key, None)
    refusal = refused(shipped, bring, **keys).message
    # Which of the two depends on whether the floor was written before the log was closed.
    assert re.search("segments are missing that a floor counts on|acknowledged as shipped are missing", refusal)


SWAPS = [
    ("orders/0/segments/", 1, "orders/1/segments/", 0), ("orders/0/_manifest/", 1, "orders/1/_manifest/", 1),
    ("orders/0/_manifest/", 0, "orders/0/_manifest/", 1), ("orders/_topic/", 0, "rows/_topic/", 0),
    (".arrow", 0, ".arrow", 1), ("epochs/", -1, "epochs/", 0), (".floor", 0, ".adopted", 0),
    ("orders/0/segments/", 1, "orders/0/segments/", 2), ("log.json", 0, "epochs/", 0),
    ("orders/1/_manifest/", 2, "orders/0/_manifest/", 2),
]  # fmt: skip


@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: f"{swap[0]}{swap[1]} and {swap[2]}{swap[3]}")
def test_objects_that_were_swapped_are_reported(shipped, bring, keys, swap):  # noqa: F811
    without_checkpoints(shipped)
    one, two = numbered(shipped, *swap[:2]), numbered(shipped, *swap[2:])
    first, second = shipped.store.get(one), shipped.store.get(two)
    replace(shipped, one, second)
    replace(shipped, two, first)
    error = refused(shipped, bring, **keys)
    assert one in error.message or two in error.message


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "log"])
def test_another_logs_objects_are_reported(plain, made, bring, kind):  # noqa: F811
    """Made in the very same way, and put under the very same key."""
    twin = made("twin")
    key, theirs = numbered(without_checkpoints(plain), *KINDS[kind]), numbered(twin, *KINDS[kind])
    replace(plain, key, twin.store.get(theirs))
    assert key in refused(plain, bring).message


def test_another_logs_document_at_the_root_is_reported(plain, made, bring):  # noqa: F811
    """Then nothing else is its own."""
    replace(plain, layout.LOG, made("twin").store.get(layout.LOG))
    refused(plain, bring)


# -- documents that are whole and say what cannot be --------------------------------------------------------


def forge(root: Root, key: str, **values: object) -> None:
    """Change a document and make its check right."""
    document = documents._decoder.decode(root.bare(key))
    replace(root, key, documents.encode(msgspec.structs.replace(document, **values)))


FORGERIES = [
    ("log.json", {"log": "../../etc"}), ("log.json", {"created_us": 2**80}),
    ("orders/_topic/", {"partitions": 1}), ("orders/_topic/", {"partitions": 10**15}),
    ("orders/_topic/", {"topic": "../../etc"}), ("orders/_topic/", {"first_offset": 2**70}),
    ("rows/_topic/", {"schemas": ()}), ("rows/_topic/", {"schemas": (documents.SchemaVersion("00" * 16, "AAAA"),)}),
    ("orders/1/_manifest/", {"sha256": "xyz"}), ("orders/1/_manifest/", {"first": 3}),
    ("orders/1/_manifest/", {"topic": "../../x"}), ("/_expired/", {"upto": 2**70}), ("/_expired/", {"first": 11}),
    (".floor", {"seq": 2**60}), (".adopted", {"epoch": 7}), ("epochs/", {"epoch": 77}), ("epochs/", {"log": "00" * 16}),
]  # fmt: skip


@pytest.mark.parametrize(("part", "values"), FORGERIES, ids=str)
def test_a_forged_document_is_reported_and_nothing_is_written_outside(plain, bring, part, values, tmp_path):  # noqa: F811
    key = numbered(without_checkpoints(plain), part, 0 if "manifest" in part else -1)
    forge(plain, key, **values)
    outside = sorted(tmp_path.rglob("*"))
    assert key in refused(plain, bring).message
    assert [path for path in sorted(tmp_path.rglob("*")) if tmp_path / "back" not in (path, *path.parents)] == outside


HOSTILE = [
    b"null", b"[]", b"{}", b"[" * 60_000, b'{"type":"log"}', b"\xff\xfe", b'{"type":"nobody","format":1}',
    json.dumps({"type": "segment", "format": 1, "log": 7}).encode(), b'{"format":1e400}', b"0" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:20]))
@pytest.mark.parametrize("kind", ["log", "claim", "floor", "adoption", "topic", "manifest", "expiry"])
def test_hostile_json_is_damage(plain, bring, kind, data):  # noqa: F811
    key = numbered(without_checkpoints(plain), *KINDS[kind])
    replace(plain, key, data)
    assert key in refused(plain, bring).message


def test_an_object_of_a_newer_holdfast_is_no_damage(plain, bring):  # noqa: F811
    """It says so."""
    key = numbered(plain, "orders/_topic/")
    replace(plain, key, plain.store.get(key).replace(b'"format":1', b'"format":3'))
    with pytest.raises(Invalid, match="another version of holdfast"):
        bring(of=plain)


def test_foreign_keys_are_left_alone(plain, bring):  # noqa: F811
    """Whatever somebody keeps beside a log in its root."""
    foreign = [
        "README.md", "topics/README", "topics/orders/notes.txt", "topics/-x/_topic/" + "0" * 20 + ".json",
        "tail/notes", "epochs/notes", "topics/orders/_topic/draft.json", "topics/orders/0/segments/x.parquet",
        "topics/a b/0/_manifest/" + "0" * 20 + ".json", "backup/log.json",
    ]  # fmt: skip
    for key in foreign:
        plain.store.create(key, Body.of(b"mine"))
    assert bring(of=plain).records == RECORDS
    assert all(plain.store.get(key) == b"mine" for key in foreign)


# -- encrypted logs: nobody without the key makes anything ----------------------------------------------------


def test_a_plain_log_does_not_pass_for_an_encrypted_one(open_shipped, root, bring, keyring, make_root):  # noqa: F811
    """A segment and its manifest object, both made without the key, in their right places."""
    log = open_shipped(segments=TEN, keyring=keyring)
    fill(log, "orders", 1)
    fill(log, "other", 1)
    log.ship(20)
    log.close()
    forger = make_root()
    forged = open_shipped("forger", to=forger, segments=TEN)
    fill(forged, "orders", 1)
    forged.ship(20)
    forged.close()
    path = next(forged.path.rglob("*.parquet"))
    with SegmentReader(path, None, None, None) as reader:
        facts = reader.verify()
    key = numbered(root, "orders/0/_manifest/")
    document = documents.decode_manifest(root.bare(key), key)
    assert isinstance(document, SegmentDocument)
    segment = layout.segment_key("orders", 0, 0, facts.sha256)
    root.store.create(segment, Body.of(path.read_bytes()))
    forge(root, key, sha256=facts.sha256.hex(), size=facts.size, footer=facts.footer.hex(), key_id="")
    with pytest.raises(Corrupt):
        bring(keyring=keyring)
    assert len(root.keys(layout.EPOCHS)) == 1


def test_a_segment_that_another_key_made_is_reported(open_shipped, root, bring, keyring, make_root):  # noqa: F811
    """Same log, same place, same numbers: only its key tells."""
    log = open_shipped(segments=TEN, keyring=keyring)
    fill(log, "orders", 1)
    log.ship(20)
    log.close()
    with pytest.raises(Invalid):
        bring(keyring=Keyring({"k1": bytes(32)}))
    assert len(root.keys(layout.EPOCHS)) == 1


def test_a_plain_entry_does_not_pass_in_an_encrypted_tail(open_shipped, root, bring, keyring):  # noqa: F811
    log = open_shipped(keyring=keyring)
    log.topic("orders").append(b"one", durability="shipped")
    log.topic("orders").append(b"two", durability="shipped")
    log.close()
    _, second = root.batches()
    entry = second.entries[0]
    plain = Entry(entry.seq, 0, *entry[3:-1])._replace(key_epoch=0, body=b"forged", digest=b"")
    digest = digests.digest(header_of(Place(second.log_id, "orders", 0), plain), b"forged")
    forged = entry._replace(key_epoch=0, body=b"forged", digest=digest)
    key = layout.batch_key(1, 2, 2)
    replace(root, key, commit_batch.encode(second._replace(keys=(), entries=[forged])))
    assert "is not signed" in refused(root, bring, keyring=keyring).message
    root.sign(key, keyring)  # as if signatures were worth nothing: the entry itself proves nothing either
    assert "is not encrypted, but its log is" in refused(root, bring, keyring=keyring).message


def test_two_batches_that_disagree_are_reported(open_shipped, root, bring):  # noqa: F811
    log = open_shipped()
    log.topic("orders").append(b"one", durability="shipped")
    log.close()
    (batch,) = root.batches()
    entry = batch.entries[0]
    other = Entry(entry.seq, 0, *entry[3:-1])._replace(time_max=entry.time_max + 1)
    digest = digests.digest(header_of(Place(batch.log_id, "orders", 0), other), entry.body)
    forged = entry._replace(time_max=entry.time_max + 1, digest=digest)
    key = layout.batch_key(2, 1, 1)
    root.store.create(key, Body.of(commit_batch.encode(batch._replace(epoch=2, entries=[forged]))))
    assert key in refused(root, bring).message


def test_a_topic_document_may_be_an_older_one_if_nothing_needs_the_newer(open_shipped, root, bring):  # noqa: F811
    """A version that only changed the policy; what is typed under a newer schema would be reported."""
    log = open_shipped()
    log.topic("rows", schema=pa.schema({"n": pa.int64()})).append([{"n": 1}], durability="shipped")
    wider = log.topic("rows", schema=pa.schema({"n": pa.int64(), "m": pa.int64()}))
    wider.append([{"n": 2, "m": 3}], durability="shipped")
    log.close()
    key = numbered(root, "rows/_topic/")
    whole = root.store.get(key)
    assert documents.decode(whole, key, TopicDocument).version == 2
    replace(root, key, None)
    assert "a schema that is in no document of their topic" in refused(root, bring).message
    replace(root, key, whole)
    assert bring().records == 2
