"""Somebody who can write to the store, and has no key, forges what a log with keys has there: readers refuse all of it.

The attacker here has this very software, all objects, and no key. He strips signatures, changes what documents say and
makes their checks right again. Every reader with the keyring gives the true rows or says `Corrupt`; never other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast import Corrupt, HoldfastError, Invalid, Keyring, Log, NotFound, Settings
from holdfast.root.objects import checkpoint, documents, signature_place
from holdfast.root.objects.documents import (
    AdoptedDocument,
    EpochDocument,
    ExpiredDocument,
    FloorDocument,
    LogDocument,
    RetentionLimits,
    SegmentDocument,
    TopicDocument,
)
from holdfast.segments.file.segment_columns import RAW_SCHEMA
from holdfast.store import layout
from tests.segments.planting import TEN, fill

pytestmark = pytest.mark.store

PLACE = ("orders", 0)


class Attacker:
    """Writes files below a root; knows the formats, and no key."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def bare(self, key: str) -> bytes:
        """What an object says, without its signature."""
        return signature_place.detach(key, (self.root / key).read_bytes())[0]

    def signature(self, key: str) -> signature_place.Signature:
        found = signature_place.detach(key, (self.root / key).read_bytes())[1]
        assert found is not None, "objects of a log with keys are signed"
        return found

    def write(self, key: str, data: bytes, signature: signature_place.Signature | None = None) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if signature is None else signature_place.attach(key, data, signature))

    def change(self, key: str, kind: type[documents.Kind], *, keep_signature: bool = False, **fields: object) -> None:
        """Make a document say something else, with the right check; and maybe with the signature that it had."""
        document = msgspec.structs.replace(documents.decode(self.bare(key), key, kind), **fields)
        self.write(key, documents.encode(document), self.signature(key) if keep_signature else None)  # type: ignore[arg-type]


@pytest.fixture
def key_file(tmp_path: Path, keyring: Keyring) -> str:
    keyring.save(tmp_path / "keys")
    return f"file:{tmp_path / 'keys'}"


@pytest.fixture
def log(open_shipped: Callable[..., Log], keyring: Keyring) -> Log:
    """Thirty records in three segments, a checkpoint, and a tail of two."""
    log = open_shipped(keyring=keyring, segments=TEN, shipping={"checkpoint_every": 2})
    fill(log, "orders", 3)
    log.ship(30)
    for payload in (b"30", b"31"):
        log.topic("orders").append(payload, durability="shipped")
    log.close()
    return log


@pytest.fixture
def attacker(log: Log, root: Path) -> Attacker:
    return Attacker(root)


@pytest.fixture
def answers(root: Path, key_file: str) -> Callable[[], list[object]]:
    """What each way of reading says: the offsets, or the kind of error."""

    def offsets(**options: object) -> list[int]:
        reading = holdfast.read(str(root), "orders", keyring=key_file, columns=["offset", "payload"], **options)
        rows = reading.to_arrow().to_pylist()
        assert all(row["payload"] == b"%d" % row["offset"] for row in rows), "other bytes than were written"
        return [row["offset"] for row in rows]

    def ask(question: Callable[[], object]) -> object:
        try:
            return question()
        except HoldfastError as error:
            return type(error)

    def all_answers() -> list[object]:
        return [
            ask(lambda: offsets()),
            ask(lambda: offsets(verify="full")),
            ask(lambda: offsets(starting_timestamp=0, ending_timestamp=2**61)),
            ask(lambda: holdfast.read(str(root), "orders", keyring=key_file).count()),
            ask(lambda: offsets(include_tail=True)),
        ]

    return all_answers


TRUE = [list(range(30)), list(range(30)), list(range(30)), 30, list(range(32))]


def require_true_or_refused(found: list[object]) -> None:
    wrong = [(answer, true) for answer, true in zip(found, TRUE, strict=True) if answer not in (true, Corrupt)]
    assert not wrong, "a forged object changed an answer"


