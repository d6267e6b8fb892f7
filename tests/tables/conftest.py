"""No test waits between attempts, and checkpoints come often."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.publish.delta import delta_log
from holdfast.store import repeated_create


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated_create, "PAUSES_S", (0.0,) * 5)
        patch.setattr(delta_log, "_CHECKPOINT_LEAST", 3)
        yield
