"""Fixtures of tests with channels."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Disks that refuse are logged, as they should be: here they are many."""
    logger = logging.getLogger("holdfast.channels")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)
