"""What the parts of shipping share while a log is open: the log, its store, how it is set, and what is counted."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.clock import Clock
from holdfast.journal.journal import Journal
from holdfast.root.root_store import RootStore
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.shipping.events import EventSubscribers
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.shipping.shipping_stats import ShippingCounters


class ShippingContext(NamedTuple):
    """Made by the shipper, and never changed."""

    journal: Journal
    manifest: Manifest
    store: RootStore
    settings: ShippingSettings
    clock: Clock
    counters: ShippingCounters
    subscribers: EventSubscribers
