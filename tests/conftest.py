"""Fixtures that most tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.testing.manual_clock import ManualClock


@pytest.fixture
def keyring() -> Keyring:
    return Keyring.generate(clock=ManualClock(seed=7))


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[..., Log]]:
    """Open logs below tmp_path; whatever is still open is closed at the end."""
    opened: list[Log] = []

    def open_one(name: str = "log", **options: object) -> Log:
        journal = options.pop("journal", {})
        settings = options.pop("settings", None) or Settings.from_mapping({"journal": journal})
        log = holdfast.open(tmp_path / name, settings=settings, **options)
        opened.append(log)
        return log

    yield open_one
    for log in opened:
        try:
            log.close()
        except holdfast.HoldfastError:
            pass
