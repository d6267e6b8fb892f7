"""Segments from a store, brought into a log's own `segments/` directory: in pieces, by hash, proved, and kept.

A file gets its name when its hash is the one in its manifest object and its content is synced; so whatever has its name
is whole, also after a crash, and is not fetched again. Then it says itself what it is, and every block of it is
compared with its hash in the footer. The footer of an encrypted one is stamped by its key: so none of it was made or
changed without the key. A file that came in one piece is proved in memory, before it is written. Memory: one piece per
file, a few files at a time.

Where compaction has put longer files in the place of segments, those are fetched, and the rewrites that say so: they
are kept in the log's own directory, in the places that they have on the store, and the log reads by them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from threading import RLock, Semaphore
from typing import TypeVar

from holdfast import disk
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid, NotFound, Unavailable
from holdfast.model.control_rows import EXPIRED, LIVE, LOST
from holdfast.root.objects import documents
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.rewrites import InEffect, in_effect
from holdfast.root.root_trust import RootTrust
from holdfast.root.store_manifest import StoreManifest, in_parallel
from holdfast.segments.file.proven_file import DamagedFile, Range
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.manifest import segment_folders as folders
from holdfast.signals import Flag
from holdfast.store import layout
from holdfast.store.port import Body, Store

_RANGE_BYTES = 16 * 2**20
"""More than most segments have: one request each."""
_AT_ONCE = 6
"""Requests under way."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is; from one thread at a time, and never
with less than before.
"""


class Steps:
    """Progress as the caller sees it: one call at a time, and never backwards, also where something is done again."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = RLock()
        self._done: dict[str, int] = {}

    def tell(self, what: str, done: int, total: int) -> None:
        """So much is done."""
        with self._lock:
            if done >= self._done.get(what, 0):
                self._done[what] = done
                self._progress(what, done, total)

    def over(self, what: str, call: Callable[[Item], Result], items: Iterable[Item], at_once: int) -> list[Result]:
        """Do something with all of these, a few at a time."""
        items = list(items)
        done = 0

        def counted(item: Item) -> Result:
            nonlocal done
            answer = call(item)
            with self._lock:
                done += 1
                self.tell(what, done, len(items))
            return answer

        self.tell(what, 0, len(items))
        return in_parallel(counted, items, at_once)


class KeyDemand:
    """A log is encrypted or it is not, all of it; what was found so far, held against the keys that were given."""

    def __init__(self, keyring: Keyring | None, cipher: PayloadCipher | None) -> None:
        self._keyring = keyring
        self._is_keyed = keyring is not None or cipher is not None
        self._is_encrypted = False

    def expect(self, key_ids: set[str]) -> None:
        """Fail at once where a key is missing, before much is fetched; each segment proves its key later."""
        for key_id in sorted(key_ids - {""}):
            self.require(is_encrypted=True, path="")
            if self._keyring is not None:
                self._keyring.key(key_id)

    def require(self, *, is_encrypted: bool, path: str) -> None:
        """Something that is encrypted or plain was found."""
        self._is_encrypted = self._is_encrypted or is_encrypted
        if self._is_encrypted and not self._is_keyed:
            raise Invalid("this log is encrypted", hint="give its keyring: --keyring env:NAME or file:PATH")
        if self._is_encrypted and not is_encrypted:
            raise Corrupt("something on the store is not encrypted, but its log is", path=path)
        if self._is_keyed and not self._is_encrypted:
            raise Invalid("this log is not encrypted, but a key was passed", hint="restore it without that key")