def plant_plain_segment(attacker: Attacker, log: Log, tmp_path: Path, open_log: Callable[..., Log]) -> None:
    """The downgrade: a plain segment of the attacker's own, and a manifest object that says so, with no key id."""
    own = open_log("attackers", segments=TEN)
    fill(own, "orders", 1)
    own.close()
    theirs = Attacker(own.path / "segments")
    name = layout.manifest_key(*PLACE, 0)
    document = documents.decode(theirs.bare(name), name, SegmentDocument)
    last = documents.decode(attacker.bare(layout.manifest_key(*PLACE, 2)), "", SegmentDocument)
    forged = msgspec.structs.replace(
        document, log=last.log, slot=3, number=3, first=30, previous=last.chain, chain="00" * 32
    )
    source = layout.segment_key(*PLACE, 0, bytes.fromhex(document.sha256))
    target = layout.segment_key(*PLACE, 3, bytes.fromhex(document.sha256))
    attacker.write(target, (theirs.root / source).read_bytes())
    attacker.write(layout.manifest_key(*PLACE, 3), documents.encode(forged))


def forge_expiry(attacker: Attacker, log: Log) -> None:
    document = ExpiredDocument(log=log.id, topic="orders", partition=0, upto=2, first=20, expired_us=1)
    attacker.write(layout.expired_key(*PLACE, 2), documents.encode(document))


def forge_extra_segment(attacker: Attacker, log: Log) -> None:
    document = documents.decode(attacker.bare(layout.manifest_key(*PLACE, 2)), "", SegmentDocument)
    forged = msgspec.structs.replace(document, slot=3, number=3, first=30, previous=document.chain)
    attacker.write(layout.manifest_key(*PLACE, 3), documents.encode(forged))


ATTACKS: dict[str, Callable[[Attacker, Log], None]] = {
    "an expiry that hides rows": forge_expiry,
    "another time range": lambda a, log: a.change(
        layout.manifest_key(*PLACE, 1), SegmentDocument, time_min=2**61, time_max=2**61
    ),
    "another time range, with the old signature": lambda a, log: a.change(
        layout.manifest_key(*PLACE, 1), SegmentDocument, time_min=2**61, time_max=2**61, keep_signature=True
    ),
    "one more manifest object": forge_extra_segment,
    "a manifest object of another slot": lambda a, log: (a.root / layout.manifest_key(*PLACE, 1)).write_bytes(
        (a.root / layout.manifest_key(*PLACE, 0)).read_bytes()
    ),
    "fewer rows": lambda a, log: a.change(layout.manifest_key(*PLACE, 2), SegmentDocument, rows=3),
    "no key": lambda a, log: a.change(layout.manifest_key(*PLACE, 2), SegmentDocument, key_id=""),
    "a topic that begins later": lambda a, log: a.change(
        layout.topic_key("orders", 1), TopicDocument, first_offset=20
    ),
    "a newer topic document": lambda a, log: a.write(
        layout.topic_key("orders", 2),
        documents.encode(TopicDocument(log=log.id, topic="orders", version=2, partitions=1, first_offset=30)),
    ),
    "a floor": lambda a, log: a.write(
        layout.floor_key(1, 10**6), documents.encode(FloorDocument(log=log.id, epoch=1, seq=10**6))
    ),
    "an adoption": lambda a, log: a.write(
        layout.adopted_key(2, 0), documents.encode(AdoptedDocument(log=log.id, epoch=2, seq=0))
    ),
    "a commit batch without its signature": lambda a, log: [
        a.write(key, a.bare(key)) for key in batches(a)
    ] and None,
    "a commit batch under another name": lambda a, log: [
        a.write(layout.batch_key(1, 33, 40), (a.root / key).read_bytes()) for key in batches(a)[-1:]
    ] and None,
    "a checkpoint of what never was": lambda a, log: forge_checkpoint(a, len(RAW_SCHEMA)),
    "the name of a checkpoint": lambda a, log: a.write(layout.checkpoint_key(*PLACE, 99), b"nothing"),
    "an empty object": lambda a, log: a.write(layout.manifest_key(*PLACE, 2), b""),
}  # fmt: skip


def batches(attacker: Attacker) -> list[str]:
    found = (path.relative_to(attacker.root).as_posix() for path in (attacker.root / "tail").rglob("*.arrow"))
    return sorted(found)


