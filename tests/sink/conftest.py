"""A root in memory, and no pauses."""

from __future__ import annotations

import pytest

from tests.sink.sinks import Place


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("holdfast.store.repeated_create._CREATE_PAUSES_S", (0.0,) * 4)
    return Place()
