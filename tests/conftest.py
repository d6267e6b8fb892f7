"""Fixtures that most tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.testing.manual_clock import ManualClock

pytest_plugins = ["pytester", "tests.sampling", "tests.workers"]

_SECTIONS = ("journal", "segments", "retention", "reconcile", "disk", "shipping")


@pytest.fixture(scope="session", autouse=True)
def tails_stay() -> Iterator[None]:
    """Closing leaves the tail in the journal: most tests look at entries. Tests of sealing say so themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_SEGMENTS__SEAL_ON_CLOSE", "false")
        yield


@pytest.fixture
def keyring() -> Keyring:
    return Keyring.generate(clock=ManualClock(seed=7))


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[..., Log]]:
    """Open logs below tmp_path; whatever is still open is closed at the end."""
    opened: list[Log] = []

    def open_one(name: str = "log", **options: object) -> Log:
        sections = {name: options.pop(name) for name in _SECTIONS if name in options}
        sections.setdefault("segments", {"seal_on_close": False})
        settings = options.pop("settings", None) or Settings.from_mapping(sections)
        log = holdfast.open(tmp_path / name, settings=settings, **options)
        opened.append(log)
        return log

    yield open_one
    for log in opened:
        try:
            log.close()
        except holdfast.HoldfastError:
            pass
