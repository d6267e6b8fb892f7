"""Moving a root of format 1 to the present format, in which folders of documents begin with `_` and objects are signed.

    copy every object that is the log's into the new root, proved → look again until nothing is new → log.json, last

To another root nothing of the old one is changed: objects are copied create-only, what is there already is compared,
so an interrupted move goes on when it is run again, and no reader sees the new root before it is whole. In a log's own
directory the segments stay where they are, documents are written beside the old ones, `log.json` is replaced, and then
the old documents go; the directory is locked meanwhile.

What is proved: every document is whole and of this log, manifests are one chain, every segment has the hash of its
manifest object, and in a log with keys each segment proves by its key what its manifest object says of it. What the
old format cannot prove is listed in the report (`unproved`): expiries, topics and their policies, floors and adoptions
of an encrypted log were not signed, and whoever could write to the old root could have written them. Leases stay where
they are.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from hashlib import sha256
from pathlib import Path

import msgspec

from holdfast import disk
from holdfast.clock import Clock, SystemClock
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.signatures import Signer
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid, NotFound, Unavailable
from holdfast.log_directory import Directory
from holdfast.reader.object_bytes import open_bytes
from holdfast.recovery.fetching import Progress
from holdfast.root.objects import commit_batch, documents
from holdfast.root.objects.documents import OLD_ROOT, EpochDocument, LogDocument, SegmentDocument, TopicDocument
from holdfast.root.old_layout import old_key
from holdfast.root.root_contents import RootReader, Where
from holdfast.root.root_format import RootForm
from holdfast.root.root_place import root_url
from holdfast.root.root_store import RootStore
from holdfast.root.store_manifest import StoreManifest, in_parallel
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.settings import Settings
from holdfast.store import layout, store_kinds
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import AlreadyExists, Body, Store

_AT_ONCE = 4
_LOOKS = 5
_STEP = 64
_RANGE_BYTES = 16 * 2**20

logger = logging.getLogger("holdfast")


class MigrationReport(msgspec.Struct, frozen=True):
    """What was moved."""

    log: str
    source: str
    target: str
    documents: int
    batches: int
    segments: int
    bytes: int
    """Of the segments that were copied."""
    resumed: int
    """Objects that an earlier, interrupted move had copied already."""
    left_out: int
    """Objects that are not the log's, segments that no manifest names, and leases."""
    unproved: dict[str, int]
    """Documents that the old format cannot prove, by kind; empty for a log without keys, where nothing is proved."""