class SegmentFetching:
    """Brings the segments of one log here."""

    def __init__(self, store: Store, root: Path, vault: Vault, keys: KeyDemand, steps: Steps) -> None:
        self._store = store
        self._root = root
        self._vault = vault
        self._keys = keys
        self._steps = steps
        self.requests = Semaphore(_AT_ONCE)
        """Held by each request under way, for other fetches meanwhile."""
        self._stopped = Flag()
        self._here: set[str] = set()
        """Keys of segments that are here, proved."""
        self.resumed = 0
        """How many were here before."""
        self.bytes = 0
        """Of all files that are here."""

    def fetch(self, manifests: Iterable[StoreManifest]) -> None:
        """Bring all segments that are not retired."""
        self._stopped.clear()
        manifests = list(manifests)
        for manifest in manifests:
            disk.make_directory(self._folder(manifest), root=self._root)
        # Some more than there are requests: what has come is proved and written while others are fetched.
        self._steps.over("fetching segments", self._fetch_one, _wanted(manifests), _AT_ONCE + _AT_ONCE // 2)

    def keep_only(self, manifests: Iterable[StoreManifest]) -> None:
        """These are all manifests, and their segments are here: what else lies in their folders goes."""
        manifests = list(manifests)
        wanted = _wanted(manifests)
        names: dict[Path, set[str]] = {self._folder(manifest): set() for manifest in manifests}
        for path in (self._root / segment.key for segment in wanted):
            names[path.parent].add(path.name)
        self._here &= {segment.key for segment in wanted}
        for folder, own in names.items():
            # Synced in any case: an interrupted attempt may have ended between a name and its sync.
            disk.remove_all(folder, set(os.listdir(folder)) - own)
        self.bytes = sum(segment.size for segment in wanted)
        for manifest in manifests:
            self._keep_rewrites(manifest)

    def _folder(self, manifest: StoreManifest) -> Path:
        return self._root / layout.segments_folder(manifest.topic, manifest.partition)

    def _keep_rewrites(self, manifest: StoreManifest) -> None:
        """The rewrites that these files stand for, and no others; signed anew, if the log has keys."""
        place = (manifest.topic, manifest.partition)
        folder = self._root / layout.rewrites_folder(*place)
        if manifest.rewrites:
            disk.make_directory(folder, root=self._root)
        trust = RootTrust.of_owner(self._vault.signer, self._vault.log_id.hex())
        names = set()
        for rewrite in manifest.rewrites:
            key = layout.rewrite_key(*place, rewrite.number)
            path = self._root / key
            disk.write_file(path, trust.signed(key, Body.of(documents.encode(rewrite))).read())
            names.add(path.name)
        if folder.is_dir():
            disk.remove_all(folder, set(os.listdir(folder)) - names)

    def stop(self) -> None:
        """From another thread: let `fetch` fail soon; it is not needed any more."""
        self._stopped.set()

    def _fetch_one(self, segment: SegmentDocument) -> None:
        if self._stopped.is_set():
            raise Unavailable("fetching segments was canceled")
        key = segment.key
        path = self._root / key
        if key in self._here:
            return
        if folders.sha256(path).hex() == segment.sha256:
            self._prove(key, path, segment)
            self.resumed += 1
        elif segment.size <= _RANGE_BYTES:
            self._fetch_whole(key, path, segment)
        else:
            self._fetch_file(key, path, segment)
            self._prove(key, path, segment)
        self._here.add(key)

    def _prove(self, key: str, path: Path, segment: SegmentDocument, content: bytes | None = None) -> None:
        """The file says itself what it is, and its blocks are as written; an encrypted one proves it by its key."""
        listed, opener = segment.segment, self._vault.segment_keys
        source = None if content is None else _Memory(content)
        with SegmentReader(path, listed.head, listed.facts, opener, source=source) as reader:
            is_encrypted = reader.encrypted_with is not None
            self._keys.require(is_encrypted=is_encrypted, path=key)
            if not is_encrypted:
                _read_through(reader)
        if is_encrypted:
            # Without facts to believe, the reader proves the footer by its key: that this is the key, and that nobody
            # else made the file. The footer has the hashes of the blocks, so nobody else made those. A bundle's footer
            # is nobody's but in its parts: there every block is decrypted.
            with SegmentReader(path, listed.head, None, opener, source=source) as reader:
                if reader.is_bundle:
                    reader.verify()
                else:
                    _read_through(reader)

    def _fetch_whole(self, key: str, path: Path, segment: SegmentDocument) -> None:
        """A file that comes in one piece: proved, then written.

        Its size and the hash of its footer stand in the manifest object, and the footer has the hashes of all blocks:
        whatever passes is the file that was sealed, byte for byte, and need not be hashed as a whole once more.
        """
        content = self._piece(key, 0, segment.size)
        try:
            self._prove(key, path, segment, content)
        except Corrupt as damage:
            raise _damaged(key, segment, damage.message.partition(" path=")[0]) from damage
        self._write(path, lambda file: file.write(content))

    def _fetch_file(self, key: str, path: Path, segment: SegmentDocument) -> None:
        def write_pieces(file: disk.NewFile) -> None:
            hashed = sha256()
            for start in range(0, segment.size, _RANGE_BYTES):
                piece = self._piece(key, start, min(_RANGE_BYTES, segment.size - start))
                hashed.update(piece)
                file.write(piece)
            _require_hash(hashed.hexdigest(), key, segment)

        self._write(path, write_pieces)

    def _write(self, path: Path, write: Callable[[disk.NewFile], None]) -> None:
        """Make a file; it has its name when it is whole and synced. The name itself is synced with its folder."""
        temporary = path.with_name(path.name + ".fetched")
        file = disk.NewFile(temporary)
        try:
            write(file)
            file.finish()
        except BaseException:
            file.close()
            disk.discard(temporary)
            raise
        disk.replace(temporary, path)

    def _piece(self, key: str, start: int, length: int) -> bytes:
        try:
            with self.requests:
                return self._store.get_range(key, start, length)
        except NotFound:
            raise Corrupt("a segment is missing on the store", path=key) from None


class _Memory:
    """A file that is in memory."""

    reads_ahead = False

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)
        self.size = len(content)

    def read(self, start: int, end: int) -> memoryview:
        """A part of it, without a copy."""
        if end > self.size:
            raise DamagedFile("ends too early", self.size)
        return self._content[start:end]

    def announce(self, ranges: Sequence[Range]) -> None:
        """Everything is here."""

    def close(self) -> None:
        """There is nothing to let go of."""