def forge_checkpoint(attacker: Attacker, rows: int) -> None:
    keys = [layout.manifest_key(*PLACE, slot) for slot in range(3)]
    objects = [documents.decode(attacker.bare(key), key, SegmentDocument) for key in keys]
    objects[1] = msgspec.structs.replace(objects[1], time_min=2**61, time_max=2**61)
    attacker.write(layout.checkpoint_key(*PLACE, 2), checkpoint.encode(objects))


def test_what_is_true_is_read(attacker: Attacker, answers: Callable[[], list[object]]) -> None:
    assert answers() == TRUE


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_forged_object_changes_an_answer(
    attack: str, attacker: Attacker, log: Log, answers: Callable[[], list[object]]
) -> None:
    ATTACKS[attack](attacker, log)
    require_true_or_refused(answers())


def test_a_plain_segment_is_no_part_of_an_encrypted_log(
    attacker: Attacker, log: Log, answers: Callable[[], list[object]], tmp_path: Path, open_log: Callable[..., Log]
) -> None:
    plant_plain_segment(attacker, log, tmp_path, open_log)
    require_true_or_refused(answers())


def test_a_plain_log_in_its_place_is_refused(attacker: Attacker, log: Log, answers: Callable[[], list[object]]) -> None:
    attacker.write(layout.LOG, attacker.bare(layout.LOG))
    assert set(answers()) == {Invalid}


def test_another_log_of_the_same_keyring_is_refused_where_the_log_is_named(
    log: Log, root: Path, key_file: str, keyring: Keyring, open_log: Callable[..., Log], tmp_path: Path
) -> None:
    other = open_log("other", keyring=keyring, settings=Settings.from_mapping({"store": {"url": str(tmp_path / "o")}}))
    other.topic("orders").append(b"0", durability="shipped")
    other.close()
    holdfast.read(str(root), "orders", keyring=key_file, log_id=log.id)
    root.rename(tmp_path / "gone")
    (tmp_path / "o").rename(root)
    with pytest.raises(Invalid, match="belongs to another log"):
        holdfast.read(str(root), "orders", keyring=key_file, log_id=log.id)
    with pytest.raises(Invalid, match="belongs to another log"):
        holdfast.restore(str(root), tmp_path / "restored", keyring=keyring, settings=Settings(), log_id=log.id)


# -- restoring --------------------------------------------------------------------------------------------

RESTORE_ATTACKS = {
    name: ATTACKS[name]
    for name in ATTACKS
    if name not in ("the name of a checkpoint", "a checkpoint of what never was")  # passed over: the objects say it all
}
RESTORE_ATTACKS["a policy that deletes everything"] = lambda a, log: a.change(
    layout.topic_key("orders", 1), TopicDocument, retention=RetentionLimits(1, 1, 1)
)
RESTORE_ATTACKS["a claim"] = lambda a, log: a.write(
    layout.epoch_key(2),
    documents.encode(
        EpochDocument(log=log.id, epoch=2, purpose="open", nonce="00" * 16, claimed_us=1, host="x", pid=1)
    ),
)


@pytest.mark.parametrize("attack", RESTORE_ATTACKS)
def test_a_restore_takes_over_the_true_log_or_nothing(
    attack: str,
    attacker: Attacker,
    log: Log,
    root: Path,
    keyring: Keyring,
    tmp_path: Path,
    open_log: Callable[..., Log],
) -> None:
    RESTORE_ATTACKS[attack](attacker, log)
    before = sorted(path for path in root.rglob("*") if path.is_file())
    try:
        holdfast.restore(str(root), tmp_path / "restored", keyring=keyring, settings=Settings())
    except (Corrupt, NotFound):
        assert sorted(path for path in root.rglob("*") if path.is_file()) == before, "nobody was shut out"
        return
    topic = open_log("restored", keyring=keyring).topic("orders")
    assert [record.payload for record in topic.read()] == [b"%d" % number for number in range(32)]


# -- the owner --------------------------------------------------------------------------------------------


