"""What can happen to a disk between two syncs, as values, and what each does to an image of it.

A file is an inode: names come and go, content stays with the inode, as on a real filesystem. That is what
makes "the rename was durable but the content was not" something one can say. So a picture of the disk is two
maps, name to inode and inode to content, and a change touches one of the two. The recording keeps one
picture (what is certainly durable); a power cut paints others (what might be found afterwards) by applying
some of the changes that were under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

SECTOR = 512
"""The unit a disk writes whole or not at all."""


@dataclass(frozen=True, slots=True)
class WriteChange:
    """Bytes put into a file, which grows with zeros if it has to."""

    inode: int
    name: str
    offset: int
    data: bytes

    @property
    def sectors(self) -> range:
        """The numbers of the file's sectors that this write touches."""
        end = self.offset + len(self.data)
        return range(self.offset // SECTOR, -(-end // SECTOR))

    def part(self, sector: int) -> WriteChange:
        """Only what falls into one sector."""
        start = max(self.offset, sector * SECTOR)
        stop = min(self.offset + len(self.data), (sector + 1) * SECTOR)
        return WriteChange(self.inode, self.name, start, self.data[start - self.offset : stop - self.offset])

    def __str__(self) -> str:
        return f"write {self.name} {self.offset}+{len(self.data)}"


@dataclass(frozen=True, slots=True)
class TruncateChange:
    """A file was cut or extended to a size."""

    inode: int
    name: str
    size: int

    def __str__(self) -> str:
        return f"truncate {self.name} to {self.size}"


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A name appeared."""

    name: str
    inode: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names it touches."""
        return (self.name,)

    def __str__(self) -> str:
        return f"create {self.name}"


@dataclass(frozen=True, slots=True)
class UnlinkChange:
    """A name disappeared."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names it touches."""
        return (self.name,)

    def __str__(self) -> str:
        return f"delete {self.name}"


@dataclass(frozen=True, slots=True)
class RenameChange:
    """A name moved, at once and whole; whatever had the target's name lost it."""

    source: str
    target: str
    inode: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names it touches."""
        return (self.source, self.target)

    def __str__(self) -> str:
        return f"rename {self.source} to {self.target}"


DataChange = WriteChange | TruncateChange
NameChange = LinkChange | UnlinkChange | RenameChange
Change = DataChange | NameChange


def change_data(image: bytearray, change: DataChange) -> None:
    """Do to one file's content what the change says."""
    if isinstance(change, TruncateChange):
        del image[change.size :]
        image.extend(bytes(change.size - len(image)))
        return
    image.extend(bytes(max(0, change.offset - len(image))))
    image[change.offset : change.offset + len(change.data)] = change.data


def change_names(names: dict[str, int], change: NameChange) -> None:
    """Do to the names what the change says."""
    match change:
        case LinkChange(name, inode):
            names[name] = inode
        case UnlinkChange(name):
            names.pop(name, None)
        case RenameChange(source, target, inode):
            # The source may meanwhile be another file's name, when an earlier change did not survive.
            if names.get(source) == inode:
                del names[source]
            names[target] = inode
            for below in [name for name in names if name.startswith(source + "/")]:
                names[target + below[len(source) :]] = names.pop(below)


def reachable(names: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    """The names whose directories all exist: a file in a directory that was lost is lost with it."""
    for name, inode in names.items():
        if all(str(above) in names for above in PurePosixPath(name).parents if str(above) != "."):
            yield name, inode
