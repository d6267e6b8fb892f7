"""Which segments readers still need: what their leases say, as far as it makes sense.

Leases are not signed, since readers may have no key; a forged one can delay a removal, for as long as the caller lets
it, and do nothing else. Nothing here is written.
"""

from __future__ import annotations

import logging

from holdfast.clock import Clock
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.root.objects import documents
from holdfast.root.objects.documents import LeaseDocument
from holdfast.store import layout
from holdfast.store.port import Store

_KNOWN_S = 30.0

logger = logging.getLogger("holdfast.shipping")


class KnownLeases:
    """What leases say, looked up once for many partitions, and again after a while."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._known: tuple[float, int, dict[tuple[str, int], int]] | None = None

    def needed(self, now_us: int) -> dict[tuple[str, int], int]:
        """What readers need at this time. What was looked up by an earlier one has all of that, and serves."""
        known, at = self._known, self._clock.monotonic()
        if known is None or at - known[0] > _KNOWN_S or known[1] > now_us:
            known = self._known = at, now_us, needed(self._store, now_us)
        return known[2]


def needed(store: Store, now_us: int) -> dict[tuple[str, int], int]:
    """The lowest segment of each partition that some reader's lease still needs."""
    present: dict[str, tuple[int, str]] = {}
    for info in store.list(layout.LEASES):
        parsed = layout.parse_lease_key(info.key)
        if parsed is not None:
            present[parsed[0]] = max(present.get(parsed[0], (-1, "")), (parsed[1], info.key))
    lowest: dict[tuple[str, int], int] = {}
    for _, key in present.values():
        for place, number in _needs(store, key, now_us).items():
            lowest[place] = min(lowest.get(place, number), number)
    return lowest


def _needs(store: Store, key: str, now_us: int) -> dict[tuple[str, int], int]:
    """What one lease needs; nothing where it has ended, or makes no sense."""
    try:
        lease = documents.decode(store.get(key), key, LeaseDocument)
        if lease.until_us <= now_us:
            return {}
        return {(topic, int(part)): number for topic, parts in lease.needs.items() for part, number in parts.items()}
    except NotFound:  # its reader has renewed or dropped it
        return {}
    except (Corrupt, Invalid, ValueError):
        logger.warning("a lease makes no sense and is ignored key=%s", key, extra={"action": "lease_damaged"})
        return {}
