"""Rewrites by hand: runs of segments at a root put into one longer file each, as a compactor does it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.clock import SystemClock
from holdfast.compaction.compaction_plan import FileRun
from holdfast.compaction.run_rewrite import rewrite
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.signatures import Signer
from holdfast.recovery.fetching import _Memory
from holdfast.root import rewrites
from holdfast.root.objects import documents
from holdfast.root.objects.documents import IntentDocument, RewriteDocument, RewrittenFile, SegmentDocument
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.store_manifest import read_manifest
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.store import layout
from holdfast.store.port import Body, Store

NONCE = "0123456789abcdef"
NOW_US = 2**60
"""Later than any clock of a test: nothing is old unless a test says so."""


class Compactor:
    """Somebody who rewrites at one root; `keyring` for an encrypted log."""

    def __init__(self, store: Store, keyring: Keyring | None = None, *, topic: str = "orders", partition: int = 0):
        self.store = RootStore(store, RootTrust(Signer.of(keyring)))
        self.where = (topic, partition)
        self.log = self.store.log().log

    @property
    def rewrites(self) -> list[RewriteDocument]:
        return rewrites.read_rewrites(self.store, self.log, *self.where)

    def rewrite(
        self,
        *runs: tuple[int, int],
        remove: bool = False,
        now_us: int = NOW_US,
        kept: tuple[RewrittenFile, ...] | None = None,
    ) -> RewriteDocument:
        """Write the files and swap them in; with `remove` the replaced ones go at once."""
        known = self.rewrites
        outputs = tuple(self.written(*run, known) for run in runs)
        document = RewriteDocument(
            log=self.log,
            topic=self.where[0],
            partition=self.where[1],
            number=len(known),
            nonce=NONCE,
            outputs=outputs,
            kept=kept,
            rewritten_us=now_us,
        )
        key = layout.rewrite_key(*self.where, document.number)
        self.store.create(key, Body.of(documents.encode(document)))
        if remove:
            self.sweep()
        return document

    def sweep(self) -> None:
        """Remove what was replaced."""
        self.store.delete(list(rewrites.replaced(self._segments(), self.rewrites)))

    def intend(self, *runs: tuple[int, int], number: int | None = None) -> str:
        """Say that a rewrite is under way; returns the intent's key."""
        number = len(self.rewrites) if number is None else number
        intent = IntentDocument(
            log=self.log,
            topic=self.where[0],
            partition=self.where[1],
            number=number,
            nonce=NONCE,
            runs=runs,
            begun_us=NOW_US,
            host="elsewhere",
            pid=1,
        )
        key = layout.intent_key(*self.where, number, NONCE)
        self.store.create(key, Body.of(documents.encode(intent)))
        return key

    def written(self, start: int, stop: int, known: list[RewriteDocument] | None = None) -> RewrittenFile:
        """A file of segments start..stop, uploaded and not swapped in."""
        files = rewrites.in_effect(self._segments(), self.rewrites if known is None else known)
        run = FileRun(tuple(file for file in files if start <= file.segment.number < stop))
        with TemporaryDirectory() as folder:
            path, nonce = Path(folder) / "long", SystemClock().random_bytes(8).hex()
            output = rewrite(run, path, self._opened, nonce, cancelled=lambda: False)
            self.store.create(output.segment.key, Body.of(path.read_bytes()))
        return output

    def _opened(self, segments: Sequence[SegmentDocument]) -> Generator[SegmentReader, None, None]:
        for segment in segments:
            listed, data = segment.segment, self.store.get(segment.key)
            yield SegmentReader(segment.key, listed.head, listed.facts, None, source=_Memory(data), trusted=True)

    def _segments(self) -> list[SegmentDocument]:
        return read_manifest(self.store, self.log, *self.where).segments
