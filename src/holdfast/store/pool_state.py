"""What a pool of connections says about itself."""

from __future__ import annotations

import msgspec


class PoolState(msgspec.Struct, frozen=True):
    """Connections at one moment: true sockets, each counted once."""

    target: int = 0
    """How many are wanted."""
    healthy: int = 0
    """Open and answering, in use or not."""
    in_use: int = 0
    """With a request under way."""
    opening: int = 0
    """Being opened."""
    replaced_total: int = 0
    """Connections that failed and were taken out."""
    heartbeats_total: int = 0
    """Probes of idle connections."""
    beside: int = 0
    """Open besides these, for listings, removals and the like, which run in threads of their own."""
