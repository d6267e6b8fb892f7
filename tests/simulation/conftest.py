"""How much is explored."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def size(is_sampled: bool, seed: int) -> dict[str, Any]:
    """In the gate fewer schedules, and others for each commit."""
    return {"least": 60, "seconds": 0, "first": seed} if is_sampled else {}
