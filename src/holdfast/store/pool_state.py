"""What a pool of connections says about itself."""

from __future__ import annotations

import msgspec


class PoolState(msgspec.Struct, frozen=True):
    """Connections at one moment: true sockets, each counted once."""

    target: int = 0
    healthy: int = 0
    """Open and answering, in use or not."""
    in_use: int = 0
    opening: int = 0
    replaced_total: int = 0
    """Connections that failed and were taken out."""
    heartbeats_total: int = 0
    beside: int = 0
    """Open besides these, for listings, removals and the like, which run in threads of their own."""
