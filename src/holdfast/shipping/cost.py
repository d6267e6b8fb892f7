"""What the store's requests cost at list price: counted as they are made, and estimated from the settings.

Prices are those of `store/request_prices.py`: orientation, not accounting. Counting is in whole billionths of a dollar
and never drifts.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store.request_prices import PRICES, Request

_MONTH_MS = 30 * 24 * 3600 * 1000


class Counter:
    """Requests by kind since it was made. One thread counts; any may look."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: dict[Request, int] = dict.fromkeys(PRICES, 0)

    def add(self, request: Request, count: int = 1) -> None:
        """Requests were made; a failed attempt is billed like any other."""
        self._requests[request] += count

    @property
    def requests(self) -> dict[Request, int]:
        """How many of each kind."""
        return dict(self._requests)

    @property
    def dollars(self) -> float:
        """What they cost at list price."""
        return dollars(self._requests)


def dollars(requests: Mapping[Request, int]) -> float:
    """What requests cost at list price."""
    return sum(PRICES[request] * count for request, count in requests.items()) / 1e9


def monthly_puts(settings: ShippingSettings) -> int:
    """Commit batches in 30 days of steady appends at one per `batch_timeout_ms`, the rate that the timeout sets.

    Thresholds that are reached sooner, and a store that answers sooner than the timeout (nothing is in flight then,
    so the next batch goes at once), make more of them; pauses between appends make fewer.
    """
    return int(_MONTH_MS / settings.batch_timeout_ms) if settings.commit_batches else 0


def monthly_dollars(settings: ShippingSettings) -> float:
    """What `monthly_puts` cost at list price."""
    return monthly_puts(settings) * PRICES["put"] / 1e9
