"""What a rebuild knows of files that compaction put in the place of segments, in a log's own directory.

A long file says of itself where it begins and ends, but not which segments it holds: that stands in the manifest
objects beside it, and which file holds them in the rewrites. Both are proved as at any root. A log that ships has no
manifest objects here; it is brought back from its store. A long file that is damaged or gone takes no segment out of
the manifest: what it held is reported as lost, and reads say so. Segments that have expired keep their rows, because
rewrites may speak of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.crypto.vault import Vault
from holdfast.errors import Invalid
from holdfast.recovery.rebuild_plan import SegmentFound
from holdfast.root.objects.documents import SegmentDocument
from holdfast.root.rewrites import InEffect, in_effect, read_rewrites
from holdfast.root.root_store import RootStore
from holdfast.root.root_trust import RootTrust
from holdfast.root.store_manifest import read_manifest
from holdfast.store.directory import DirectoryStore

Where = tuple[str, int]


class CompactedPartition(NamedTuple):
    """One partition that was compacted."""

    names: frozenset[str]
    """Files that are no segments, whether they are in effect or not."""
    files: tuple[InEffect, ...]
    """Long files in effect …"""
    segments: tuple[SegmentDocument, ...]
    """… and all segments of the partition, by number; those below `retired` have expired."""
    retired: int

    def held(self, about: Callable[[InEffect], tuple[object, str]]) -> Iterator[SegmentFound]:
        """The segments in long files, as if their own files had been found; and those that have expired.

        `about` says which columns and which codec a long file has.
        """
        for segment in self.segments[: self.retired]:
            yield SegmentFound(segment.segment, segment.sealed_us, is_expired=True)
        for file in self.files:
            if file.upto > self.retired:
                columns, codec = about(file)
                for segment in self.segments[max(self.retired, file.segment.number) : file.upto]:
                    yield SegmentFound(segment.segment, segment.sealed_us, columns, codec)


def compacted(root: Path, vault: Vault, clock: Clock) -> dict[Where, CompactedPartition]:
    """The partitions of a log's own directory that have rewrites; raises Corrupt where those make no sense."""
    log = vault.log_id.hex()
    store = RootStore(DirectoryStore(root, clock), RootTrust.of_owner(vault.signer, log))
    found = {}
    for folder in sorted(root.glob("topics/*/*/_rewrites")):
        topic, number = folder.parts[-3], folder.parts[-2]
        if number.isdecimal():
            where = (topic, int(number))
            rewrites = read_rewrites(store, log, *where)
            manifest = read_manifest(store, log, *where)
            segments, retired = tuple(manifest.segments), 0 if manifest.expired is None else manifest.expired.upto
            if rewrites and not segments:
                raise Invalid(
                    f"the manifest of a compacted partition is on the log's store topic={topic} partition={number}",
                    hint="bring the log back from there: holdfast restore URL NEWDIR",
                )
            outputs = frozenset(Path(output.segment.key).name for rewrite in rewrites for output in rewrite.outputs)
            files = tuple(file for file in in_effect(segments, rewrites) if file.rewrite is not None)
            found[where] = CompactedPartition(outputs, files, segments, retired)
    return found
