"""Segments from a store, brought into a log's own `segments/` directory: in pieces, by hash, proved, and kept.

A file gets its name when its hash is the one in its manifest object and its content is synced; so whatever has its name
is whole, also after a crash, and is not fetched again. Then it says itself what it is, and a sealed one is opened as
far as it takes to know that the key is the right one. Memory: one piece per file, a few files at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TypeVar

from holdfast import disk
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import Vault
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.journal.rows import EXPIRED, LIVE, LOST
from holdfast.segments import folders
from holdfast.segments.file_reader import SegmentReader
from holdfast.segments.store_manifest import StoreManifest, facts_of, head_of, in_parallel, is_filler
from holdfast.store import layout
from holdfast.store.documents import SegmentDocument
from holdfast.store.port import Store

_RANGE_BYTES = 16 * 2**20
"""More than most segments have: one request each."""
_AT_ONCE = 6

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
        self._lock = Lock()
        self._done: dict[str, int] = {}

    def tell(self, what: str, done: int, total: int) -> None:
        """So much is done."""
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
        self._is_sealed = False

    def expect(self, key_ids: set[str]) -> None:
        """Fail at once where a key is missing, before much is fetched; each segment proves its key later."""
        for key_id in sorted(key_ids - {""}):
            self.require(is_sealed=True, path="")
            if self._keyring is not None:
                self._keyring.key(key_id)

    def require(self, *, is_sealed: bool, path: str) -> None:
        """Something that is sealed or plain was found."""
        self._is_sealed = self._is_sealed or is_sealed
        if self._is_sealed and not self._is_keyed:
            raise Invalid("this log is encrypted", hint="give its keyring: --keyring env:NAME or file:PATH")
        if self._is_sealed and not is_sealed:
            raise Corrupt("something on the store is not encrypted, but its log is", path=path)
        if self._is_keyed and not self._is_sealed:
            raise Invalid("this log is not encrypted, but a key was given", hint="restore it without that key")


class SegmentFetching:
    """Brings the segments of one log here."""

    def __init__(self, store: Store, root: Path, vault: Vault, keys: KeyDemand, steps: Steps) -> None:
        self._store = store
        self._root = root
        self._vault = vault
        self._keys = keys
        self._steps = steps
        self._here: set[str] = set()
        """Keys of segments that are here, proved."""
        self.resumed = 0
        """How many were here before."""

    def fetch(self, manifests: Iterable[StoreManifest]) -> None:
        """Bring all segments that are not retired; what else lies in their folders goes."""
        manifests = list(manifests)
        folders = [self._root / layout.segments_folder(m.topic, m.partition) for m in manifests]
        for folder in folders:
            disk.make_directory(folder, root=self._root)
        wanted = [segment for m in manifests for segment in m.segments if state_of(m, segment) == LIVE]
        self._steps.over("fetching segments", self._fetch_one, wanted, _AT_ONCE)
        names: dict[Path, set[str]] = {folder: set() for folder in folders}
        for path in (self._root / _key(segment) for segment in wanted):
            names[path.parent].add(path.name)
        for folder, own in names.items():
            # Synced in any case: an interrupted attempt may have ended between a name and its sync.
            disk.remove_all(folder, set(os.listdir(folder)) - own)

    def _fetch_one(self, segment: SegmentDocument) -> None:
        key = _key(segment)
        path = self._root / key
        if key in self._here:
            return
        if folders.sha256(path).hex() == segment.sha256:
            self.resumed += 1
        else:
            self._fetch_file(key, path, segment)
        self._prove(key, path, segment)
        self._here.add(key)

    def _prove(self, key: str, path: Path, segment: SegmentDocument) -> None:
        """The file says itself what it is; a sealed one is stamped by its key."""
        head, opener = head_of(segment), self._vault.segment_opener
        with SegmentReader(path, head, facts_of(segment), opener) as reader:
            is_sealed = reader.sealed_with is not None
        self._keys.require(is_sealed=is_sealed, path=key)
        if is_sealed:
            # Without facts to believe, the reader proves the footer by its key: that this is the key, and that nobody
            # else made the file.
            SegmentReader(path, head, None, opener).close()

    def _fetch_file(self, key: str, path: Path, segment: SegmentDocument) -> None:
        temporary = path.with_name(path.name + ".fetched")
        file = disk.NewFile(temporary)
        try:
            hashed = sha256()
            for start in range(0, segment.size, _RANGE_BYTES):
                piece = self._piece(key, start, min(_RANGE_BYTES, segment.size - start))
                hashed.update(piece)
                file.write(piece)
            if hashed.hexdigest() != segment.sha256:
                raise Corrupt(
                    "a segment on the store is damaged", path=key, topic=segment.topic, partition=segment.partition,
                    offset=segment.first, hint="its hash is not that of its manifest object; is there another copy?",
                )  # fmt: skip
            file.finish()
        except BaseException:
            file.close()
            disk.discard(temporary)
            raise
        disk.rename(temporary, path)

    def _piece(self, key: str, start: int, length: int) -> bytes:
        try:
            return self._store.get_range(key, start, length)
        except NotFound:
            raise Corrupt("a segment is missing on the store", path=key) from None


def state_of(manifest: StoreManifest, segment: SegmentDocument) -> int:
    """Whether a segment's file is there, was retired, or was lost."""
    if manifest.expired is not None and segment.number < manifest.expired.upto:
        return EXPIRED
    return LOST if is_filler(segment) else LIVE


def _key(segment: SegmentDocument) -> str:
    return layout.segment_key(segment.topic, segment.partition, segment.number, bytes.fromhex(segment.sha256))
