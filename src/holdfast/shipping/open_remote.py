"""From a store's address to what the shipper needs: its connections on the loop."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.root.root_store import RootStore
from holdfast.shipping.remote_store import Remote, RootRemote, StoreRemote
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.store.address import parse_url
from holdfast.store.port import Store
from holdfast.store.store_settings import StoreSettings

_THREADS_MAX = 16


def remote_for(
    url: str, store: RootStore, settings: StoreSettings, shipping: ShippingSettings, clock: Clock
) -> Callable[[], Remote]:
    """How the shipper's thread reaches the root: by a pool of its own for S3, by a few threads for all others."""
    connect = _connections(url, store.files, settings, shipping, clock)
    return lambda: RootRemote(connect(), store.trust)


def _connections(
    url: str, store: Store, settings: StoreSettings, shipping: ShippingSettings, clock: Clock
) -> Callable[[], Remote]:
    address = parse_url(url)
    if address.scheme != "s3":
        return lambda: StoreRemote(store, min(_THREADS_MAX, shipping.max_in_flight_requests))

    def connect() -> Remote:
        from holdfast.store.s3.s3_store import S3Store

        # What one learns of the store, the other knows: threads and loop speak to it as one.
        whole = store if isinstance(store, S3Store) else S3Store(address, settings, clock)
        return whole.remote(
            pool_size=shipping.pool_size,
            request_timeout=shipping.request_timeout_ms / 1000,
            connect_timeout=shipping.connect_timeout_ms / 1000,
            heartbeat=shipping.heartbeat_interval_ms / 1000,
        )

    return connect
