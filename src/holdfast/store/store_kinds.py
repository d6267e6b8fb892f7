"""Opening a store by its URL: the only place that knows which kinds there are.

No request is sent yet, so a log opens while its store is unreachable; what does not depend on it (a URL that means
nothing, settings that contradict each other) is refused here. Each client is loaded only for what needs it: our own for
S3 and its kin, obstore for other clouds. No root is spoken to by two.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import Invalid
from holdfast.store.address import parse_url
from holdfast.store.directory import DirectoryStore
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Store
from holdfast.store.store_settings import StoreSettings


def open_store(url: str, settings: StoreSettings, clock: Clock) -> Store:
    """The store at a URL (or at `settings.url`, when that is empty); raises Invalid when it is none.

    Credentials for S3 are found by the settings' reference, those of other clouds by obstore's own chain.
    """
    address = parse_url(url or settings.url)
    if address.scheme == "file":
        return DirectoryStore(Path(address.place), clock)
    if address.scheme == "memory":
        return MemoryStore.named(address.place, clock)
    if address.scheme == "s3":
        from holdfast.store.s3.s3_store import S3Store

        return S3Store(address, settings, clock)
    try:
        from holdfast.store.cloud import ObjectStore
    except ImportError as error:
        extra = "gcs" if address.scheme == "gs" else "azure"
        raise Invalid(f"this store needs the extra {extra!r}", hint=f"pip install 'holdfast-log[{extra}]'") from error
    return ObjectStore(address.url, settings)


def open_any_store(url: str, settings: StoreSettings, clock: Clock) -> Store:
    """The store at a URL, for reading and writing."""
    return open_store(url, settings, clock)
