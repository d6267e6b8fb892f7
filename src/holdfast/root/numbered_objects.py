"""Folders of numbered objects and segments: what is in them, oldest first; foreign names are skipped."""

from __future__ import annotations

from holdfast.store import layout
from holdfast.store.port import Store


def numbered(store: Store, folder: str, after: str | None = None) -> list[str]:
    """The keys of a folder's numbered objects, in order; only those after `after`, if given."""
    return [info.key for info in store.list(folder, after) if layout.parse_number(info.key) is not None]


def newest(store: Store, folder: str) -> str | None:
    """The key of the object with the highest number; None when there is none."""
    keys = numbered(store, folder)
    return keys[-1] if keys else None


def segments_below(store: Store, topic: str, partition: int, upto: int) -> list[tuple[int, str]]:
    """Numbers and keys of a partition's segment files below a number, in order."""
    found = []
    for info in store.list(layout.segments_folder(topic, partition) + "/"):
        name = layout.parse_segment_name(info.key.rpartition("/")[2])
        if name is not None and name.number >= upto:
            break
        if name is not None:
            found.append((name.number, info.key))
    return found


def segments_from(store: Store, topic: str, partition: int, number: int) -> int:
    """How many of a partition's segment files have this number or a higher one."""
    folder = layout.segments_folder(topic, partition) + "/"
    after = f"{folder}{number:020d}"  # names go on with a hash
    names = (info.key.rpartition("/")[2] for info in store.list(folder, after))
    return sum(layout.parse_segment_name(name) is not None for name in names)
