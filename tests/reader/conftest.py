"""Logs that ship to a directory, which is then read as anybody would: without the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Log, Settings
from holdfast.clock import SystemClock
from holdfast.store.directory import DirectoryStore
from tests.shipping.conftest import QUICK, sweep

__all__ = ["sweep"]

_SECTIONS = ("journal", "segments", "retention", "shipping")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory that logs ship to."""
    return tmp_path / "store"


@pytest.fixture
def shipped_store(root: Path) -> DirectoryStore:
    """The same, as a store."""
    return DirectoryStore(root, SystemClock())


@pytest.fixture
def open_shipped(open_log: Callable[..., Log], root: Path) -> Callable[..., Log]:
    """Open a log that ships to `root`; tails stay in commit batches unless the test seals them."""

    def open_one(name: str = "log", **options: object) -> Log:
        sections: dict[str, object] = {section: options.pop(section, {}) for section in _SECTIONS}
        sections["shipping"] = {**QUICK, **sections["shipping"]}  # type: ignore[dict-item]
        sections["segments"] = {"seal_on_close": False, **sections["segments"]}  # type: ignore[dict-item]
        sections["store"] = {"url": str(root)}
        return open_log(name, settings=Settings.from_mapping(sections), **options)

    return open_one
