"""One number over all heads, watermarks, policies and spaces, so that the log's own row vouches for every one of them.

Such a row is stamped by itself; an attacker who can write the file could put a single partition's older head back and
cut its entries to fit, or a topic's older policy, and have its records expire. The sum over all of them, kept in the
log's row and changed with every commit, does not fit then. Each row weighs as much as the keyed hash of its stamp; sums
are modulo 2²⁵⁶, so a change costs one hash however many partitions there are. A row that is gone has no stamp (`GONE`)
and weighs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from holdfast.crypto.vault import Vault


SUM_BYTES = 32
MODULUS = 1 << (8 * SUM_BYTES)
GONE = b""
_CONTEXT = b"holdfast 1 heads|"

Vouched = tuple[Literal["head", "watermark", "policy", "space"], int]
"""A row in the sum: of which kind, and the id of its partition, topic or space."""


def weight_of(stamp_of: Callable[[bytes], bytes], stamp: bytes) -> int:
    """What one row adds to the sum."""
    return int.from_bytes(stamp_of(_CONTEXT + stamp), "little")


def total(stamp_of: Callable[[bytes], bytes], stamps: Iterable[bytes]) -> bytes:
    """The sum over rows with these stamps."""
    return (sum(weight_of(stamp_of, stamp) for stamp in stamps) % MODULUS).to_bytes(SUM_BYTES, "little")


def moved(stamp_of: Callable[[bytes], bytes], before: bytes, changes: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A sum once rows with the first of these stamps have the second."""
    total = int.from_bytes(before, "little")
    for old, new in changes:
        total += weight_of(stamp_of, new) - weight_of(stamp_of, old)
    return (total % MODULUS).to_bytes(SUM_BYTES, "little")


class StateDigest:
    """The sum as the writer keeps it: proposed with a commit, accepted after it."""

    def __init__(self, vault: Vault, stamps: Mapping[Vouched, bytes]) -> None:
        self._vault = vault
        self._stamps = dict(stamps)
        self._weigh_anew()

    def _weigh_anew(self) -> None:
        """Under a new key epoch every row weighs anew."""
        self._epoch = self._vault.epoch
        self._weights = {row: weight_of(self._vault.stamp, stamp) for row, stamp in self._stamps.items()}
        self._sum = sum(self._weights.values()) % MODULUS

    def propose(self, changed: Mapping[Vouched, bytes]) -> bytes:
        """The sum once these rows have these stamps, or are gone."""
        if self._epoch != self._vault.epoch:
            self._weigh_anew()
        stamp_of, weights = self._vault.stamp, self._weights
        proposed, total = {}, self._sum
        for row, stamp in changed.items():
            weight = proposed[row] = weight_of(stamp_of, stamp) if stamp else 0
            total += weight - weights.get(row, 0)
        self._proposed, self._proposed_stamps = proposed, changed
        self._proposed_sum = total % MODULUS
        return self._proposed_sum.to_bytes(SUM_BYTES, "little")

    def accept(self) -> None:
        """What was proposed last is durable."""
        self._sum = self._proposed_sum
        self._weights.update(self._proposed)
        self._stamps.update(self._proposed_stamps)
        if GONE in self._proposed_stamps.values():
            for row in [row for row, stamp in self._proposed_stamps.items() if not stamp]:
                del self._stamps[row], self._weights[row]
