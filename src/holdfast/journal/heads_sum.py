"""One number over all heads, so that the log's own row vouches for every one of them.

A head is stamped by itself; somebody who can write the file could put a single partition's older head back
and cut its entries to fit. The sum of all heads, kept in the log's row and changed with every commit, does
not fit then. Each head weighs as much as the keyed hash of its stamp; sums are modulo 2²⁵⁶, so a change costs
one hash however many partitions there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from holdfast.crypto.vault import Vault

SUM_BYTES = 32
_MODULUS = 1 << (8 * SUM_BYTES)
_CONTEXT = b"holdfast 1 heads|"


def weigh(stamp_of: Callable[[bytes], bytes], head_stamp: bytes) -> int:
    """What one head adds to the sum."""
    return int.from_bytes(stamp_of(_CONTEXT + head_stamp), "little")


def total(stamp_of: Callable[[bytes], bytes], head_stamps: Iterable[bytes]) -> bytes:
    """The sum over these heads."""
    return (sum(weigh(stamp_of, stamp) for stamp in head_stamps) % _MODULUS).to_bytes(SUM_BYTES, "little")


class HeadsSum:
    """The sum as the writer keeps it: proposed with a commit, accepted after it."""

    def __init__(self, vault: Vault, head_stamps: Mapping[int, bytes]) -> None:
        self._vault = vault
        self._stamps = dict(head_stamps)
        self._weigh_all()

    def _weigh_all(self) -> None:
        """Under a new key epoch every head weighs anew."""
        self._epoch = self._vault.epoch
        self._weights = {number: weigh(self._vault.stamp, stamp) for number, stamp in self._stamps.items()}
        self._sum = sum(self._weights.values()) % _MODULUS

    def propose(self, changed: Mapping[int, bytes]) -> bytes:
        """The sum with these head stamps, by partition id."""
        if self._epoch != self._vault.epoch:
            self._weigh_all()
        self._proposed = {number: weigh(self._vault.stamp, stamp) for number, stamp in changed.items()}
        difference = sum(weight - self._weights.get(number, 0) for number, weight in self._proposed.items())
        self._proposed_sum = (self._sum + difference) % _MODULUS
        self._proposed_stamps = changed
        return self._proposed_sum.to_bytes(SUM_BYTES, "little")

    def accept(self) -> None:
        """What was proposed last is durable."""
        self._sum = self._proposed_sum
        self._weights.update(self._proposed)
        self._stamps.update(self._proposed_stamps)
