"""From a store's address to what the shipper needs: the store itself, and its connections on the loop."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.clock import Clock
from holdfast.shipping.remote import Remote, StoreRemote
from holdfast.shipping.settings import ShippingSettings
from holdfast.store.address import parse_url
from holdfast.store.opening import open_store
from holdfast.store.port import Store
from holdfast.store.settings import StoreSettings

_THREADS_MAX = 16


def open_any_store(url: str, settings: StoreSettings, clock: Clock) -> Store:
    """The store at a URL, for reading and writing; credentials by the settings' reference."""
    credentials = None
    if parse_url(url).scheme == "s3":
        from holdfast.shipping.s3.credentials import CredentialSource

        source = CredentialSource(settings.credentials)
        credentials = source.as_obstore()
        settings = msgspec.structs.replace(settings, region=settings.region or source.region() or "")
    return open_store(url, settings, clock, credentials=credentials)


def remote_for(
    url: str, store: Store, settings: StoreSettings, shipping: ShippingSettings, clock: Clock
) -> Callable[[], Remote]:
    """How the shipper's thread makes its connections: a pool of its own for S3, a few threads for all others."""
    address = parse_url(url)
    if address.scheme != "s3":
        return lambda: StoreRemote(store, min(_THREADS_MAX, shipping.max_in_flight_requests))

    def connect() -> Remote:
        from holdfast.shipping.s3.credentials import CredentialSource
        from holdfast.shipping.s3.remote import S3Address, S3Remote

        place = S3Address(
            address.place, address.prefix, settings.endpoint, settings.region, settings.is_path_style, settings.ca_file
        )
        return S3Remote(
            place,
            CredentialSource(settings.credentials),
            pool_size=shipping.pool_size,
            request_timeout=shipping.request_timeout_ms / 1000,
            connect_timeout=shipping.connect_timeout_ms / 1000,
            heartbeat=shipping.heartbeat_interval_ms / 1000,
            clock=clock,
        )

    return connect
