"""Where a table lies, as executors must know it. No secret is in it: settings only name where credentials are found."""

from __future__ import annotations

import msgspec

from holdfast.clock import SystemClock
from holdfast.root.shared_stores import shared_store
from holdfast.store.port import Store
from holdfast.store.store_settings import StoreSettings


class TablePlace(msgspec.Struct, frozen=True):
    """A table of a pipeline."""

    url: str
    """The folder or the bucket of all tables."""
    settings: StoreSettings
    name: str

    def store(self) -> Store:
        """The store of all tables, opened once per process."""
        return shared_store(self.url, self.settings, SystemClock())

    def _where(self) -> tuple[str, str]:
        """For errors: the tables, and the endpoint or an empty string."""
        return self.url, self.settings.endpoint
