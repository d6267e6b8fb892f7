"""pytest fixtures for users of holdfast; switch off with `-p no:holdfast`.

`holdfast_log` is an open log in a temporary directory, `holdfast_clock` the ManualClock that it uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

if TYPE_CHECKING:
    from holdfast.log.log import Log
    from holdfast.testing.manual_clock import ManualClock


@pytest.fixture
def holdfast_clock() -> ManualClock:
    """A clock that moves only by hand."""
    from holdfast.testing.manual_clock import ManualClock

    return ManualClock()


@pytest.fixture
def holdfast_log(tmp_path: Path, holdfast_clock: ManualClock) -> Iterator[Log]:
    """An open log in a temporary directory, closed after the test."""
    import holdfast

    defaults = msgspec.to_builtins(holdfast.Settings())  # every key by name: neither file nor environment add any
    with holdfast.open(tmp_path / "log", clock=holdfast_clock, settings=defaults) as log:
        yield log
