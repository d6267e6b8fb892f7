"""What a crash left in the segment folders, looked for once, when the log is opened.

A temporary file is an attempt that nobody will finish: removed. A finished file above the watermark is one whose
commit did not come. It is removed only if that is proved: it says itself that it follows the newest segment, and all
its records are still in the journal's tail. If it holds records that the journal does not know, then the *database*
is the older one (an old copy was put back, perhaps): opening stops, because going on would give offsets away a second
time. Anything else is left alone for `reconcile` to report.

Only names are checked; a file is opened only if it should not be there.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from holdfast import disk
from holdfast.errors import Corrupt, Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.segments.manifest import segment_folders
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.store import layout

logger = logging.getLogger("holdfast.segments")


def clear(journal: Journal, manifest: Manifest) -> list[Partition]:
    """Remove what can be proved to be left over; returns the partitions in which retention may have emptied a file."""
    emptied = []
    for partition in list(journal.partitions.values()):
        folder = manifest.folder(partition)
        names = segment_folders.names(folder)
        _clear_partition(journal, partition, folder, names)
        if any(name.endswith(layout.EXPIRED) for name in names):
            emptied.append(partition)
    return emptied


def _clear_partition(journal: Journal, partition: Partition, folder: Path, names: list[str]) -> None:
    for name in names:
        finished = layout.parse_segment_name(name)
        above = finished is not None and finished.number >= partition.sealed.segments
        if layout.parse_temporary_name(name) is not None or (above and _is_unlisted(journal, partition, folder / name)):
            if Path(os.path.realpath(folder)) != folder:
                raise Corrupt("a folder of the log is a link", path=str(folder), hint="move what it leads to here")
            _remove(folder / name)
            logger.info(
                "removed what a crash left: %s", name, extra={"action": "leftover_removed", "path": str(folder / name)}
            )


def _remove(path: Path) -> None:
    try:
        disk.remove(path)
    except OSError as error:
        raise Unavailable(
            f"cannot remove what a crash left path={path}: {error.strerror}", hint="check the disk and its permissions"
        ) from error


def _is_unlisted(journal: Journal, partition: Partition, path: Path) -> bool:
    """Whether a finished file above the watermark is an attempt to seal what is still in the tail."""
    from holdfast.segments.file.segment_reader import SegmentReader

    sealed = partition.sealed
    try:
        with SegmentReader(path, None, None, journal.segment_keys) as reader:
            head, rows = reader.head, reader.facts.rows
    except Corrupt:
        return False
    ours = (journal.log_id, partition.topic, partition.number) == (head.log_id, head.topic, head.partition)
    if ours and head.first + rows > partition.durable:
        raise Corrupt(
            "the database is older than its segments: it lacks records that were sealed",
            path=str(path),
            topic=partition.topic,
            partition=partition.number,
            offset=partition.durable,
            hint="put the newest durable.db back, or make a new one from the segments: holdfast rebuild",
        )
    follows = (head.number, head.first, head.previous) == (sealed.segments, sealed.sealed_offset, sealed.chain)
    return ours and follows
