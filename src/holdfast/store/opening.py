"""Opening a store by its URL: the only place that knows which kinds there are.

Nothing is asked of the store yet, so a log opens while its store is away; what does not depend on it (a URL that means
nothing, settings that contradict each other) is refused here. obstore is loaded only for what needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.clock import Clock
from holdfast.store.address import parse_url
from holdfast.store.directory import DirectoryStore
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.settings import StoreSettings


def open_store(
    url: str, settings: StoreSettings, clock: Clock, *, credentials: Callable[[], Any] | None = None
) -> Store:
    """The store at a URL (or at `settings.url`, when that is empty); raises Invalid when it is none.

    `credentials` is asked for credentials as obstore's providers are; None leaves that to obstore's own chain.
    """
    address = parse_url(url or settings.url)
    if address.scheme == "file":
        return DirectoryStore(Path(address.place), clock)
    if address.scheme == "memory":
        return MemoryStore.named(address.place, clock)
    from holdfast.store.objects import ObjectStore

    return ObjectStore(address.url, settings, credentials)


def open_any_store(url: str, settings: StoreSettings, clock: Clock) -> Store:
    """The store at a URL, for reading and writing; credentials by the settings' reference."""
    credentials = None
    if parse_url(url).scheme == "s3":
        from holdfast.store.credentials import CredentialSource

        source = CredentialSource(settings.credentials)
        credentials = source.as_obstore()
        settings = msgspec.structs.replace(settings, region=settings.region or source.region() or "")
    return open_store(url, settings, clock, credentials=credentials)