def _require_hash(found: str, key: str, segment: SegmentDocument) -> None:
    if found != segment.sha256:
        raise _damaged(key, segment, "its hash is not that of its manifest object")


def _damaged(key: str, segment: SegmentDocument, why: str) -> Corrupt:
    return Corrupt(
        f"a segment on the store is damaged: {why}",
        path=key,
        topic=segment.topic,
        partition=segment.partition,
        offset=segment.first,
        hint="is there another copy? `holdfast reconcile DIR --remote --deep --fix` brings it"
        " back from the log that wrote it",
    )


def _wanted(manifests: Iterable[StoreManifest]) -> list[SegmentDocument]:
    return [file.segment for manifest in manifests for file in files_of(manifest)]


def files_of(manifest: StoreManifest) -> list[InEffect]:
    """The files of a partition that hold anything that is not retired; raises Corrupt where a rewrite does not fit."""
    retired = 0 if manifest.expired is None else manifest.expired.upto
    files = in_effect(manifest.segments, manifest.rewrites)
    return [file for file in files if file.upto > retired and not file.segment.is_filler]


def state_of(manifest: StoreManifest, segment: SegmentDocument) -> int:
    """Whether a segment's file is there, was retired, or was lost."""
    if manifest.expired is not None and segment.number < manifest.expired.upto:
        return EXPIRED
    return LOST if segment.is_filler else LIVE


def _read_through(reader: SegmentReader) -> None:
    """Compare every block; raises Corrupt."""
    for _ in reader.chunks():
        pass
