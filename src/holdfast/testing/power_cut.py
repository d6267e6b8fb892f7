"""A power cut: one moment of a recorded disk, and the states the disk may legally be found in afterwards.

A `PowerCut` is a value: what was certainly durable at that moment, and the ordered changes that nobody had
synced. It keeps no reference to the disk it came from. From it follow the legal `State`s: every choice of
which changes had reached the disk by themselves. Programs break in different places, so five kinds are
made, in this order of interest:

* nothing unsynced survived, and everything did;
* every prefix, as if the disk wrote in order and was stopped;
* every prefix whose last write is torn at a sector boundary;
* random choices: writes lost out of the middle, single sectors missing, names ahead of their content.

What is *not* legal, and never produced: a sector that holds a later write but not an earlier one to the
same sector (a page cache holds one version of it), damage to bytes nobody wrote, and loss of anything synced.
Names are free: no order among creations, deletions and renames is assumed, and none against content.

Everything is computed on demand. A state's cost is that of the files it changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from holdfast.errors import Invalid
from holdfast.testing.disk_change import Change, TruncateChange, WriteChange, change_data, change_names, reachable

Survivors = Mapping[int, frozenset[int] | None]
"""Which pending changes survived, by index; for a torn write, which of its sectors."""

_RANDOM_TRIES = 4  # how many random choices are drawn per state asked for, since many turn out alike
_DESCRIBED_MAX = 12


@dataclass(frozen=True, slots=True)
class State:
    """One state the disk may be found in: files by their name below the root, and how it came about."""

    files: Mapping[str, bytes]
    directories: tuple[str, ...]
    label: str
    pending: tuple[Change, ...]
    survivors: Survivors

    def materialise(self, target: Path) -> Path:
        """Write the files into a directory, which is created and must be empty; returns it."""
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()):
            raise Invalid(f"a state needs an empty directory target={target}")
        for name in sorted(self.directories):
            (target / name).mkdir()
        for name, content in self.files.items():
            (target / name).write_bytes(content)
        return target

    def describe(self) -> str:
        """What survived and what was lost, for the message of a failed assertion."""
        described = [_described(change, self.survivors.get(index)) for index, change in enumerate(self.pending)]
        survived = [what for index, what in enumerate(described) if index in self.survivors]
        lost = [what for index, what in enumerate(described) if index not in self.survivors]
        return f"{self.label}; survived: {_listed(survived)}; lost: {_listed(lost)}"


@dataclass(frozen=True, slots=True)
class PowerCut:
    """The durable names and contents at one moment, and the changes that were pending."""

    names: Mapping[str, int]
    contents: Mapping[int, bytes | None]
    pending: tuple[Change, ...]

    def states(self, limit: int = 64, seed: int = 0) -> Iterator[State]:
        """Yield at most `limit` different legal states; the same seed yields the same ones.

        First "nothing survived", then "everything survived", unless that is the same.
        """
        seen: set[int] = set()
        for label, survivors in self._choices(limit, Random(seed)):
            if len(seen) >= limit:
                return
            state = self._state(label, survivors)
            fingerprint = hash((frozenset(state.files.items()), frozenset(state.directories)))
            if fingerprint not in seen:
                seen.add(fingerprint)
                yield state

    def _choices(self, limit: int, random: Random) -> Iterator[tuple[str, Survivors]]:
        count = len(self.pending)
        yield "nothing unsynced survived", {}
        yield "everything survived", _whole(range(count))
        # Taken in turns and each in random order, so that a small limit still sees some of every kind.
        kinds = [self._prefixes(random), self._torn(random), self._drawn(limit, random)]
        for turn in itertools.zip_longest(*kinds):
            yield from (choice for choice in turn if choice is not None)

    def _prefixes(self, random: Random) -> Iterator[tuple[str, Survivors]]:
        count = len(self.pending)
        for length in random.sample(range(count), count):
            yield f"the first {length} of {count} changes survived", _whole(range(length))

    def _torn(self, random: Random) -> Iterator[tuple[str, Survivors]]:
        places = [
            (index, boundary)
            for index, change in enumerate(self.pending)
            if isinstance(change, WriteChange)
            for boundary in change.sectors[1:]
        ]
        for index, boundary in random.sample(places, len(places)):
            change = self.pending[index]
            assert isinstance(change, WriteChange)
            kept = frozenset(range(change.sectors.start, boundary))
            label = f"the first {index + 1} of {len(self.pending)} changes survived, the last one torn"
            yield label, {**_whole(range(index)), index: kept}

    def _drawn(self, limit: int, random: Random) -> Iterator[tuple[str, Survivors]]:
        for _ in range(limit * _RANDOM_TRIES if self.pending else 0):
            yield "a random choice survived", self._draw(random)

    def _draw(self, random: Random) -> Survivors:
        keep_change, keep_sector = random.choice((0.2, 0.5, 0.9)), random.choice((0.5, 0.9, 1.0))
        survivors: dict[int, frozenset[int] | None] = {}
        stale: set[tuple[int, int]] = set()
        for index, change in enumerate(self.pending):
            kept = random.random() < keep_change
            if not isinstance(change, WriteChange):
                if kept:
                    survivors[index] = None
                continue
            # Once a sector missed a write it keeps its old version: later writes to it are lost as well.
            sectors = {sector for sector in change.sectors if kept and random.random() < keep_sector}
            sectors = {sector for sector in sectors if (change.inode, sector) not in stale}
            stale.update((change.inode, sector) for sector in change.sectors if sector not in sectors)
            if sectors:
                survivors[index] = None if len(sectors) == len(change.sectors) else frozenset(sectors)
        return survivors

    def _state(self, label: str, survivors: Survivors) -> State:
        names, contents = dict(self.names), dict(self.contents)
        images: dict[int, bytearray] = {}
        for index in sorted(survivors):
            for change in _parts(self.pending[index], survivors[index]):
                if isinstance(change, WriteChange | TruncateChange):
                    if change.inode not in images:
                        images[change.inode] = bytearray(contents[change.inode] or b"")
                    change_data(images[change.inode], change)
                else:
                    change_names(names, change)
        contents.update({inode: bytes(image) for inode, image in images.items()})
        found = [(name, contents[inode]) for name, inode in reachable(names)]
        return State(
            files={name: content for name, content in found if content is not None},
            directories=tuple(name for name, content in found if content is None),
            label=label,
            pending=self.pending,
            survivors=survivors,
        )


def _whole(indexes: Iterable[int]) -> dict[int, frozenset[int] | None]:
    return dict.fromkeys(indexes)


def _parts(change: Change, sectors: frozenset[int] | None) -> Iterable[Change]:
    if sectors is None or not isinstance(change, WriteChange):
        return (change,)
    return (change.part(sector) for sector in sorted(sectors))


def _described(change: Change, sectors: frozenset[int] | None) -> str:
    return str(change) if sectors is None else f"{change} (only sectors {sorted(sectors)})"


def _listed(items: list[str]) -> str:
    more = len(items) - _DESCRIBED_MAX
    return ", ".join((*items[:_DESCRIBED_MAX], *([f"and {more} more"] if more > 0 else []))) or "nothing"
