"""Rewrites of one partition, as reconciliation sees them: which files took the place of which, and what is coming.

A segment that is in a long file needs no file of its own; it may still have one for a while. A long file in effect must
be there. What an intent announces is on its way. Files are listed first and this is read afterwards, intents
before rewrites: so a compactor that runs beside a pass causes no finding, whatever it has done in between.

What counts is the sound beginning: a rewrite that is damaged, missing, forged, or does not fit the log's own manifest
is reported, and it and all behind it say nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import Corrupt, NotFound
from holdfast.journal.state.partition import Partition
from holdfast.model.segment import StoredFile
from holdfast.reconcile.classify import Kind
from holdfast.root.objects import documents
from holdfast.root.objects.documents import RewriteDocument
from holdfast.root.rewrites import read_intents
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.segments.manifest.long_files import LongFile, LongFiles
from holdfast.store import layout
from holdfast.store.port import Store


class BadRewrite(NamedTuple):
    """The first rewrite that says nothing."""

    number: int
    key: str
    kind: Kind
    detail: str
    size: int | None


class RewrittenFiles:
    """The long files of one partition at one root; `look` takes up what is there now."""

    def __init__(self, store: Store, manifest: Manifest, log: str, partition: Partition) -> None:
        self._store, self._manifest, self._log = store, manifest, log
        self._partition = partition
        self._place = (partition.topic, partition.number)
        self.files = LongFiles()
        self.bad: BadRewrite | None = None
        self.count = 0
        """Rewrites that are there, sound or not."""
        self._runs: list[tuple[int, int]] = []

    def look(self) -> RewrittenFiles:
        """Read what is there now."""
        intents = read_intents(self._store, self._log, *self._place, 0)
        keys = {
            number: info.key
            for info in self._store.list(layout.rewrites_folder(*self._place))
            if (number := layout.parse_number(info.key)) is not None
        }
        self.count = len(keys)
        sound, self.bad = list(self.files.rewrites), None
        for number in range(len(sound), max(keys, default=-1) + 1):
            read = self._read(number)
            if isinstance(read, BadRewrite):
                self.bad = read
                break
            sound.append(read)
        self._apply(sound)
        # Also of those whose number another process took: the loser removes its files first, and then its intent.
        self._runs = [run for intent in intents for run in intent.runs]
        return self

    def _read(self, number: int) -> RewriteDocument | BadRewrite:
        key = layout.rewrite_key(*self._place, number)
        try:
            data = self._store.get(key)
        except NotFound:
            return BadRewrite(number, key, "missing", "a rewrite is not there, and later ones build on it", None)
        except Corrupt as damage:
            return BadRewrite(number, key, "content_mismatch", damage.message.partition(" path=")[0], None)
        try:
            document = documents.decode(data, key, RewriteDocument)
        except Corrupt:
            return BadRewrite(number, key, "content_mismatch", "the rewrite is damaged", len(data))
        place = (document.log, document.topic, document.partition, document.number)
        if place != (self._log, *self._place, number):
            return BadRewrite(number, key, "content_mismatch", "the rewrite belongs elsewhere", len(data))
        return document

    def _apply(self, rewrites: list[RewriteDocument]) -> None:
        """Take what fits the manifest; what is known to fit is not compared again."""
        while len(rewrites) > len(self.files.rewrites):
            try:
                self.files = self._manifest.applied(self._partition, rewrites)
            except Corrupt as misfit:
                key = misfit.path or ""
                number = layout.parse_number(key) or 0
                rewrites = rewrites[:number]
                self.bad = BadRewrite(number, key, "content_mismatch", misfit.message.partition(" path=")[0], None)

    # -- what is said about files -------------------------------------------------------------------------

    def is_held(self, number: int) -> bool:
        """Whether a segment is in a long file, and needs no file of its own."""
        return self.files.holding(number) is not None

    def knows(self, name: str) -> bool:
        """Whether a file is a long one that is in effect, or was."""
        return name in self.files.replaced or self._in_effect(name)

    def still(self, file: LongFile) -> bool:
        """Whether a long file is in effect."""
        return self._in_effect(file.name)

    def is_awaited(self, number: int) -> bool:
        """Whether a file with this number is announced."""
        return any(start <= number < stop for start, stop in self._runs)

    def _in_effect(self, name: str) -> bool:
        parsed = layout.parse_segment_name(name)
        held = None if parsed is None else self.files.holding(parsed.number)
        return held is not None and held.name == name


def take_long(rewritten: RewrittenFiles, numbered: dict[int, list[StoredFile]]) -> dict[str, int]:
    """Take the files out of a listing that rewrites know; the sizes of those that are in effect."""
    sizes: dict[str, int] = {}
    for number, listed in list(numbered.items()) if rewritten.files else ():
        known = [file for file in listed if rewritten.knows(file.name)]
        sizes.update({file.name: file.bytes for file in known})
        if known:
            numbered[number] = [file for file in listed if file not in known]
    return sizes
