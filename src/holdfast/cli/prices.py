"""What shipping costs at list price, for eyes and for JSON.

The numbers are those of `shipping/cost.py`: what the settings allow while records come all the time, not what a log has
spent. A directory costs nothing, and says so.
"""

from __future__ import annotations

import msgspec

from holdfast.shipping import cost
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store.address import parse_url

_MONTH_S = 30 * 24 * 3600
_FREE = ("file", "memory")


class Cost(msgspec.Struct, frozen=True):
    """Commit batches at the pace that the settings allow, and their list price."""

    profile: str
    """Its name, or empty."""
    batch_timeout_ms: float
    puts_per_second: float
    """While records come all the time."""
    puts_per_month: int
    """Of 30 days."""
    dollars_per_month: float
    """At the list price of S3."""

    def words(self, store: str | None) -> str:
        """In one line."""
        if not self.puts_per_month:
            return "no commit batches: only sealed segments are shipped, two PUTs each"
        rate = f"about {self.puts_per_second:g} PUTs per second while records come all the time"
        if store and parse_url(store).scheme in _FREE:
            return f"{rate}; they cost nothing here, and {dollars(self.dollars_per_month)} a month on S3 at list price"
        return f"{rate}: {dollars(self.dollars_per_month)} a month on S3 at list price"


def cost_of(settings: ShippingSettings) -> Cost:
    """What these settings allow."""
    puts = cost.monthly_puts(settings)
    return Cost(
        settings.profile,
        settings.batch_timeout_ms,
        round(puts / _MONTH_S, 3),
        puts,
        round(cost.monthly_dollars(settings), 2),
    )


def dollars(amount: float) -> str:
    """Money as people write it; a fraction of a cent is not shown as nothing."""
    return f"${amount:,.2f}" if amount >= 0.01 or not amount else f"${amount:.6f}"