def test_a_forged_claim_shuts_no_owner_out(open_shipped: Callable[..., Log], keyring: Keyring, root: Path) -> None:
    """Shipping stops, with an alarm: the store cannot be trusted. Appending goes on."""
    log = open_shipped(keyring=keyring)
    topic = log.topic("orders")
    topic.append(b"0", durability="shipped")
    claim = EpochDocument(log=log.id, epoch=2, purpose="restore", nonce="00" * 16, claimed_us=1, host="x", pid=1)
    Attacker(root).write(layout.epoch_key(2), documents.encode(claim))
    with pytest.raises(Corrupt):
        topic.append(b"1", durability="shipped")
    assert topic.append(b"2").offset == 2
    log.close()
    assert [record.payload for record in open_shipped(keyring=keyring).topic("orders").read()] == [b"0", b"1", b"2"]


def test_a_forged_object_in_the_place_of_the_next_one_holds_nothing_up(
    open_shipped: Callable[..., Log], keyring: Keyring, root: Path, key_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can have written it but somebody without the key, and nobody has taken over: it goes, ours comes."""
    log = open_shipped(keyring=keyring, segments=TEN)
    fill(log, "orders", 1)
    log.ship(30)
    forge_extra = msgspec.structs.replace(
        documents.decode(Attacker(root).bare(layout.manifest_key(*PLACE, 0)), "", SegmentDocument), slot=1, number=1
    )
    Attacker(root).write(layout.manifest_key(*PLACE, 1), documents.encode(forge_extra))
    fill(log, "orders", 2)
    log.ship(30)
    log.close()
    assert [record for record in caplog.records if getattr(record, "action", "") == "forgery_removed"]
    assert holdfast.read(str(root), "orders", keyring=key_file).count() == 30


@pytest.mark.parametrize(
    "attack",
    [
        "an expiry that hides rows",
        "a newer topic document",
        "a floor",
        "an adoption",
        "a commit batch under another name",
        "the name of a checkpoint",
        "another time range",
        "fewer rows",
    ],
)
def test_what_was_forged_does_not_stop_the_owner_and_is_never_signed_by_a_repair(
    attack: str,
    attacker: Attacker,
    log: Log,
    root: Path,
    key_file: str,
    keyring: Keyring,
    tmp_path: Path,
    open_shipped: Callable[..., Log],
    answers: Callable[[], list[object]],
    open_log: Callable[..., Log],
) -> None:
    """The owner ships on; a repair removes the forgery or writes the truth; then every reader reads what is true."""
    ATTACKS[attack](attacker, log)
    owner = open_shipped(keyring=keyring, segments=TEN, shipping={"checkpoint_every": 2})
    assert owner.topic("orders").append(b"32", durability="shipped").offset == 32
    owner.reconcile(remote=True, fix=True, deep=True)
    assert owner.reconcile(remote=True, deep=True).clean
    owner.close()
    assert answers() == [*TRUE[:4], list(range(33))]
    holdfast.restore(str(root), tmp_path / "restored", keyring=keyring, settings=Settings())
    restored = open_log("restored", keyring=keyring).topic("orders")
    assert [record.payload for record in restored.read()] == [b"%d" % number for number in range(33)]


# -- a log's own directory --------------------------------------------------------------------------------


def test_a_logs_own_directory_is_signed_too(open_log: Callable[..., Log], keyring: Keyring, key_file: str) -> None:
    log = open_log(keyring=keyring, segments=TEN)
    fill(log, "orders", 3)
    log.close()
    attacker = Attacker(log.path / "segments")
    read = lambda: holdfast.read(str(log.path), "orders", keyring=key_file)  # noqa: E731
    assert read().count() == 30
    forge_expiry(attacker, log)
    with pytest.raises(Corrupt):
        read().count()


def test_an_owner_signs_what_stands_in_its_own_directory_anew(
    open_log: Callable[..., Log], keyring: Keyring, key_file: str
) -> None:
    """A writer that makes its `log.json` look old achieves that everything is published again, signed."""
    log = open_log(keyring=keyring, segments=TEN)
    fill(log, "orders", 2)
    log.close()
    attacker = Attacker(log.path / "segments")
    attacker.change(layout.LOG, LogDocument, format=1)
    with pytest.raises(Invalid):
        holdfast.read(str(log.path), "orders", keyring=key_file)
    log = open_log(keyring=keyring, segments=TEN)
    fill(log, "orders", 1)
    log.close()
    assert holdfast.read(str(log.path), "orders", keyring=key_file).count() == 30