def migrate_root(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    settings: Settings | None = None,
    keyring: Keyring | None = None,
    cipher: PayloadCipher | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> MigrationReport:
    """Move a root of format 1 to the present format: to another, empty root, or a log's own directory in place.

    The log is not open meanwhile. After a move to another root, open it once with `store.url` set to the new one and
    `store.move`: it goes on there. Raises Invalid where there is nothing to move.
    """
    settings = Settings.given(settings)
    if keyring is None and cipher is None and settings.crypto.keyring:
        keyring = Keyring.from_reference(settings.crypto.keyring)
    clock = clock or SystemClock()
    move = _Move(settings, keyring, cipher, clock, progress or _silent)
    if target is not None:
        return move.to(os.fspath(source), os.fspath(target))
    return move.in_place(Path(source))


class _Move:
    def __init__(
        self, settings: Settings, keyring: Keyring | None, cipher: PayloadCipher | None, clock: Clock,
        progress: Progress,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._keyring, self._cipher = keyring, cipher
        self._clock = clock
        self._progress = progress

    def to(self, source: str, target: str) -> MigrationReport:
        """Into another root."""
        old = self._old(self._open(source))
        new = RootStore(self._open(target), RootForm(self._signer()))
        try:
            log = _require_old(old)
            try:
                current = new.log()
            except NotFound:
                new.form.begin(_renewed(log))
                current = None
            if current is not None and current.log != log.log:
                raise Invalid(f"another log is at the new root store={new.url}", hint="give a root of its own")
            report = self._copied(old, new, log, is_finished=current is not None)
            if current is None:
                new.create(layout.LOG, Body.of(documents.encode(_renewed(log))))
            return report
        finally:
            old.close()
            new.close()

    def in_place(self, path: Path) -> MigrationReport:
        """A log's own directory."""
        directory = Directory(path.absolute())
        if directory.log_id() is None:
            raise Invalid(
                f"this is not the directory of a log path={path}",
                hint="name a second root to move a store's: holdfast migrate-root OLD NEW",
            )
        directory.own()
        try:
            files = DirectoryStore(directory.segments, self._clock)
            old, new = self._old(files), RootStore(files, RootForm(self._signer()))
            log = _require_old(old)
            new.form.begin(_renewed(log))
            report = self._copied(old, new, log, is_finished=False)
            document = new.form.signed(layout.LOG, Body.of(documents.encode(_renewed(log))))
            disk.write_file(directory.segments / layout.LOG, document.read())
            files.delete([key for info in old.list("") if (key := old_key(info.key)) != info.key])
            return report
        finally:
            directory.release()

    def _open(self, place: str) -> Store:
        address = msgspec.structs.replace(self._settings.store, url=root_url(place))
        return store_kinds.open_any_store(address.url, address, self._clock)

    def _signer(self) -> Signer | None:
        return Signer.of(self._keyring, self._cipher)

    def _old(self, files: Store) -> RootStore:
        return RootStore(files, RootForm(self._signer(), allow_unsigned=True))

    def _copied(self, old: RootStore, new: RootStore, log: LogDocument, *, is_finished: bool) -> MigrationReport:
        """Copy until nothing is new."""
        vault = Vault(bytes.fromhex(log.log), self._keyring, self._cipher)
        copying = _Copying(old, new, log, vault, self._progress)
        if is_finished:
            logger.info("the new root is finished already; it is compared", extra={"action": "migrate_root"})
        before: list[str] = []
        for _ in range(_LOOKS):
            keys = sorted({info.key for info in old.list("") if not info.key.startswith(layout.LEASES)})
            if keys == before:
                return copying.report()
            copying.copy(keys)
            before = keys
        raise Unavailable(f"the old root changes all the time store={old.url}", hint="close the log, run it again")


class _Copying:
    """Copies the objects of one root; what was copied once is not looked at again."""

    def __init__(
        self, old: RootStore, new: RootStore, log: LogDocument, vault: Vault, progress: Progress
    ) -> None:  # fmt: skip
        self._old, self._new = old, new
        self._log = log
        self._vault = vault
        self._progress = progress
        self._done: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._unproved: Counter[str] = Counter()

    def copy(self, keys: list[str]) -> None:
        """Everything that is the log's: segments first, so that whatever names them finds them."""
        reader = RootReader(self._old, self._log.log)
        reader.tail()  # proves floors and adoptions
        topics = reader.topics()
        places: list[Where] = [(topic.topic, number) for topic in topics for number in range(topic.partitions)]
        manifests = in_parallel(reader.manifest, places, _AT_ONCE)
        segments = [segment for manifest in manifests for segment in _live(manifest)]
        work: list[tuple[str, SegmentDocument | None]] = [
            (key, segment) for segment in segments if (key := segment.key) not in self._done
        ]
        work += [(key, None) for key in keys if not layout.is_segment_key(key) and key not in self._done | {layout.LOG}]
        for at in range(0, len(work), _STEP):
            in_parallel(lambda item: self._object(*item), work[at : at + _STEP], _AT_ONCE)
            self._progress("copying objects", min(at + _STEP, len(work)), len(work))
        self._counts["left_out"] += len([key for key in keys if key not in self._done and key != layout.LOG])
        self._done.update(keys)

    def report(self) -> MigrationReport:
        """What was copied."""
        counts = self._counts
        return MigrationReport(
            log=self._log.log, source=self._old.url, target=self._new.url, documents=counts["documents"],
            batches=counts["batches"], segments=counts["segments"], bytes=counts["bytes"], resumed=counts["resumed"],
            left_out=counts["left_out"], unproved=dict(self._unproved),
        )  # fmt: skip

    def _object(self, key: str, segment: SegmentDocument | None) -> None:
        if segment is None:
            self._document(key)
        else:
            self._segment(key, segment)

    def _document(self, key: str) -> None:
        kind = _kind(key)
        if kind is None:
            return
        data = self._old.get(key)
        if kind == "batch":
            commit_batch.decode(data, key)
            self._counts["batches"] += 1
        else:
            self._prove(kind, key, data)
            self._counts["documents"] += 1
        if kind == "frontier" and self._new.files is self._old.files:  # it stands where the old one stood, signed
            self._new.delete([key])
        self._create(key, Body.of(data))
        self._done.add(key)

    def _prove(self, kind: str, key: str, data: bytes) -> None:
        if kind == "epoch":
            claim = documents.decode(data, key, EpochDocument)
            if (claim.log, claim.epoch) != (self._log.log, layout.parse_number(key)):
                raise Corrupt("a claim belongs elsewhere", path=key)
        elif kind == "topic":
            topic = documents.decode(data, key, TopicDocument)
            if (topic.log, topic.version) != (self._log.log, layout.parse_number(key)):
                raise Corrupt("the document of a topic belongs elsewhere", path=key)
        if self._vault.keyed and kind not in ("manifest", "checkpoint"):
            self._unproved[kind] += 1

    def _segment(self, key: str, segment: SegmentDocument) -> None:
        if self._new.files is not self._old.files:
            self._copy_file(key, segment)
        self._prove_segment(key, segment)
        self._counts["segments"] += 1
        self._done.add(key)

    def _copy_file(self, key: str, segment: SegmentDocument) -> None:
        there = self._new.head(key)
        if there is not None and there.size == segment.size:
            self._counts["resumed"] += 1
            return
        pieces = [
            self._old.get_range(key, start, min(_RANGE_BYTES, segment.size - start))
            for start in range(0, segment.size, _RANGE_BYTES)
        ]
        data = b"".join(pieces)
        if sha256(data).hexdigest() != segment.sha256:
            raise Corrupt("a segment on the store is damaged", path=key, topic=segment.topic, offset=segment.first)
        self._create(key, Body.of(data))
        self._counts["bytes"] += segment.size

    def _prove_segment(self, key: str, segment: SegmentDocument) -> None:
        """Where it is now, the file says by its own stamp what its manifest object says of it."""
        files, listed = self._new.files, segment.segment
        with SegmentReader(
            key, listed.head, None, self._vault.segment_keys, source=open_bytes(files, key, segment.size)
        ) as reader:
            said = msgspec.structs.replace(reader.facts, sha256=listed.facts.sha256)
        if said != listed.facts:
            raise Corrupt(
                "a segment says something else of itself than its manifest object", path=key, topic=segment.topic,
                partition=segment.partition, offset=segment.first,
            )  # fmt: skip

    def _create(self, key: str, body: Body) -> None:
        try:
            self._new.create(key, body)
        except AlreadyExists:
            if self._new.get(key) != body.data:
                raise Corrupt("another object stands at the new root", path=key, hint="give an empty root") from None
            self._counts["resumed"] += 1


def _kind(key: str) -> str | None:
    """What an object is; None for what is not moved."""
    if layout.parse_batch_key(key) is not None:
        return "batch"
    if layout.parse_floor_key(key) is not None:
        return "floor"
    if layout.parse_adopted_key(key) is not None:
        return "adoption"
    if layout.parse_document(key) is None:
        return None
    if key.startswith((layout.EPOCHS, layout.FRONTIERS)):
        return "epoch" if key.startswith(layout.EPOCHS) else "frontier"
    folder = key.split("/")[-2]
    return {"_topic": "topic", "_manifest": "manifest", "_checkpoints": "checkpoint", "_expired": "expiry"}[folder]


def _live(manifest: StoreManifest) -> list[SegmentDocument]:
    upto = 0 if manifest.expired is None else manifest.expired.upto
    return [segment for segment in manifest.segments if segment.number >= upto and not segment.is_filler]


def _renewed(log: LogDocument) -> LogDocument:
    return LogDocument(log=log.log, created_us=log.created_us)


def _require_old(store: RootStore) -> LogDocument:
    log = store.log()
    if log.format != OLD_ROOT:
        raise Invalid(f"this root has the present format already store={store.url}", hint="there is nothing to move")
    return log


def _silent(what: str, done: int, total: int) -> None:
    pass
