"""What commit batches a store's root holds, from its listing alone: pure, for the shipper's start and for restore.

Batches are named by their sequence numbers, without gaps inside an epoch. Where one is missing, either it never
arrived, or everything up to there is settled and it was removed (a floor says so). A restart begins a new epoch and may
repeat numbers. A takeover says which of the older batches it adopted; the rest is garbage of a writer that was
overtaken. So the frontier is found by walking: what is connected to the floor counts, what is behind a hole does not.

A takeover may be overtaken before it has adopted anything, and still write its adoption afterwards. That one says too
little, because it looked earlier. So the next takeover first writes an adoption in the name of those before it
(`takeover`), and of two adoptions in one epoch the higher one counts. The lowest of all later epochs is the limit:
nobody adopts beyond what the others left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from holdfast.store import layout
from holdfast.store.layout import BatchName
from holdfast.store.port import ObjectInfo


class TailListing(NamedTuple):
    """The commit batches of a root, as far as their names tell."""

    floor: int
    """Everything up to here is settled."""
    frontier: int
    """Everything up to here is on the store."""
    batches: tuple[tuple[str, BatchName], ...]
    """Keys of the batches that count, ordered by sequence number; the last one of each as far as it was adopted."""
    beyond: tuple[str, ...]
    """Keys of batches behind a hole, or not adopted: they were never acknowledged."""
    floors: tuple[str, ...]
    """Keys of floors."""
    adopted: tuple[tuple[int, int], ...] = ()
    """Epochs that were taken over, ascending, each with the sequence number up to which it adopted older batches."""
    keys: tuple[tuple[ObjectInfo, BatchName], ...] = ()
    """Objects of idempotency keys, by their last sequence number, and whose commits they are for as far as adopted."""

    @property
    def key_runs(self) -> list[tuple[int, int]]:
        """The first and last commit of each stretch that objects of keys cover without a hole, in order."""
        runs: list[tuple[int, int]] = []
        for first, last in sorted((max(1, name.first_seq), max(1, name.last_seq)) for _, name in self.keys):
            if runs and first <= runs[-1][1] + 1:
                runs[-1] = runs[-1][0], max(runs[-1][1], last)
            else:
                runs.append((first, last))
        return runs


def inherit(listing: Iterable[ObjectInfo]) -> TailListing:
    """Walk a listing of `tail/`."""
    found: list[tuple[str, BatchName]] = []
    floors: list[tuple[int, int, str]] = []
    adopted: dict[int, int] = {}
    remembered: list[tuple[ObjectInfo, BatchName]] = []
    for info in listing:
        if (batch := layout.parse_batch_key(info.key)) is not None:
            found.append((info.key, batch))
        elif (parsed := layout.parse_floor_key(info.key)) is not None:
            floors.append((*parsed, info.key))
        elif (parsed := layout.parse_adopted_key(info.key)) is not None:
            epoch, seq = parsed
            adopted[epoch] = max(adopted.get(epoch, seq), seq)
        elif (name := layout.parse_keys_key(info.key)) is not None:
            remembered.append((info, name))
    limits = _Limits(adopted)
    # A floor that a writer put there after it was overtaken says nothing about what its successor wrote.
    floor = frontier = max((limits.of(epoch, seq) for epoch, seq, _ in floors), default=0)
    counting, beyond = [], []
    for key, batch in sorted(found, key=lambda item: (item[1].first_seq, item[1].last_seq, item[1].epoch)):
        last = limits.of(batch.epoch, batch.last_seq)
        if batch.first_seq > min(frontier + 1, last):
            beyond.append(key)
            continue
        frontier = max(frontier, last)
        counting.append((key, batch._replace(last_seq=last)))
    keys = tuple(key for *_, key in floors)
    return TailListing(
        floor,
        frontier,
        tuple(counting),
        tuple(beyond),
        keys,
        tuple(sorted(adopted.items())),
        tuple(sorted(((info, _limited(name, limits)) for info, name in remembered), key=_by_last_seq)),
    )


def _by_last_seq(item: tuple[ObjectInfo, BatchName]) -> tuple[int, int]:
    return item[1].last_seq, item[1].first_seq


def _limited(name: BatchName, limits: _Limits) -> BatchName:
    """Of keys of commits that were not adopted some may be in segments: those count as the last one that was."""
    last = limits.of(name.epoch, name.last_seq)
    return name._replace(first_seq=min(name.first_seq, last), last_seq=last)


class _Limits:
    """How much of each epoch later takeovers adopted."""

    def __init__(self, adopted: dict[int, int]) -> None:
        self._epochs = sorted(adopted)
        lowest = list(accumulate((adopted[epoch] for epoch in reversed(self._epochs)), min))
        self._lowest = lowest[::-1]
        """What the takeovers from each one on adopted at least."""

    def of(self, epoch: int, seq: int) -> int:
        """A sequence number of an epoch, or less if not all up to it was adopted."""
        at = bisect_right(self._epochs, epoch)
        return min(seq, self._lowest[at]) if at < len(self._epochs) else seq
