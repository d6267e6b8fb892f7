"""The ids that a channel remembers, as a log keeps them: the newest in the snapshot, the others in blocks.

Every commit writes the snapshot, so an id more costs nothing but its bytes; 32 of them become a block, which is written
once and removed whole, when all of them are forgotten. So nothing is rewritten, however many there are.

A block is due until a commit with it is known to be stored: the ids in it left the snapshot with that commit. What a
failed commit was to keep is repeated by the next commit; what is here already is not put a second time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from holdfast.channels.keeping.snapshot import KnownMessage
from holdfast.channels.keeping.storage import encode_known

BLOCK_IDS = 32
"""So many ids make a block."""


class KnownBlocks:
    """The blocks of one channel, by number, and what is to become the next one."""

    def __init__(self) -> None:
        self._sizes: deque[tuple[int, int]] = deque()
        """Number and size of each block, oldest first."""
        self._count = 0
        """How many ids the blocks hold."""
        self._next = 1
        self._unsettled: dict[int, tuple[bytes, frozenset[str]]] = {}
        """Blocks that are not known to be stored, with their ids."""
        self._under_way: set[int] = set()
        self._ids: set[str] = set()
        self.newest = b""
        """What the snapshot carries."""

    def found(self, number: int, count: int) -> None:
        """A block was loaded."""
        self._sizes.append((number, count))
        self._count += count
        self._next = number + 1

    def add(self, known: KnownMessage) -> None:
        """Remember an id behind the others."""
        message_id = known.message_id
        if message_id in self._ids:
            return
        if self._unsettled and any(message_id in ids for _, ids in self._unsettled.values()):
            return
        self._ids.add(message_id)
        self.newest += encode_known(known)
        if len(self._ids) == BLOCK_IDS:
            self._unsettled[self._next] = self.newest, frozenset(self._ids)
            self._sizes.append((self._next, BLOCK_IDS))
            self._count += BLOCK_IDS
            self._next, self._ids, self.newest = self._next + 1, set(), b""

    def trim(self, most: int) -> list[int]:
        """No more than so many ids need to be kept, the newest ones; tells which blocks go."""
        gone = []
        while self._sizes and self._count + len(self._ids) - self._sizes[0][1] >= most > 0:
            number, size = self._sizes.popleft()
            self._count -= size
            self._unsettled.pop(number, None)
            gone.append(number)
        return gone

    def due(self) -> dict[int, bytes]:
        """Blocks to put with the next commit."""
        return {number: body for number, (body, _) in self._unsettled.items() if number not in self._under_way}

    def hand_over(self, numbers: Iterable[int]) -> None:
        """A commit with these blocks is under way."""
        self._under_way.update(numbers)

    def settle(self, numbers: Iterable[int], *, is_stored: bool) -> None:
        """What became of a commit with these blocks."""
        self._under_way.difference_update(numbers)
        if is_stored:
            for number in numbers:
                self._unsettled.pop(number, None)
