"""Stores that are opened once per process, for those who open roots again and again.

A Spark executor runs hundreds of tasks in one process: they share connections and nothing else.
"""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.root.root_place import root_url
from holdfast.store.port import Store
from holdfast.store.store_kinds import open_any_store
from holdfast.store.store_settings import StoreSettings

_opened: dict[tuple[str, StoreSettings], Store] = {}


def shared_store(place: str, settings: StoreSettings, clock: Clock) -> Store:
    """The store at a root, opened once per process."""
    url = root_url(place)
    store = _opened.get((url, settings))
    if store is None:
        store = _opened[url, settings] = open_any_store(url, settings, clock)
    return store
